//! Waiting: three policies, one descriptor, and no lost wake-up.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::sleeps::Arms;
use crate::common::{FEW_SLEEPS, Limit, config, jobs, join, run, run_over};
use rustix::event::epoll;
use tautline::{Config, DeviceName, Endpoint, Message, Short, Waiting};

/// Longer than a test may take: a timer that expires so late hides no lost wake-up.
const NEVER: u64 = 3_600_000_000_000;

/// An endpoint that counts the messages to "ping".
fn pinged(job: tautline::Job, config: Config) -> (Endpoint, Rc<Cell<u64>>) {
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    let builder = Endpoint::builder().on_short("ping", move |_: Short<'_>| seen.set(seen.get() + 1));
    (join(builder.config(config), job), count)
}

/// Plays ping-pong over one device; `wait` is called while a message is missing, and `before` before each
/// message is sent. Returns the sleeps inside the library of both sides. Prints the longest round trip except
/// the first.
fn ping_pong_over(
    device: DeviceName,
    rounds: u64,
    configs: &[Config; 2],
    before: impl Fn(&Endpoint, u64) + Sync,
    wait: impl Fn(&Endpoint, &dyn Fn() -> bool) + Sync,
) -> u64 {
    let (worst, sleeps) = (Mutex::new(Duration::ZERO), AtomicU64::new(0));
    run_over(device, 2, |job| {
        let config = configs[job.rank as usize].clone();
        let (ep, count) = pinged(job, config);
        let other = 1 - ep.rank();
        let ping = ep.handler("ping").unwrap();
        for i in 0..rounds {
            let start = Instant::now();
            if ep.rank() == 0 {
                before(&ep, i);
                ep.send(other, ping, b"ping").unwrap();
            }
            wait(&ep, &|| count.get() > i);
            if ep.rank() == 1 {
                before(&ep, i);
                ep.send(other, ping, b"pong").unwrap();
            } else if i > 0 {
                let mut worst = worst.lock().unwrap();
                *worst = start.elapsed().max(*worst);
            }
        }
        sleeps.fetch_add(ep.counters().sleeps, Ordering::Relaxed);
        ep.close().unwrap();
    });
    report(worst.into_inner().unwrap());
    sleeps.into_inner()
}

/// In one of this many rounds each side sends when the other one has armed.
const HELD: u64 = 10;

/// Plays ping-pong with both sides asleep on their descriptors in every tenth round at least: each waits
/// there for the other one to sleep. In all others, messages come at whatever moment.
fn armed_ping_pong(rounds: u64, wait: impl Fn(&Endpoint, &Arms, &dyn Fn() -> bool) + Sync) {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let arms = [Arms::default(), Arms::default()];
        let before = |ep: &Endpoint, round: u64| {
            if round % HELD == HELD - 1 {
                arms[1 - ep.rank() as usize].until_asleep();
            }
        };
        ping_pong_over(device, rounds, &parked(), before, |ep, done| {
            wait(ep, &arms[ep.rank() as usize], done);
        });
        check_arms(device, &arms, rounds);
    }
}

fn check_arms(device: DeviceName, arms: &[Arms; 2], rounds: u64) {
    let counts = arms.each_ref().map(Arms::count);
    println!("{device}: {counts:?} sleeps in {rounds} rounds");
    assert!(counts.iter().all(|count| *count >= rounds / HELD), "{device}: only {counts:?} sleeps");
}

fn policy(waiting: Waiting) -> Config {
    config(|c| c.waiting = waiting)
}

/// Only the message wakes a sleeping side: no heartbeat, and no retransmission. A lost wake-up is a test that
/// does not end.
fn parked() -> [Config; 2] {
    let config = config(|c| {
        c.waiting = Waiting::Park;
        (c.link.silence, c.link.rto_min, c.link.rto_initial, c.link.rto_max) = (NEVER, NEVER, NEVER, NEVER);
    });
    [config.clone(), config]
}

fn report(worst: Duration) {
    println!("the longest round trip took {worst:?}");
}

/// N-7: ping-pong works under every policy, also when the two sides differ.
#[test]
fn ping_pong_under_every_policy() {
    let all = [Waiting::Spin, Waiting::SpinThenPark, Waiting::Park];
    for zero in all {
        for one in all {
            for device in [DeviceName::Udp, DeviceName::Shm] {
                let configs = [policy(zero), policy(one)];
                ping_pong_over(device, 200, &configs, |_, _| {}, |ep, done| ep.run_until(done).unwrap());
            }
        }
    }
}

/// N-6, N-7: no wake-up is lost in 20,000 ping-pongs with both sides asleep in between. One that finds its
/// message at once need not sleep; in most rounds, one side does.
#[test]
fn no_lost_wake_up() {
    const ROUNDS: u64 = 20_000;
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let wait = |ep: &Endpoint, done: &dyn Fn() -> bool| ep.run_until(done).unwrap();
        let sleeps = ping_pong_over(device, ROUNDS, &parked(), |_, _| {}, wait);
        println!("{device}: {sleeps} sleeps in {ROUNDS} rounds");
        assert!(sleeps >= ROUNDS / 2, "{device}: {sleeps} sleeps in {ROUNDS} rounds");
    }
}

/// N-6: the same with `arm` and epoll.
#[test]
fn epoll_loop() {
    armed_ping_pong(3000, |ep, arms, done| {
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&outer, ep.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        loop {
            ep.extract(usize::MAX).unwrap();
            if done() {
                break;
            }
            if arms.arm(ep) {
                let mut events = Vec::with_capacity(4);
                epoll::wait(&outer, rustix::buffer::spare_capacity(&mut events), None).unwrap();
                arms.awake();
            }
        }
    });
}

/// N-6: the same with mio, whose epoll is edge-triggered.
#[test]
fn mio_loop() {
    armed_ping_pong(3000, |ep, arms, done| {
        let mut poll = mio::Poll::new().unwrap();
        let raw = ep.as_fd().as_raw_fd();
        let mut source = mio::unix::SourceFd(&raw);
        poll.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE).unwrap();
        let mut events = mio::Events::with_capacity(4);
        loop {
            ep.extract(usize::MAX).unwrap();
            if done() {
                break;
            }
            if arms.arm(ep) {
                poll.poll(&mut events, None).unwrap();
                arms.awake();
            }
        }
    });
}

/// N-6: the same with tokio, one registration for all rounds.
#[test]
fn tokio_loop() {
    const ROUNDS: u64 = 3000;
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let (worst, arms) = (Mutex::new(Duration::ZERO), [Arms::default(), Arms::default()]);
        run_over(device, 2, |job| {
            let [config, _] = parked();
            let (ep, count) = pinged(job, config);
            let (own, others) = (&arms[ep.rank() as usize], &arms[1 - ep.rank() as usize]);
            let send = |round: u64| {
                if round % HELD == HELD - 1 {
                    others.until_asleep();
                }
                ep.send(1 - ep.rank(), "ping", b"ping").unwrap();
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // SAFETY: the descriptor is borrowed from `ep`, which lives longer than the registration.
                let descriptor = unsafe { tokio::io::unix::AsyncFd::register(ep.as_fd()) }.unwrap();
                for i in 0..ROUNDS {
                    let start = Instant::now();
                    if ep.rank() == 0 {
                        send(i);
                    }
                    loop {
                        ep.extract(usize::MAX).unwrap();
                        if count.get() > i {
                            break;
                        }
                        if own.arm(&ep) {
                            descriptor.readable().await.unwrap().clear_ready();
                            own.awake();
                        }
                    }
                    if ep.rank() == 1 {
                        send(i);
                    } else if i > 0 {
                        let mut worst = worst.lock().unwrap();
                        *worst = start.elapsed().max(*worst);
                    }
                }
            });
            ep.close().unwrap();
        });
        report(worst.into_inner().unwrap());
        check_arms(device, &arms, ROUNDS);
    }
}

/// N-6: a handler that waits for room is woken when there is some, also in the program's own loop.
#[test]
fn armed_while_blocked() {
    run(2, |job| {
        let builder =
            Endpoint::builder().on_short("work", |_: Short<'_>| {}).on("flood", |msg: Message| async move {
                for _ in 0..20_000 {
                    msg.endpoint().send(msg.from(), "work", &[0; 1000]).await?;
                }
                Ok(())
            });
        let ep = join(builder.config(config(|c| c.link.credit_slots = 16)), job);
        if ep.rank() == 0 {
            ep.send(1, "flood", b"").unwrap();
            ep.serve(20_000).unwrap();
        } else {
            let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            epoll::add(&outer, ep.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
            while ep.handled() == 0 {
                ep.extract(usize::MAX).unwrap();
                if ep.handled() == 0 && ep.arm().unwrap() {
                    let mut events = Vec::with_capacity(4);
                    epoll::wait(&outer, rustix::buffer::spare_capacity(&mut events), None).unwrap();
                }
            }
        }
        ep.close().unwrap();
    });
}

/// A waker ends the wait of a sleeping endpoint, from any thread; `wait` keeps its timeout.
#[test]
fn wakers_and_timeouts() {
    let _limit = Limit::seconds(20);
    for waiting in [Waiting::Spin, Waiting::SpinThenPark, Waiting::Park] {
        let (ep, _) = pinged(jobs(1).remove(0), policy(waiting));
        while ep.poll_event().is_some() {}
        let start = Instant::now();
        assert!(!ep.wait(Some(Duration::from_millis(30))).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(30), "{:?}", start.elapsed());
        let waker = ep.waker();
        let woken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = woken.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            flag.store(true, std::sync::atomic::Ordering::SeqCst);
            waker.wake();
        });
        ep.run_until(|| woken.load(std::sync::atomic::Ordering::SeqCst)).unwrap();
        ep.close().unwrap();
    }
}

/// An unread event ends one wait, and does not keep the program awake.
#[test]
fn unread_events_do_not_keep_awake() {
    let _limit = Limit::seconds(20);
    let (ep, _) = pinged(jobs(1).remove(0), policy(Waiting::Park));
    ep.extract(usize::MAX).unwrap();
    assert!(ep.wait(Some(Duration::from_millis(10))).unwrap(), "the choice of device is an event");
    assert!(!ep.wait(Some(Duration::from_millis(10))).unwrap(), "but ends one wait only");
    assert!(ep.poll_event().is_some(), "and it is still there");
    let before = ep.counters().sleeps;
    let until = Instant::now() + Duration::from_millis(300);
    let waker = ep.waker();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(310));
        waker.wake();
    });
    ep.run_until(|| Instant::now() > until).unwrap();
    let sleeps = ep.counters().sleeps - before;
    assert!((1..=FEW_SLEEPS).contains(&sleeps), "{sleeps} sleeps in one wait");
}

/// N-6: a wake-up from another thread is not lost, at whichever moment it comes while the endpoint prepares
/// to sleep.
#[test]
fn wake_ups_while_arming_are_not_lost() {
    const CALLS: u64 = 20_000;
    /// How often the other thread looks for its turn before it sleeps: awake, it calls while we prepare.
    const LOOKS: u32 = 1_000;
    let _limit = Limit::seconds(60);
    let ep = join(Endpoint::builder(), jobs(1).remove(0));
    let called = AtomicU64::new(0);
    let (turn, turns) = mpsc::channel();
    let (waker, called) = (ep.waker(), &called);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let look = |_| {
                std::hint::spin_loop();
                turns.try_recv().ok()
            };
            for call in 1..=CALLS {
                assert_eq!((0..LOOKS).find_map(look).or_else(|| turns.recv().ok()), Some(call));
                // At another moment each time.
                (0..call % 97 * 8).for_each(|_| std::hint::spin_loop());
                called.store(call, Ordering::Release);
                waker.wake();
            }
        });
        for call in 1..=CALLS {
            turn.send(call).unwrap();
            while called.load(Ordering::Acquire) < call {
                if ep.arm().unwrap() {
                    let mut fds = [rustix::event::PollFd::new(&ep, rustix::event::PollFlags::IN)];
                    // Without a limit: a call that is lost is a test that does not end.
                    rustix::event::poll(&mut fds, None).unwrap();
                }
                ep.extract(usize::MAX).unwrap();
            }
        }
    });
    ep.close().unwrap();
}
