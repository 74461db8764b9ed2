//! Peers on this host that lack descriptors or memory: they are reached all the same, both sides say why, and
//! nobody is busy meanwhile.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::time::Duration;

use common::launch::{Launcher, Process, again, example, is_member};
use common::{Limit, await_event};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline::{Builder, Config, DeviceName, Down, Endpoint, Event, PeerState, Short};

const PATIENCE: Duration = Duration::from_secs(60);

/// Lowers a limit of this process.
fn lower(resource: Resource, to: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(to), maximum }).unwrap();
}

fn join() -> Endpoint {
    Endpoint::builder().config(Config::default()).on_short("x", |_: Short<'_>| {}).join().unwrap()
}

/// Waits at least `least` times, for ten milliseconds each, until a peer was refused. Prints what happened,
/// how often it slept, and how often it waited.
fn idle(ep: &Endpoint, least: usize) {
    let (before, mut waits, mut refused) = (ep.counters().sleeps, 0, false);
    while waits < least || !refused {
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            println!("@event {event}");
            refused |= matches!(event, Event::LocalRefused { .. });
        }
        ep.wait(Some(Duration::from_millis(10))).unwrap();
        waits += 1;
    }
    println!("@slept {} {waits}", ep.counters().sleeps - before);
}

/// Not a test by itself: takes all descriptors that it may have.
#[test]
fn member_without_descriptors() {
    if !is_member("member_without_descriptors") {
        return;
    }
    let ep = join();
    lower(Resource::Nofile, 64);
    let hoard: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    println!("@full");
    idle(&ep, 100);
    drop(hoard);
    ep.run_until(|| ep.handled() == 1).unwrap();
    println!("@served");
    ep.close().unwrap();
}

/// Not a test by itself: sends a message, and waits for one.
#[test]
fn talking_member() {
    if is_member("talking_member") {
        let ep = join();
        ep.send(0, "x", b"hello").unwrap();
        ep.run_until(|| ep.handled() == 1).unwrap();
        while let Some(event) = ep.poll_event() {
            println!("@event {event}");
        }
        println!("@end");
        ep.close().unwrap();
    }
}

/// S-6, N-12: a process in another PID namespace, which this one has no number for, shares memory, too.
#[test]
fn another_pid_namespace_shares_memory() {
    let _limit = Limit::seconds(120);
    let mut inside = std::process::Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        inside.args(["--user", "--map-current-user"]);
    }
    inside.args(["--pid", "--fork", "--kill-child"]);
    let mut tried = std::process::Command::new("unshare");
    if !tried.args(inside.get_args()).arg("true").status().is_ok_and(|status| status.success()) {
        return tautline_skips::skip(
            "another_pid_namespace_shares_memory",
            "no PID namespaces for this user",
        );
    }
    let member = again("talking_member");
    inside.arg(member.get_program()).args(member.get_args());
    inside.envs(member.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let launcher = Launcher::new(2);
    let ep = Endpoint::builder().on_short("x", |_: Short<'_>| {}).join_job(launcher.job(0)).unwrap();
    let mut member = launcher.start(1, inside);
    ep.send(1, "x", b"hello").unwrap();
    ep.run_until(|| ep.handled() == 1).unwrap();
    let event = await_event(&ep, |event| matches!(event, Event::Transport { peer: 1, .. }));
    let Event::Transport { device, reason, .. } = event else { unreachable!("it was asked for") };
    println!("{device}: {reason}");
    let theirs = told(&mut member, "event rank 0 uses");
    assert!(device == "shm" && theirs.starts_with("shm"), "{device}: {reason}; there: {theirs}");
    told(&mut member, "end");
    let why = await_event(&ep, |event| matches!(event, Event::PeerDown { .. }));
    assert!(matches!(why, Event::PeerDown { why: Down::Closed, .. }), "{why}");
}

/// Descriptors that this process has open.
fn open_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

/// Not a test by itself: joins with more and more descriptors.
#[test]
fn member_with_few_descriptors() {
    if !is_member("member_with_few_descriptors") {
        return;
    }
    let before = getrlimit(Resource::Nofile).current.unwrap();
    let mut outcomes = String::new();
    for more in 0..40 {
        let job = common::jobs(2).remove(0);
        lower(Resource::Nofile, open_descriptors() + more);
        let joined = Endpoint::builder().join_job(job);
        lower(Resource::Nofile, before);
        outcomes.push(if joined.is_ok() { 'j' } else { '-' });
    }
    println!("@outcomes {outcomes}");
}

/// N-17: a process that can join with some descriptors can join with more: what shared memory takes is not
/// missing elsewhere.
#[test]
fn more_descriptors_are_never_too_few() {
    let _limit = Limit::seconds(120);
    let mut member = Launcher::new(1).start(0, again("member_with_few_descriptors"));
    let outcomes = told(&mut member, "outcomes");
    println!("{outcomes}");
    assert_eq!(outcomes.len(), 40);
    assert!(outcomes.starts_with('-') && outcomes.ends_with('j'), "{outcomes}");
    assert!(!outcomes.contains("j-"), "{outcomes}");
}

/// Not a test by itself: joins with too few descriptors for a listener, and connects when there are enough.
#[test]
fn member_that_gets_descriptors() {
    if !is_member("member_that_gets_descriptors") {
        return;
    }
    let before = getrlimit(Resource::Nofile).current.unwrap();
    for more in 0..40 {
        let [first, second] = <[_; 2]>::try_from(common::jobs(2)).unwrap();
        let second = Endpoint::builder().join_job(second).unwrap();
        lower(Resource::Nofile, open_descriptors() + more);
        let first = Endpoint::builder().join_job(first);
        lower(Resource::Nofile, before);
        let Ok(first) = first else { continue };
        let Some(Event::Device(choice)) = first.poll_event() else { unreachable!("the first event is it") };
        if !choice.passed_over.iter().any(|not| not.device == "shm" && not.reason.contains("ulimit -n")) {
            return println!("@transport none: {more} descriptors suffice");
        }
        first.connect(1).unwrap();
        loop {
            second.extract(usize::MAX).unwrap();
            first.extract(usize::MAX).unwrap();
            if let Some(Event::Transport { device, reason, .. }) = first.poll_event() {
                return println!("@transport {device}: {reason}");
            }
        }
    }
}

/// N-17: a node that had too few descriptors for a listener when it joined opens one later.
#[test]
fn a_listener_that_could_not_be_opened_is_tried_again() {
    let _limit = Limit::seconds(120);
    let mut member = Launcher::new(1).start(0, again("member_that_gets_descriptors"));
    let transport = told(&mut member, "transport");
    assert!(transport.starts_with("shm"), "{transport}");
}

/// Too little address space is an error of joining that says so, and no reason to abort.
#[test]
fn little_address_space_is_an_error() {
    let _limit = Limit::seconds(120);
    let hello = example("hello");
    let mut refused = 0;
    for kilobytes in (6_000..40_000).step_by(2_000) {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -v {kilobytes}; exec \"$0\" 2>&1")).arg(hello.get_program());
        let (code, lines) = Launcher::new(1).start(0, shell).finish(PATIENCE);
        println!("{kilobytes} kB: {code:?} {:?}", lines.last());
        // 127: the loader has no space for the program.
        assert!(matches!(code, Some(0 | 1 | 127)), "{kilobytes} kB: {code:?} {lines:?}");
        refused += u32::from(code == Some(1));
        let why = lines.concat();
        assert!(code != Some(1) || why.contains("ulimit -v"), "{kilobytes} kB: {why}");
    }
    assert!(refused > 0, "none of these limits was too low");
}

/// A value that the member prints after a word.
fn told(member: &mut Process, word: &str) -> String {
    let start = format!("@{word}");
    member.expect(&start, PATIENCE, |line| line.strip_prefix(&start).map(|rest| rest.trim().to_owned()))
}

/// S-33, N-17: a node that has no descriptor left refuses a connection, sleeps meanwhile, and says so; the
/// peer reaches it by datagram and knows why.
#[test]
fn a_node_without_descriptors_is_reached_by_datagram() {
    let _limit = Limit::seconds(120);
    let launcher = Launcher::new(2);
    let ep = Endpoint::builder().on_short("x", |_: Short<'_>| {}).join_job(launcher.job(0)).unwrap();
    let mut member = launcher.start(1, again("member_without_descriptors"));
    told(&mut member, "full");
    ep.send(1, "x", b"hello").unwrap();
    let event = await_event(&ep, |event| matches!(event, Event::Transport { peer: 1, .. }));
    let Event::Transport { device, reason, .. } = event else { unreachable!("it was asked for") };
    println!("{device}: {reason}");
    assert!(device == "udp" && reason.contains("ulimit -n"), "{device}: {reason}");
    let event = told(&mut member, "event a peer on this host");
    assert!(event.contains("ulimit -n"), "{event}");
    let slept = told(&mut member, "slept");
    let numbers: Vec<u64> = slept.split(' ').map(|number| number.parse().unwrap()).collect();
    let [slept, waits] = numbers[..] else { panic!("{slept}") };
    println!("{slept} sleeps in {waits} waits");
    // Once or twice for each wait, and for the datagrams.
    assert!(slept < 800 + 2 * waits, "{slept} sleeps in {waits} waits");
    told(&mut member, "served");
}

/// Set for a member whose limit is raised when it is named, and how many ranks it has.
const RAISED: &str = "TAUTLINE_TEST_RAISED";
const THREADS: usize = 12;

/// Connects to all other ranks, with memory only, until each is up or down. Prints what happened. If there is
/// a limit to raise to, does so when an event names the limit.
fn meet(ends: &[Endpoint], ranks: u32, mut raise: Option<u64>) {
    let others = |end: &Endpoint| (0..ranks).filter(|rank| *rank != end.rank()).collect::<Vec<_>>();
    ends.iter().for_each(|end| others(end).into_iter().for_each(|peer| end.connect(peer).unwrap()));
    let is_settled =
        |end: &Endpoint, peer| matches!(end.peer_state(peer), Some(PeerState::Up | PeerState::Down(_)));
    let read_events = |end: &Endpoint, raise: &mut Option<u64>| {
        while let Some(event) = end.poll_event() {
            match event {
                Event::PeerDown { peer, .. } => {
                    // The peer may dial again, and share memory after all.
                    let told =
                        end.send(peer, "x", b"hello").map_or_else(|e| e.to_string(), |()| event.to_string());
                    println!("@down {told}");
                }
                Event::PeerUp { .. } => println!("@up"),
                event @ Event::LocalRefused { .. } => {
                    println!("@lacking {event}");
                    raise.take().into_iter().for_each(|to| lower(Resource::Nofile, to));
                }
                _ => {}
            }
        }
    };
    while !ends.iter().all(|end| others(end).into_iter().all(|peer| is_settled(end, peer))) {
        for end in ends {
            end.extract(usize::MAX).unwrap();
            end.wait(Some(Duration::from_micros(10))).unwrap();
            read_events(end, &mut raise);
        }
    }
    ends.iter().for_each(|end| read_events(end, &mut raise));
    println!("@settled");
}

fn builder() -> Builder {
    let config = Config::with(|config| config.connect_timeout = Duration::from_secs(8));
    Endpoint::builder().config(config).on_short("x", |_: Short<'_>| {})
}

/// Not a test by itself: ranks that are threads of one process, which has few descriptors for all of them.
#[test]
fn member_of_many_ranks() {
    if is_member("member_of_many_ranks") {
        let mut jobs = common::jobs(THREADS);
        jobs.iter_mut().for_each(|job| job.device = Some(DeviceName::Shm));
        let ends: Vec<_> = jobs.into_iter().map(|job| builder().join_job(job).unwrap()).collect();
        let before = getrlimit(Resource::Nofile).current;
        lower(Resource::Nofile, open_descriptors() + 60);
        meet(&ends, THREADS as u32, before.filter(|_| std::env::var_os(RAISED).is_some()));
    }
}

/// Not a test by itself: a rank that has few descriptors.
#[test]
fn member_that_meets_others() {
    if is_member("member_that_meets_others") {
        let end = builder().join().unwrap();
        lower(Resource::Nofile, open_descriptors() + 12);
        meet(std::slice::from_ref(&end), 8, None);
        // For the others, until it is killed.
        loop {
            end.extract(usize::MAX).unwrap();
            end.wait(None).unwrap();
        }
    }
}

/// What a member printed before it was settled.
#[derive(Debug, Default, PartialEq, Eq)]
struct Met {
    /// Peers that are up, and why others are not.
    up: usize,
    downs: Vec<String>,
    /// An event named the limit.
    named: bool,
}

fn settled(member: &mut Process) -> Met {
    let mut met = Met::default();
    member.expect("@settled", PATIENCE, |line| {
        met.up += usize::from(line == "@up");
        met.downs.extend(line.strip_prefix("@down ").map(str::to_owned));
        met.named |= line.starts_with("@lacking") && line.contains("RLIMIT_NOFILE");
        (line == "@settled").then_some(())
    });
    let Met { up, downs, .. } = &met;
    println!("rank {}: {up} up, {} not, for example {:?}", member.rank, downs.len(), downs.first());
    assert!(downs.iter().all(|why| why.contains("RLIMIT_NOFILE")), "{downs:?}");
    met
}

/// N-33: ranks that are threads of one process lack descriptors while they open channels: when there are
/// enough, all channels are opened, and nobody was taken for dead.
#[test]
fn a_passing_shortage_kills_nobody() {
    let _limit = Limit::seconds(120);
    let mut member = again("member_of_many_ranks");
    member.env(RAISED, "");
    let met = settled(&mut Launcher::new(1).start(0, member));
    assert_eq!(met, Met { up: THREADS * (THREADS - 1), downs: Vec::new(), named: true });
}

/// N-33: where there are too few, sending to a peer that could not be reached is an error that names the
/// limit.
#[test]
fn a_shortage_among_threads_is_named() {
    let _limit = Limit::seconds(120);
    let met = settled(&mut Launcher::new(1).start(0, again("member_of_many_ranks")));
    assert!(met.up > 0 && !met.downs.is_empty() && met.named, "{met:?}");
}

/// The same of ranks that are processes.
#[test]
fn a_shortage_among_processes_is_named() {
    let _limit = Limit::seconds(120);
    let launcher = Launcher::over(DeviceName::Shm, 8);
    let start = |rank| launcher.start(rank, again("member_that_meets_others"));
    let mut members: Vec<_> = (0..8).map(start).collect();
    let met: Vec<_> = members.iter_mut().map(settled).collect();
    let told = |is: &dyn Fn(&Met) -> bool| met.iter().any(is);
    assert!(told(&|met| met.up > 0) && told(&|met| !met.downs.is_empty()), "{met:?}");
    assert!(told(&|met| met.named), "{met:?}");
}
