//! Real processes, killed and stopped at random moments while every rank talks with every other.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::process::Command;
use std::time::Duration;

use crate::common::launch::{Launcher, Process, again, is_member};
use crate::common::{Limit, config, talker};
use rustix::process::Signal;
use tautline::DeviceName;

/// After this much silence a peer counts as dead. That the report comes then is tested with a virtual clock.
const SILENCE: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

/// Not a test by itself: a member of the job of [`killed_peers_are_detected_and_replaced`], without a
/// watchdog.
#[test]
fn killed_member() {
    if is_member("kill::killed_member") {
        talker::talk(config(|c| {
            c.link.silence = SILENCE.as_nanos() as u64;
            c.watchdog = None;
        }));
    }
}

/// Not a test by itself: a member of the job of [`stopped_peers_are_not_dead`]. The bound is far above the
/// time that one is stopped for: on a busy machine it takes longer until that one goes on.
#[test]
fn stopped_member() {
    if is_member("kill::stopped_member") {
        talker::talk(config(|c| c.link.silence = 10_000_000_000));
    }
}

fn member(name: &str, generation: u64) -> Command {
    let mut command = again(name);
    command.env(talker::GENERATION, generation.to_string());
    command
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

/// Waits until `who` has received at least `least` messages of `whom` since `whom` was last up; returns how
/// many.
fn await_messages(who: &mut Process, whom: u32, least: u64) -> u64 {
    who.expect(&format!("word from {whom}"), PATIENCE, |line| {
        let counts = line.strip_prefix("@received ")?;
        let count: u64 = counts.split(' ').nth(whom as usize)?.parse().ok()?;
        (count >= least).then_some(count)
    })
}

/// Waits until every rank has received messages of every other.
fn await_all(members: &mut [Process]) {
    for (who, whom) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        await_messages(&mut members[who], whom, 10);
    }
}

/// Waits for the report that `whom` is `what`; returns the incarnation and the time of the report.
fn await_report(who: &mut Process, what: &str, whom: u32) -> (u32, u64) {
    let start = format!("@{what} {whom} ");
    who.expect(&start, PATIENCE, |line| {
        let mut words = line.strip_prefix(&start)?.split(' ');
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    })
}

/// N-8, N-4: of three processes one is killed, again and again. The survivors learn of it and
/// continue; the killed rank comes back at its old address, is accepted as a new incarnation, and receives
/// nothing that was meant for the former one.
#[test]
fn killed_peers_are_detected_and_replaced() {
    let rounds = tautline_skips::number("TAUTLINE_KILLS", 20);
    let _limit = Limit::seconds(60 + 5 * rounds);
    let launcher = Launcher::over(DeviceName::Udp, 3);
    let mut members: Vec<_> =
        (0..3).map(|rank| launcher.start(rank, member("kill::killed_member", 0))).collect();
    let (mut silent, mut replaced) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let victim = random(2) as u32;
        let survivor = 1 - victim;
        await_all(&mut members);
        std::thread::sleep(Duration::from_micros(random(30_000)));
        let killed = members[victim as usize].kill();
        // Every other time it is back before anybody can notice that it was gone.
        let at_once = round % 2 == 0;
        if at_once {
            members[victim as usize] = launcher.start(victim, member("kill::killed_member", round));
        }
        let mut former = [0; 3];
        for who in [survivor as usize, 2] {
            let (incarnation, reported) = await_report(&mut members[who], "down", victim);
            former[who] = incarnation;
            let took = Duration::from_nanos(reported.saturating_sub(killed));
            if at_once { &mut replaced } else { &mut silent }.push(took);
        }
        if !at_once {
            // The survivors continue to talk with each other.
            for (who, whom) in [(survivor, 2), (2, survivor)] {
                let so_far = await_messages(&mut members[who as usize], whom, 0);
                await_messages(&mut members[who as usize], whom, so_far + 10);
            }
            members[victim as usize] = launcher.start(victim, member("kill::killed_member", round));
        }
        for who in [survivor as usize, 2] {
            let (new, _) = await_report(&mut members[who], "up", victim);
            assert!(new > former[who], "round {round}: incarnation {new} after {}", former[who]);
        }
    }
    report("silent until reported", &mut silent);
    report("back before reported", &mut replaced);
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort();
    if let (Some(min), Some(max)) = (times.first(), times.last()) {
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!(
            "{what}: {} deaths, min {min:?}, p50 {:?}, p99 {:?}, max {max:?}",
            times.len(),
            at(50),
            at(99)
        );
    }
}

/// N-8: a peer that is stopped for a part of the bound is not dead, and nothing is lost, repeated or
/// reordered. The members check that. 500 ms of the default bound are tested with a virtual clock:
/// crates/link/tests/pair/timers_and_close.rs.
#[test]
fn stopped_peers_are_not_dead() {
    let _limit = Limit::seconds(60);
    let launcher = Launcher::over(DeviceName::Udp, 3);
    let mut members: Vec<_> =
        (0..3).map(|rank| launcher.start(rank, member("kill::stopped_member", 0))).collect();
    for _ in 0..6 {
        await_all(&mut members);
        let victim = random(3) as usize;
        std::thread::sleep(Duration::from_micros(random(30_000)));
        members[victim].signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(500));
        members[victim].signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(100));
        for member in &mut members {
            let reports: Vec<_> = member.drain().into_iter().filter(|l| l.starts_with("@down")).collect();
            assert!(reports.is_empty(), "rank {}: {reports:?}", member.rank);
        }
    }
}
