//! The sending side: pieces, sizes, names, and aborted messages.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::common::{config, failures_until, join, pattern, run, run_over};
use tautline::{DeviceName, Endpoint, Error, HandlerFailure, Message, SendError, Short};

/// What a handler saw of a message: its first bytes, and how it ended.
type Seen = Rc<RefCell<Vec<(Vec<u8>, String)>>>;

/// An endpoint whose handler "data" keeps every message, or the error that it ended with; "done" ends the
/// receiver.
fn keeper(job: tautline::Job, seen: &Seen, done: &Rc<Cell<bool>>) -> Endpoint {
    let (seen, done) = (seen.clone(), done.clone());
    let builder = Endpoint::builder()
        .on("data", move |mut msg: Message| {
            let seen = seen.clone();
            async move {
                let mut got = Vec::new();
                let result = loop {
                    match msg.read_with(usize::MAX, |part| got.extend_from_slice(part)).await {
                        Ok(0) => break Ok(()),
                        Ok(_) => {}
                        Err(error) => break Err(error),
                    }
                };
                let how = result.as_ref().map_or_else(ToString::to_string, |()| "whole".to_owned());
                seen.borrow_mut().push((got, how));
                result
            }
        })
        .on_short("done", move |_: Short<'_>| done.set(true));
    join(builder, job)
}

/// Runs `send` at rank 0, and `check` at rank 1 when rank 0 has finished.
fn pair(send: impl Fn(&Endpoint) + Sync, check: impl Fn(&[HandlerFailure], &[(Vec<u8>, String)]) + Sync) {
    run(2, |job| {
        let (seen, done) = (Seen::default(), Rc::new(Cell::new(false)));
        let ep = keeper(job, &seen, &done);
        if ep.rank() == 0 {
            send(&ep);
            ep.send(1, "done", b"").unwrap();
        } else {
            let failures = failures_until(&ep, || done.get());
            let failed = seen.borrow().iter().filter(|(_, how)| how != "whole").count();
            assert_eq!(failures.len(), failed);
            check(&failures, &seen.borrow());
        }
        ep.close().unwrap();
    });
}

/// A piece that exceeds the announced size is refused as a whole; the message continues and arrives intact.
#[test]
fn piece_too_long() {
    pair(
        |ep| {
            let mut out = ep.begin(1, "data", 10).unwrap();
            out.piece(b"12345678").unwrap();
            assert!(matches!(out.piece(b"901"), Err(Error::PieceTooLong { room: 2, piece: 3 })));
            assert!(matches!(out.try_piece(b"901"), Err(Error::PieceTooLong { .. })));
            assert!(matches!(out.fill(3, |_, _| panic!("not asked")), Err(Error::PieceTooLong { .. })));
            assert_eq!(out.remaining(), 2);
            out.piece(b"90").unwrap();
            assert!(matches!(out.piece(b"x"), Err(Error::PieceTooLong { room: 0, piece: 1 })));
            out.end().unwrap();
        },
        |_, seen| assert_eq!(seen, [(b"1234567890".to_vec(), "whole".to_owned())]),
    );
}

/// M-4, S-22: messages of one piece arrive whole and in order on every path: in a frame, lent as a whole, or
/// part by part.
#[test]
fn messages_of_one_piece() {
    let sizes = [1_000, 20_000, 32_744, 33_000, 65_535, 65_536, 65_537, 200_000];
    pair(
        |ep| {
            for (i, size) in sizes.into_iter().enumerate() {
                let bytes = pattern(size, i);
                let mut out = ep.begin(1, "data", size as u64).unwrap();
                if i % 2 == 0 {
                    out.piece(&bytes).unwrap();
                } else {
                    out.fill(size, |at, room| room.copy_from_slice(&bytes[at..at + room.len()])).unwrap();
                }
                out.end().unwrap();
                ep.send(1, "data", &pattern(40, i)).unwrap();
                // The whole message was sent, but its end was never announced.
                let mut unended = ep.begin(1, "data", 40_000).unwrap();
                unended.piece(&pattern(40_000, i)).unwrap();
                drop(unended);
                // Begun in a frame with another one.
                let batch = ep.batch();
                ep.send(1, "data", &pattern(41, i)).unwrap();
                ep.send(1, "data", &pattern(50_000, i)).unwrap();
                drop(batch);
            }
        },
        |_, seen| {
            let sent = |i: usize| [sizes[i], 40, 40_000, 41, 50_000].map(|size| pattern(size, i));
            let sent: Vec<_> =
                (0..sizes.len()).flat_map(sent).map(|bytes| (bytes, "whole".to_owned())).collect();
            assert_eq!(seen.len(), sent.len());
            assert!(seen == sent, "as sent, in order");
        },
    );
}

/// M-6: a message that ends too early is aborted, and the messages around it are whole.
#[test]
fn end_too_early() {
    pair(
        |ep| {
            let mut before = ep.begin(1, "data", 4).unwrap();
            before.piece(b"be").unwrap();
            let mut out = ep.begin(1, "data", 10_000).unwrap();
            out.piece(&[1; 5000]).unwrap();
            assert!(matches!(out.end(), Err(Error::MessageTooShort { missing: 5000 })));
            before.piece(b"fo").unwrap();
            before.end().unwrap();
            ep.send(1, "data", b"after").unwrap();
        },
        |failures, seen| {
            let mut seen = seen.to_vec();
            seen.sort_by_key(|(bytes, _)| bytes.len());
            assert_eq!(seen[0], (b"befo".to_vec(), "whole".to_owned()));
            assert_eq!(seen[1], (b"after".to_vec(), "whole".to_owned()));
            assert_eq!(seen[2], (vec![1; 5000], Error::Aborted.to_string()));
            let [failure] = failures else { panic!("{failures:?}") };
            assert_eq!((failure.handler.as_str(), failure.from, failure.panicked), ("data", 0, false));
        },
    );
}

/// M-6: dropping a message at any point aborts it, and affects no other message.
#[test]
fn messages_dropped_halfway() {
    let sizes = [0usize, 1, 100, 3000, 70_000, 300_000];
    pair(
        |ep| {
            for (i, size) in sizes.into_iter().enumerate() {
                let mut out = ep.begin(1, "data", 400_000).unwrap();
                out.piece(&pattern(size, i)).unwrap();
                drop(out);
                ep.send(1, "data", &pattern(5000, i)).unwrap();
            }
        },
        |_, seen| {
            assert_eq!(seen.len(), 2 * sizes.len());
            let (given_up, whole): (Vec<_>, Vec<_>) = seen.iter().partition(|(_, how)| how != "whole");
            for (i, size) in sizes.into_iter().enumerate() {
                assert!(whole[i].0 == pattern(5000, i));
                assert!(given_up[i].0 == pattern(size, i), "what came before the end arrived");
                assert_eq!(given_up[i].1, Error::Aborted.to_string());
            }
        },
    );
}

/// A size far beyond 4 GiB can be announced; the handler sees it, and the message can be aborted.
#[test]
fn huge_announcement() {
    let total = 5u64 << 32;
    run(2, |job| {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let sink = seen.clone();
        let builder = Endpoint::builder().on("data", move |mut msg: Message| {
            let sink = sink.clone();
            async move {
                assert_eq!(msg.read::<u64>().await?, 77);
                sink.borrow_mut().push((msg.len(), msg.remaining()));
                msg.skip(msg.remaining()).await
            }
        });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            for size in [u64::MAX, total] {
                let mut out = ep.begin(1, "data", size).unwrap();
                out.value(&77u64).unwrap();
                out.piece(&[0; 100_000]).unwrap();
            }
        } else {
            let failures = failures_until(&ep, || ep.handled() == 2);
            assert_eq!(*seen.borrow(), [(u64::MAX, u64::MAX - 8), (total, total - 8)]);
            assert!(failures.iter().all(|failure| failure.reason == Error::Aborted.to_string()));
            assert_eq!(failures.len(), 2);
        }
        ep.close().unwrap();
    });
}

/// M-7: a handler that allocates more memory than there is fails alone; the process continues.
#[test]
fn huge_announcement_read_to_end() {
    run(2, |job| {
        let builder = Endpoint::builder().on("data", |mut msg: Message| async move {
            msg.read_to_end().await?;
            Ok(())
        });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            for size in [u64::MAX, 1 << 60, 1 << 46, 10] {
                let mut out = ep.begin(1, "data", size).unwrap();
                out.piece(&[0; 10]).unwrap();
            }
        } else {
            let failures = failures_until(&ep, || ep.handled() == 4);
            assert_eq!(failures.len(), 3, "all but the last");
        }
        ep.close().unwrap();
    });
}

/// M-1: a name that the peer has not registered is an error at the sender, and only there.
#[test]
fn unknown_handler() {
    run(2, |job| {
        let rank = job.rank;
        let builder = Endpoint::builder().on_short("both", |_: Short<'_>| {});
        let own = if rank == 0 { "only zero" } else { "only one" };
        let ep = join(builder.on_short(own, |_: Short<'_>| {}), job);
        let other = 1 - rank;
        let unknown = |result: Result<(), Error>| {
            assert!(matches!(result, Err(Error::Send(SendError::UnknownHandler(r))) if r == other));
        };
        unknown(ep.send(other, own, b"x"));
        unknown(ep.send(other, "nobody's", b"x"));
        unknown(ep.begin(other, "nobody's", 10).map(drop));
        let theirs = if rank == 0 { "only one" } else { "only zero" };
        ep.send(other, theirs, b"x").unwrap();
        ep.send(other, "both", b"x").unwrap();
        ep.serve(2).unwrap();
        assert!(matches!(ep.send(9, "both", b"x"), Err(Error::Send(SendError::NoSuchPeer(9)))));
        assert!(ep.connect(9).is_err());
        ep.close().unwrap();
    });
}

/// M-1: the two sides number their handlers differently, and have hundreds of them.
#[test]
fn many_handlers_in_different_order() {
    run(2, |job| {
        let rank = job.rank;
        let calls = Rc::new(RefCell::new(Vec::new()));
        let mut builder = Endpoint::builder();
        for i in 0..900u32 {
            let (calls, i) = (calls.clone(), if rank == 0 { i } else { 899 - i });
            // Long names, so that the table takes several frames.
            let name = format!("a handler with a rather long name, and the number {i}");
            builder = builder.on_short(&name, move |_: Short<'_>| calls.borrow_mut().push(i));
        }
        let ep = join(builder, job);
        let wanted: Vec<u32> = (0..900).step_by(7).collect();
        for i in &wanted {
            let name = format!("a handler with a rather long name, and the number {i}");
            ep.send(1 - rank, &*name, b"").unwrap();
        }
        ep.serve(wanted.len() as u64).unwrap();
        assert_eq!(*calls.borrow(), wanted);
        ep.close().unwrap();
    });
}

/// M-2: a handler of short messages takes what fits one frame, sent in either way; longer messages are
/// errors.
#[test]
fn short_handlers_take_one_frame() {
    run(2, |job| {
        let got = Rc::new(RefCell::new(Vec::new()));
        let sink = got.clone();
        let ep = join(
            Endpoint::builder()
                .on_short("short", move |msg: Short<'_>| sink.borrow_mut().push(msg.data().to_vec())),
            job,
        );
        if ep.rank() == 0 {
            ep.send(1, "short", b"x").unwrap();
            let limit = match ep.send(1, "short", &[0; 70_000]) {
                Err(Error::Send(SendError::TooLongForHandler(limit))) => limit,
                other => panic!("{other:?}"),
            };
            assert!(limit >= 1000, "{limit}");
            assert!(ep.begin(1, "short", limit as u64 + 1).is_err());
            assert!(ep.try_send(1, "short", &vec![0; limit + 1]).is_err());
            ep.send(1, "short", &pattern(limit, 1)).unwrap();
            // Begun behind others in a frame that is half full, so that it must be split; still handled
            // whole.
            let batch = ep.batch();
            ep.send(1, "short", &pattern(limit / 2, 2)).unwrap();
            let mut out = ep.begin(1, "short", limit as u64).unwrap();
            out.piece(&pattern(limit, 3)).unwrap();
            out.end().unwrap();
            drop(batch);
            ep.send(1, "short", b"").unwrap();
        } else {
            ep.serve(5).unwrap();
            let got = got.borrow();
            let limit = got[1].len();
            assert!(
                got[1] == pattern(limit, 1) && got[2] == pattern(limit / 2, 2) && got[3] == pattern(limit, 3)
            );
            assert!(got[4].is_empty());
        }
        ep.close().unwrap();
    });
}

/// M-4: two messages at once, piece by piece in turn: handlers start in the order in which the messages
/// began, and each gets its own bytes.
#[test]
fn interleaved_messages() {
    run(2, |job| {
        let log = Rc::new(RefCell::new(Vec::new()));
        let sink = log.clone();
        let builder = Endpoint::builder().on("data", move |mut msg: Message| {
            let sink = sink.clone();
            async move {
                let id = msg.read::<u64>().await?;
                sink.borrow_mut().push(("start", id));
                let bytes = msg.read_to_end().await?;
                assert!(bytes == pattern(bytes.len(), id as usize));
                sink.borrow_mut().push(("end", id));
                Ok(())
            }
        });
        let ep = join(builder.config(config(|c| c.link.message_window = 64 * 1024)), job);
        let size = |id: u64| 200_000 + 1000 * id as usize;
        if ep.rank() == 0 {
            let mut open: Vec<_> = (0..8u64)
                .map(|id| {
                    (id, ep.begin(1, "data", 8 + size(id) as u64).unwrap(), pattern(size(id), id as usize))
                })
                .collect();
            for (id, out, _) in &mut open {
                out.value(id).unwrap();
            }
            for at in (0..size(8)).step_by(777) {
                for (id, out, bytes) in open.iter_mut().rev() {
                    let end = (at + 777).min(size(*id));
                    out.piece(&bytes[at.min(end)..end]).unwrap();
                }
            }
            open.into_iter().rev().for_each(|(_, out, _)| out.end().unwrap());
        } else {
            ep.serve(8).unwrap();
            assert!(ep.poll_failure().is_none());
            let starts: Vec<u64> = log.borrow().iter().filter(|l| l.0 == "start").map(|l| l.1).collect();
            assert_eq!(starts, (0..8).collect::<Vec<_>>());
        }
        ep.close().unwrap();
    });
}

/// M-3: `fill` writes into the slots themselves, part after part.
#[test]
fn filled_in_place() {
    let bytes = pattern(300_000, 5);
    pair(
        |ep| {
            let mut out = ep.begin(1, "data", bytes.len() as u64).unwrap();
            let mut next = 0;
            out.fill(bytes.len(), |at, room| {
                assert_eq!(at, next);
                room.copy_from_slice(&bytes[at..at + room.len()]);
                next += room.len();
            })
            .unwrap();
            out.end().unwrap();
        },
        |_, seen| assert!(seen[0].0 == bytes),
    );
}

/// N-2: in a batch small messages share frames, and leave when it ends.
#[test]
fn batch_shares_frames() {
    pair(
        |ep| {
            ep.send(1, "data", b"first").unwrap();
            std::thread::sleep(Duration::from_millis(5));
            let slots = || ep.counters().links.slots_sent + ep.counters().local.frames_sent;
            let before = slots();
            {
                let _outer = ep.batch();
                let _inner = ep.batch();
                for i in 0..100u64 {
                    ep.send(1, "data", &i.to_le_bytes()).unwrap();
                }
            }
            let sent = slots() - before;
            assert!((1..=2).contains(&sent), "{sent} slots for 100 messages");
        },
        |_, seen| {
            assert_eq!(seen.len(), 101);
            for (i, (bytes, _)) in seen[1..].iter().enumerate() {
                assert_eq!(*bytes, (i as u64).to_le_bytes());
            }
        },
    );
}

/// N-2: waiting inside a batch sends what was batched, so that it can be answered.
#[test]
fn waiting_inside_a_batch() {
    run(2, |job| {
        let ep = join(
            Endpoint::builder()
                .on_short("ask", |msg: tautline::Short<'_>| {
                    msg.endpoint().try_send(msg.from(), "answer", b"").unwrap();
                })
                .on_short("answer", |_| {}),
            job,
        );
        if ep.rank() == 0 {
            let _batch = ep.batch();
            ep.send(1, "ask", b"").unwrap();
            ep.serve(1).unwrap();
        } else {
            ep.serve(1).unwrap();
        }
        ep.close().unwrap();
    });
}

/// M-4, S-23: handlers that have not read their messages do not keep others from arriving, over any device:
/// here they all wait for a message that is sent after theirs.
#[test]
fn unread_messages_do_not_block_others() {
    const WAITING: usize = 30;
    for device in [DeviceName::Udp, DeviceName::Shm] {
        run_over(device, 2, |job| {
            let (go, wakers) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(Vec::<Waker>::new())));
            let read = Rc::new(Cell::new(0));
            let (their_go, their_wakers, their_read) = (go.clone(), wakers.clone(), read.clone());
            let builder = Endpoint::builder()
                .on("data", move |mut msg: Message| {
                    let (go, wakers, read) = (their_go.clone(), their_wakers.clone(), their_read.clone());
                    async move {
                        std::future::poll_fn(|context| {
                            wakers.borrow_mut().push(context.waker().clone());
                            if go.get() { Poll::Ready(()) } else { Poll::Pending }
                        })
                        .await;
                        let mut got = vec![0; msg.len() as usize];
                        msg.read_into(&mut got).await?;
                        assert!(got == pattern(40_000, read.get()));
                        read.set(read.get() + 1);
                        Ok(())
                    }
                })
                .on_short("go", move |_: Short<'_>| {
                    go.set(true);
                    wakers.take().into_iter().for_each(Waker::wake);
                });
            let ep = join(builder, job);
            if ep.rank() == 0 {
                for i in 0..WAITING {
                    ep.send(1, "data", &pattern(40_000, i)).unwrap();
                }
                ep.send(1, "go", b"").unwrap();
            } else {
                ep.run_until(|| read.get() == WAITING).unwrap();
            }
            ep.close().unwrap();
        });
    }
}
