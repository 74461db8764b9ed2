//! The receiving side: handlers, reads, failures, and what may be called where.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::common::{Limit, config, failures_until, jobs, join, pattern, run};
use tautline::memory::{Cookie, Rights};
use tautline::rpc::Rpc;
use tautline::{Endpoint, Error, Message, Short, queue, stream};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    kind: u32,
    count: u32,
    at: [u64; 3],
}

/// Reads of every kind, whatever pieces were sent; a read beyond the end is an error that takes nothing.
#[test]
fn reads_of_every_kind() {
    let header = Header { kind: 7, count: 3, at: [1, 2, u64::MAX] };
    run(2, |job| {
        let builder = Endpoint::builder().on("data", move |mut msg: Message| async move {
            assert_eq!((msg.from(), msg.len(), msg.is_empty()), (0, 100_032, false));
            assert_eq!(msg.read::<Header>().await?, header);
            let body = pattern(100_000, 3);
            let mut at = 0;
            let took = msg.read_with(10, |part| {
                assert_eq!(part, &body[at..at + part.len()]);
                at += part.len();
            });
            took.await?;
            msg.skip(5000).await?;
            at += 5000;
            let mut place = vec![0; 20_001];
            msg.read_into(&mut place).await?;
            assert!(place == body[at..at + place.len()]);
            at += place.len();
            assert_eq!(msg.read::<u8>().await?, body[at]);
            at += 1;
            let left = msg.remaining();
            assert_eq!(left as usize, body.len() - at);
            for result in [
                msg.read_into(&mut vec![0; left as usize + 1]).await,
                msg.skip(left + 1).await,
                msg.read::<[u8; 90_000]>().await.map(drop),
            ] {
                assert!(matches!(result, Err(Error::EndOfMessage { left: l }) if l == left));
            }
            assert!(msg.read_to_end().await? == body[at..]);
            assert!(matches!(msg.read::<u8>().await, Err(Error::EndOfMessage { left: 0 })));
            assert_eq!(msg.read_with(10, |_| panic!("there is nothing")).await?, 0);
            assert!(msg.read_to_end().await?.is_empty());
            msg.read_into(&mut []).await?;
            msg.read::<()>().await
        });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let mut out = ep.begin(1, "data", 100_032).unwrap();
            for part in header.as_bytes().chunks(5) {
                out.piece(part).unwrap();
            }
            out.piece(b"").unwrap();
            pattern(100_000, 3).chunks(3333).for_each(|part| out.piece(part).unwrap());
            out.end().unwrap();
        } else {
            ep.serve(1).unwrap();
            assert_eq!(ep.poll_failure(), None);
        }
        ep.close().unwrap();
    });
}

/// A value larger than the window of its message can be read in one call.
#[test]
fn value_larger_than_the_window() {
    run(2, |job| {
        let builder = Endpoint::builder().on("data", |mut msg: Message| async move {
            let value: [u8; 50_000] = msg.read().await?;
            assert!(value[..] == pattern(50_000, 1)[..]);
            Ok(())
        });
        let ep = join(builder.config(config(|c| c.link.message_window = 16 * 1024)), job);
        if ep.rank() == 0 {
            ep.send(1, "data", &pattern(50_000, 1)).unwrap();
        } else {
            ep.serve(1).unwrap();
            assert_eq!(ep.poll_failure(), None);
        }
        ep.close().unwrap();
    });
}

/// M-7: panics, errors and early returns end only their own message; its sender finishes, and all other
/// messages are whole.
#[test]
fn failures_affect_one_message() {
    run(2, |job| {
        let whole = Rc::new(Cell::new(0));
        let (count, short) = (whole.clone(), whole.clone());
        let builder = Endpoint::builder()
            .on("data", move |mut msg: Message| {
                let count = count.clone();
                async move {
                    match msg.read::<u8>().await? {
                        0 => {
                            assert!(msg.read_to_end().await? == pattern(400_000, 0));
                            count.set(count.get() + 1);
                            Ok(())
                        }
                        1 => panic!("on purpose"),
                        2 => Err(Error::other("refused on purpose")),
                        3 => Ok(()),
                        _ => {
                            msg.skip(100_000).await?;
                            panic!("later, on purpose {}", msg.remaining())
                        }
                    }
                }
            })
            .on("at once", |_: Message| {
                assert!(std::hint::black_box(false), "before the future is made");
                async { Ok(()) }
            })
            .on_short("short", move |msg: Short<'_>| {
                assert_ne!(msg.data(), b"bad", "a short one");
                short.set(short.get() + 1);
            });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let send = |kind: u8| {
                let mut out = ep.begin(1, "data", 400_001).unwrap();
                out.value(&kind).unwrap();
                out.piece(&pattern(400_000, 0)).unwrap();
                out.end().unwrap();
            };
            for kind in [1, 0, 2, 0, 3, 0, 4, 0] {
                send(kind);
                ep.send(1, "short", b"good").unwrap();
            }
            ep.send(1, "at once", &pattern(200_000, 0)).unwrap();
            ep.send(1, "at once", b"").unwrap();
            ep.send(1, "short", b"bad").unwrap();
            ep.send(1, "short", b"good").unwrap();
        } else {
            let failures = failures_until(&ep, || ep.handled() == 8 + 8 + 4);
            assert_eq!(whole.get(), 4 + 8 + 1);
            let reasons: Vec<_> = failures.iter().map(|f| (f.reason.as_str(), f.panicked)).collect();
            assert_eq!(reasons[..2], [("on purpose", true), ("refused on purpose", false)]);
            assert_eq!(reasons[2], ("later, on purpose 300000", true));
            assert!(reasons[3].0.contains("before the future is made") && reasons[4] == reasons[3]);
            assert!(reasons[5].0.contains("a short one") && reasons[5].1);
            assert_eq!(failures.len(), 6);
        }
        ep.close().unwrap();
    });
}

/// A message kept beyond its handler is stale, also when its slot serves another message.
#[test]
fn a_kept_message_is_stale() {
    run(2, |job| {
        let kept: Rc<RefCell<Vec<Message>>> = Rc::default();
        let keep = kept.clone();
        let ep = join(
            Endpoint::builder().on("data", move |msg: Message| {
                keep.borrow_mut().push(msg);
                async { Ok(()) }
            }),
            job,
        );
        if ep.rank() == 0 {
            ep.send(1, "data", &[1; 100]).unwrap();
            ep.send(1, "data", &[2; 300_000]).unwrap();
            ep.send(1, "data", b"the last, so that nobody leaves before all is sent").unwrap();
        } else {
            ep.serve(3).unwrap();
            for msg in kept.borrow_mut().iter_mut() {
                let mut out = [0; 1];
                let mut read = std::pin::pin!(msg.read_into(&mut out));
                let mut context = std::task::Context::from_waker(Waker::noop());
                let Poll::Ready(Err(Error::Stale)) = read.as_mut().poll(&mut context) else {
                    panic!("not stale")
                };
            }
            assert_eq!((kept.borrow()[0].len(), kept.borrow()[0].remaining()), (100, 0));
        }
        ep.close().unwrap();
    });
}

/// M-4: handlers of both kinds send, waiting or not; they must not extract.
#[test]
fn what_a_handler_may_call() {
    run(2, |job| {
        let refused = Rc::new(Cell::new(0));
        let no = refused.clone();
        let mine: Rc<RefCell<Option<Endpoint>>> = Rc::default();
        let clone = mine.clone();
        let check = move || {
            let ep = clone.borrow().clone().expect("it has joined");
            assert!(matches!(ep.extract(usize::MAX), Err(Error::Reentrant)));
            assert!(matches!(ep.wait(Some(Duration::ZERO)), Err(Error::Reentrant)));
            assert!(matches!(ep.run_until(|| true), Err(Error::Reentrant)));
            assert!(matches!(ep.serve(1), Err(Error::Reentrant)));
            ep.progress().unwrap();
            no.set(no.get() + 1);
        };
        let also = check.clone();
        let builder = Endpoint::builder()
            .on_short("echo short", move |msg: Short<'_>| {
                let ep = msg.endpoint();
                check();
                ep.try_send(msg.from(), "sink", msg.data()).unwrap();
            })
            .on("echo", move |mut msg: Message| {
                let check = also.clone();
                async move {
                    let ep = msg.endpoint();
                    check();
                    let bytes = msg.read_to_end().await?;
                    ep.send(msg.from(), "sink", &bytes).await?;
                    let mut out = ep.begin(msg.from(), "sink", bytes.len() as u64).await?;
                    out.piece(&bytes).await?;
                    out.end()
                }
            })
            .on("sink", |mut msg: Message| async move {
                let bytes = msg.read_to_end().await?;
                assert!(bytes == pattern(bytes.len(), 0));
                Ok(())
            });
        let ep = join(builder, job);
        *mine.borrow_mut() = Some(ep.clone());
        if ep.rank() == 0 {
            for size in [0, 10, 1000] {
                ep.send(1, "echo short", &pattern(size, 0)).unwrap();
                ep.send(1, "echo", &pattern(size * 1000, 0)).unwrap();
            }
            ep.serve(9).unwrap();
            ep.send(1, "echo short", b"").unwrap();
            ep.serve(1).unwrap();
        } else {
            ep.serve(7).unwrap();
            assert_eq!(refused.get(), 7);
        }
        assert_eq!(ep.poll_failure(), None);
        ep.close().unwrap();
    });
}

/// M-4: in a handler, blocking calls that would have to wait are errors. Rank 1 never joins, and connecting
/// takes an hour: a call that waited would not return.
#[test]
fn blocking_calls_in_handlers() {
    let _limit = Limit::seconds(60);
    let mut both = jobs(2);
    let absent = both.pop();
    let rpc = Rpc::new();
    let mine: Rc<RefCell<Option<Endpoint>>> = Rc::default();
    let (clone, caller) = (mine.clone(), rpc.clone());
    let refused = Rc::new(RefCell::new(Vec::new()));
    let said = refused.clone();
    let builder = Endpoint::builder()
        .config(config(|c| c.connect_timeout = Duration::from_secs(3600)))
        .with(&rpc)
        .on_short("try", move |_: Short<'_>| {
            let ep = clone.borrow().clone().expect("it has joined");
            let mut bytes = ep.aperture(64).unwrap().cookie(.., Rights::ALL).unwrap().to_bytes();
            // The owner's rank comes first.
            bytes[..4].copy_from_slice(&1u32.to_le_bytes());
            let cookie = Cookie::from_bytes(&bytes);
            assert_eq!(cookie.owner(), 1);
            let call = caller.call_raw(&ep, 1, "echo", b"").map(drop);
            *said.borrow_mut() = vec![
                ep.send(1, "try", b""),
                ep.begin(1, "try", 5).map(drop),
                ep.loan(1, 5).map(drop),
                ep.send_out_of_band(1, b"x"),
                ep.remote(&cookie).put(0, b"x"),
                ep.remote(&cookie).flush().map(drop),
                queue::Sender::new(&ep, &cookie).map(drop),
                stream::offer(&ep, 1, "try", 64).map(drop),
                call.map_err(Error::from),
            ];
        });
    let ep = join(builder, both.remove(0));
    *mine.borrow_mut() = Some(ep.clone());
    ep.send(0, "try", b"").unwrap();
    ep.serve(1).unwrap();
    assert_eq!(ep.poll_failure(), None);
    assert_eq!(refused.borrow().len(), 9);
    for (i, result) in refused.borrow().iter().enumerate() {
        assert!(matches!(result, Err(Error::Reentrant)), "{i}: {result:?}");
    }
    ep.close().unwrap();
    drop(absent);
}

/// M-4: a suspended handler is woken from another thread, also while the endpoint sleeps.
#[test]
fn handlers_are_woken_from_other_threads() {
    run(2, |job| {
        let state: Arc<Mutex<(bool, Vec<Waker>)>> = Arc::default();
        let inside = state.clone();
        let builder = Endpoint::builder().on("data", move |_: Message| {
            let inside = inside.clone();
            std::future::poll_fn(move |context| {
                let mut state = inside.lock().unwrap();
                if std::mem::take(&mut state.0) {
                    return Poll::Ready(Ok(()));
                }
                state.1.push(context.waker().clone());
                Poll::Pending
            })
        });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            for _ in 0..20 {
                ep.send(1, "data", b"x").unwrap();
            }
        } else {
            let ring = state.clone();
            let ringer = std::thread::spawn(move || {
                for _ in 0..20 {
                    std::thread::sleep(Duration::from_millis(3));
                    let mut state = ring.lock().unwrap();
                    state.0 = true;
                    state.1.drain(..).for_each(Waker::wake);
                    drop(state);
                    while ring.lock().unwrap().0 {
                        std::thread::yield_now();
                    }
                }
            });
            // All wait, and every wake-up lets one of them continue.
            ep.serve(20).unwrap();
            ringer.join().unwrap();
        }
        ep.close().unwrap();
    });
}

/// Dropping a read: `read` and `read_with` take all or nothing; `read_into` has taken what its buffer holds.
#[test]
fn dropped_reads() {
    run(2, |job| {
        let (sender, gate) = (job.rank == 0, Rc::new(Cell::new(false)));
        let opened = gate.clone();
        let builder = Endpoint::builder()
            .on("data", |mut msg: Message| async move {
                // Only the first half is there; the other one comes after "more", below.
                while msg.available() < 500 {
                    yield_once().await;
                }
                let once = |result: Poll<()>| assert!(result.is_pending());
                once(poll_once(msg.read::<[u8; 1000]>()).await);
                assert_eq!(msg.remaining(), 1000, "nothing was taken");
                let mut buffer = [0; 1000];
                once(poll_once(msg.read_into(&mut buffer)).await);
                let taken = 1000 - msg.remaining() as usize;
                assert!((500..1000).contains(&taken) && buffer[..taken] == pattern(1000, 0)[..taken]);
                msg.endpoint().send(0, "more", b"").await?;
                assert!(msg.read_to_end().await? == pattern(1000, 0)[taken..]);
                Ok(())
            })
            .on_short("more", move |_: Short<'_>| opened.set(true))
            .on_short("push", |_: Short<'_>| {});
        let ep = join(builder, job);
        if sender {
            let bytes = pattern(1000, 0);
            let mut out = ep.begin(1, "data", 1000).unwrap();
            out.piece(&bytes[..500]).unwrap();
            // The frame leaves with the next message that ends.
            ep.send(1, "push", b"").unwrap();
            ep.run_until(|| gate.get()).unwrap();
            out.piece(&bytes[500..]).unwrap();
            out.end().unwrap();
        } else {
            ep.serve(2).unwrap();
            assert_eq!(ep.poll_failure(), None);
        }
        ep.close().unwrap();
    });
}

/// Polls a future once and drops it.
async fn poll_once<F: Future>(future: F) -> Poll<()> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).map(drop))).await
}

/// Lets the endpoint continue, and returns.
async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
