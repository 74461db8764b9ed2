//! Peers on this host that are killed, stopped, forked and replaced: the survivor learns of it at once, and
//! nothing is left behind.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::launch::{Launcher, is_member, now};
use common::survivor::{Incarnations, Scene, kill_later, report};
use common::victim::{
    LENT, VICTIM, await_down, await_down_untimed, await_up, check_failures, lent_message, listener, live,
    message, start, until,
};
use common::{FEW_SLEEPS, Limit, config, extract_for};
use rustix::process::{Pid, Signal, kill_process};
use tautline::node::link::Death;
use tautline::{Borrowed, DeviceName, Down, Error, Event, Waiting};

const PATIENCE: Duration = Duration::from_secs(10);
/// Half of the deaths on this host are reported within this time. Promised are 2 ms, which is tested with a
/// virtual clock; here only the order of magnitude counts, so that a busy machine changes nothing.
const AT_ONCE: Duration = Duration::from_millis(200);
/// The mappings and descriptors of the pages of the survivor's own lane, which it keeps (S-37).
const OWN_PAGES: (usize, usize) = (2, 2);

/// One test at a time: they measure, and count what this process has open.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test by itself: a member of the jobs below.
#[test]
fn victim_member() {
    if is_member("victim_member") {
        live();
    }
}

/// Of the numbers that [`random`] draws: `TAUTLINE_SEED`, or another one each time.
static SEED: LazyLock<u64> =
    LazyLock::new(|| tautline_skips::number(tautline_skips::SEED, RandomState::new().hash_one(0)));

fn random(below: u64) -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    (*SEED, DRAWN.fetch_add(1, Ordering::Relaxed)).hash(&mut hasher);
    hasher.finish() % below
}

/// The state of a process as the kernel names it: `Z` for a zombie.
fn state_of(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// S-6, N-8: a program that waits, spins or is blocked in a send is woken by a death: its waits have no
/// timeout, and there is no watchdog. A zombie is dead: the victim is not reaped before. In each case half of
/// the deaths are reported within [`AT_ONCE`].
#[test]
fn deaths_are_reported_at_once() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    for (what, waiting, role) in [
        ("parked", Waiting::Park, "listen"),
        ("spinning", Waiting::Spin, "listen"),
        ("spinning among messages", Waiting::Spin, "talk"),
        ("among loans", Waiting::SpinThenPark, "lend"),
        ("blocked in a send", Waiting::SpinThenPark, "stalled"),
        ("blocked in a send, spinning", Waiting::Spin, "stalled"),
    ] {
        let mut times = Vec::new();
        for _ in 0..7 {
            let scene = Scene::with(
                2,
                config(|c| {
                    c.waiting = waiting;
                    c.watchdog = None;
                }),
            );
            let victim = scene.start(role);
            let killer = kill_later(victim.id(), Duration::from_millis(20));
            let mut reported = None;
            if role == "stalled" {
                // After a while there is no room.
                let error = (0..).find_map(|i| scene.ep.send(VICTIM, "data", &message(1, i)).err()).unwrap();
                reported = Some(now());
                let gone = matches!(error, Error::PeerGone(VICTIM, Down::Exited));
                assert!(gone, "{what}: {error:?}");
            }
            assert_eq!(await_down_untimed(&scene.ep, VICTIM), Down::Exited, "{what}");
            let reported = reported.unwrap_or_else(now);
            assert!(state_of(victim.id()).is_some(), "{what}: it is not reaped yet");
            times.push(Duration::from_nanos(reported - killer.join().unwrap()));
        }
        let median = report(what, &mut times);
        assert!(median < AT_ONCE, "{what}: {times:?}");
    }
}

/// S-6: a process that is stopped for half a second is not dead, and continues afterwards.
#[test]
fn a_stopped_peer_is_not_dead() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let victim = scene.start("talk");
    for _ in 0..3 {
        victim.signal(Signal::STOP);
        extract_for(&scene.ep, Duration::from_millis(500));
        let before = scene.received();
        victim.signal(Signal::CONT);
        until(&scene.ep, || scene.received() > before + 20);
    }
    assert_eq!(scene.ep.poll_event(), None, "nothing happened");
    check_failures(&scene.ep);
}

/// S-6, S-18: a forked child of the peer neither keeps it alive nor keeps its address: its successor is
/// accepted.
#[test]
fn a_forked_child_is_not_the_peer() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = scene.start("fork");
    let child: i32 = victim.expect("@child", PATIENCE, |line| line.strip_prefix("@child ")?.parse().ok());
    let child = Pid::from_raw(child).unwrap();
    victim.signal(Signal::KILL);
    assert_eq!(await_down_untimed(&scene.ep, VICTIM), Down::Exited);
    assert_eq!(state_of(victim.id()), Some('Z'), "the child has its socket, so it is dead as a zombie only");
    // Its successor comes while it is a zombie, and another one afterwards.
    let mut successor = scene.start("talk");
    until(&scene.ep, || scene.received() > 20);
    successor.kill();
    victim.kill();
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    let successor = scene.start("talk");
    assert!(state_of(child).is_some_and(|state| state != 'Z'), "the child lives on");
    kill_process(child, Signal::KILL).unwrap();
    drop(successor);
}

/// S-6, N-6: a survivor that has forked a child, which has copies of all its descriptors, sleeps after a
/// peer's death as before.
#[test]
fn a_survivor_with_a_child_sleeps() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::Park);
    let mut victim = scene.start("listen");
    // SAFETY: the child makes two system calls, and is killed in the second.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    victim.kill();
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    let before = scene.ep.counters().sleeps;
    let (start, mut waits) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(500) {
        scene.ep.wait(Some(Duration::from_millis(500))).unwrap();
        waits += 1;
    }
    let sleeps = scene.ep.counters().sleeps - before;
    let child = Pid::from_raw(child).unwrap();
    kill_process(child, Signal::KILL).unwrap();
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    assert!(waits + sleeps <= FEW_SLEEPS, "{waits} waits and {sleeps} sleeps in half a second");
}

/// S-5: a node without free descriptors is dialed: it continues, and accepts when it can.
#[test]
fn dialing_a_node_without_descriptors() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = start(&scene.launcher, VICTIM, "full");
    victim.expect("@full", PATIENCE, |line| (line == "@full").then_some(()));
    scene.ep.connect(VICTIM).unwrap();
    victim.expect("@alive", PATIENCE, |line| (line == "@alive").then_some(()));
    await_up(&scene.ep, VICTIM);
    until(&scene.ep, || scene.received() > 20);
}

/// S-5, N-12: a restarted peer shares memory, although the survivor of the lower rank still waits for the
/// answer of its former process.
#[test]
fn a_restarted_peer_shares_memory() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    let launcher = Launcher::new(2);
    let (builder, received) = listener(2, config(|c| c.watchdog = None));
    let ep = builder.join_job(launcher.job(0)).unwrap();
    let mut transports = Vec::new();
    for round in 0..5 {
        let mut victim = start(&launcher, VICTIM, "mute");
        victim.expect("@mute", PATIENCE, |line| (line == "@mute").then_some(()));
        ep.connect(VICTIM).unwrap();
        victim.kill();
        let mut victim = start(&launcher, VICTIM, "dial");
        victim.expect("@dialled", PATIENCE, |line| (line == "@dialled").then_some(()));
        let event = common::await_event(&ep, |event| matches!(event, Event::Transport { .. }));
        let Event::Transport { device, .. } = event else { unreachable!("it was asked for") };
        transports.push(device);
        await_up(&ep, VICTIM);
        until(&ep, || received.borrow()[VICTIM as usize].1 > 0);
        victim.kill();
        await_down(&ep, VICTIM);
        received.borrow_mut()[VICTIM as usize].1 = 0;
        println!("round {round}: {device}");
    }
    assert_eq!(transports, ["shm"; 5]);
}

/// S-6, N-10: a peer that becomes another program is gone.
#[test]
fn exec_ends_the_peer() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = scene.start("exec");
    victim.expect("@exec", PATIENCE, |line| (line == "@exec").then_some(()));
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    assert!(state_of(victim.id()).is_some_and(|state| state != 'Z'), "the other program runs");
    victim.kill();
    let successor = scene.start("close");
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Closed);
    drop(successor);
}

/// S-6: messages that the dead peer sent whole are delivered, whenever the survivor extracts.
#[test]
fn whole_messages_of_the_dead_are_delivered() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = start(&scene.launcher, VICTIM, "some");
    // Not extracted: the program computes, and only its watchdog accepts the peer.
    let sent: u64 = victim.expect("@sent", PATIENCE, |line| line.strip_prefix("@sent ")?.parse().ok());
    victim.kill();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    assert_eq!((scene.ep.handled(), scene.ep.poll_failure()), (sent, None));
    assert_eq!(scene.received(), 4, "the last stream is complete");
}

/// S-8, S-20: what a peer had lent before it was killed is delivered, and can be read for as long as it is
/// kept, although neither was begun before the peer died.
#[test]
fn loans_of_the_dead_can_be_read() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let launcher = Launcher::over(DeviceName::Shm, 2);
    let (builder, _) = listener(2, config(|_| {}));
    let kept = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let keep = kept.clone();
    let builder = builder.on_loan("kept", move |loan: Borrowed| keep.borrow_mut().push(loan));
    let ep = builder.join_job(launcher.job(0)).unwrap();
    let mut victim = start(&launcher, VICTIM, "lent");
    victim.expect("@lent", PATIENCE, |line| (line == "@lent").then_some(()));
    victim.kill();
    assert_eq!(await_down(&ep, VICTIM), Down::Exited);
    let check = |kept: &[Borrowed]| {
        assert_eq!(kept.len(), LENT);
        for (number, loan) in kept.iter().enumerate() {
            assert!(loan.is_shared() && loan.to_vec() == lent_message(number), "loan {number}");
        }
    };
    check(&kept.borrow());
    // Its successor lends from memory of its own.
    let mut successor = start(&launcher, VICTIM, "lent");
    successor.expect("@lent", PATIENCE, |line| (line == "@lent").then_some(()));
    until(&ep, || kept.borrow().len() == 2 * LENT);
    check(&kept.borrow()[..LENT]);
    check(&kept.borrow()[LENT..]);
    drop(ep);
    check(&kept.borrow()[..LENT]);
}

/// N-8, L-15, N-5: over datagrams, with the watchdog and the silence bound that programs have by default: the
/// death of a peer is reported to a program that waits, spins or computes. When, is tested with a virtual
/// clock; here none is reported before 0.4 of the bound, and half of them within ten times the bound.
#[test]
fn silent_deaths_with_a_watchdog() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    let mut times = Vec::new();
    for waiting in [Waiting::Park, Waiting::Spin, Waiting::SpinThenPark] {
        for computes in [false, true] {
            let launcher = Launcher::over(DeviceName::Udp, 2);
            let (builder, received) = listener(2, config(|c| c.waiting = waiting));
            let ep = builder.join_job(launcher.job(0)).unwrap();
            let mut victim = start(&launcher, VICTIM, "talk");
            await_up(&ep, VICTIM);
            until(&ep, || received.borrow()[VICTIM as usize].1 > 20);
            let killed = victim.kill();
            let why = if computes {
                // It looks for events, which makes no progress: the watchdog does.
                loop {
                    match ep.poll_event() {
                        Some(Event::PeerDown { peer: VICTIM, why, .. }) => break why,
                        _ => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            } else {
                await_down_untimed(&ep, VICTIM)
            };
            times.push(Duration::from_nanos(now() - killed));
            assert!(matches!(why, Down::Died(Death::Silence)), "{waiting:?}, computes: {computes}: {why:?}");
        }
    }
    let bound = Duration::from_nanos(tautline::Config::default().link.silence);
    let median = report("silent", &mut times);
    assert!(times[0] >= bound * 2 / 5, "before the bound of {bound:?}: {times:?}");
    assert!(median < 10 * bound, "{times:?}");
}

/// The segments, mappings and listener files that are left.
fn remains() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:tautline")).count();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links: Vec<_> = links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let memory = links.iter().filter(|to| to.to_string_lossy().contains("memfd:tautline")).count();
    // The launcher's pipes close when its threads end.
    let open = links.iter().filter(|to| !to.to_string_lossy().starts_with("pipe:")).count();
    (mapped, memory, open)
}

/// The file of a process's listener. It was bound to a name with a dot and the process before it, and then
/// renamed. The table of sockets is no snapshot: it may lack one while others come and go.
fn listener_of(process: Pid) -> PathBuf {
    let place = tautline::node::device::shm::discovery_dir();
    let start = format!("{}/.{}.", place.display(), process.as_raw_nonzero());
    loop {
        let table = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        let mut paths = table.lines().filter_map(|line| line.split_whitespace().nth(7));
        if let Some(name) = paths.find_map(|path| path.strip_prefix(&start)) {
            return place.join(name);
        }
    }
}

/// S-1, S-18: memory and descriptors are freed whenever a peer dies, and its listener's file is unlinked by a
/// survivor.
#[test]
fn dead_peers_leave_nothing_behind() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut before = None;
    for round in 0..6 {
        let mut victim = scene.start(["talk", "listen", "lend"][round % 3]);
        assert_eq!(
            (remains().0, remains().1),
            (7, 2),
            "one segment, a pool for each to lend from, and the pages of both lanes; descriptors of our pages"
        );
        let its_listener = listener_of(victim.id());
        assert!(its_listener.exists(), "{}", its_listener.display());
        victim.kill();
        assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
        drop(victim);
        let (mapped, memory, open) = remains();
        assert_eq!((mapped, memory), OWN_PAGES, "no segment after its death");
        // The first round may open what stays open. A thread that is about to end may hold one more for a
        // moment, then or now; a descriptor that leaks is one more in every round.
        let (first, start) = (*before.get_or_insert(open), std::time::Instant::now());
        while remains().2 > first {
            assert!(start.elapsed() < PATIENCE, "{} descriptors, {first} in the first round", remains().2);
            std::thread::sleep(Duration::from_millis(1));
        }
        let other = Launcher::over(DeviceName::Shm, 2);
        let (builder, _) = listener(2, config(|_| {}));
        drop(builder.join_job(other.job(0)).unwrap());
        // Its connection closes before its listener does; the survivor checks again.
        let start = std::time::Instant::now();
        while its_listener.exists() {
            assert!(start.elapsed() < Duration::from_secs(10), "{}", its_listener.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// S-9, S-25, S-26, N-4: an offer to read a dead peer's memory is lost with it, and does not affect its
/// successor.
#[test]
fn offers_die_with_their_sender() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = scene.start("offer");
    victim.expect("@offers", PATIENCE, |line| (line == "@offers").then_some(()));
    std::thread::sleep(Duration::from_millis(50));
    victim.kill();
    let successor = start(&scene.launcher, VICTIM, "talk");
    std::thread::sleep(Duration::from_millis(200));
    let mut downs = Vec::new();
    let ep = &scene.ep;
    until(ep, || {
        while let Some(event) = ep.poll_event() {
            if let Event::PeerDown { why, .. } = event {
                downs.push(why);
            }
        }
        scene.received() > 20
    });
    assert_eq!(downs, [Down::Exited], "the first one, and nobody else");
    check_failures(ep);
    drop(successor);
}

/// S-3, S-6, N-4: a peer is killed at random moments, from its start on, again and again. `TAUTLINE_KILLS`
/// says how often; only those count that were connected. Half of their deaths are reported within
/// [`AT_ONCE`].
#[test]
fn random_kills() {
    let _alone = alone();
    let kills = tautline_skips::number("TAUTLINE_KILLS", 50);
    println!("TAUTLINE_SEED={}", *SEED);
    let _limit = Limit::seconds(60 + kills / 4);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut seen = Incarnations::default();
    let (mut times, mut messages, mut attempts) = (Vec::new(), 0, 0);
    // Whether the last victim may still come up, although it is dead.
    let mut may_come_late = false;
    while seen.exited < kills {
        let started = now();
        let mut victim = start(&scene.launcher, VICTIM, ["talk", "lend"][attempts as usize % 2]);
        attempts += 1;
        if attempts % 8 == 1 {
            // Before it is up, or while it connects. The seven others count, so that this ends.
            std::thread::sleep(Duration::from_micros(random(40_000)));
            victim.kill();
            seen.read_until(&scene.ep, |seen| seen.up().is_none());
            may_come_late = true;
            continue;
        }
        // A message says whose incarnation it is.
        let is_its = || !may_come_late || scene.stream() > started;
        seen.read_until(&scene.ep, |seen| seen.up().is_some() && is_its());
        let incarnation = seen.up();
        let killer = kill_later(victim.id(), Duration::from_micros(random(3_000)));
        let mut answers = 0;
        while scene.ep.try_send(VICTIM, "data", &message(attempts, answers)).is_ok() && answers < 4 {
            answers += 1;
        }
        seen.read_until(&scene.ep, |seen| seen.up() != incarnation);
        let reported = now();
        times.push(Duration::from_nanos(reported.saturating_sub(killer.join().unwrap())));
        while scene.ep.extract(usize::MAX).unwrap() > 0 {}
        messages += if scene.stream() > started { scene.received() } else { 0 };
        may_come_late = false;
        drop(victim);
    }
    while scene.ep.extract(usize::MAX).unwrap() > 0 {}
    assert_eq!((remains().0, remains().1), OWN_PAGES);
    let median = report("random kills", &mut times);
    println!(
        "{messages} messages checked; {} of {attempts} died before they were up",
        attempts - seen.exited
    );
    assert!(median < AT_ONCE, "{median:?}");
    assert!(messages > 0, "none was under way");
    tautline_skips::did(seen.exited);
}

/// S-6: a survivor that is killed while it cleans up after its peer affects nobody: the third rank learns of
/// both deaths.
#[test]
fn the_survivor_is_killed_too() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    let scene = Scene::new(3, Waiting::SpinThenPark);
    let mut times = Vec::new();
    for _ in 0..20 {
        let mut first = start(&scene.launcher, 1, "crowd");
        let mut second = start(&scene.launcher, 2, "crowd");
        let received = |rank: usize| scene.received.borrow()[rank].1;
        let (mut up, mut down) = ([false; 3], [false; 3]);
        let mut killed = None;
        let until = Instant::now() + PATIENCE;
        while !(down[1] && down[2]) {
            assert!(Instant::now() < until, "up {up:?}, down {down:?}");
            scene.ep.wait(Some(Duration::from_millis(100))).unwrap();
            scene.ep.extract(usize::MAX).unwrap();
            while let Some(event) = scene.ep.poll_event() {
                match event {
                    tautline::Event::PeerUp { peer, .. } => up[peer as usize] = true,
                    tautline::Event::PeerDown { peer, why, .. } => {
                        assert_eq!(why, Down::Exited);
                        down[peer as usize] = true;
                    }
                    _ => {}
                }
            }
            check_failures(&scene.ep);
            if killed.is_none() && up[1] && up[2] && received(1) > 10 && received(2) > 10 {
                let pids = (first.id(), second.id());
                killed = Some(std::thread::spawn(move || {
                    kill_process(pids.0, Signal::KILL).unwrap();
                    std::thread::sleep(Duration::from_micros(random(1_500)));
                    kill_process(pids.1, Signal::KILL).unwrap();
                    now()
                }));
            }
        }
        let reported = now();
        times.push(Duration::from_nanos(reported.saturating_sub(killed.unwrap().join().unwrap())));
        first.kill();
        second.kill();
    }
    // What a peer left is kept until the extraction after the one that took its last message.
    while scene.ep.extract(usize::MAX).unwrap() > 0 {}
    assert_eq!((remains().0, remains().1), OWN_PAGES);
    report("killed one after the other", &mut times);
}
