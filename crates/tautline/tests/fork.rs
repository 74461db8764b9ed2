//! After `fork` the child has no node, and calls say so; over `exec` nothing is inherited.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Limit, jobs, join, run};
use rustix::process::{Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use tautline::memory::Rights;
use tautline::{Borrowed, Cookie, DeviceName, Endpoint, Error, Message, PeerState, SendError, Short};

/// One test at a time: descriptors are counted, and inherited, by the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forked<T>(result: tautline::Result<T>) -> bool {
    matches!(result.map(drop), Err(Error::Send(SendError::Forked)))
}

/// What the child tries; each number is the exit code of a failure.
fn in_child(ep: Endpoint, half: tautline::Outgoing) -> i32 {
    type Try = (i32, fn(&Endpoint) -> bool);
    let tries: [Try; 12] = [
        (1, |ep| forked(ep.send(1, "x", b"child"))),
        (2, |ep| forked(ep.begin(1, "x", 10))),
        (3, |ep| forked(ep.extract(usize::MAX))),
        (4, |ep| forked(ep.wait(Some(Duration::from_millis(1))))),
        (5, |ep| forked(ep.progress())),
        (6, |ep| forked(ep.arm())),
        (7, |ep| forked(ep.connect(1)) && ep.poll_event().is_none() && ep.peer_state(1).is_none()),
        (8, |ep| forked(ep.handler("y")) && ep.counters() == tautline::Counters::default()),
        (9, |ep| forked(ep.handle().send(1, "x", b"child"))),
        (10, |ep| forked(ep.handle().call_raw(1, "x", b"child").map_err(Error::from))),
        (11, |ep| forked(ep.handle().remote(&Cookie::from_bytes(&[0; Cookie::LEN])).flush())),
        (12, |ep| forked(ep.clone().close())),
    ];
    if let Some((code, _)) = tries.iter().find(|(_, good)| !good(&ep)) {
        return *code;
    }
    ep.waker().wake();
    drop(ep.batch());
    drop(half);
    drop(ep);
    0
}

/// N-10: the child's calls are refused, whatever the watchdog did at the moment of the fork; the parent
/// continues.
#[test]
fn a_forked_child_has_no_node() {
    let _alone = alone();
    run(2, |job| {
        let builder = Endpoint::builder()
            .on("x", |mut msg: Message| async move {
                assert_eq!(msg.read_to_end().await?, b"parent");
                Ok(())
            })
            .on_short("go on", |_: Short<'_>| {});
        let ep = join(builder, job);
        if ep.rank() == 1 {
            ep.serve(40).unwrap();
            assert_eq!(ep.poll_failure(), None);
            return ep.close().unwrap();
        }
        for _ in 0..20 {
            let mut half = ep.begin(1, "x", 6).unwrap();
            half.piece(b"par").unwrap();
            ep.send(1, "go on", b"").unwrap();
            // SAFETY: the child runs no code of other threads, and leaves by _exit.
            match unsafe { libc::fork() } {
                0 => {
                    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
                    let code =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| in_child(ep.clone(), half)));
                    // SAFETY: leaves at once, without the parent's destructors.
                    unsafe { libc::_exit(code.unwrap_or(99)) }
                }
                pid => {
                    assert!(pid > 0);
                    assert_eq!(exit_code(pid), 0);
                }
            }
            half.piece(b"ent").unwrap();
            half.end().unwrap();
            // Computes for a while, so that the watchdog is active at the next fork.
            std::thread::sleep(Duration::from_millis(3));
        }
        ep.close().unwrap();
    });
}

/// The child's exit code. The limit of [`run`] ends the test if the child hangs, and with it the child.
fn exit_code(pid: i32) -> i32 {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().expect("it waits for the end");
    status.exit_status().unwrap_or(97)
}

/// The numbers of the descriptors that a program which this process starts has.
fn inherited() -> BTreeSet<String> {
    let out = Command::new("ls").arg("/proc/self/fd").output().unwrap();
    String::from_utf8(out.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// N-10: a program that a member starts inherits none of the member's descriptors.
#[test]
fn exec_inherits_no_descriptors() {
    let (_alone, _limit) = (alone(), Limit::seconds(20));
    let own = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (before, count) = (inherited(), own());
    let ep = join(Endpoint::builder(), jobs(1).remove(0));
    assert!(own() > count, "the node has descriptors of its own");
    assert_eq!(inherited(), before);
    ep.close().unwrap();
}

/// N-10: nor those of channels through shared memory: segments, pools, shared apertures and sockets.
#[test]
fn exec_inherits_no_shared_memory() {
    let (_alone, _limit) = (alone(), Limit::seconds(20));
    let before = inherited();
    let mut both = jobs(2);
    both.iter_mut().for_each(|job| job.device = Some(DeviceName::Shm));
    let ends: Vec<_> = both
        .into_iter()
        .map(|job| {
            let builder =
                Endpoint::builder().on_loan("lent", |loan: Borrowed| assert_eq!(loan.len(), 50_000));
            join(builder, job)
        })
        .collect();
    ends[0].connect(1).unwrap();
    while ends.iter().any(|ep| ep.peer_state(1 - ep.rank()) != Some(PeerState::Up)) {
        for ep in &ends {
            ep.extract(usize::MAX).unwrap();
        }
    }
    let aperture = ends[0].aperture(4096).unwrap();
    let share = aperture.share(Rights::ALL).unwrap();
    let _mapped = ends[1].map(share.cookie()).unwrap();
    let loan = ends[0].loan(1, 50_000).unwrap();
    assert!(loan.is_shared());
    loan.send("lent").unwrap();
    ends[1].serve(1).unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let ours = links.filter(|to| to.to_string_lossy().contains("tautline")).count();
    assert!(ours >= 3, "a segment and two pools are open, not {ours}");
    assert_eq!(inherited(), before);
}
