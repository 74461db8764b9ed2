//! Peers on this host that are killed, stopped, forked and replaced: the survivor is told at once, and left with nothing.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::launch::{Launcher, Process, is_member, now};
use common::victim::{
    Heard, VICTIM, await_down, await_up, check_failures, listener, live, message, start, until,
};
use common::{Limit, config, extract_for};
use rustix::process::{Pid, Signal, kill_process};
use tautline::{DeviceName, Down, Endpoint, Error, Event, Waiting};

/// A timing does not decide a test on a busy machine; what is promised is 10 ms.
const SOON: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(10);

/// One at a time: they measure, and count what this process has open.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test by itself: a member of the jobs below.
#[test]
fn near_victim() {
    if is_member("near_victim") {
        live();
    }
}

/// A survivor in this process, and a job for it and its victims.
struct Scene {
    launcher: Launcher,
    ep: Endpoint,
    heard: Heard,
}

impl Scene {
    fn new(ranks: usize, waiting: Waiting) -> Scene {
        let launcher = Launcher::over(DeviceName::Shm, ranks);
        let (builder, heard) = listener(ranks, config(|c| c.waiting = waiting));
        let ep = builder.join_job(launcher.job(0)).unwrap();
        Scene { launcher, ep, heard }
    }

    /// Starts a victim and waits until it is there and has said a word.
    fn start(&self, role: &str) -> Process {
        let stream = self.heard.borrow()[VICTIM as usize].0;
        let victim = start(&self.launcher, VICTIM, role);
        await_up(&self.ep, VICTIM);
        until(&self.ep, || self.heard.borrow()[VICTIM as usize].0 != stream);
        victim
    }

    fn heard(&self) -> u64 {
        self.heard.borrow()[VICTIM as usize].1
    }
}

/// Kills a process after a while, from another thread; the time of the kill is what the thread returns.
fn kill_later(pid: Pid, after: Duration) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        let at = now();
        kill_process(pid, Signal::KILL).unwrap();
        at
    })
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{what}: {} deaths told after: median {:?}, p99 {:?}, max {:?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

/// The state of a process as the kernel names it: `Z` for a zombie.
fn state_of(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// S-6, N-8: whoever waits, spins or is held back in a send is told of a death at once; a zombie is dead. The dead are not reaped
/// before that.
#[test]
fn deaths_are_told_at_once() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    for (what, waiting, role) in [
        ("parked", Waiting::Park, "listen"),
        ("spinning", Waiting::Spin, "listen"),
        ("spinning among messages", Waiting::Spin, "talk"),
        ("among messages that are lent", Waiting::SpinThenPark, "lend"),
        ("held back in a send", Waiting::SpinThenPark, "deaf"),
        ("held back in a send, spinning", Waiting::Spin, "deaf"),
    ] {
        let mut times = Vec::new();
        for _ in 0..7 {
            let scene = Scene::new(2, waiting);
            let victim = scene.start(role);
            let killer = kill_later(victim.id(), Duration::from_millis(20));
            let mut told = None;
            if role == "deaf" {
                // Sooner or later there is no room.
                let error = (0..).find_map(|i| scene.ep.send(VICTIM, "data", &message(1, i)).err()).unwrap();
                told = Some(now());
                let gone = matches!(error, Error::PeerGone(VICTIM, Down::Exited));
                assert!(gone, "{what}: {error:?}");
            }
            assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited, "{what}");
            let told = told.unwrap_or_else(now);
            assert!(state_of(victim.id()).is_some(), "{what}: it is not reaped yet");
            let took = Duration::from_nanos(told - killer.join().unwrap());
            assert!(took < SOON, "{what}: told after {took:?}");
            times.push(took);
        }
        report(what, &mut times);
    }
}

/// S-6: a process that is stopped for half a second is not dead, and goes on where it was.
#[test]
fn a_stopped_peer_is_not_dead() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let victim = scene.start("talk");
    for _ in 0..3 {
        victim.signal(Signal::STOP);
        extract_for(&scene.ep, Duration::from_millis(500));
        let before = scene.heard();
        victim.signal(Signal::CONT);
        until(&scene.ep, || scene.heard() > before + 20);
    }
    assert_eq!(scene.ep.poll_event(), None, "nothing happened");
    check_failures(&scene.ep);
}

/// S-5, S-6: a forked child of the peer neither keeps it alive nor keeps its place: its successor is let in.
#[test]
fn a_forked_child_is_not_the_peer() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = scene.start("fork");
    let child: i32 = victim.expect("@child", PATIENCE, |line| line.strip_prefix("@child ")?.parse().ok());
    let child = Pid::from_raw(child).unwrap();
    let killed = now();
    victim.signal(Signal::KILL);
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    let took = Duration::from_nanos(now() - killed);
    assert_eq!(state_of(victim.id()), Some('Z'), "the child has its socket, so it is dead as a zombie only");
    // Its successor comes while it is a zombie, and another one when it is not.
    let mut successor = scene.start("talk");
    until(&scene.ep, || scene.heard() > 20);
    successor.kill();
    victim.kill();
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    let successor = scene.start("talk");
    assert!(state_of(child).is_some_and(|state| state != 'Z'), "the child lives on");
    kill_process(child, Signal::KILL).unwrap();
    assert!(took < SOON, "told after {took:?}");
    drop(successor);
}

/// S-6, N-6: a survivor that has forked a child, which has copies of all its descriptors, sleeps after a peer's death as before.
#[test]
fn a_survivor_with_a_child_sleeps_on() {
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
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = used();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        scene.ep.wait(Some(Duration::from_millis(500))).unwrap();
    }
    let spent = used() - before;
    let child = Pid::from_raw(child).unwrap();
    kill_process(child, Signal::KILL).unwrap();
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    assert!(spent < Duration::from_millis(100), "{spent:?} of processor time in half a second of sleep");
}

/// S-5: somebody knocks at a node that has no descriptor left: it goes on, and opens when it can.
#[test]
fn knocking_when_there_are_no_descriptors() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = start(&scene.launcher, VICTIM, "full");
    victim.expect("@full", PATIENCE, |line| (line == "@full").then_some(()));
    scene.ep.connect(VICTIM).unwrap();
    victim.expect("@alive", PATIENCE, |line| (line == "@alive").then_some(()));
    await_up(&scene.ep, VICTIM);
    until(&scene.ep, || scene.heard() > 20);
}

/// S-6, N-10: a peer that becomes another program is gone.
#[test]
fn exec_is_an_end() {
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

/// S-6: what the dead sent whole is delivered, whenever it is asked for.
#[test]
fn whole_messages_outlive_their_sender() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let mut victim = start(&scene.launcher, VICTIM, "some");
    // Not extracted: the program computes, only its watchdog opens the door.
    let sent: u64 = victim.expect("@sent", PATIENCE, |line| line.strip_prefix("@sent ")?.parse().ok());
    victim.kill();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
    assert_eq!((scene.ep.handled(), scene.ep.poll_failure()), (sent, None));
    assert_eq!(scene.heard(), 4, "the last stream is complete");
}

/// What is left of segments and doors.
fn remains() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:tautline")).count();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links: Vec<_> = links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let memory = links.iter().filter(|to| to.to_string_lossy().contains("memfd:tautline")).count();
    // Pipes of the launcher's close when its threads get there.
    let open = links.iter().filter(|to| !to.to_string_lossy().starts_with("pipe:")).count();
    (mapped, memory, open)
}

/// S-1, S-5: memory and descriptors are given back as often as a peer dies, and its door is taken down by whoever outlives it.
#[test]
fn nothing_is_left_behind() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let doors = || -> Vec<_> {
        let place = tautline::node::device::shm::discovery_dir();
        std::fs::read_dir(place).unwrap().flatten().map(|entry| entry.file_name()).collect()
    };
    let mut before = None;
    for round in 0..6 {
        let doors_before = doors();
        let mut victim = scene.start(["talk", "listen", "lend"][round % 3]);
        assert_eq!(
            (remains().0, remains().1),
            (3, 2),
            "one segment, and a pool for each to lend from, of which one is ours"
        );
        let own: Vec<_> = doors().into_iter().filter(|door| !doors_before.contains(door)).collect();
        victim.kill();
        assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited);
        drop(victim);
        let (mapped, memory, open) = remains();
        assert_eq!((mapped, memory), (0, 0), "no segment after its death");
        // The first round may open what stays open.
        assert_eq!(*before.get_or_insert(open), open, "descriptors");
        // Others of this user may come and go meanwhile; this one's door is known by its name.
        let other = Launcher::over(DeviceName::Shm, 2);
        let (builder, _) = listener(2, config(|_| {}));
        drop(builder.join_job(other.job(0)).unwrap());
        // Its connection closes before its door does; whoever outlives it looks again.
        let gone = || own.iter().all(|door| !doors().contains(door) || doors_before.contains(door));
        let start = std::time::Instant::now();
        while !gone() {
            assert!(start.elapsed() < Duration::from_secs(10), "its door");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// S-9, N-4: what a dead peer had offered to be read in its memory is lost with it, and its successor has nothing to do with that.
#[test]
fn an_offer_dies_with_its_sender() {
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
        scene.heard() > 20
    });
    assert_eq!(downs, [Down::Exited], "the first one, and nobody else");
    check_failures(ep);
    drop(successor);
}

/// S-3, S-6, N-4: a peer is killed at random moments, from its start on, again and again. How often is in `TAUTLINE_KILLS`.
#[test]
fn random_kills() {
    let _alone = alone();
    let rounds: u64 = std::env::var("TAUTLINE_KILLS").map_or(50, |n| n.parse().unwrap());
    let _limit = Limit::seconds(60 + rounds / 4);
    let scene = Scene::new(2, Waiting::SpinThenPark);
    let (mut times, mut messages, mut unborn) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        let mut victim = start(&scene.launcher, VICTIM, ["talk", "lend"][round as usize % 2]);
        if round % 8 == 0 {
            // Before it is there, or while it comes.
            std::thread::sleep(Duration::from_micros(random(40_000)));
            victim.kill();
            if !settle(&scene) {
                unborn += 1;
            }
            continue;
        }
        await_up(&scene.ep, VICTIM);
        let killer = kill_later(victim.id(), Duration::from_micros(random(3_000)));
        let mut answers = 0;
        while scene.ep.try_send(VICTIM, "data", &message(round + 1, answers)).is_ok() && answers < 4 {
            answers += 1;
        }
        assert_eq!(await_down(&scene.ep, VICTIM), Down::Exited, "round {round}");
        let told = now();
        times.push(Duration::from_nanos(told.saturating_sub(killer.join().unwrap())));
        messages += scene.heard();
        drop(victim);
    }
    assert_eq!((remains().0, remains().1), (0, 0));
    report("random kills", &mut times);
    println!("{messages} messages checked; {unborn} of {} died before they were there", rounds.div_ceil(8));
}

/// Waits until a victim that may never have come is gone. Whether it had been seen.
fn settle(scene: &Scene) -> bool {
    let start = Instant::now();
    let mut seen = false;
    loop {
        scene.ep.extract(usize::MAX).unwrap();
        while let Some(event) = scene.ep.poll_event() {
            match event {
                tautline::Event::Transport { .. } => seen = true,
                tautline::Event::PeerDown { why, .. } => {
                    assert_eq!(why, Down::Exited);
                    return true;
                }
                _ => {}
            }
        }
        check_failures(&scene.ep);
        if !seen && start.elapsed() > Duration::from_millis(20) {
            return false;
        }
        assert!(start.elapsed() < PATIENCE, "it came, and its death is not told");
        scene.ep.wait(Some(Duration::from_millis(5))).unwrap();
    }
}

/// S-6: a survivor that is killed while it cleans up after its peer takes nobody along: the third is told of both.
#[test]
fn the_cleaner_is_killed_too() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    let scene = Scene::new(3, Waiting::SpinThenPark);
    let mut times = Vec::new();
    for _ in 0..20 {
        let mut first = start(&scene.launcher, 1, "crowd");
        let mut second = start(&scene.launcher, 2, "crowd");
        let heard = |rank: usize| scene.heard.borrow()[rank].1;
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
            if killed.is_none() && up[1] && up[2] && heard(1) > 10 && heard(2) > 10 {
                let pids = (first.id(), second.id());
                killed = Some(std::thread::spawn(move || {
                    kill_process(pids.0, Signal::KILL).unwrap();
                    std::thread::sleep(Duration::from_micros(random(1_500)));
                    kill_process(pids.1, Signal::KILL).unwrap();
                    now()
                }));
            }
        }
        let told = now();
        times.push(Duration::from_nanos(told.saturating_sub(killed.unwrap().join().unwrap())));
        first.kill();
        second.kill();
    }
    assert_eq!((remains().0, remains().1), (0, 0));
    report("killed one after the other", &mut times);
}
