//! Backpressure: what is held back, what counts, and what makes room.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{failures_until, join, pattern, run, run_over};
use tautline::node::limits::MAX_BEGUN;
use tautline::{Borrowed, DeviceName, Endpoint, Error, Message, SendError, Short};

const DEVICES: [DeviceName; 2] = [DeviceName::Udp, DeviceName::Shm];

/// An endpoint that counts messages and their bytes.
fn counter(job: tautline::Job) -> (Endpoint, Rc<Cell<(u64, u64)>>) {
    counter_with(job, tautline::Config::default())
}

fn counter_with(job: tautline::Job, config: tautline::Config) -> (Endpoint, Rc<Cell<(u64, u64)>>) {
    let count = Rc::new(Cell::new((0, 0)));
    let (streamed, lent) = (count.clone(), count.clone());
    let note = |count: &Cell<(u64, u64)>, bytes: u64| count.set((count.get().0 + 1, count.get().1 + bytes));
    let builder = Endpoint::builder()
        .on("data", move |mut msg: Message| {
            let count = streamed.clone();
            async move {
                let mut got = vec![0; msg.len() as usize];
                msg.read_into(&mut got).await?;
                assert!(got == pattern(got.len(), got.len()));
                note(&count, got.len() as u64);
                Ok(())
            }
        })
        .on_loan("lent", move |message: Borrowed| note(&lent, message.len() as u64))
        .on_short("short", |_: Short<'_>| {});
    (join(builder.config(config), job), count)
}

/// M-7: a program that panics while it fills a message loses that message, and no room, however often.
#[test]
fn panics_while_filling() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, count) = counter(job);
            if ep.rank() == 0 {
                for i in 0..90 {
                    let (before, len) = [(0, 32), (0, 40_000), (0, 200_000), (10, 22), (5_000, 900)][i % 5];
                    let mut out = ep.begin(1, "data", (before + len) as u64).unwrap();
                    out.piece(&pattern(before, 0)).unwrap();
                    let filled = catch_unwind(AssertUnwindSafe(|| {
                        out.fill(len, |_, room| {
                            room[0] = 1;
                            // Without a backtrace, which takes long, and while it is written nothing is
                            // answered.
                            resume_unwind(Box::new("as it should"))
                        })
                    }));
                    assert!(filled.is_err());
                    // Dropped or ended, it is aborted.
                    assert!(i % 2 == 0 || matches!(out.end(), Err(Error::MessageTooShort { .. })));
                }
                ep.send(1, "data", &pattern(100_000, 100_000)).unwrap();
            } else {
                let failures = failures_until(&ep, || count.get().0 == 1);
                assert!(failures.iter().all(|failure| failure.reason.contains("aborted")), "{failures:?}");
                assert_eq!(count.get().0, 1, "no message that was not filled is delivered");
            }
            ep.close().unwrap();
        });
    }
}

/// M-7, N-15: a program that panics in the midst of a long message loses that message; the next one, which
/// shares the frame that was being filled, leaves at once.
#[test]
fn a_panic_in_the_midst_of_a_message() {
    const LEN: usize = 400_000;
    for device in DEVICES {
        for _ in 0..8 {
            run_over(device, 2, |job| {
                let (ep, count) = counter(job);
                if ep.rank() == 0 {
                    let mut out = ep.begin(1, "data", LEN as u64).unwrap();
                    let filled = catch_unwind(AssertUnwindSafe(|| {
                        out.fill(LEN, |at, _| {
                            if at > 100_000 {
                                resume_unwind(Box::new("as it should"))
                            }
                        })
                    }));
                    assert!(filled.is_err());
                    drop(out);
                    ep.send(1, "data", &pattern(100, 100)).unwrap();
                    ep.run_until(|| count.get().0 == 1).unwrap();
                } else {
                    failures_until(&ep, || count.get().0 == 1);
                    ep.send(0, "data", &pattern(100, 100)).unwrap();
                }
                ep.close().unwrap();
            });
        }
    }
}

/// The smallest values that a configuration may have work, both ways. Each byte of a message then takes a
/// frame of its own, and a round trip.
#[test]
fn the_smallest_configuration() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let config = tautline::Config::with(|c| {
                c.tx_slots = 32;
                c.link.credit_slots = 2;
                (c.link.message_window, c.local_window, c.link.window_initial) = (1, 1, 1);
            });
            let (ep, count) = counter_with(job, config);
            let other = 1 - ep.rank();
            if ep.rank() == 0 {
                for len in [1, 100, 300, 700] {
                    ep.send(other, "data", &pattern(len, len)).unwrap();
                }
            }
            ep.run_until(|| count.get().0 == 4).unwrap();
            if ep.rank() == 1 {
                for len in [1, 100, 300, 700] {
                    ep.send(other, "data", &pattern(len, len)).unwrap();
                }
            }
            ep.close().unwrap();
        });
    }
}

/// M-8: bytes of loans count as if they were copied: a receiver that takes little gets little, and learns how
/// much.
#[test]
fn loaned_bytes_count() {
    for (handler, size) in [("data", 60_000), ("data", 300_000), ("lent", 1_000_000)] {
        run_over(DeviceName::Shm, 2, |job| {
            let (ep, count) = counter(job);
            if ep.rank() == 0 {
                for _ in 0..4 {
                    if handler == "lent" {
                        ep.loan(1, size).unwrap().send("lent").unwrap();
                    } else {
                        ep.send(1, handler, &pattern(size, size)).unwrap();
                    }
                }
                ep.run_until(|| !ep.peer_state(1).is_some_and(|state| state == tautline::PeerState::Up)).ok();
            } else {
                while count.get().0 < 4 {
                    let before = count.get();
                    let took = ep.extract(1000).unwrap() as u64;
                    let after = count.get();
                    assert!(after.0 - before.0 <= 1, "{} messages at once", after.0 - before.0);
                    assert!(after.0 == before.0 || took > 1000, "{took} bytes reported of {size}");
                    ep.wait(Some(Duration::from_millis(100))).unwrap();
                }
            }
            ep.close().unwrap();
        });
    }
}

/// M-8: two programs that send before they extract do not block each other over a few hundred thousand bytes,
/// in messages or pieces of any size.
#[test]
fn both_send_first() {
    for device in DEVICES {
        for (messages, size, piece) in [
            (1, 20_000, 1_024),
            (1, 400_000, 1_024),
            (13, 9_000, 9_000),
            (20, 20_000, 20_000),
            (14, 33_000, 33_000),
        ] {
            run_over(device, 2, |job| {
                let (ep, count) = counter(job);
                let other = 1 - ep.rank();
                for _ in 0..messages {
                    let bytes = pattern(size, size);
                    let mut out = ep.begin(other, "data", size as u64).unwrap();
                    bytes.chunks(piece).for_each(|part| out.piece(part).unwrap());
                    out.end().unwrap();
                }
                ep.run_until(|| count.get().0 == messages).unwrap();
                // So that neither closes before the other one has received everything.
                ep.close().unwrap();
            });
        }
    }
}

/// M-10: beginning more messages than may be open at once fails; nothing else is affected, and aborted ones
/// make room.
#[test]
fn too_many_open_messages() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, count) = counter(job);
            if ep.rank() == 0 {
                let mut open: Vec<_> = (0..MAX_BEGUN).map(|_| ep.begin(1, "data", 100).unwrap()).collect();
                let refused = ep.begin(1, "data", 100).unwrap_err();
                assert!(matches!(refused, Error::Send(SendError::TooMany(_))), "{refused}");
                ep.send(1, "short", &pattern(50, 50)).unwrap();
                open.truncate(1_000);
                ep.send(1, "data", &pattern(100_000, 100_000)).unwrap();
                for mut out in open {
                    out.piece(&pattern(100, 100)).unwrap();
                    out.end().unwrap();
                }
            } else {
                let failures = failures_until(&ep, || count.get().0 == 1_001);
                assert!(failures.iter().all(|failure| failure.reason.contains("aborted")));
            }
            ep.close().unwrap();
        });
    }
}

/// N-5: a program that only tries to send makes the progress that it waits for.
#[test]
fn try_send_makes_progress() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, count) = counter(job);
            if ep.rank() == 0 {
                let started = Instant::now();
                let bytes = pattern(2_000, 2_000);
                for _ in 0..200 {
                    while ep.try_send(1, "data", &bytes).is_err() {
                        assert!(started.elapsed() < Duration::from_secs(60), "it takes too long");
                    }
                }
            } else {
                ep.run_until(|| count.get().0 == 200).unwrap();
            }
            ep.close().unwrap();
        });
    }
}

/// S-17: processes that dial and say nothing keep nobody else out.
#[test]
fn silent_dialers_block_nobody() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    use tautline::node::device::shm::discovery_dir;

    let listeners = || {
        let found = std::fs::read_dir(discovery_dir()).into_iter().flatten().flatten();
        found.map(|entry| entry.path()).collect::<std::collections::HashSet<_>>()
    };
    let _limit = crate::common::Limit::seconds(60);
    let mut both = crate::common::jobs(2);
    both.iter_mut().for_each(|job| job.device = Some(DeviceName::Shm));
    let (second, first) = (both.pop().unwrap(), both.pop().unwrap());
    // Other tests open listeners at the same time: all new ones get silent dialers, which must do no harm
    // there either.
    let before = listeners();
    let (ep, count) = counter(first);
    let mut silent = Vec::new();
    for listener in listeners().difference(&before) {
        let address = SocketAddrUnix::new(listener).unwrap();
        let mut came = 0;
        for _ in 0..10_000 {
            if came == 80 {
                break;
            }
            let flags = SocketFlags::NONBLOCK;
            let dialer = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            match connect(&dialer, &address) {
                Ok(()) => {
                    silent.push(dialer);
                    came += 1;
                }
                // The listener's backlog is full; its owner accepts now and then.
                Err(rustix::io::Errno::AGAIN) => ep.wait(Some(Duration::from_millis(1))).map(drop).unwrap(),
                // Not a listener, or one that is gone.
                Err(_) => break,
            }
            ep.extract(usize::MAX).unwrap();
        }
    }
    assert!(silent.len() >= 80, "{} came in", silent.len());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ep, _) = counter(second);
            ep.send(0, "data", &pattern(100, 100)).unwrap();
            ep.close().unwrap();
        });
        ep.run_until(|| count.get().0 == 1).unwrap();
    });
    ep.close().unwrap();
}

/// L-27, W-11: a program that sends long messages without extracting gets windows for them, although answers
/// to the first ones have used up the credit.
#[test]
fn windows_pass_a_full_channel() {
    const COUNT: usize = 16;
    run(2, |job| {
        let (answered, asked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (answers, asks) = (answered.clone(), asked.clone());
        let builder = Endpoint::builder()
            .on("ask", move |mut m: Message| {
                let asks = asks.clone();
                async move {
                    let bytes = m.read_to_end().await?;
                    m.endpoint().send(m.from(), "answer", &bytes).await?;
                    asks.set(asks.get() + 1);
                    Ok(())
                }
            })
            .on("answer", move |mut m: Message| {
                let answers = answers.clone();
                async move {
                    assert!(m.read_to_end().await?.iter().all(|byte| *byte == 7));
                    answers.set(answers.get() + 1);
                    Ok(())
                }
            });
        let ep = join(builder, job);
        if ep.rank() == 1 {
            let long = vec![7; 1 << 20];
            for _ in 0..COUNT {
                ep.send(0, "ask", &long).unwrap();
            }
            ep.run_until(|| answered.get() == COUNT).unwrap();
        } else {
            ep.run_until(|| asked.get() == COUNT).unwrap();
        }
        ep.close().unwrap();
    });
}

/// Sends a message of `len` bytes by a blocking call, which runs no handlers, to a peer that sends as many
/// short messages as it can all the while.
fn send_long_against_short(device: DeviceName, len: usize, config: &tautline::Config) {
    run_over(device, 2, |job| {
        let read = Rc::new(Cell::new(0));
        let sum = read.clone();
        let builder = Endpoint::builder()
            .config(config.clone())
            .on("long", move |mut m: Message| {
                let sum = sum.clone();
                async move {
                    sum.set(m.read_to_end().await?.len());
                    Ok(())
                }
            })
            .on_short("short", |_: Short<'_>| ());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            ep.send(1, "long", &vec![5; len]).unwrap();
        } else {
            while read.get() != len {
                while ep.try_send(0, "short", &[1; 800]).is_ok() {}
                ep.extract(usize::MAX).unwrap();
                ep.wait(Some(Duration::from_millis(1))).unwrap();
            }
        }
        ep.close().unwrap();
    });
}

/// S-28, S-29, L-27: a long message is sent, although short ones of its receiver have filled the way back and
/// nobody extracts them.
#[test]
fn windows_pass_short_messages() {
    for device in DEVICES {
        send_long_against_short(device, 8_000_000, &crate::common::config(|_| ()));
    }
}

/// L-27, S-29: so it is with the smallest credit.
#[test]
fn windows_pass_the_smallest_credit() {
    for device in DEVICES {
        for credit in [2, 3, 4] {
            let config = crate::common::config(|c| {
                c.link.credit_slots = credit;
                c.link.message_window = 20_000;
                c.local_window = 20_000;
            });
            send_long_against_short(device, 200_000, &config);
        }
    }
}

/// L-35: a credit of one slot, which leaves none for windows, is refused with a reason.
#[test]
fn a_credit_of_one_slot_is_refused() {
    for credit in [0, 1] {
        let builder = Endpoint::builder().config(crate::common::config(|c| c.link.credit_slots = credit));
        let refused = builder.join_job(crate::common::jobs(1).remove(0)).unwrap_err();
        assert!(matches!(refused, Error::Join(tautline::JoinError::Config(_))), "{refused:?}");
        assert!(refused.to_string().contains("credit_slots"), "{refused}");
    }
}
