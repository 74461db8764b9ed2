//! Flow control: what holds a sender back, and what continues meanwhile.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::task::{Poll, Waker};
use std::time::Duration;

use common::{config, extract_for, join, pattern, run, run_over};
use tautline::{DeviceName, Endpoint, Error, Event, Message, PeerState, Short};

/// A gate that handlers wait at.
#[derive(Clone, Default)]
struct Gate(Rc<RefCell<(bool, Vec<Waker>)>>);

impl Gate {
    fn open(&self) {
        let mut gate = self.0.borrow_mut();
        gate.0 = true;
        gate.1.drain(..).for_each(Waker::wake);
    }

    fn pass(&self) -> impl Future<Output = ()> {
        let gate = self.0.clone();
        std::future::poll_fn(move |context| {
            let mut gate = gate.borrow_mut();
            if gate.0 {
                return Poll::Ready(());
            }
            gate.1.push(context.waker().clone());
            Poll::Pending
        })
    }
}

/// M-4, M-5: a handler that waits for something else holds back its own message, at its window; other
/// messages of the same peer, small and large, continue.
#[test]
fn window_per_message() {
    const HELD: usize = 3_000_000;
    run(2, |job| {
        let (gate, passed) = (Gate::default(), Rc::new(Cell::new(0)));
        let (at_gate, count) = (gate.clone(), passed.clone());
        let builder = Endpoint::builder()
            .on("held", move |mut msg: Message| {
                let at_gate = at_gate.clone();
                async move {
                    assert_eq!(msg.read::<u8>().await?, 9);
                    at_gate.pass().await;
                    assert!(msg.read_to_end().await? == pattern(HELD, 1));
                    Ok(())
                }
            })
            .on("free", move |mut msg: Message| {
                let count = count.clone();
                async move {
                    let bytes = msg.read_to_end().await?;
                    assert!(bytes == pattern(bytes.len(), 2));
                    count.set(count.get() + 1);
                    Ok(())
                }
            });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let mut held = ep.begin(1, "held", HELD as u64 + 1).unwrap();
            held.value(&9u8).unwrap();
            let bytes = pattern(HELD, 1);
            let mut at = 0;
            for size in [10, 100_000, 2_000_000, 10, 700_000, 0] {
                // As much of the held message as possible, then another one to its end.
                while let Ok(added) = held.try_piece(&bytes[at..]) {
                    at += added;
                }
                ep.send(1, "free", &pattern(size, 2)).unwrap();
            }
            let config = ep.node().config();
            let local = ep.counters().local.frames_sent > 0;
            let window = if local { config.local_window } else { config.link.message_window } as usize;
            assert!(at < window, "{at} bytes were let through a window of {window}");
            held.piece(&bytes[at..]).unwrap();
            held.end().unwrap();
        } else {
            ep.run_until(|| passed.get() == 6).unwrap();
            extract_for(&ep, Duration::from_millis(20));
            gate.open();
            ep.run_until(|| ep.handled() == 7).unwrap();
            assert_eq!(ep.poll_failure(), None);
        }
        ep.close().unwrap();
    });
}

/// M-8: what is not extracted holds its sender back; `extract` exceeds its limit by less than a frame.
#[test]
fn extract_respects_its_limit() {
    let (extracted, blocked) = (Barrier::new(2), Barrier::new(2));
    run(2, |job| {
        let ep = join(
            Endpoint::builder()
                .on_short("work", |_: Short<'_>| {})
                .config(config(|c| c.link.credit_slots = 16)),
            job,
        );
        if ep.rank() == 0 {
            ep.send(1, "work", &[0; 1000]).unwrap();
            // The receiver does not extract: credit runs out.
            extracted.wait();
            let (mut sent, mut refused) = (1u64, 0);
            while refused < 100 {
                match ep.try_send(1, "work", &[0; 1000]) {
                    Ok(()) => (sent, refused) = (sent + 1, 0),
                    Err(error) => {
                        assert!(error.is_would_block(), "{error}");
                        ep.wait(Some(Duration::from_millis(1))).unwrap();
                        refused += 1;
                    }
                }
            }
            blocked.wait();
            let queued = 16 + tautline::node::limits::TX_QUEUE as u64 + 1;
            assert!((16..=queued * 65).contains(&sent), "{sent} messages went into 16 frames and the queue");
            ep.send(1, "work", b"last").unwrap();
        } else {
            ep.run_until(|| ep.handled() > 0).unwrap();
            let before = ep.handled();
            extracted.wait();
            blocked.wait();
            assert_eq!(ep.handled(), before, "N-1: nothing runs behind the program's back");
            ep.progress().unwrap();
            ep.wait(Some(Duration::from_millis(1))).unwrap();
            assert_eq!(ep.handled(), before);
            assert_eq!(ep.extract(0).unwrap(), 0);
            let taken = ep.extract(1).unwrap();
            assert!((1..=65_536).contains(&taken), "one frame: {taken}");
            // Half of the credit is kept for windows (L-12), so at least seven more slots have arrived, each
            // with one message or more.
            let taken = ep.extract(4_000).unwrap();
            assert!((4_000..=4_000 + 65_536).contains(&taken), "{taken}");
            let closed = |ep: &Endpoint| matches!(ep.peer_state(0), Some(tautline::PeerState::Down(_)));
            while !(closed(&ep) && ep.extract(usize::MAX).unwrap() == 0) {
                ep.extract(usize::MAX).unwrap();
                ep.wait(Some(Duration::from_millis(5))).unwrap();
            }
        }
        ep.close().unwrap();
    });
}

/// N-1: a blocked send makes progress but runs no handler.
#[test]
fn sends_run_no_handlers() {
    run(2, |job| {
        let ep = join(
            Endpoint::builder()
                .on_short("work", |_: Short<'_>| {})
                .config(config(|c| c.link.credit_slots = 16)),
            job,
        );
        let other = 1 - ep.rank();
        // Both send more than credit allows at once, so that both block in `send`; each must extract in
        // between.
        for round in 1..=50 {
            let before = ep.handled();
            for _ in 0..10 {
                ep.send(other, "work", &[0; 500]).unwrap();
            }
            assert_eq!(ep.handled(), before);
            ep.run_until(|| ep.handled() >= 10 * round).unwrap();
        }
        ep.close().unwrap();
    });
}

/// M-4: under backpressure an `async` send suspends its handler; both sides do so, and both make progress.
#[test]
fn async_sends_under_backpressure() {
    const ROUNDS: u64 = 300;
    run(2, |job| {
        let (got, echoed) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
        let (sink, count) = (got.clone(), echoed.clone());
        let builder = Endpoint::builder()
            .on("echo", move |mut msg: Message| {
                let count = count.clone();
                async move {
                    let bytes = msg.read_to_end().await?;
                    let ep = msg.endpoint();
                    ep.send(msg.from(), "back", &bytes).await?;
                    let mut out = ep.begin(msg.from(), "back", 2 * bytes.len() as u64).await?;
                    out.piece(&bytes).await?;
                    out.piece(&bytes).await?;
                    out.end()?;
                    count.set(count.get() + 1);
                    Ok(())
                }
            })
            .on("back", move |mut msg: Message| {
                let sink = sink.clone();
                async move {
                    msg.skip(msg.remaining()).await?;
                    sink.set(sink.get() + 1);
                    Ok(())
                }
            });
        let ep = join(builder.config(config(|c| c.link.credit_slots = 16)), job);
        let other = 1 - ep.rank();
        let bytes = vec![5; 20_000];
        let mut sent = 0;
        while sent < ROUNDS {
            ep.extract(usize::MAX).unwrap();
            let Some(mut out) = would_block(ep.try_begin(other, "echo", bytes.len() as u64)) else {
                continue;
            };
            while out.remaining() > 0 {
                let at = bytes.len() - out.remaining() as usize;
                if would_block(out.try_piece(&bytes[at..])).is_none() {
                    ep.extract(usize::MAX).unwrap();
                }
            }
            out.end().unwrap();
            sent += 1;
        }
        ep.run_until(|| got.get() == 2 * ROUNDS && echoed.get() == ROUNDS).unwrap();
        assert_eq!(ep.poll_failure(), None);
        ep.close().unwrap();
    });
}

/// N-6: when there is room again, all messages that wait for it are woken, not only the one that finds it
/// first.
#[test]
fn room_wakes_all_waiters() {
    let barrier = Arc::new(Barrier::new(2));
    run_over(DeviceName::Shm, 2, |job| {
        let (meet, barrier) = (barrier.clone(), barrier.clone());
        let (late, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (count, flag) = (late.clone(), done.clone());
        let builder = Endpoint::builder()
            .on_short("junk", |_: Short<'_>| {})
            .on_short("done", move |_: Short<'_>| flag.set(true))
            .on("late", move |mut msg: Message| {
                let count = count.clone();
                async move {
                    msg.read_to_end().await?;
                    count.set(count.get() + 1);
                    Ok(())
                }
            })
            .on("fill", |msg: Message| async move {
                let ep = msg.endpoint();
                while would_block(ep.try_send(1, "junk", &[0; 1000])).is_some() {}
                ep.send(1, "late", &[1; 1000]).await
            })
            .on("next", move |msg: Message| {
                let meet = meet.clone();
                async move {
                    // Only now is there room, and this message finds it first.
                    meet.wait();
                    meet.wait();
                    msg.endpoint().send(1, "late", &[1; 100_000]).await
                }
            });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            ep.serve(1).unwrap();
            // There are no events either that would keep it awake.
            while ep.poll_event().is_some() {}
            barrier.wait();
            barrier.wait();
            ep.run_until(|| done.get()).unwrap();
        } else {
            ep.send(0, "junk", b"").unwrap();
            barrier.wait();
            ep.send(0, "fill", b"").unwrap();
            ep.send(0, "next", b"").unwrap();
            barrier.wait();
            barrier.wait();
            while ep.extract(usize::MAX).unwrap() > 0 {}
            barrier.wait();
            ep.run_until(|| late.get() == 2).unwrap();
            ep.send(0, "done", b"").unwrap();
        }
        ep.close().unwrap();
    });
}

/// Returns nothing if it would block; anything else must succeed.
fn would_block<T>(result: tautline::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.is_would_block(), "{error}");
            None
        }
    }
}

/// M-5: 200 MB in one message, streamed with little memory.
#[test]
fn a_long_stream_needs_little_memory() {
    const BYTES: usize = 200_000_000;
    run(2, |job| {
        let builder = Endpoint::builder().on("data", |mut msg: Message| async move {
            let mut at = 0usize;
            while msg.remaining() > 0 {
                let n = msg.read_with(1 << 20, |part| {
                    assert_eq!((part[0], part[part.len() - 1]), (at as u8, (at + part.len() - 1) as u8));
                    at += part.len();
                });
                n.await?;
            }
            assert_eq!(at, BYTES);
            Ok(())
        });
        let ep = join(builder, job);
        let before = peak_memory();
        if ep.rank() == 0 {
            let chunk: Vec<u8> = (0..1 << 16).map(|i| i as u8).collect();
            let mut out = ep.begin(1, "data", BYTES as u64).unwrap();
            while out.remaining() > 0 {
                let part = (out.remaining() as usize).min(chunk.len());
                out.piece(&chunk[..part]).unwrap();
            }
            out.end().unwrap();
        } else {
            ep.serve(1).unwrap();
            assert_eq!(ep.poll_failure(), None);
            let grown = peak_memory().saturating_sub(before);
            assert!(grown < 100_000_000, "{grown} bytes for a stream");
        }
        ep.close().unwrap();
    });
}

/// The peak memory of this process.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// N-8: a call that is blocked when the peer closes fails, and so does a handler that waits for the rest of a
/// message.
#[test]
fn blocked_calls_end_when_the_peer_closes() {
    run(2, |job| {
        let builder = Endpoint::builder()
            .on("data", |mut msg: Message| async move { msg.skip(msg.remaining()).await })
            .on_short("work", |_: Short<'_>| {});
        let ep = join(builder.config(config(|c| c.link.credit_slots = 16)), job);
        if ep.rank() == 0 {
            let mut half = ep.begin(1, "data", 1000).unwrap();
            half.piece(b"half").unwrap();
            let result = (0..1_000_000).try_for_each(|_| ep.send(1, "work", &[0; 1000]));
            assert!(matches!(result, Err(Error::PeerGone(1, tautline::Down::Closed))));
            assert!(matches!(half.piece(b"x"), Err(Error::PeerGone(1, _))));
        } else {
            ep.run_until(|| ep.handled() > 0).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        ep.close().unwrap();
    });
}

/// A peer sends one message and closes. Waiting for two fails after the first, whatever came `before`.
fn check_serving(before: impl Fn(&Endpoint) + Sync) {
    run(2, |job| {
        let ep = join(Endpoint::builder().on_short("one", |_| {}), job);
        if ep.rank() == 0 {
            ep.send(1, "one", b"").unwrap();
            return ep.close().unwrap();
        }
        before(&ep);
        let error = ep.serve(2).unwrap_err();
        assert!(matches!(error, Error::PeerGone(0, tautline::Down::Closed)), "{error}");
        assert_eq!(ep.handled(), 1);
    });
}

/// N-8: waiting for messages fails when no peer is left.
#[test]
fn serving_ends_when_all_peers_closed() {
    check_serving(|_| ());
}

/// N-8: also if the program has read of the peer's end before it takes that peer's last message.
#[test]
fn serving_ends_after_the_last_message() {
    check_serving(|ep| {
        while !matches!(ep.peer_state(0), Some(PeerState::Down(_))) {
            ep.progress().unwrap();
            std::thread::yield_now();
        }
        while !matches!(ep.poll_event(), Some(Event::PeerDown { .. })) {}
        // From here on no event ends a wait.
        assert!(ep.wait(Some(Duration::ZERO)).unwrap());
        assert_eq!(ep.handled(), 0);
    });
}
