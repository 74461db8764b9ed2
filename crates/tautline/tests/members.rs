//! Members of a static list that tell each other of deaths, without a launcher (N-29): real processes.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use crate::common::launch::{Launcher, Process, again, is_member};
use rustix::process::Signal;
use tautline::{DeviceName, Down, Endpoint, Event};

const PATIENCE: Duration = Duration::from_secs(30);
const LEAVES: &str = "TAUTLINE_TEST_LEAVES";
const ASKS: &str = "TAUTLINE_TEST_ASKS";

/// On a line of its own, whatever the harness prints.
fn say(what: impl std::fmt::Display) {
    println!("\n{what}");
}

/// A member that talks with nobody, and says what it is told.
fn member() {
    let mut builder = Endpoint::builder();
    if std::env::var_os(ASKS).is_some() {
        builder = builder.watch_members();
    }
    let ep = builder.join().unwrap();
    say("joined");
    if std::env::var_os(LEAVES).is_some() {
        std::thread::sleep(Duration::from_secs(1));
        return ep.close().unwrap();
    }
    loop {
        ep.wait(None).unwrap();
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            match event {
                Event::PeerDown { peer, why: Down::Reported, .. } => say(format!("died {peer}")),
                Event::PeerDown { peer, why: Down::Closed, .. } => say(format!("left {peer}")),
                Event::MemberStarted { member } => say(format!("started {member}")),
                Event::Fenced { incarnation } => say(format!("fenced {incarnation}")),
                Event::PeerUp { .. } | Event::PeerDown { .. } => say(event),
                _ => {}
            }
        }
    }
}

fn start(launcher: &Launcher, name: &str, rank: u32, asks: bool, leaves: bool) -> Process {
    let mut command = again(name);
    if asks {
        command.env(ASKS, "");
    }
    if leaves {
        command.env(LEAVES, "");
    }
    launcher.start(rank, command)
}

fn expect(process: &mut Process, line: &str) {
    process.expect(line, PATIENCE, |said| (said == line).then_some(()));
}

/// Whether a lane of a rank came or went. Who is slow to answer is tried by its first lane, too (B-2), whose
/// program is told.
fn is_of_lane(said: &str) -> bool {
    let of_lane = || {
        let (rank, rest) = said.strip_prefix("rank ")?.split_once(", lane ")?;
        let (lane, what) = rest.split_once(" is ")?;
        rank.parse::<u32>().ok()?;
        lane.parse::<u16>().ok()?;
        Some(what == "up" || what.starts_with("down: "))
    };
    of_lane().unwrap_or(false)
}

/// Each of them says these lines, in this order, and nothing else that this test's members say, except of
/// lanes.
fn expect_next(process: &mut Process, line: &str) {
    let words = ["died", "left", "started", "fenced", "rank"];
    let said = process.expect(line, PATIENCE, |said| {
        let counts = words.iter().any(|word| said.starts_with(word)) && !is_of_lane(said);
        counts.then(|| said.to_owned())
    });
    assert_eq!(said, line, "rank {}", process.rank);
}

/// B-2, B-4, N-29: members without any channel to the victim are told of its death, once, of its next life,
/// and of one that leaves.
#[test]
fn members_are_told_without_a_launcher() {
    const NAME: &str = "members::members_are_told_without_a_launcher";
    if is_member(NAME) {
        return member();
    }
    for device in [DeviceName::Shm, DeviceName::Udp] {
        let launcher = Launcher::over(device, 6);
        let mut all: Vec<_> = (0..5).map(|rank| start(&launcher, NAME, rank, true, false)).collect();
        all.iter_mut().for_each(|process| expect(process, "joined"));
        // Rank 5 comes late, and is not reported as dead before (B-12).
        std::thread::sleep(Duration::from_secs(3));
        let mut late = start(&launcher, NAME, 5, true, true);
        expect(&mut late, "joined");
        late.finish(PATIENCE);
        all.iter_mut().for_each(|process| expect_next(process, "left 5"));
        all[2].kill();
        for rank in [0, 1, 3, 4] {
            expect_next(&mut all[rank], "died 2");
        }
        all[2] = start(&launcher, NAME, 2, true, false);
        for rank in [0, 1, 3, 4] {
            expect_next(&mut all[rank], "started 2");
        }
    }
}

/// B-2: a member that takes no part is watched by those that do, and costs nothing of the kind itself.
#[test]
fn members_that_did_not_ask_are_watched() {
    const NAME: &str = "members::members_that_did_not_ask_are_watched";
    if is_member(NAME) {
        return member();
    }
    for device in [DeviceName::Shm, DeviceName::Udp] {
        let launcher = Launcher::over(device, 4);
        let mut all: Vec<_> = (0..4).map(|rank| start(&launcher, NAME, rank, rank % 2 == 0, false)).collect();
        all.iter_mut().for_each(|process| expect(process, "joined"));
        // Each is found to be there, and to take no part.
        for rank in [1, 3] {
            all[rank].expect("a channel", PATIENCE, |said| said.contains("is up").then_some(()));
            let threads = std::fs::read_dir(format!("/proc/{}/task", all[rank].id())).unwrap();
            let names =
                threads.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
            assert!(names.into_iter().all(|name| name.trim() != "members"));
        }
        all[3].kill();
        for rank in [0, 2] {
            expect_next(&mut all[rank], "died 3");
        }
    }
}

/// B-7: a member that was stopped for too long is taken for dead, told, and counts as started again.
#[test]
fn a_member_that_was_stopped_is_told() {
    const NAME: &str = "members::a_member_that_was_stopped_is_told";
    if is_member(NAME) {
        return member();
    }
    let launcher = Launcher::over(DeviceName::Udp, 3);
    let mut all: Vec<_> = (0..3).map(|rank| start(&launcher, NAME, rank, true, false)).collect();
    all.iter_mut().for_each(|process| expect(process, "joined"));
    std::thread::sleep(Duration::from_secs(1));
    all[1].signal(Signal::STOP);
    for rank in [0, 2] {
        expect(&mut all[rank], "died 1");
    }
    all[1].signal(Signal::CONT);
    expect(&mut all[1], "fenced 1");
    for rank in [0, 2] {
        expect(&mut all[rank], "started 1");
    }
}
