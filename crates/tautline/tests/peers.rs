//! Peers that come, go, never come, or are not the right ones.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{await_event, config, extract_for, jobs, join, run, run_jobs, run_over};
use tautline::node::link::JobKey;
use tautline::{
    Config, DeviceName, Down, Endpoint, Error, Event, Job, Member, PeerState, Security, SendError, Short,
};

fn gone(result: tautline::Result<()>) -> Down {
    match result {
        Err(Error::PeerGone(_, why)) => why,
        other => panic!("{other:?}"),
    }
}

/// N-8: a rank that never starts is unreachable after the configured time, as an event and as the error of
/// the blocked call.
#[test]
fn a_rank_that_never_starts() {
    let _limit = crate::common::Limit::seconds(30);
    let mut all = jobs(2);
    let silent = all.pop().unwrap();
    let builder = Endpoint::builder().config(config(|c| c.connect_timeout = Duration::from_millis(300)));
    let ep = join(builder, all.pop().unwrap());
    let start = Instant::now();
    assert_eq!(gone(ep.send(1, "x", b"")), Down::Unreachable);
    assert!(start.elapsed() >= Duration::from_millis(280), "{:?}", start.elapsed());
    await_event(&ep, |e| *e == Event::PeerDown { peer: 1, incarnation: 0, why: Down::Unreachable });
    assert_eq!(ep.peer_state(1), Some(PeerState::Down(Down::Unreachable)));
    // Once it starts, it is accepted.
    let late = std::thread::spawn(move || {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), silent);
        ep.serve(1).unwrap();
    });
    ep.connect(1).unwrap();
    await_event(&ep, |e| {
        // It may take longer to start than an attempt may take.
        if *e == (Event::PeerDown { peer: 1, incarnation: 0, why: Down::Unreachable }) {
            ep.connect(1).unwrap();
        }
        *e == Event::PeerUp { peer: 1, incarnation: 1 }
    });
    ep.send(1, "x", b"").unwrap();
    late.join().unwrap();
    ep.close().unwrap();
}

/// J-3: a job that the program describes itself is checked as one that was read.
#[test]
fn a_rank_that_is_not_a_member() {
    for members in [vec![], vec![Member::new("127.0.0.1:0".parse().unwrap())]] {
        let job = Job::new(5, JobKey::new([1; 32]), members);
        let refused = Endpoint::builder().join_job(job).map(drop).unwrap_err();
        assert!(refused.to_string().contains("rank 5 is not among the"), "{refused}");
    }
}

/// Members with different security modes refuse each other, and both report why.
#[test]
fn security_mismatch() {
    let answered = AtomicU32::new(0);
    run_over(DeviceName::Udp, 2, |job| {
        let security = if job.rank == 0 { Security::Sealed } else { Security::Fabric };
        let ep = join(Endpoint::builder().security(security).on_short("x", |_: Short<'_>| {}), job);
        let why = gone(ep.send(1 - ep.rank(), "x", b""));
        assert!(matches!(why, Down::Refused(_)), "{why:?}");
        let text = why.to_string();
        assert!(text.contains("security"), "{text}");
        // The other one may not have dialed yet, and must get its answer.
        answered.fetch_add(1, Ordering::SeqCst);
        while answered.load(Ordering::SeqCst) < 2 {
            extract_for(&ep, Duration::from_millis(1));
        }
        ep.close().unwrap();
    });
}

/// All three security modes carry messages.
#[test]
fn security_modes() {
    for security in [Security::Open, Security::Fabric, Security::Sealed] {
        run(2, |job| {
            let ep = join(Endpoint::builder().security(security).on_short("x", |_: Short<'_>| {}), job);
            for i in 0..100 {
                ep.send(1 - ep.rank(), "x", &vec![0; 10 * i]).unwrap();
            }
            ep.serve(100).unwrap();
            ep.close().unwrap();
        });
    }
}

/// A member with the wrong key is not accepted, and its attempts are counted.
#[test]
fn wrong_key() {
    let mut all = jobs(2);
    all[1].key = JobKey::new([43; 32]);
    run_jobs(all, |job| {
        let builder = Endpoint::builder().on_short("x", |_: Short<'_>| {});
        let ep = join(builder.config(config(|c| c.connect_timeout = Duration::from_millis(400))), job);
        assert_eq!(gone(ep.send(1 - ep.rank(), "x", b"")), Down::Unreachable);
        while ep.counters().forged_handshakes == 0 {
            extract_for(&ep, Duration::from_millis(1));
        }
        assert_eq!(ep.handled(), 0);
        ep.close().unwrap();
    });
}

/// A wait goes on when the only connected peer has gone: a rank that was never connected may still come.
#[test]
fn ranks_that_never_connected_may_come() {
    let first_is_gone = AtomicU32::new(0);
    run(3, |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        match ep.rank() {
            0 => {
                let look = || {
                    if matches!(ep.peer_state(1), Some(PeerState::Down(_))) {
                        first_is_gone.store(1, Ordering::SeqCst);
                    }
                    ep.handled() == 2
                };
                ep.run_until(look).unwrap();
            }
            1 => ep.send(0, "x", b"").unwrap(),
            _ => {
                while first_is_gone.load(Ordering::SeqCst) == 0 {
                    extract_for(&ep, Duration::from_millis(1));
                }
                ep.send(0, "x", b"").unwrap();
            }
        }
        ep.close().unwrap();
    });
}

/// N-9: everything sent before closing arrives, although the sender closes at once.
#[test]
fn close_delivers() {
    run(2, |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        if ep.rank() == 0 {
            for _ in 0..5000 {
                ep.send(1, "x", &[0; 100]).unwrap();
            }
        } else {
            ep.serve(5000).unwrap();
            await_event(&ep, |e| matches!(e, Event::PeerDown { peer: 0, incarnation: 1, why: Down::Closed }));
            assert_eq!(gone(ep.send(0, "x", b"")), Down::Closed);
        }
        ep.close().unwrap();
    });
}

/// N-9: dropping the last clone closes, too.
#[test]
fn dropping_closes() {
    run(2, |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        if ep.rank() == 0 {
            ep.send(1, "x", b"").unwrap();
        } else {
            await_event(&ep, |e| matches!(e, Event::PeerDown { why: Down::Closed, .. }));
            // Both may have arrived between the last extraction and the reading of events.
            ep.extract(usize::MAX).unwrap();
            assert_eq!(ep.handled(), 1);
        }
    });
}

/// N-8, N-4: a peer that closes and comes back is another incarnation, with its own table of handlers.
#[test]
fn a_peer_comes_back() {
    let _limit = crate::common::Limit::seconds(30);
    let mut all = jobs(2);
    let job = all.pop().unwrap();
    let members = job.members.to_vec();
    // Open all the time, so that nobody else gets its port.
    let socket = UdpSocket::from(job.socket.as_ref().unwrap().try_clone().unwrap());
    let stay = all.pop().unwrap();
    let other = std::thread::spawn(move || {
        let ep = join(Endpoint::builder().on_short("first", |_: Short<'_>| {}), job);
        ep.serve(1).unwrap();
        ep.close().unwrap();
        let job = Job::new(1, JobKey::new([42; 32]), members).with_socket(socket);
        let ep = join(Endpoint::builder().on_short("second", |_: Short<'_>| {}), job);
        ep.serve(1).unwrap();
        ep.close().unwrap();
    });
    let ep = join(Endpoint::builder(), stay);
    ep.send(1, "first", b"").unwrap();
    let mut half = ep.begin(1, "first", 10);
    await_event(&ep, |e| matches!(e, Event::PeerDown { peer: 1, incarnation: 1, .. }));
    ep.connect(1).unwrap();
    await_event(&ep, |e| *e == Event::PeerUp { peer: 1, incarnation: 2 });
    assert!(matches!(ep.send(1, "first", b""), Err(Error::Send(SendError::UnknownHandler(1)))));
    if let Ok(half) = &mut half {
        // Begun with the former incarnation: the new one gets nothing of it.
        assert!(matches!(half.piece(b"x"), Err(Error::PeerGone(1, _))));
    }
    ep.send(1, "second", b"").unwrap();
    other.join().unwrap();
    drop(half);
    ep.close().unwrap();
}

/// N-11: the first event tells which device was chosen, and why.
#[test]
fn device_is_reported() {
    for device in [None, Some(DeviceName::Udp)] {
        let builder = Endpoint::builder().config(Config::with(|config| config.device = device));
        let ep = join(builder, jobs(1).remove(0));
        let Some(Event::Device(choice)) = ep.poll_event() else { panic!("no choice was reported") };
        assert_eq!(choice.device, "udp");
        assert_eq!(choice.reason.contains("configuration"), device.is_some(), "{}", choice.reason);
        assert!(!choice.details.is_empty());
        ep.close().unwrap();
    }
}

/// Mistakes in a builder are reported before anything is opened.
#[test]
fn builder_mistakes() {
    let twice = Endpoint::builder().on_short("x", |_: Short<'_>| {}).on_short("x", |_: Short<'_>| {});
    let long = Endpoint::builder().on_short(&"x".repeat(201), |_: Short<'_>| {});
    let many = (0..1025).fold(Endpoint::builder(), |b, i| b.on_short(&i.to_string(), |_: Short<'_>| {}));
    for (builder, word) in [(twice, "twice"), (long, "at most"), (many, "more than")] {
        let error = builder.join_job(jobs(1).remove(0)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// N-9: after a close, every call on a clone fails, and none hangs.
#[test]
fn calls_on_a_closed_endpoint_fail() {
    let _limit = crate::common::Limit::seconds(30);
    run(2, |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        let peer = 1 - ep.rank();
        ep.send(peer, "x", b"").unwrap();
        ep.serve(1).unwrap();
        if ep.rank() == 1 {
            // Stays until the other one has closed.
            let left = || std::iter::from_fn(|| ep.poll_event()).any(|e| matches!(e, Event::PeerDown { .. }));
            return ep.run_until(left).unwrap();
        }
        let clone = ep.clone();
        let mut half = ep.begin(peer, "x", 10).unwrap();
        ep.close().unwrap();
        let closed = |result: tautline::Result<()>| {
            assert!(matches!(result, Err(Error::Send(SendError::Closed))), "{result:?}");
        };
        closed(half.piece(b"12345"));
        closed(clone.connect(peer));
        closed(clone.send(peer, "x", b""));
        closed(clone.serve(1));
        closed(clone.extract(1).map(drop));
        closed(clone.wait(Some(Duration::from_millis(1))).map(drop));
    });
}
