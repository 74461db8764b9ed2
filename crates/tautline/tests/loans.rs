//! Messages that are lent instead of copied (M-9, S-8).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Barrier;
use std::time::Duration;

use crate::common::{await_event, config, failures_until, jobs, join, run, run_jobs, run_over};
use tautline::{Borrowed, DeviceName, Down, Endpoint, Error, Event, Message, SendError, Short};

/// The byte at an offset of the message with a number.
fn byte(number: usize, at: usize) -> u8 {
    (number * 31 + at * 7 + at / 251) as u8
}

fn fill(number: usize, bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(at, to)| *to = byte(number, at));
}

fn check(number: usize, bytes: &[u8]) {
    for (at, got) in bytes.iter().enumerate() {
        assert_eq!(*got, byte(number, at), "byte {at} of message {number}");
    }
}

/// A handler that keeps the messages it borrows.
fn keeper(builder: tautline::Builder) -> (tautline::Builder, Rc<RefCell<Vec<Borrowed>>>) {
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    (builder.on_loan("keep", move |message| keep.borrow_mut().push(message)), kept)
}

/// M-9: messages that were sent, not lent, are copied for a handler that keeps them: the sender's few buffers
/// for parts are not used up, and all later messages arrive.
#[test]
fn sent_messages_can_be_kept() {
    const KEPT: usize = 40;
    run_over(DeviceName::Shm, 2, |job| {
        let (builder, kept) = keeper(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            for number in 0..KEPT {
                let mut bytes = vec![0; 30_000 + 1_000 * number];
                fill(number, &mut bytes);
                ep.send(1, "keep", &bytes).unwrap();
            }
            await_event(&ep, |event| matches!(event, Event::PeerDown { .. }));
        } else {
            ep.run_until(|| kept.borrow().len() == KEPT).unwrap();
            for (number, message) in kept.borrow().iter().enumerate() {
                assert_eq!(message.len(), 30_000 + 1_000 * number);
                check(number, &message.to_vec());
            }
        }
        ep.close().unwrap();
    });
}

const SIZES: [usize; 9] = [0, 1, 8, 64, 1000, 4096, 100_000, 1 << 20, 3 << 20];
const HANDLERS: [&str; 3] = ["lent", "stream", "taken"];

/// M-9: handlers get a lent message as any other, in order with the others, over every device; on one host it
/// is read in place.
#[test]
fn every_handler_every_size() {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        run_over(device, 2, |job| {
            let local = device == DeviceName::Shm;
            let seen = Rc::new(Cell::new(0));
            let counter = |seen: &Rc<Cell<usize>>| {
                let seen = seen.clone();
                move || seen.replace(seen.get() + 1)
            };
            let (lent, stream, taken, plain) =
                (counter(&seen), counter(&seen), counter(&seen), counter(&seen));
            let builder = Endpoint::builder()
                .on_loan("lent", move |message: Borrowed| {
                    let number = lent();
                    assert_eq!((message.len(), message.is_shared()), (SIZES[number / 4], local));
                    check(number, &message.to_vec());
                    let mut got = Vec::new();
                    message.for_each_part(|part| got.extend_from_slice(part));
                    check(number, &got);
                    if message.len() >= 9 {
                        assert_eq!(message.read::<[u8; 8]>(1), std::array::from_fn(|i| byte(number, i + 1)));
                    }
                })
                .on("stream", move |mut message: Message| {
                    let number = stream();
                    async move {
                        let mut got = vec![0; message.len().min(5) as usize];
                        message.read_into(&mut got).await?;
                        assert!(got.is_empty() || message.borrowed().is_none(), "part of it is taken");
                        message.read_with(77, |part| got.extend_from_slice(part)).await?;
                        got.extend(message.read_to_end().await?);
                        assert_eq!(got.len(), SIZES[number / 4]);
                        check(number, &got);
                        Ok(())
                    }
                })
                .on("taken", move |mut message: Message| {
                    let number = taken();
                    async move {
                        let Some(borrowed) = message.borrowed() else {
                            assert!(!local);
                            check(number, &message.read_to_end().await?);
                            return Ok(());
                        };
                        assert!(local && message.remaining() == 0 && borrowed.len() == SIZES[number / 4]);
                        check(number, &borrowed.to_vec());
                        Ok(())
                    }
                })
                .on_short("plain", move |message: Short<'_>| check(plain(), message.data()));
            let ep = join(builder, job);
            if ep.rank() == 1 {
                ep.serve(4 * SIZES.len() as u64).unwrap();
                assert_eq!(ep.poll_failure(), None);
                return ep.close().unwrap();
            }
            for (number, size) in (0..).step_by(4).zip(SIZES) {
                for (i, handler) in HANDLERS.into_iter().enumerate() {
                    let mut loan = ep.loan(1, size).unwrap();
                    assert_eq!((loan.len(), loan.is_shared(), loan.peer()), (size, local, 1));
                    fill(number + i, &mut loan);
                    loan.send(handler).unwrap();
                }
                let mut bytes = [0; 40];
                fill(number + 3, &mut bytes);
                ep.send(1, "plain", &bytes).unwrap();
            }
            ep.close().unwrap();
        });
    }
}

/// M-9: handlers of short messages get loans as copies; a loan that is too long for them is refused, and one
/// to oneself is a copy, too.
#[test]
fn loans_to_short_handlers_and_oneself() {
    run(2, |job| {
        let got = Rc::new(Cell::new(0));
        let (short, own) = (got.clone(), got.clone());
        let builder = Endpoint::builder()
            .on_short("bye", |_| {})
            .on_short("short", move |message: Short<'_>| {
                check(5, message.data());
                short.set(short.get() + message.data().len());
            })
            .on_loan("own", move |message: Borrowed| {
                assert!(!message.is_shared());
                check(6, &message.to_vec());
                own.set(own.get() + message.len());
            });
        let ep = join(builder, job);
        let mut loan = ep.loan(1 - ep.rank(), 700).unwrap();
        fill(5, &mut loan);
        loan.try_send("short").map_err(|(_, error)| error).unwrap();
        let loan = ep.loan(1 - ep.rank(), 1 << 20).unwrap();
        let error = loan.send("short").unwrap_err();
        assert!(matches!(error, Error::Send(SendError::TooLongForHandler(_))), "{error}");
        let loan = ep.loan(1 - ep.rank(), 8).unwrap();
        let (loan, error) = loan.try_send("nobody").unwrap_err();
        assert!(matches!(error, Error::Send(SendError::UnknownHandler(_))), "{error}");
        drop(loan);
        let mut loan = ep.loan(ep.rank(), 50_000).unwrap();
        fill(6, &mut loan);
        loan.send("own").unwrap();
        // The first one to close would refuse the other's loans.
        ep.send(1 - ep.rank(), "bye", &[]).unwrap();
        ep.run_until(|| got.get() == 50_700 && ep.handled() == 3).unwrap();
        ep.close().unwrap();
    });
}

/// S-8, S-20: kept loans count; the lender waits until one of them is returned, in any order, and is woken
/// then, however it waits.
#[test]
fn kept_loans_hold_the_lender_back() {
    for waiting in [tautline::Waiting::Park, tautline::Waiting::SpinThenPark, tautline::Waiting::Spin] {
        let refused = Barrier::new(2);
        run_over(DeviceName::Shm, 2, |job| {
            let builder = Endpoint::builder().config(config(|config| {
                config.loan_pool = 1 << 20;
                config.waiting = waiting;
            }));
            let (builder, kept) = keeper(builder);
            let ep = join(builder, job);
            let lent = 4;
            if ep.rank() == 0 {
                for number in 0..lent {
                    let mut loan = ep.loan(1, 256 << 10).unwrap();
                    fill(number, &mut loan);
                    loan.send("keep").unwrap();
                }
                let error = ep.try_loan(1, 1).unwrap_err();
                assert!(matches!(error, Error::Send(SendError::WouldBlock)), "{error}");
                refused.wait();
                // More than the pool's size is private memory.
                assert!(!ep.loan(1, 2 << 20).unwrap().is_shared());
                // Returned when the other side drops one.
                let mut loan = ep.loan(1, 200 << 10).unwrap();
                assert!(loan.is_shared());
                fill(9, &mut loan);
                loan.send("keep").unwrap();
                return ep.close().unwrap();
            }
            ep.run_until(|| kept.borrow().len() == lent).unwrap();
            refused.wait();
            std::thread::sleep(Duration::from_millis(50));
            let third = kept.borrow_mut().remove(2);
            check(2, &third.to_vec());
            drop(third);
            ep.run_until(|| kept.borrow().len() == lent).unwrap();
            // The kept messages are as they were sent.
            for (number, message) in [0, 1, 3, 9].into_iter().zip(kept.borrow().iter()) {
                check(number, &message.to_vec());
            }
            kept.borrow_mut().clear();
            ep.close().unwrap();
        });
    }
}

/// S-8: loans that are dropped unsent, and messages that nobody reads, are returned: nothing leaks.
#[test]
fn dropped_loans_are_returned() {
    run_over(DeviceName::Shm, 2, |job| {
        let config = config(|config| config.loan_pool = 1 << 20);
        let builder = Endpoint::builder()
            .config(config)
            .on_loan("drop", |_| {})
            .on_loan("panic", |_| panic!("on purpose"))
            .on("early", |_: Message| async { Ok(()) })
            .on("late", |mut message: Message| async move { message.skip(10).await });
        let ep = join(builder, job);
        let rounds = 300;
        if ep.rank() == 0 {
            for i in 0..rounds {
                for handler in ["drop", "panic", "early", "late"] {
                    let loan = ep.loan(1, 300 << 10).unwrap();
                    assert!(loan.is_shared());
                    if i % 3 == 0 {
                        drop(loan);
                    } else {
                        loan.send(handler).unwrap();
                    }
                }
            }
            return ep.close().unwrap();
        }
        let failures = failures_until(&ep, || ep.handled() == 4 * rounds * 2 / 3);
        assert_eq!(failures.len() as u64, rounds * 2 / 3);
        assert!(failures.iter().all(|failure| failure.handler == "panic" && failure.panicked));
        ep.close().unwrap();
    });
}

/// S-6, S-8: loans of a sender that has closed can still be read, even if they were not read before; loans of
/// a closed channel can be dropped.
#[test]
fn loans_are_readable_after_their_sender_closed() {
    run_jobs(jobs(2), |job| {
        let (builder, kept) = keeper(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let unsent = ep.loan(1, 5000).unwrap();
            for number in 0..20 {
                let mut loan = ep.loan(1, 100_000).unwrap();
                fill(number, &mut loan);
                loan.send("keep").unwrap();
            }
            let again = ep.clone();
            ep.close().unwrap();
            drop(unsent);
            return assert!(again.loan(1, 8).is_err());
        }
        await_event(&ep, |event| matches!(event, Event::PeerDown { why: Down::Closed, .. }));
        ep.run_until(|| kept.borrow().len() == 20).unwrap();
        for (number, message) in kept.borrow().iter().enumerate() {
            assert!(message.is_shared());
            check(number, &message.to_vec());
        }
        ep.close().unwrap();
        // Even after the endpoint is dropped.
        check(7, &kept.borrow()[7].to_vec());
    });
}

/// M-9: handlers lend, and wait for room without blocking each other.
#[test]
fn loans_from_handlers() {
    run_over(DeviceName::Shm, 2, |job| {
        let back = Rc::new(Cell::new(0));
        let count = back.clone();
        let builder = Endpoint::builder()
            .config(config(|config| config.loan_pool = 1 << 20))
            .on("ask", |mut message: Message| async move {
                let number = message.read::<u64>().await?;
                let mut loan = message.endpoint().loan(message.from(), 400_000).await?;
                loan[..8].copy_from_slice(&number.to_le_bytes());
                fill(number as usize, &mut loan[8..]);
                loan.send("answer").await
            })
            .on_loan("answer", move |message: Borrowed| {
                // Any handler may have got room first.
                check(message.read::<u64>(0) as usize, &message.to_vec()[8..]);
                count.set(count.get() + 1);
            });
        let ep = join(builder, job);
        for number in 0..30u64 {
            ep.send(1 - ep.rank(), "ask", &number.to_le_bytes()).unwrap();
        }
        ep.run_until(|| back.get() == 30 && ep.handled() == 60).unwrap();
        ep.close().unwrap();
    });
}

/// S-9, S-27, M-9: long messages that the receiver copies out of the sender's process are messages like any
/// other; the sender may reuse its buffer when the send returns.
#[test]
fn single_copy_messages() {
    run(2, |job| {
        let seen = Rc::new(Cell::new(0));
        let (stream, lent, later) = (seen.clone(), seen.clone(), seen.clone());
        let builder = Endpoint::builder()
            .config(config(|config| config.single_copy = Some(100_000)))
            .on("stream", move |mut message: Message| {
                let number = stream.replace(stream.get() + 1);
                async move {
                    let mut got = vec![0; 1000];
                    message.read_into(&mut got).await?;
                    assert!(message.borrowed().is_none());
                    let more = message.read::<[u8; 3]>().await?;
                    got.extend(more);
                    message.read_with(40_000, |part| got.extend_from_slice(part)).await?;
                    got.extend(message.read_to_end().await?);
                    assert_eq!(got.len(), 900_001);
                    check(number, &got);
                    Ok(())
                }
            })
            .on_loan("lent", move |message: Borrowed| {
                let number = lent.replace(lent.get() + 1);
                assert_eq!(message.len(), 300_000);
                check(number, &message.to_vec());
            })
            .on("part", move |mut message: Message| {
                let number = later.replace(later.get() + 1);
                async move {
                    let mut got = [0; 10];
                    message.read_into(&mut got).await?;
                    check(number, &got);
                    Ok(())
                }
            });
        let ep = join(builder.on("early", |_: Message| async { Ok(()) }), job);
        let rounds = 20;
        if ep.rank() == 1 {
            ep.run_until(|| seen.get() == 3 * rounds as usize).unwrap();
            while ep.extract(usize::MAX).unwrap() > 0 {}
            assert_eq!(ep.poll_failure(), None);
            return ep.close().unwrap();
        }
        let mut bytes = vec![0; 900_001];
        let frames = || ep.counters().local.frames_sent;
        // S-27: messages are copied by this side until the receiver has confirmed that it can read them.
        for tries in 0.. {
            let before = frames();
            ep.send(1, "early", &bytes[..100_000]).unwrap();
            if before == 0 && frames() == 0 || before > 0 && frames() == before + 1 {
                break;
            }
            assert!(tries < 10_000, "the receiver never confirms");
            std::thread::yield_now();
        }
        let before = frames();
        for number in (0..3 * rounds as usize).step_by(3) {
            for (i, (handler, len)) in
                [("stream", 900_001), ("lent", 300_000), ("part", 100_000)].into_iter().enumerate()
            {
                fill(number + i, &mut bytes[..len]);
                ep.send(1, handler, &bytes[..len]).unwrap();
                bytes.fill(0);
            }
        }
        if before > 0 {
            assert!(frames() - before < 3 * rounds + 10, "one frame each: {:?}", ep.counters());
        }
        ep.close().unwrap();
    });
}

/// M-9: a loan to oneself never waits, because only the program itself could return memory; one that exceeds
/// memory is an error.
#[test]
fn loans_to_oneself_never_wait() {
    run_over(DeviceName::Shm, 2, |job| {
        let builder = Endpoint::builder().config(config(|config| config.loan_pool = 1 << 20));
        let ep = join(builder.on_short("bye", |_| {}), job);
        let peer = 1 - ep.rank();
        let all = ep.loan(peer, 1 << 20).unwrap();
        assert!(all.is_shared());
        assert!(!ep.loan(peer, 8).unwrap().is_shared());
        drop(all);
        assert!(ep.loan(peer, 1 << 20).unwrap().is_shared());
        let many: Vec<_> = (0..300).map(|_| ep.loan(peer, 8).unwrap()).collect();
        assert_eq!(many.iter().filter(|loan| loan.is_shared()).count(), 240);
        for len in [1 << 45, usize::MAX] {
            assert!(ep.try_loan(peer, len).is_err());
        }
        drop(many);
        ep.send(peer, "bye", &[]).unwrap();
        ep.run_until(|| ep.handled() == 1).unwrap();
        ep.close().unwrap();
    });
}

/// S-21: long messages that are not lent use no loan memory.
#[test]
fn messages_use_no_loan_memory() {
    run_over(DeviceName::Shm, 2, |job| {
        let builder = Endpoint::builder().config(config(|config| config.loan_pool = 1 << 20));
        let (builder, kept) = keeper(builder);
        let builder = builder.on("long", |mut message: Message| async move {
            check(3, &message.read_to_end().await?);
            Ok(())
        });
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let mut bytes = vec![0; 300_000];
            fill(3, &mut bytes);
            for _ in 0..4 {
                ep.send(1, "long", &bytes).unwrap();
                assert!(ep.loan(1, 256 << 10).unwrap().is_shared());
                ep.loan(1, 256 << 10).unwrap().send("keep").unwrap();
            }
            return ep.close().unwrap();
        }
        ep.run_until(|| kept.borrow().len() == 4 && ep.handled() == 8).unwrap();
        kept.borrow_mut().clear();
        ep.close().unwrap();
    });
}

/// Memory that no other process, nor the kernel on its behalf, can read; nothing if the system has none.
fn secret(len: usize) -> Option<&'static mut [u8]> {
    // SAFETY: makes a descriptor, or fails.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) } as i32;
    // SAFETY: a new mapping of a whole file at an address of the kernel's choice, never unmapped; nothing
    // else refers to it.
    unsafe {
        if fd < 0 || libc::ftruncate(fd, len as i64) != 0 {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0);
        (at != libc::MAP_FAILED).then(|| std::slice::from_raw_parts_mut(at.cast(), len))
    }
}

/// S-26: a message that the receiver turns out to be unable to read is copied for it, and arrives once.
#[test]
fn unreadable_memory_is_copied() {
    run_over(DeviceName::Shm, 2, |job| {
        let seen = Rc::new(Cell::new(0));
        let count = seen.clone();
        let builder = Endpoint::builder().config(config(|config| config.single_copy = Some(50_000))).on(
            "data",
            move |mut message: Message| {
                let count = count.clone();
                async move {
                    check(count.get(), &message.read_to_end().await?);
                    count.set(count.get() + 1);
                    Ok(())
                }
            },
        );
        let ep = join(builder, job);
        if ep.rank() == 1 {
            ep.serve(5).unwrap();
            assert_eq!((seen.get(), ep.poll_failure()), (5, None));
            return ep.close().unwrap();
        }
        let mut open = vec![0; 100_000];
        let mut hidden = secret(100_000);
        if hidden.is_none() {
            tautline_skips::skip("unreadable_memory_is_copied", "no secret memory for this user (in part)");
        }
        for number in 0..5 {
            let bytes = match &mut hidden {
                Some(hidden) if number % 2 == 1 => &mut **hidden,
                _ => &mut open[..],
            };
            fill(number, bytes);
            ep.send(1, "data", bytes).unwrap();
        }
        ep.close().unwrap();
    });
}
