//! Several threads on one lane: they send, poll and wait at once, and no wake-up is lost (N-19).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{config, join, run_over};
use tautline::node::WaitFor;
use tautline::{Config, DeviceName, Endpoint, PeerState, SendError, Short, Waiting};

const DEVICES: [DeviceName; 2] = [DeviceName::Shm, DeviceName::Udp];
const THREADS: u64 = 8;

/// Nothing but a wake-up ends a wait: there is no watchdog, and the next heartbeat is far away.
fn quiet(waiting: Waiting) -> Config {
    config(|c| {
        c.watchdog = None;
        c.waiting = waiting;
        c.link.silence = 600_000_000_000;
        c.link.credit_slots = 16;
    })
}

/// N-19: threads that wait for room at once all find it, in the end; the messages of each arrive in order.
#[test]
fn threads_that_wait_for_room() {
    const MESSAGES: u64 = 2_000;
    for device in DEVICES {
        for waiting in [Waiting::Park, Waiting::SpinThenPark] {
            run_over(device, 2, |job| {
                let next = Rc::new(RefCell::new(vec![0; THREADS as usize]));
                let expected = next.clone();
                let builder =
                    Endpoint::builder().config(quiet(waiting)).on_short("data", move |m: Short<'_>| {
                        let word = |at: usize| u64::from_le_bytes(m.data()[at..at + 8].try_into().unwrap());
                        let mut next = expected.borrow_mut();
                        let due = &mut next[word(0) as usize];
                        assert_eq!(word(8), *due, "of thread {}", word(0));
                        *due += 1;
                    });
                let ep = join(builder, job);
                if ep.rank() == 1 {
                    ep.serve(THREADS * MESSAGES).unwrap();
                    assert_eq!(*next.borrow(), [MESSAGES; THREADS as usize]);
                    return ep.close().unwrap();
                }
                let node = ep.node();
                let key = node.key("data").unwrap();
                std::thread::scope(|scope| {
                    for thread in 0..THREADS {
                        scope.spawn(move || {
                            let mut bytes = [7; 600];
                            bytes[..8].copy_from_slice(&thread.to_le_bytes());
                            for number in 0..MESSAGES {
                                bytes[8..16].copy_from_slice(&number.to_le_bytes());
                                loop {
                                    let seen = node.activity().unwrap();
                                    match node.try_send(1, key, &bytes) {
                                        Ok(sent) => break assert!(sent, "it fits one frame"),
                                        Err(SendError::WouldBlock) => {
                                            node.wait_for_activity(seen, None).unwrap();
                                        }
                                        Err(error) => panic!("{error}"),
                                    }
                                }
                            }
                        });
                    }
                });
                ep.close().unwrap();
            });
        }
    }
}

/// N-20: a batch holds back the messages of the thread that opened it, and of no other.
#[test]
fn batches_belong_to_their_threads() {
    for device in DEVICES {
        let arrived = AtomicBool::new(false);
        run_over(device, 2, |job| {
            let builder =
                Endpoint::builder().config(quiet(Waiting::Park)).on_short("data", |_: Short<'_>| {});
            let ep = join(builder, job);
            if ep.rank() == 1 {
                ep.serve(3).unwrap();
                arrived.store(true, Ordering::SeqCst);
                ep.serve(1).unwrap();
                return ep.close().unwrap();
            }
            ep.send(1, "data", b"").unwrap();
            let node = ep.node();
            let key = node.key("data").unwrap();
            node.open_batch().unwrap();
            node.open_batch().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..2).for_each(|_| assert!(node.try_send(1, key, &[1; 20]).unwrap()));
                    assert!(node.close_batch().is_ok(), "it has none, and closes nothing");
                });
            });
            // The other thread's messages have come though the batch is open, and nothing has flushed it.
            while !arrived.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(node.try_send(1, key, &[2; 20]).unwrap());
            node.close_batch().unwrap();
            node.close_batch().unwrap();
            ep.run_until(|| ep.peer_state(1) != Some(PeerState::Up)).ok();
        });
    }
}

/// N-19: of several threads that wait, one sleeps on the descriptor. All of them are woken by a waker, by a
/// frame, and by what another thread has polled.
#[test]
fn all_waiters_are_woken() {
    const ROUNDS: u64 = 300;
    let round = AtomicU64::new(0);
    let meet = std::sync::Barrier::new(THREADS as usize + 1);
    run_over(DeviceName::Udp, 2, |job| {
        let builder = Endpoint::builder().config(quiet(Waiting::Park)).on_short("data", |_: Short<'_>| {});
        let ep = join(builder, job);
        if ep.rank() == 1 {
            ep.send(0, "data", b"").unwrap();
            for i in (0..ROUNDS).filter(|i| i % 3 > 0) {
                while round.load(Ordering::SeqCst) <= i {
                    ep.progress().unwrap();
                    std::thread::yield_now();
                }
                ep.send(0, "data", &[0; 100]).unwrap();
            }
            ep.run_until(|| ep.peer_state(0) != Some(PeerState::Up)).ok();
            return;
        }
        ep.serve(1).unwrap();
        let (node, waker) = (ep.node(), ep.waker());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let activity = Some(node.activity().unwrap());
                        meet.wait();
                        assert!(node.wait(None, WaitFor { activity, ..WaitFor::default() }).unwrap());
                        meet.wait();
                        // The next round begins when nothing is left of this one.
                        meet.wait();
                    }
                });
            }
            let mut expected = 1;
            for i in 0..ROUNDS {
                // Everybody has read the activity, and waits or is about to.
                meet.wait();
                let before = node.activity().unwrap();
                round.store(i + 1, Ordering::SeqCst);
                match i % 3 {
                    0 => waker.wake(),
                    // A sleeper takes the frame from the socket.
                    1 => {}
                    // This thread does, or one that is not asleep yet.
                    _ => {
                        while node.activity().unwrap() == before {
                            node.progress().unwrap();
                        }
                    }
                }
                meet.wait();
                expected += u64::from(i % 3 > 0);
                ep.run_until(|| ep.handled() == expected).unwrap();
                node.clear_signal();
                meet.wait();
            }
        });
        ep.close().unwrap();
    });
}
