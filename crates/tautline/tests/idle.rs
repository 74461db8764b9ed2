//! Idle peers, and peers that compute. An idle node sleeps, and no peer of either kind is taken for dead.
//!
//! The tests of idle nodes compare counts: wake-ups, polls, frames. CPU time is only printed.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::launch::{Launcher, again, is_member};
use common::{Limit, await_event, jobs, join};
use tautline::{Config, DeviceName, Down, Endpoint, Event, PeerState, Short, Waiting};

const PEERS: u32 = 16;

/// How long rank 0 counts: twelve heartbeats.
const WINDOW: Duration = Duration::from_secs(4);

/// Returns from [`Endpoint::wait`]: at the end of the window, and for an event that came late.
const WAITS: u64 = 3;

/// Wake-ups that need no frame: one for each return, and contended locks. The same number of polls.
const SPARE_WAKE_UPS: u64 = 8;

/// Wake-ups of all other threads. The watchdog may wake shortly before the program parks, and after it
/// returns. A watchdog that ignores that the program is parked wakes every 100 ms at least: 40 times in the
/// window.
const OTHER_WAKE_UPS: u64 = 12;

/// One test at a time: peers that compute take the cores from the others.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// L-17, N-6: a parked node with 16 idle peers, each a process of its own, wakes for their heartbeats and for
/// nothing else. How many heartbeats there are is `idle_heartbeats` in
/// crates/link/tests/pair/timers_and_close.rs.
#[test]
fn idle_udp_peers_wake_by_heartbeats_only() {
    idle(DeviceName::Udp, "idle_udp_member");
}

/// N-6, N-13: peers that share memory exchange nothing while they are idle, and wake nobody.
#[test]
fn idle_shm_peers_wake_nobody() {
    idle(DeviceName::Shm, "idle_shm_member");
}

fn idle(device: DeviceName, member: &str) {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let launcher = Launcher::over(device, 1 + PEERS as usize);
    let _peers: Vec<_> = (1..=PEERS).map(|rank| launcher.start(rank, again(member))).collect();
    let (code, output) = launcher.start(0, again(member)).finish(Duration::from_secs(50));
    println!("{}", output.join("\n"));
    assert_eq!(code, Some(0), "rank 0 failed; its message is above");
}

/// Not a test by itself: a member of the job of [`idle_udp_peers_wake_by_heartbeats_only`].
#[test]
fn idle_udp_member() {
    let Some(counts) = counts_of_member("idle_udp_member") else { return };
    assert!(counts.frames_received >= u64::from(PEERS), "no heartbeats were counted");
    let frames = counts.frames_sent + counts.frames_received;
    counts.check(frames);

    // L-17: however slow its peer is, a side asks at most every eighth of a heartbeat. It sends a frame for
    // each question of its own and for each one of the peer's; some of those may have waited in the socket's
    // buffer.
    let question = Duration::from_nanos(Config::default().link.silence / 3 / 8);
    let questions = counts.wall.div_duration_f64(question).ceil() as u64 + 8;
    assert!(frames <= u64::from(PEERS) * 4 * questions, "too many heartbeats: {counts:?}");
}

/// Not a test by itself: a member of the job of [`idle_shm_peers_wake_nobody`].
#[test]
fn idle_shm_member() {
    let Some(counts) = counts_of_member("idle_shm_member") else { return };
    assert!(!counts.activity, "something was sent or received: {counts:?}");
    counts.check(0);
}

/// What a node did during one long wait.
#[derive(Debug)]
#[allow(dead_code, reason = "the CPU time is printed")]
struct Counts {
    /// How often the program waited and was told that there may be something for it, or that the time is
    /// over.
    waits: u64,
    /// How often the node polled its device, in whatever thread.
    receive_calls: u64,
    /// How often the program's thread slept and was woken.
    wake_ups: u64,
    /// The same of all other threads of the process.
    other_wake_ups: u64,
    frames_sent: u64,
    frames_received: u64,
    /// Any counter has changed that does not count polls.
    activity: bool,
    wall: Duration,
    cpu: Duration,
}

impl Counts {
    /// Fails unless everything that the node did was done for one of its `frames`.
    fn check(&self, frames: u64) {
        assert!(self.waits <= WAITS, "the program is woken for nothing: {self:?}");
        assert!(self.wake_ups <= frames + SPARE_WAKE_UPS, "wake-ups without a frame: {self:?}");
        assert!(self.other_wake_ups <= OTHER_WAKE_UPS, "the watchdog ticks: {self:?}");
        assert!(self.receive_calls <= 2 * frames + SPARE_WAKE_UPS, "the wait spins: {self:?}");
    }
}

/// Runs a member of an idle job. Rank 0 returns its counts; the other ranks never return. `None` if this
/// process is not a member.
fn counts_of_member(name: &str) -> Option<Counts> {
    if !is_member(name) {
        return None;
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
    ep.extract(usize::MAX).unwrap();

    let (before, switches, cpu, start) = (ep.counters(), switches(), process_time(), Instant::now());
    let mut waits = 0;
    while let Some(left) = WINDOW.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        waits += 1;
        ep.wait(Some(left)).unwrap();
        ep.extract(usize::MAX).unwrap();
    }
    let (wall, cpu, after) = (start.elapsed(), process_time() - cpu, ep.counters());
    let [own, others] = self::switches();
    assert!((1..=PEERS).all(|peer| ep.peer_state(peer) == Some(PeerState::Up)));
    let mut expected = before;
    expected.watchdog_polls = after.watchdog_polls;
    expected.sleeps = after.sleeps;
    // Other programs of this machine may send to a port that was theirs before.
    (expected.device, expected.strays, expected.stale) = (after.device, after.strays, after.stale);
    expected.forged_handshakes = after.forged_handshakes;
    let counts = Counts {
        waits,
        receive_calls: after.device.receive_calls - before.device.receive_calls,
        wake_ups: own - switches[0],
        other_wake_ups: others - switches[1],
        frames_sent: after.links.frames_sent - before.links.frames_sent,
        frames_received: after.links.frames_accepted - before.links.frames_accepted,
        activity: after != expected,
        wall,
        cpu,
    };
    println!("{counts:?}: {:.3} % of a core", 100.0 * cpu.div_duration_f64(wall));
    if counts.activity {
        println!("before: {expected:?}\nafter:  {after:?}");
    }
    ep.close().unwrap();
    Some(counts)
}

/// How often this thread, and all others of the process together, gave up their cores to sleep.
fn switches() -> [u64; 2] {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut sums = [0; 2];
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let thread = thread.unwrap();
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count: u64 = count.unwrap().trim().parse().unwrap();
        sums[usize::from(thread.file_name() != *own)] += count;
    }
    sums
}

/// CPU time of all threads of this process.
fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// N-5: a peer that computes for ten seconds without a call is never taken for dead, although the bound is
/// shorter. Its watchdog answers, its senders make progress until their credit runs out, and nothing is lost.
#[test]
fn computing_peer() {
    computing(DeviceName::Udp);
}

/// N-13: the same through shared memory, which the watchdog does not touch.
#[test]
fn computing_shm_peer() {
    computing(DeviceName::Shm);
}

fn computing(device: DeviceName) {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    let mut all = jobs(2);
    all.iter_mut().for_each(|job| job.device = Some(device));
    let (computes, talks) = (all.pop().unwrap(), all.pop().unwrap());
    let busy = Duration::from_secs(10);
    // A few times the default: how soon a thread gets a core must not decide.
    const SILENCE: u64 = 8_000_000_000;
    let enough = Arc::new(AtomicBool::new(false));
    let has_enough = enough.clone();
    let other = std::thread::spawn(move || {
        // Less than the other side sends.
        let config = common::config(|c| (c.link.credit_slots, c.link.silence) = (256, SILENCE));
        let builder = Endpoint::builder().config(config);
        let ep = join(builder.on_short("x", |_: Short<'_>| {}), computes);
        ep.serve(1).unwrap();
        let (start, before, mut sum) = (Instant::now(), ep.handled(), 0u64);
        while start.elapsed() < busy || !has_enough.load(Ordering::Acquire) {
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
    let config = common::config(|c| c.link.silence = SILENCE);
    let ep = join(Endpoint::builder().config(config).on_short("x", |_: Short<'_>| {}), talks);
    ep.send(1, "x", b"").unwrap();
    let (start, mut sent) = (Instant::now(), 1u64);
    let answered = ep.counters().links.frames_accepted;
    // Until the other side's watchdog has answered, and more was sent than the credit is.
    let mut answers = 0;
    while start.elapsed() < busy || device == DeviceName::Udp && answers < 10 || sent <= 256 {
        assert_eq!(ep.peer_state(1), Some(PeerState::Up), "after {:?}", start.elapsed());
        if sent < 200 {
            ep.send(1, "x", &[0; 100]).unwrap();
            sent += 1;
        } else if start.elapsed() > busy * 4 / 5 {
            while sent < 1000 {
                match ep.try_send(1, "x", &[0; 1000]) {
                    Ok(()) => sent += 1,
                    Err(error) if error.is_would_block() => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        ep.extract(usize::MAX).unwrap();
        ep.wait(Some(Duration::from_millis(1))).unwrap();
        answers = ep.counters().links.frames_accepted - answered;
    }
    println!("{sent} messages, {answers} frames of the peer that computes");
    enough.store(true, Ordering::Release);
    ep.close().unwrap();
    assert_eq!(other.join().unwrap(), sent);
}
