//! Barriers and shared cookies.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::launch::{Launcher, again, is_member};
use crate::common::{await_event, jobs, join, run, run_over};
use tautline::memory::Rights;
use tautline::node::link::Death;
use tautline::{DeviceName, Down, Endpoint, Error, Event, Job};

const RANKS: [usize; 5] = [1, 2, 3, 5, 8];

/// M-16: nobody leaves a barrier before everybody has entered it, many times in a row, however long each rank
/// takes to come.
#[test]
fn a_barrier_holds() {
    for n in RANKS {
        let entered: Vec<AtomicU32> = (0..50).map(|_| AtomicU32::new(0)).collect();
        let program = |job: Job| {
            let ep = join(Endpoint::builder(), job);
            for (i, entered) in entered.iter().enumerate() {
                if i % ep.size() as usize == ep.rank() as usize {
                    std::thread::sleep(Duration::from_millis(i as u64 % 3));
                }
                entered.fetch_add(1, Ordering::SeqCst);
                ep.barrier().unwrap();
                assert_eq!(entered.load(Ordering::SeqCst), n as u32, "barrier {i} of {n}");
            }
            assert_eq!(ep.handled(), 0);
            ep.close().unwrap();
        };
        for device in [DeviceName::Udp, DeviceName::Shm] {
            entered.iter().for_each(|entered| entered.store(0, Ordering::SeqCst));
            run_over(device, n, program);
        }
    }
}

/// Every rank gets the cookies of all, and those that have none say so. Sharing waits as a barrier does, and
/// both can be called in turn.
#[test]
fn cookies_are_shared() {
    for n in RANKS {
        run(n, |job| {
            let ep = join(Endpoint::builder(), job);
            for round in 0..3u64 {
                let aperture = ep.aperture(4096).unwrap();
                let has_one = |rank: u32| (rank + round as u32).is_multiple_of(2);
                let cookie = has_one(ep.rank()).then(|| aperture.cookie(.., Rights::ALL).unwrap());
                let cookies = ep.share(cookie).unwrap();
                assert_eq!(cookies.len(), n);
                for (rank, cookie) in cookies.iter().enumerate() {
                    assert_eq!(cookie.is_some(), has_one(rank as u32));
                    let Some(cookie) = cookie else { continue };
                    let remote = ep.remote(cookie);
                    assert_eq!(remote.owner(), rank as u32);
                    let place = 8 * u64::from(ep.rank());
                    remote.put(place, &(round + 1).to_le_bytes()).unwrap();
                    remote.flush().unwrap().wait().unwrap();
                }
                ep.barrier().unwrap();
                if has_one(ep.rank()) {
                    assert!((0..n as u64).all(|rank| aperture.read_u64(8 * rank).unwrap() == round + 1));
                }
            }
            assert_eq!(ep.share(None).unwrap(), vec![None; n]);
            ep.close().unwrap();
        });
    }
}

/// One of the ranks closes instead of calling the barrier: all others get that error, also those that wait
/// for somebody else, and all later barriers fail.
#[test]
fn a_rank_that_leaves() {
    for n in [2, 3, 5, 8] {
        for leaver in [0, n as u32 - 1] {
            run(n, |job| {
                let ep = join(Endpoint::builder(), job);
                ep.barrier().unwrap();
                if ep.rank() != leaver {
                    for _ in 0..3 {
                        match ep.barrier() {
                            Err(Error::PeerGone(rank, Down::Closed)) => assert_eq!(rank, leaver),
                            other => panic!("{other:?}"),
                        }
                    }
                    assert!(matches!(ep.share(None), Err(Error::PeerGone(rank, _)) if rank == leaver));
                    // Nobody leaves before all have seen it: a closed rank would be gone, too.
                    leave_together(&ep, leaver);
                }
                ep.close().unwrap();
            });
        }
    }
}

/// Waits for all ranks but one, without barriers.
fn leave_together(ep: &Endpoint, but: u32) {
    let others = (0..ep.size()).filter(|rank| ![but, ep.rank()].contains(rank));
    let empty: Vec<(u32, &[u8])> = others.map(|rank| (rank, &b""[..])).collect();
    ep.exchange_all(&empty).unwrap();
}

/// The same with processes, one of which is killed.
#[test]
fn a_rank_that_dies() {
    const NAME: &str = "collective::a_rank_that_dies";
    const N: u32 = 5;
    if is_member(NAME) {
        let ep = Endpoint::builder().join().unwrap();
        ep.barrier().unwrap();
        println!("@ready");
        if ep.rank() == 3 {
            loop {
                std::thread::sleep(Duration::from_secs(600));
            }
        }
        match ep.barrier() {
            Err(Error::PeerGone(3, why)) => println!("@gone {why}"),
            other => println!("@wrong {other:?}"),
        }
        leave_together(&ep, 3);
        ep.close().unwrap();
        return;
    }
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let launcher = Launcher::over(device, N as usize);
        let mut members: Vec<_> = (0..N).map(|rank| launcher.start(rank, again(NAME))).collect();
        let limit = Duration::from_secs(30);
        members
            .iter_mut()
            .for_each(|m| m.expect("@ready", limit, |line| line.contains("@ready").then_some(())));
        members[3].kill();
        for member in members.iter_mut().filter(|member| member.rank != 3) {
            let (code, lines) = member.finish(limit);
            assert_eq!(code, Some(0), "rank {}: {lines:?}", member.rank);
            assert!(lines.iter().any(|line| line.contains("@gone")), "rank {}: {lines:?}", member.rank);
        }
    }
}

/// A rank that was started again has made fewer calls than the others: for them it is gone.
#[test]
fn a_rank_that_restarts() {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let _limit = crate::common::Limit::seconds(30);
        let launcher = &Launcher::over(device, 2);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let ep = join(Endpoint::builder(), launcher.job(0));
                (0..2).for_each(|_| ep.barrier().unwrap());
                await_event(&ep, |event| matches!(event, Event::PeerDown { peer: 1, .. }));
                await_event(&ep, |event| matches!(event, Event::PeerUp { peer: 1, .. }));
                for _ in 0..2 {
                    let ended = ep.barrier();
                    let restarted = Down::Died(Death::Restarted);
                    assert!(matches!(ended, Err(Error::PeerGone(1, why)) if why == restarted), "{ended:?}");
                }
                ep.exchange(1, b"").unwrap();
                ep.close().unwrap();
            });
            scope.spawn(move || {
                let ep = join(Endpoint::builder(), launcher.job(1));
                (0..2).for_each(|_| ep.barrier().unwrap());
                ep.close().unwrap();
                let ep = join(Endpoint::builder(), launcher.job(1));
                match ep.barrier() {
                    Err(Error::PeerGone(1, _)) => {}
                    Err(Error::Violation(text)) => assert!(text.contains("restarted?"), "{text}"),
                    other => panic!("{other:?}"),
                }
                ep.exchange(0, b"").unwrap();
                ep.close().unwrap();
            });
        });
    }
}

/// A rank that never joins ends the barrier after the time to connect.
#[test]
fn a_rank_that_never_joins() {
    let _limit = crate::common::Limit::seconds(30);
    let mut all = jobs(3);
    let _silent = all.pop();
    std::thread::scope(|scope| {
        for job in all {
            scope.spawn(move || {
                let ep = join(Endpoint::builder(), job);
                assert!(matches!(ep.barrier(), Err(Error::PeerGone(2, Down::Unreachable))));
                leave_together(&ep, 2);
                ep.close().unwrap();
            });
        }
    });
}

/// Ranks that do not make the same calls get an error, not a wait without end.
#[test]
fn different_calls() {
    run(2, |job| {
        let ep = join(Endpoint::builder(), job);
        let error =
            if ep.rank() == 0 { ep.barrier().unwrap_err() } else { ep.share(None).map(drop).unwrap_err() };
        assert!(error.to_string().contains("one rank calls barrier where another calls share"), "{error}");
        ep.exchange(1 - ep.rank(), b"").unwrap();
        ep.close().unwrap();
    });
}

/// The names of the library's handlers are not for programs, and count towards the limit.
#[test]
fn reserved_names() {
    let refused = |builder: tautline::Builder| {
        builder.join_job(jobs(1).pop().unwrap()).map(drop).unwrap_err().to_string()
    };
    let text = refused(Endpoint::builder().on_short("tautline.round", |_| {}));
    assert!(text.contains("\"tautline.round\" is registered twice"), "{text}");
    let many = |n: usize| (0..n).fold(Endpoint::builder(), |b, i| b.on_short(&i.to_string(), |_| {}));
    let text = refused(many(1023));
    assert!(text.contains("1023 handlers are more than the 1022 allowed"), "{text}");
    many(1022).join_job(jobs(1).pop().unwrap()).unwrap().close().unwrap();
}
