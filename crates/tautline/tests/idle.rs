//! Peers that do nothing, and peers that compute: what it costs, and that nobody takes them for dead.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::launch::{Launcher, again, is_member};
use common::{Limit, await_event, jobs, join};
use tautline::{DeviceName, Down, Endpoint, Event, PeerState, Short, Waiting};

const PEERS: u32 = 16;

/// One at a time: peers that compute would be counted with those that do nothing, by the caches that they share.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test by itself: a member of the job of `idle_cpu`. Rank 0 measures itself.
#[test]
fn idle_member() {
    if !is_member("idle_member") {
        return;
    }
    let ep = Endpoint::builder().waiting(Waiting::Park).join().unwrap();
    if ep.rank() > 0 {
        let _ = ep.run_until(|| false);
    }
    (1..=PEERS).for_each(|peer| ep.connect(peer).unwrap());
    for _ in 0..PEERS {
        await_event(&ep, |e| matches!(e, Event::PeerUp { .. }));
    }
    ep.extract(usize::MAX).unwrap();
    ep.wait(Some(Duration::from_millis(500))).unwrap();
    for _ in 0..3 {
        let (start, before) = (Instant::now(), process_time());
        while start.elapsed() < Duration::from_secs(3) {
            ep.extract(usize::MAX).unwrap();
            ep.wait(Some(Duration::from_secs(3))).unwrap();
        }
        let (wall, used) = (start.elapsed(), process_time() - before);
        assert!((1..=PEERS).all(|peer| ep.peer_state(peer) == Some(PeerState::Up)));
        println!("@cpu {} {}", used.as_nanos(), wall.as_nanos());
    }
    ep.close().unwrap();
}

/// CPU time of all threads of this process.
fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// N-7: a parked node with 16 idle peers, each a process of its own, uses less than 0.1 % of a core.
#[test]
fn idle_cpu() {
    idle(DeviceName::Udp);
}

/// N-7: the same with peers that memory is shared with.
#[test]
fn idle_cpu_near() {
    idle(DeviceName::Shm);
}

fn idle(device: DeviceName) {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let launcher = Launcher::over(device, 1 + PEERS as usize);
    let _peers: Vec<_> = (1..=PEERS).map(|rank| launcher.start(rank, again("idle_member"))).collect();
    let mut node = launcher.start(0, again("idle_member"));
    let shares = [(); 3].map(|()| {
        node.expect("figure", Duration::from_secs(30), |line| {
            let (used, wall) = line.strip_prefix("@cpu ")?.split_once(' ')?;
            Some(100.0 * used.parse::<f64>().ok()? / wall.parse::<f64>().ok()?)
        })
    });
    // Whatever else runs on this machine can only add to what is counted.
    let share = shares.into_iter().fold(f64::MAX, f64::min);
    println!("an idle node with {PEERS} idle peers uses {share:.3} % of a core {shares:.3?}");
    assert!(share < 0.1, "{share:.3} %");
}

/// N-5: a peer that computes for ten seconds, without a call, is alive all the time; its senders make progress until their
/// credit runs out, and nothing is lost.
#[test]
fn computing_peer() {
    computing(DeviceName::Udp);
}

/// N-13: the same through shared memory, which the watchdog does not touch.
#[test]
fn computing_peer_near() {
    computing(DeviceName::Shm);
}

fn computing(device: DeviceName) {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let mut all = jobs(2);
    all.iter_mut().for_each(|job| job.device = Some(device));
    let (computes, talks) = (all.pop().unwrap(), all.pop().unwrap());
    let busy = Duration::from_secs(10);
    let other = std::thread::spawn(move || {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), computes);
        ep.serve(1).unwrap();
        let (start, before, mut sum) = (Instant::now(), ep.handled(), 0u64);
        while start.elapsed() < busy {
            (0..1000).for_each(|i| sum = std::hint::black_box(sum.wrapping_mul(31) + i));
        }
        assert_eq!(ep.handled(), before, "the watchdog runs no handler");
        assert!(ep.counters().watchdog_polls > 10);
        let last = ep.peer_state(0);
        // A peer on this host that closes is gone at once: nothing of it is under way.
        let gone = device == DeviceName::Shm && last == Some(PeerState::Down(Down::Closed));
        assert!(last == Some(PeerState::Up) || gone, "{last:?}");
        let ended = || std::iter::from_fn(|| ep.poll_event()).any(|e| matches!(e, Event::PeerDown { .. }));
        ep.run_until(ended).unwrap();
        ep.extract(usize::MAX).unwrap();
        ep.handled()
    });
    let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), talks);
    ep.send(1, "x", b"").unwrap();
    let (start, mut sent) = (Instant::now(), 1u64);
    while start.elapsed() < busy - Duration::from_millis(500) {
        assert_eq!(ep.peer_state(1), Some(PeerState::Up), "after {:?}", start.elapsed());
        if sent < 200 {
            ep.send(1, "x", &[0; 100]).unwrap();
            sent += 1;
        } else if start.elapsed() > Duration::from_secs(8) {
            match ep.try_send(1, "x", &[0; 1000]) {
                Ok(()) => sent += 1,
                Err(error) => assert!(error.is_would_block(), "{error}"),
            }
        }
        ep.extract(usize::MAX).unwrap();
        ep.wait(Some(Duration::from_millis(1))).unwrap();
    }
    assert!(sent > 256, "credit is there for more than {sent}");
    ep.close().unwrap();
    assert_eq!(other.join().unwrap(), sent);
}
