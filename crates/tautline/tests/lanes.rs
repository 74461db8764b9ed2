//! Lanes: several threads of a process, each with an endpoint of its own (N-21 … N-23).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Barrier, mpsc};
use std::time::Duration;

use crate::common::{config, join, run_over};
use tautline::memory::{Cookie, Rights};
use tautline::{Address, Config, DeviceName, Endpoint, Error, Rank, SendError, Short};

const DEVICES: [DeviceName; 2] = [DeviceName::Shm, DeviceName::Udp];

/// Nothing but a wake-up ends a wait: there is no watchdog, and the next heartbeat is far away.
fn quiet() -> Config {
    config(|c| {
        c.watchdog = None;
        c.link.silence = 600_000_000_000;
    })
}

/// The same with a watchdog, for threads that leave their lanes alone for a while.
fn watched() -> Config {
    config(|c| c.link.silence = 600_000_000_000)
}

/// Sends numbered messages to every lane of every rank, and takes as many from each, in order.
fn all_to_all(ep: &Endpoint, got: &RefCell<HashMap<Rank, u32>>, ranks: u32, lanes: u16, messages: u32) {
    let all: Vec<Rank> =
        (0..ranks).flat_map(|rank| (0..lanes).map(move |lane| Address::new(rank, lane).into())).collect();
    for number in 0..messages {
        for to in &all {
            ep.send(*to, "number", &number.to_le_bytes()).unwrap();
        }
        ep.extract(usize::MAX).unwrap();
    }
    ep.run_until(|| all.iter().all(|from| got.borrow().get(from) == Some(&messages))).unwrap();
    assert_eq!(got.borrow().len(), all.len());
}

fn numbers(got: &Rc<RefCell<HashMap<Rank, u32>>>) -> tautline::Builder {
    let got = got.clone();
    Endpoint::builder().on_short("number", move |m: Short<'_>| {
        let number = u32::from_le_bytes(m.data().try_into().unwrap());
        let mut got = got.borrow_mut();
        let due = got.entry(m.from()).or_default();
        assert_eq!(number, *due, "from {}", Address::from(m.from()));
        *due += 1;
    })
}

/// N-21, N-23, H-13, S-30: every lane of every process reaches every other one, its siblings and itself, in
/// order.
#[test]
fn every_lane_reaches_every_other() {
    const LANES: u16 = 4;
    const MESSAGES: u32 = 500;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let got = Rc::new(RefCell::new(HashMap::new()));
            let ep = join(numbers(&got).config(watched()), job);
            let (lanes, opened) = (ep.lanes(), Barrier::new(usize::from(LANES)));
            let end = Barrier::new(usize::from(LANES));
            std::thread::scope(|scope| {
                for _ in 1..LANES {
                    scope.spawn(|| {
                        let got = Rc::new(RefCell::new(HashMap::new()));
                        let lane = lanes.open(numbers(&got)).unwrap();
                        assert!((1..LANES).contains(&lane.lane()));
                        opened.wait();
                        all_to_all(&lane, &got, 2, LANES, MESSAGES);
                        end.wait();
                        lane.close().unwrap();
                    });
                }
                opened.wait();
                all_to_all(&ep, &got, 2, LANES, MESSAGES);
                end.wait();
            });
            ep.close().unwrap();
        });
    }
}

/// N-22: a lane that is closed is gone for its peers, its number is used again, and no other lane is harmed.
#[test]
fn lanes_open_and_close_while_others_work() {
    const ROUNDS: u32 = 20;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (got, answers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let (counted, answered) = (got.clone(), answers.clone());
            let ep = join(
                Endpoint::builder()
                    .config(watched())
                    .on_short("lane 0", move |_: Short<'_>| counted.set(counted.get() + 1))
                    .on_short("answer", move |m: Short<'_>| {
                        assert_eq!(Address::from(m.from()), Address::new(1, 1));
                        answered.set(answered.get() + 1);
                    }),
                job,
            );
            let lane: Rank = Address::new(1, 1).into();
            if ep.rank() == 0 {
                for round in 0..ROUNDS {
                    ep.send(1, "lane 0", b"the next").unwrap();
                    // Until the new lane is there, the old one may still be the peer.
                    loop {
                        match ep.send(lane, "ask", &round.to_le_bytes()) {
                            Ok(()) => break,
                            Err(Error::PeerGone(gone, _)) => {
                                assert_eq!(gone, lane);
                                ep.extract(usize::MAX).unwrap();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    match ep.run_until(|| answers.get() == round + 1) {
                        Ok(()) => {}
                        Err(error) => panic!("round {round}: {error}"),
                    }
                    ep.run_until(|| matches!(ep.peer_state(lane), Some(tautline::PeerState::Down(_))))
                        .unwrap();
                }
                ep.send(1, "lane 0", b"the end").unwrap();
            } else {
                for round in 0..ROUNDS {
                    ep.run_until(|| got.get() == round + 1).unwrap();
                    let lanes = ep.lanes();
                    std::thread::spawn(move || {
                        let lane = lanes
                            .open(Endpoint::builder().on_short("ask", |m: Short<'_>| {
                                m.endpoint().try_send(m.from(), "answer", m.data()).unwrap();
                            }))
                            .unwrap();
                        assert_eq!(lane.lane(), 1);
                        lane.serve(1).unwrap();
                        lane.close().unwrap();
                    })
                    .join()
                    .unwrap();
                }
                ep.run_until(|| got.get() == ROUNDS + 1).unwrap();
            }
            ep.close().unwrap();
        });
    }
}

/// N-22: closing lane 0 closes the others, wherever their threads are, and no further ones are opened.
#[test]
fn lane_0_closes_the_others() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let ep = join(Endpoint::builder().config(quiet()).on_short("x", |_: Short<'_>| ()), job);
            let lanes = ep.lanes();
            let (tell, told) = mpsc::channel();
            let other = std::thread::spawn({
                let lanes = lanes.clone();
                move || {
                    let lane = lanes.open(Endpoint::builder()).unwrap();
                    tell.send(()).unwrap();
                    let error = lane.run_until(|| false).unwrap_err();
                    assert!(matches!(error, Error::Send(SendError::Closed)), "{error}");
                    assert!(matches!(lane.send(0, "x", b""), Err(Error::Send(SendError::Closed))));
                }
            });
            told.recv().unwrap();
            ep.close().unwrap();
            other.join().unwrap();
            let error = lanes.open(Endpoint::builder()).unwrap_err();
            assert!(error.to_string().contains("no further lanes"), "{error}");
        });
    }
}

/// A-1, N-21: a cookie names the lane that issued it, and its memory is served there.
#[test]
fn cookies_name_their_lane() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let cookie = Rc::new(RefCell::new(None));
            let put = cookie.clone();
            let over = Rc::new(Cell::new(0));
            let counted = over.clone();
            let ep = join(
                Endpoint::builder()
                    .config(quiet())
                    .on_short("cookie", move |m: Short<'_>| {
                        *put.borrow_mut() = Some(Cookie::from_bytes(m.data().try_into().unwrap()));
                    })
                    .on_short("over", move |_: Short<'_>| counted.set(counted.get() + 1)),
                job,
            );
            if ep.rank() == 0 {
                ep.run_until(|| cookie.borrow().is_some()).unwrap();
                let cookie = cookie.borrow().unwrap();
                assert_eq!(Address::from(cookie.owner()), Address::new(1, 1));
                let remote = ep.remote(&cookie);
                remote.put(8, &7u64.to_le_bytes()).unwrap();
                assert_eq!(remote.fetch_add(8, 3).unwrap().wait().unwrap(), 7);
                remote.flush().unwrap().wait().unwrap();
                ep.send(cookie.owner(), "over", b"").unwrap();
            } else {
                let lanes = ep.lanes();
                std::thread::spawn(move || {
                    let over = Rc::new(Cell::new(false));
                    let ended = over.clone();
                    let lane =
                        lanes.open(Endpoint::builder().on_short("over", move |_: Short<'_>| ended.set(true)));
                    let lane = lane.unwrap();
                    let aperture = lane.aperture(64).unwrap();
                    let cookie = aperture.cookie(0..64, Rights::ALL).unwrap();
                    lane.send(0, "cookie", &cookie.to_bytes()).unwrap();
                    lane.run_until(|| over.get()).unwrap();
                    assert_eq!(aperture.memory().read_u64(8).unwrap(), 10);
                    lane.close().unwrap();
                })
                .join()
                .unwrap();
                assert_eq!(over.get(), 0, "the message was for the lane");
            }
            ep.close().unwrap();
        });
    }
}

/// N-8, N-19, N-21, S-30: a peer that dies while eight threads use four lanes: two threads send on each lane,
/// by its endpoint and by a handle. Every call returns, with an error once the peer is gone, and the lanes
/// still reach each other.
#[test]
fn a_peer_dies_while_lanes_work() {
    const LANES: u16 = 4;
    const BEFORE: u32 = 200;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let counts = Rc::new(RefCell::new(HashMap::new()));
            let counted = counts.clone();
            let dies = job.rank == 1;
            let configured = || {
                Endpoint::builder().config(config(|c| {
                    // Nobody answers in the place of the dead.
                    c.watchdog = c.watchdog.filter(|_| !dies);
                    c.link.silence = 3_000_000_000;
                    // Lane 0 acknowledges when it has noticed the death, too.
                    c.close_timeout = Duration::from_secs(60);
                }))
            };
            let builder = configured()
                .on_short("x", move |m: Short<'_>| *counted.borrow_mut().entry(m.from()).or_insert(0) += 1)
                .on_short("sibling", |_: Short<'_>| ());
            let ep = join(builder, job);
            if ep.rank() == 1 {
                // It ends without a word, as a killed process does, when all lanes have been heard.
                let heard = || counts.borrow().values().filter(|count| **count >= BEFORE).count();
                ep.run_until(|| heard() == usize::from(LANES)).unwrap();
                ep.node().kill();
                return std::mem::forget(ep);
            }
            let lanes = ep.lanes();
            let use_lane = |lane: &Endpoint| {
                let handle = lane.handle();
                let gone = |sent: tautline::Result<()>| match sent {
                    Ok(()) => false,
                    Err(Error::PeerGone(1, _)) => true,
                    Err(error) => panic!("{error}"),
                };
                std::thread::scope(|scope| {
                    let other = scope.spawn(move || while !gone(handle.send(1, "x", b"by a handle")) {});
                    while !gone(lane.send(1, "x", b"by the endpoint")) {
                        lane.extract(usize::MAX).unwrap();
                    }
                    other.join().unwrap();
                });
                lane.send(0, "sibling", b"still here").unwrap();
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> = (1..LANES)
                    .map(|_| {
                        scope.spawn(|| {
                            let lane = lanes.open(configured()).unwrap();
                            use_lane(&lane);
                            lane.close().unwrap();
                        })
                    })
                    .collect();
                use_lane(&ep);
                let done = || threads.iter().all(std::thread::ScopedJoinHandle::is_finished);
                while !done() {
                    ep.extract(usize::MAX).unwrap();
                    ep.wait(Some(Duration::from_millis(1))).unwrap();
                }
            });
            let siblings = u64::from(LANES);
            while ep.handled() < siblings {
                ep.extract(usize::MAX).unwrap();
            }
            assert_eq!(ep.handled(), siblings);
            ep.close().unwrap();
        });
    }
}
