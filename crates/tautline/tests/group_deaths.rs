//! Members of a group, real processes, killed in collectives and while the others agree.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::Duration;

use crate::common::launch::{Launcher, Process, again, is_member};
use crate::common::{Limit, config, draw};
use rustix::process::{Signal, getpid, kill_process};
use tautline::group::Group;
use tautline::{DeviceName, Endpoint, Error};
use tautline_model::cases;

/// The number of the run, from which its members draw what happens.
const RUN: &str = "TAUTLINE_TEST_RUN";

/// After this much silence a peer counts as dead.
const SILENCE: Duration = Duration::from_millis(500);

/// What happens in one run.
#[derive(Debug)]
struct Fate {
    members: usize,
    device: DeviceName,
    /// Who dies in a collective, in which, and after how many looks at it.
    first: usize,
    collective: usize,
    looks: u64,
    /// Who dies while the others agree, if anybody does, in which agreement, and after how many microseconds.
    second: Option<usize>,
    agreement: u64,
    delay: u64,
}

impl Fate {
    fn of(run: u64) -> Fate {
        let mut seed = run.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let members = 3 + draw(&mut seed, 5) as usize;
        let first = draw(&mut seed, members as u64) as usize;
        let second = draw(&mut seed, members as u64) as usize;
        Fate {
            members,
            device: if run % 4 == 3 { DeviceName::Udp } else { DeviceName::Shm },
            first,
            collective: draw(&mut seed, 44) as usize,
            looks: draw(&mut seed, 40),
            second: (second != first && !run.is_multiple_of(3)).then_some(second),
            agreement: draw(&mut seed, 3),
            delay: draw(&mut seed, 400),
        }
    }

    fn dies(&self, rank: u32) -> bool {
        rank as usize == self.first || self.second == Some(rank as usize)
    }
}

fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    unreachable!("killed")
}

/// Not a test by itself: a member of the jobs of [`members_are_killed`].
#[test]
fn group_member() {
    if !is_member("group_deaths::group_member") {
        return;
    }
    let run = std::env::var(RUN).unwrap().parse().unwrap();
    let fate = Fate::of(run);
    let config = config(|c| c.link.silence = SILENCE.as_nanos() as u64);
    let ep = Endpoint::builder().config(config).join().unwrap();
    let world = ep.world().unwrap();
    let me = world.member();
    collectives(&world, &fate);
    let mut group = world;
    for agreement in 0.. {
        if fate.second == Some(me) && agreement == fate.agreement {
            std::thread::spawn(move || {
                let until = std::time::Instant::now() + Duration::from_micros(fate.delay);
                while std::time::Instant::now() < until {}
                die();
            });
        }
        // All members that are left must know whether the collectives of all of them went well.
        let good = works(&group);
        let (all, lost) = group.agree(u64::from(good)).unwrap();
        println!("@agreed {agreement} {all} {lost:?} of {:?}", group.ranks());
        // A member that was lost later counts in the next group.
        if all == 1 && lost.is_empty() {
            break;
        }
        group = group.shrink().unwrap();
        println!("@shrunk {agreement} {:?}", group.ranks());
    }
    if fate.second == Some(me) && fate.agreement < 2 {
        // It is about to die, and must not leave in good order before.
        std::thread::sleep(Duration::from_secs(60));
    }
    println!("@done");
    match ep.close() {
        Ok(()) => {}
        // N-9: what was sent to those that died.
        Err(Error::Undelivered(peers)) => {
            assert!(peers.iter().all(|it| fate.dies(it.peer)), "{peers:?}");
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Makes all collectives. Each gives the right result or an error, and after the first error each fails.
fn collectives(world: &Group, fate: &Fate) {
    let (n, me) = (world.size(), world.member());
    let mut failed = false;
    let calls = [1, 3_000].into_iter().flat_map(|len| cases(n, me, len));
    for (number, (call, input, output)) in calls.enumerate() {
        if me == fate.first && number == fate.collective {
            let collective = world.start(&call, input).unwrap();
            for _ in 0..fate.looks {
                collective.test();
            }
            die();
        }
        match world.run(&call, &input) {
            Ok(got) => assert!(!failed && got == output, "{call:?}: a wrong result"),
            // Others may agree already: one that had no core meanwhile may notice the second death first.
            Err(Error::PeerGone(rank, _)) => {
                assert!(fate.dies(rank), "{call:?}: rank {rank} of {fate:?}");
                failed = true;
            }
            Err(other) => panic!("{call:?}: {other:?}"),
        }
    }
}

/// Whether all collectives of a group succeed, each with the right result.
fn works(group: &Group) -> bool {
    let (n, me) = (group.size(), group.member());
    for (call, input, output) in cases(n, me, 7) {
        match group.run(&call, &input) {
            Ok(got) => assert!(got == output, "{call:?}: a wrong result"),
            Err(Error::PeerGone(..)) => return false,
            Err(other) => panic!("{call:?}: {other:?}"),
        }
    }
    true
}

/// The lines of a member that all survivors must have in common.
fn outcome(process: &mut Process, run: u64) -> Vec<String> {
    let (code, lines) = process.finish(Duration::from_secs(60));
    assert_eq!(code, Some(0), "run {run}, rank {}: {lines:?}", process.rank);
    assert!(lines.iter().any(|line| line == "@done"), "run {run}, rank {}: {lines:?}", process.rank);
    lines.into_iter().filter(|line| line.starts_with("@agreed") || line.starts_with("@shrunk")).collect()
}

/// G-6, G-7, G-9 … G-12: in each of 50 jobs a random member is killed in a random collective, and in
/// most of them another one while the others agree or make a group. Each survivor gets right results, then
/// errors; all survivors agree on the same values and members; the last group works.
#[test]
fn members_are_killed() {
    let runs = tautline_skips::number("TAUTLINE_GROUP_DEATHS", 50);
    let first = tautline_skips::number(tautline_skips::SEED, 0) * runs;
    let _limit = Limit::seconds(60 + 10 * runs);
    for run in first..first + runs {
        let fate = Fate::of(run);
        let launcher = Launcher::over(fate.device, fate.members);
        let start = |rank| {
            let mut command = again("group_deaths::group_member");
            command.env(RUN, run.to_string());
            launcher.start(rank, command)
        };
        let mut members: Vec<Process> = (0..fate.members as u32).map(start).collect();
        let survivors = members.iter_mut().filter(|member| !fate.dies(member.rank));
        let outcomes: Vec<_> = survivors.map(|member| (member.rank, outcome(member, run))).collect();
        for (rank, other) in &outcomes {
            assert_eq!(other, &outcomes[0].1, "run {run}: {fate:?}: ranks {} and {rank}", outcomes[0].0);
        }
    }
    tautline_skips::did(runs);
}
