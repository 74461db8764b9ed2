//! Peers on this host that lack descriptors or memory: they are reached all the same, both sides say why, and
//! nobody is busy meanwhile.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::time::Duration;

use common::launch::{Launcher, Process, again, example, is_member};
use common::{Limit, await_event};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline::{Config, Down, Endpoint, Event, Short};

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
