//! Sends that complete later, exchanges, and futures in a plain loop.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::log::logged;
use crate::common::{await_event, config, jobs, join, pattern, run, run_over};
use tautline::{Builder, DeviceName, Endpoint, Error, Event, Job, Message, PeerState, SendError, Sending};
use tracing::Level;

const LONG: usize = 3 << 20;

/// What a rank has received, in the order in which handlers started, or what went wrong.
type Received = Rc<RefCell<Vec<Result<Vec<u8>, String>>>>;

fn receiver() -> (Builder, Received) {
    let received = Received::default();
    let into = received.clone();
    let builder = Endpoint::builder().on("data", move |mut msg: Message| {
        let into = into.clone();
        async move {
            let place = into.borrow().len();
            into.borrow_mut().push(Err("unfinished".into()));
            let bytes = msg.read_to_end().await.map_err(|error| error.to_string());
            into.borrow_mut()[place] = bytes;
            Ok(())
        }
    });
    (builder, received)
}

/// Extracts and waits until `done`, without [`Endpoint::run_until`], which has errors of its own.
fn extract_until(ep: &Endpoint, mut done: impl FnMut() -> bool) {
    while !done() {
        ep.extract(usize::MAX).unwrap();
        if !done() {
            ep.wait(Some(Duration::from_millis(100))).unwrap();
        }
    }
}

/// M-14: both ranks start long messages to each other before either extracts. All arrive, in the order in
/// which they were started, and the starts return before anything was extracted.
#[test]
fn long_messages_cross() {
    run(2, |job| {
        let (builder, received) = receiver();
        let ep = join(builder, job);
        let other = 1 - ep.rank();
        let mut sendings: Vec<_> =
            (0..4).map(|i| ep.start_send(other, "data", pattern(LONG, i)).unwrap()).collect();
        assert_eq!((received.borrow().len(), ep.handled()), (0, 0));
        assert!(!sendings[3].is_done());
        ep.wait_all(&mut sendings).unwrap();
        assert!(sendings.iter().all(Sending::is_done));
        assert!(matches!(sendings[0].wait(), Err(Error::Stale)), "a result is taken once");
        ep.serve(4 - ep.handled()).unwrap();
        for (i, bytes) in received.borrow().iter().enumerate() {
            assert!(bytes.as_ref().unwrap() == &pattern(LONG, i));
        }
        ep.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// Each of several sends is reported by one `wait_any`; short ones are complete at once; a result is a
/// future's output, too.
#[test]
fn any_of_several() {
    run(3, |job| {
        let (builder, received) = receiver();
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let sizes = [LONG, 10, LONG / 2, 0];
            let start = |(i, size): (usize, &usize)| {
                ep.start_send(1 + i as u32 % 2, "data", pattern(*size, i)).unwrap()
            };
            let mut sendings: Vec<_> = sizes.iter().enumerate().map(start).collect();
            let mut seen = [false; 4];
            for _ in &sizes {
                let which = ep.wait_any(&mut sendings).unwrap();
                sendings[which].wait().unwrap();
                assert!(!std::mem::replace(&mut seen[which], true));
            }
            assert!(matches!(ep.wait_any(&mut sendings), Err(Error::Stale)));
            assert!(matches!(ep.wait_any(&mut []), Err(Error::Stale)));
            ep.wait_all(&mut sendings).unwrap();
            let last = ep.start_send(1, "data", pattern(LONG, 7)).unwrap();
            ep.block_on(last).unwrap().unwrap();
        } else {
            extract_until(&ep, || ep.handled() == if ep.rank() == 1 { 3 } else { 2 });
            assert!(received.borrow().iter().all(Result::is_ok));
        }
        ep.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// A dropped send goes on; an aborted one fails its receiver's handler, or was never begun.
#[test]
fn dropped_and_aborted() {
    let aborted = Barrier::new(2);
    run(2, |job| {
        let (builder, received) = receiver();
        let ep = join(builder, job);
        if ep.rank() == 0 {
            drop(ep.start_send(1, "data", pattern(LONG, 0)).unwrap());
            let begun = ep.start_send(1, "data", pattern(LONG, 1)).unwrap();
            let behind = ep.start_send(1, "data", pattern(LONG, 2)).unwrap();
            // Nothing of it is sent while the first one is on its way.
            behind.abort();
            extract_until(&ep, || ep.handled() == 1);
            assert!(!begun.is_done());
            begun.abort();
            aborted.wait();
            ep.start_send(1, "data", "the end").unwrap().wait().unwrap();
        } else {
            extract_until(&ep, || received.borrow().iter().any(Result::is_ok));
            // The second one is stuck behind its window: nothing extracts here until it is aborted.
            ep.send(0, "data", b"go on").unwrap();
            aborted.wait();
            extract_until(&ep, || ep.handled() >= 2 && received.borrow().last().unwrap().is_ok());
            let received = received.borrow();
            assert!(received[0].as_ref().unwrap() == &pattern(LONG, 0));
            assert_eq!(received.last().unwrap().as_deref(), Ok(&b"the end"[..]));
            match &received[1..received.len() - 1] {
                [] => {}
                [Err(text)] => assert_eq!(*text, Error::Aborted.to_string()),
                other => panic!("{} messages", other.len()),
            }
        }
        ep.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// M-14: closing, and dropping the endpoint, deliver what was started, even if both ranks do so at the same
/// time.
#[test]
fn closing_delivers_what_was_started() {
    for drops in [false, true] {
        run(2, |job| {
            let (builder, received) = receiver();
            let ep = join(builder, job);
            let other = 1 - ep.rank();
            let sending = ep.start_send(other, "data", pattern(LONG, 3)).unwrap();
            assert!(!sending.is_done());
            if drops {
                drop(ep);
            } else {
                ep.close().unwrap();
            }
            assert!(sending.is_done());
            drop(sending);
            // The other one may have closed after it had sent all, and before this one had taken all.
            assert!(received.borrow().iter().flatten().all(|bytes| *bytes == pattern(LONG, 3)));
        });
    }
    // To a rank that still extracts, everything.
    run(2, |job| {
        let (builder, received) = receiver();
        let ep = join(builder, job);
        if ep.rank() == 0 {
            for i in 0..3 {
                ep.start_send(1, "data", pattern(LONG, i)).unwrap();
            }
        } else {
            ep.serve(3).unwrap();
            assert!((0..3).all(|i| received.borrow()[i].as_ref().unwrap() == &pattern(LONG, i)));
        }
        ep.close().unwrap();
    });
}

/// N-9: closing gives up after its time limit, and tells the send, and its own caller.
#[test]
fn closing_ends_a_send_that_nobody_takes() {
    run(2, |job| {
        let (builder, _) = receiver();
        let ep = join(builder.config(config(|c| c.close_timeout = Duration::from_millis(200))), job);
        if ep.rank() == 0 {
            let mut sending = ep.start_send(1, "data", pattern(LONG, 3)).unwrap();
            let Err(Error::Undelivered(lost)) = ep.close() else { panic!("nobody took the message") };
            assert_eq!(lost.iter().map(|lost| lost.peer).collect::<Vec<_>>(), [1]);
            assert!(lost[0].messages >= 1 && lost[0].bytes >= LONG as u64, "{}", lost[0]);
            assert!(sending.is_done(), "closing has told the send");
            assert!(matches!(sending.wait(), Err(Error::Send(SendError::Closed))));
        } else {
            while !matches!(ep.peer_state(0), Some(PeerState::Down(_))) {
                ep.progress().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

/// A peer that goes down ends the sends to it: the one on its way, and those that wait behind it.
#[test]
fn a_lost_peer_ends_sends() {
    let started = AtomicU64::new(0);
    run(2, |job| {
        let (builder, _) = receiver();
        let ep = join(builder.config(config(|c| c.close_timeout = Duration::from_millis(100))), job);
        if ep.rank() == 0 {
            let mut sendings: Vec<_> =
                (0..3).map(|i| ep.start_send(1, "data", pattern(LONG, i)).unwrap()).collect();
            started.store(1, Ordering::SeqCst);
            ep.start_send(0, "data", "to oneself").unwrap().wait().unwrap();
            for _ in 0..3 {
                let which = ep.wait_any(&mut sendings).unwrap();
                assert!(matches!(sendings[which].wait(), Err(Error::PeerGone(1, _))));
            }
            assert!(matches!(ep.start_send(1, "data", "more"), Err(Error::PeerGone(1, _))));
        } else {
            // Joins, takes a little, and leaves when all are started.
            while ep.extract(1).unwrap() == 0 {
                ep.wait(Some(Duration::from_millis(10))).unwrap();
            }
            while started.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            started.store(0, Ordering::SeqCst);
        }
        ep.close().unwrap();
    });
}

/// What can be refused at once is refused by the call itself.
#[test]
fn refused_at_once() {
    let _limit = crate::common::Limit::seconds(30);
    let (builder, received) = receiver();
    let ep = join(builder, jobs(1).pop().unwrap());
    assert!(matches!(ep.start_send(7, "data", "x"), Err(Error::Send(SendError::NoSuchPeer(7)))));
    assert!(matches!(ep.start_send(0, "nobody", "x"), Err(Error::Send(SendError::UnknownHandler(0)))));
    let mut sending = ep.start_send(0, "data", pattern(LONG, 1)).unwrap();
    sending.wait().unwrap();
    extract_until(&ep, || ep.handled() == 1);
    assert!(received.borrow()[0].as_ref().unwrap() == &pattern(LONG, 1));
    assert_eq!(ep.exchange(0, b"with oneself").unwrap(), b"with oneself");
    let other = ep.clone();
    ep.close().unwrap();
    assert!(matches!(other.start_send(0, "data", "x"), Err(Error::Send(SendError::Closed))));
}

/// M-17: two ranks, and all pairs of three, exchange long and empty messages many times; each gets those of
/// the same call, and the program's handlers run meanwhile.
#[test]
fn exchanges_match() {
    run(2, |job| {
        let ep = join(Endpoint::builder(), job);
        let other = 1 - ep.rank();
        for (i, size) in [1 << 20, 0, 17, 5 << 20, 1, 70_000].into_iter().enumerate() {
            let got = ep.exchange(other, &pattern(size + i, ep.rank() as usize + i)).unwrap();
            assert!(got == pattern(size + i, other as usize + i));
        }
        assert_eq!(ep.handled(), 0, "messages of the library do not count");
        ep.close().unwrap();
    });
    run(3, |job| {
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        let ep = join(Endpoint::builder().on_short("count", move |_| counted.set(counted.get() + 1)), job);
        let others: Vec<_> = (0..3).filter(|rank| *rank != ep.rank()).collect();
        for i in 0..20 {
            let size = [1 << 20, 3, 100_000][i % 3];
            others.iter().for_each(|other| ep.send(*other, "count", b"").unwrap());
            let bytes = pattern(size, ep.rank() as usize * 100 + i);
            let messages: Vec<_> = others.iter().map(|other| (*other, &bytes[..])).collect();
            for (other, got) in others.iter().zip(ep.exchange_all(&messages).unwrap()) {
                assert!(got == pattern(size, *other as usize * 100 + i));
            }
        }
        assert_eq!((count.get(), ep.handled()), (40, 40));
        ep.close().unwrap();
    });
}

/// An exchange with a rank that leaves, or does not call it and leaves, ends with an error.
#[test]
fn an_exchange_with_a_lost_peer() {
    run(3, |job| {
        let ep = join(Endpoint::builder(), job);
        match ep.rank() {
            0 => {
                let all = ep.exchange_all(&[(1, &pattern(LONG, 0)), (2, &pattern(LONG, 0))]);
                assert!(matches!(all, Err(Error::PeerGone(1, _))), "{:?}", all.map(drop));
            }
            1 => while ep.extract(1).unwrap() == 0 {},
            _ => {
                // The message was complete before rank 1 left, or was aborted, or its sender is gone.
                match ep.exchange(0, &pattern(LONG, 0)) {
                    Ok(bytes) => assert!(bytes == pattern(LONG, 0)),
                    Err(Error::PeerGone(0, _) | Error::Aborted) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        ep.close().unwrap();
    });
}

/// Every verb that extracts refuses to run in a handler.
#[test]
fn not_in_handlers() {
    let _limit = crate::common::Limit::seconds(30);
    let refused = Rc::new(Cell::new(0));
    let count = refused.clone();
    let shared = Rc::new(RefCell::new(None::<Endpoint>));
    let own = shared.clone();
    let builder = Endpoint::builder().on("check", move |_: Message| {
        let (count, own) = (count.clone(), own.clone());
        async move {
            let ep = own.borrow().clone().unwrap();
            let mut sendings = [ep.start_send(0, "sink", pattern(LONG, 0))?];
            let is = |refused: bool| count.set(count.get() + i32::from(refused));
            is(matches!(ep.block_on(async {}), Err(Error::Reentrant)));
            is(matches!(ep.barrier(), Err(Error::Reentrant)));
            is(matches!(ep.share(None), Err(Error::Reentrant)));
            is(matches!(ep.exchange(0, b""), Err(Error::Reentrant)));
            is(matches!(ep.wait_any(&mut sendings), Err(Error::Reentrant)));
            is(matches!(ep.wait_all(&mut sendings), Err(Error::Reentrant)));
            is(matches!(sendings[0].wait(), Err(Error::Reentrant)));
            let [sending] = sendings;
            sending.await
        }
    });
    let builder = builder.on("sink", |mut msg: Message| async move { msg.read_to_end().await.map(drop) });
    let ep = join(builder, jobs(1).pop().unwrap());
    *shared.borrow_mut() = Some(ep.clone());
    ep.send(0, "check", b"").unwrap();
    ep.serve(2).unwrap();
    assert_eq!((refused.get(), ep.poll_failure()), (7, None));
    shared.borrow_mut().take();
    ep.close().unwrap();
}

/// N-6: a future that other threads wake, and one that handlers wake, lose no wake-up, however parked the
/// endpoint is.
#[test]
fn block_on_loses_no_wake_up() {
    run(2, |job| {
        let (word, _) = (Rc::new(Cell::new(0u64)), ());
        let (written, waker) = (word.clone(), Rc::new(Cell::new(None::<std::task::Waker>)));
        let wake = waker.clone();
        let builder = Endpoint::builder().waiting(tautline::Waiting::Park).on_short("word", move |m| {
            written.set(u64::from_le_bytes(m.data().try_into().unwrap()));
            if let Some(waker) = wake.take() {
                waker.wake();
            }
        });
        let ep = join(builder, job);
        let other = 1 - ep.rank();
        for i in 1..2000u64 {
            if ep.rank() == 0 {
                ep.send(other, "word", &i.to_le_bytes()).unwrap();
            }
            let future = std::future::poll_fn(|context| {
                if word.get() == i {
                    return Poll::Ready(());
                }
                waker.set(Some(context.waker().clone()));
                Poll::Pending
            });
            ep.block_on(future).unwrap();
            if ep.rank() == 1 {
                ep.send(other, "word", &i.to_le_bytes()).unwrap();
            }
        }
        ep.close().unwrap();
    });
    // From another thread.
    let _limit = crate::common::Limit::seconds(60);
    let ep = join(Endpoint::builder().waiting(tautline::Waiting::Park), jobs(1).pop().unwrap());
    let seen = AtomicU64::new(0);
    let (send, wakers) = std::sync::mpsc::channel::<std::task::Waker>();
    std::thread::scope(|scope| {
        let seen = &seen;
        scope.spawn(move || {
            for (i, waker) in wakers.iter().enumerate() {
                // At different moments of the other thread's way to sleep.
                (0..i % 512).for_each(|_| std::hint::spin_loop());
                seen.fetch_add(1, Ordering::SeqCst);
                waker.wake();
            }
        });
        for i in 0..5000 {
            let mut sent = false;
            let future = std::future::poll_fn(|context| {
                if seen.load(Ordering::SeqCst) > i {
                    return Poll::Ready(i);
                }
                if !std::mem::replace(&mut sent, true) {
                    send.send(context.waker().clone()).unwrap();
                }
                Poll::Pending
            });
            assert_eq!(ep.block_on(future).unwrap(), i);
        }
        drop(send);
    });
    ep.close().unwrap();
}

/// Two ranks that send a long message to each other stand still. Each says so once, with peer, handler and
/// bytes, and continues when the other one extracts.
#[test]
fn a_stalled_send_warns() {
    let program = |job: Job| {
        let (builder, _) = receiver();
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let started = Instant::now();
            let ((), lines) = logged(|_| ep.send(1, "data", &pattern(LONG, 0)).unwrap());
            assert!(started.elapsed() >= Duration::from_secs(4));
            let [(Level::WARN, line)] = &lines[..] else { panic!("{lines:?}") };
            for part in ["peer=1", "handler=data", "bytes=", "no progress for 3s", "start_send", "exchange"] {
                assert!(line.contains(part), "no {part} in {line}");
            }
            ep.send(1, "data", b"").unwrap();
        } else {
            ep.connect(0).unwrap();
            await_event(&ep, |event| matches!(event, Event::PeerUp { .. }));
            std::thread::sleep(Duration::from_secs(5));
            ep.serve(2).unwrap();
        }
        ep.close().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run_over(DeviceName::Shm, 2, program));
        scope.spawn(|| run_over(DeviceName::Udp, 2, program));
    });
}
