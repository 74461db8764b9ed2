//! Peers on this host: which transport they use, and why.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{FEW_SLEEPS, Limit, await_event, jobs, jobs_at, join, run_jobs};
use tautline::{DeviceName, Down, Endpoint, Event, Job, Message, PeerState, Short};

/// Sends a message each way and returns the transports that were reported.
fn talk(job: Job) -> Vec<&'static str> {
    reasons(job).into_iter().map(|(device, _)| device).collect()
}

/// As [`talk`], with the reasons.
fn reasons(job: Job) -> Vec<(&'static str, String)> {
    let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
    let peer = 1 - ep.rank();
    ep.send(peer, "x", b"there").unwrap();
    ep.run_until(|| ep.handled() > 0).unwrap();
    let ways = std::iter::from_fn(|| ep.poll_event()).filter_map(|event| match event {
        Event::Transport { device, reason, .. } => Some((device, reason)),
        _ => None,
    });
    let ways = ways.collect();
    // Each side may close only when the other one has received its message.
    ep.send(peer, "x", b"done").unwrap();
    ep.run_until(|| ep.handled() == 2).unwrap();
    let counters = ep.counters();
    if counters.local.frames_sent > 0 {
        // S-7: no acknowledgement, no heartbeat, and of the handshake only the table of handlers.
        assert_eq!(counters.local.frames_sent, 3, "{counters:?}");
        assert_eq!(counters.links.frames_sent, 0, "{counters:?}");
    }
    ep.close().unwrap();
    ways
}

/// N-12, N-17, S-5: processes of one host find each other's listeners by themselves and report it; the
/// listeners' files are unlinked.
#[test]
fn local_peers_share_memory() {
    run_jobs(jobs(2), |job| assert_eq!(talk(job), ["shm"]));
}

/// N-16: the order in which they start does not matter.
#[test]
fn late_local_peers_share_memory() {
    for late in [0, 1] {
        run_jobs(jobs(2), |job| {
            if job.rank == late {
                std::thread::sleep(Duration::from_millis(150));
            }
            assert_eq!(talk(job), ["shm"]);
        });
    }
}

/// N-18: a program that extracts all the time, and never waits, polls its device however idle its local peers
/// are: a remote peer can connect.
#[test]
fn polling_rings_does_not_starve_the_device() {
    let mut all = jobs(3);
    all[2].device = Some(DeviceName::Udp);
    let connected = std::sync::Barrier::new(3);
    run_jobs(all, |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        match ep.rank() {
            0 => {
                await_event(&ep, |event| *event == Event::PeerUp { peer: 1, incarnation: 1 });
                connected.wait();
                let mut extractions = 0;
                while ep.peer_state(2) != Some(PeerState::Up) {
                    ep.extract(usize::MAX).unwrap();
                    // Not for so long that the watchdog polls instead.
                    let computed = Instant::now() + Duration::from_micros(200);
                    while Instant::now() < computed {}
                    extractions += 1;
                    // 20 s at least: rank 2 may have to wait for a core.
                    assert!(extractions < 100_000, "no hello was heard");
                }
            }
            1 => {
                ep.send(0, "x", b"").unwrap();
                connected.wait();
            }
            _ => {
                connected.wait();
                ep.send(0, "x", b"").unwrap();
            }
        }
        connected.wait();
    });
}

/// N-12, N-17: a rank that requests datagrams gets them, also from peers that requested nothing; those report
/// why.
#[test]
fn udp_on_request() {
    let mut all = jobs(2);
    all[1].device = Some(DeviceName::Udp);
    run_jobs(all, |job| {
        let asked = job.rank == 1;
        let reported = reasons(job);
        match &reported[..] {
            [] if asked => {}
            [("udp", why)] if !asked && why.contains("without a listener") => {}
            _ => panic!("{reported:?}"),
        }
    });
}

/// N-17: a limit that rules out shared memory makes no peer unreachable, and is named.
#[test]
fn udp_without_room_for_shared_memory() {
    const INSIDE: &str = "TAUTLINE_TEST_SMALL_FILES";
    if std::env::var_os(INSIDE).is_some() {
        return run_jobs(jobs(2), |job| {
            let reported = reasons(job);
            assert!(matches!(&reported[..], [("udp", why)] if why.contains("on this host")), "{reported:?}");
            println!("@reported {}", reported[0].1);
        });
    }
    // A process that exceeds its file size limit is killed by a signal, unless it ignores that.
    let inside = "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact local::udp_without_room_for_shared_memory --nocapture";
    let ran = std::process::Command::new("sh")
        .args(["-c", inside])
        .arg(std::env::current_exe().unwrap())
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert_eq!(said.matches("@reported ").count(), 2, "{said}");
    assert!(said.contains("(ulimit -f)"), "{said}");
}

/// N-12: AF_XDP reaches no rank at the same address, so that such ranks share memory although AF_XDP was
/// requested; others get datagrams.
#[test]
fn xdp_on_request() {
    let xdp = |mut job: Job| {
        job.device = Some(DeviceName::Xdp);
        job
    };
    run_jobs(jobs(2).into_iter().map(xdp).collect(), |job| assert_eq!(talk(job), ["shm"]));
    let mut mixed = jobs(2);
    mixed[0].device = Some(DeviceName::Xdp);
    run_jobs(mixed, |job| assert_eq!(talk(job), ["shm"]));
    // One of them has no preference, and dials.
    for asked in [[true, true], [true, false], [false, true]] {
        let mut apart = jobs(2);
        let mut other = jobs_at("127.0.0.2:0", 2).remove(1);
        for (job, asked) in apart.iter_mut().zip(asked) {
            std::sync::Arc::make_mut(&mut job.members)[1] = other.members[1].clone();
            job.device = asked.then_some(DeviceName::Xdp);
        }
        apart[1].socket = other.socket.take();
        run_jobs(apart, |job| assert!(!talk(job).contains(&"shm")));
    }
}

/// N-12: with shared memory alone, a peer without a listener is unreachable, and its caller gets an error.
#[test]
fn unreachable_without_a_listener() {
    let _limit = Limit::seconds(30);
    let mut all = jobs(2);
    let mut job = all.remove(0);
    job.device = Some(DeviceName::Shm);
    let config = crate::common::config(|config| config.connect_timeout = Duration::from_millis(200));
    let ep = join(Endpoint::builder().config(config), job);
    let error = ep.send(1, "x", b"").unwrap_err();
    assert!(matches!(error, tautline::Error::PeerGone(1, Down::Unreachable)), "{error}");
}

/// S-6: a peer that closes is down at once, and everything it sent before has arrived.
#[test]
fn messages_before_a_close_arrive() {
    run_jobs(jobs(2), |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        if ep.rank() == 0 {
            (0..100u64).for_each(|i| ep.send(1, "x", &i.to_le_bytes()).unwrap());
            return ep.close().unwrap();
        }
        await_event(&ep, |event| matches!(event, Event::PeerDown { why: Down::Closed, .. }));
        assert_eq!(ep.peer_state(0), Some(PeerState::Down(Down::Closed)));
        while ep.extract(usize::MAX).unwrap() > 0 {}
        assert_eq!(ep.handled(), 100);
    });
}

/// N-7: a program that waits without extracting sleeps, even if more has arrived than fits.
#[test]
fn unextracted_frames_do_not_keep_awake() {
    // Polls of the receiver, and the messages that were sent until there was no room for more.
    let (polls, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    run_jobs(jobs(2), |job| {
        let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| {}), job);
        if ep.rank() == 0 {
            ep.send(1, "x", &[0; 8]).unwrap();
            let (mut count, mut had_room_at) = (1, 0);
            while polls.load(Ordering::SeqCst) < had_room_at + 3 {
                if ep.try_send(1, "x", &[0; 8]).is_ok() {
                    (count, had_room_at) = (count + 1, polls.load(Ordering::SeqCst));
                }
            }
            sent.store(count, Ordering::SeqCst);
            await_event(&ep, |event| matches!(event, Event::PeerDown { .. }));
            return;
        }
        while sent.load(Ordering::SeqCst) == 0 {
            ep.node().poll_for(Duration::from_millis(1)).unwrap();
            polls.fetch_add(1, Ordering::SeqCst);
        }
        let before = ep.counters().sleeps;
        ep.node().poll_for(Duration::from_millis(500)).unwrap();
        let sleeps = ep.counters().sleeps - before;
        assert!((1..=FEW_SLEEPS).contains(&sleeps), "{sleeps} sleeps in one wait");
        ep.serve(sent.load(Ordering::SeqCst)).unwrap();
        ep.close().unwrap();
    });
}

/// M-4: small frames are taken many at a time; whatever a handler does meanwhile, they stay in order with
/// later ones.
#[test]
fn handlers_start_in_order() {
    const COUNT: u64 = 60;
    run_jobs(jobs(2), |job| {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (plain, streamed) = (seen.clone(), seen.clone());
        let builder = Endpoint::builder()
            .on_short("ready", |_: Short<'_>| {})
            .on_short("plain", move |msg: Short<'_>| {
                // Takes further frames out of the ring, without running handlers.
                msg.endpoint().progress().unwrap();
                plain.borrow_mut().push(u64::from_le_bytes(msg.data().try_into().unwrap()));
            })
            .on("streamed", move |mut msg: Message| {
                let streamed = streamed.clone();
                async move {
                    let number = msg.read::<u64>().await?;
                    streamed.borrow_mut().push(number);
                    Ok(())
                }
            });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            ep.send(1, "ready", b"").unwrap();
            for i in 0..COUNT {
                let name = if i % 5 == 3 { "streamed" } else { "plain" };
                ep.send(1, name, &i.to_le_bytes()).unwrap();
            }
            await_event(&ep, |event| matches!(event, Event::PeerDown { .. }));
            return;
        }
        ep.serve(1).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        ep.run_until(|| seen.borrow().len() as u64 == COUNT).unwrap();
        assert_eq!(*seen.borrow(), (0..COUNT).collect::<Vec<_>>());
        ep.close().unwrap();
    });
}
