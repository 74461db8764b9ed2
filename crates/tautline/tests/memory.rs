//! Apertures, cookies, operations and tripwires between nodes, over datagrams and through shared memory.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::pair::{Pair, refused};
use crate::common::{join, run};
use tautline::memory::{Access, Condition, Cookie, Failure, MapCookie, MemoryEvent, Refusal, Rights, Test};
use tautline::{Aperture, Endpoint, Error, Event, Remote, Short};

/// A-5, T-1: a put writes the owner's memory, the tripwire on it fires, and one beside it does not.
#[test]
fn a_put_fires_a_tripwire() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(4096).unwrap();
            let mut wire = aperture.tripwire(8..16).arm().unwrap();
            let beside = aperture.tripwire(16..24).arm().unwrap();
            pair.give(&aperture.cookie(.., Rights::WRITE).unwrap());
            assert_eq!(wire.wait().unwrap(), 1);
            assert_eq!(aperture.read_u64(8).unwrap(), 42);
            assert_eq!((wire.fires(), beside.fires()), (1, 0));
            assert_eq!(pair.ep.memory_counters().puts, 1);
        } else {
            let remote = pair.take_cookie();
            remote.put(8, &42u64.to_le_bytes()).unwrap();
        }
        pair.close();
    });
}

/// every operation takes effect and completes, also long ones, also into the
/// requester's own aperture.
#[test]
fn every_operation() {
    run(2, |job| {
        let pair = Pair::join(job);
        const LEN: usize = 300_000;
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.adopt(vec![0; LEN]).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"done");
            let memory = aperture.close().unwrap().unwrap();
            assert_eq!(memory.len(), LEN);
            assert!(memory[100..LEN].iter().enumerate().all(|(i, b)| *b == (i + 7) as u8));
            assert_eq!(&memory[50..56], b"gather");
        } else {
            let remote = pair.take_cookie();
            let pattern: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
            // Long ones, from the program's bytes, then from an aperture.
            remote.put_with_completion(0, &pattern).unwrap().wait().unwrap();
            assert_eq!(remote.get(0, LEN).unwrap().wait().unwrap(), pattern);
            let mine = pair.ep.adopt(pattern.iter().map(|b| b.wrapping_add(7)).collect()).unwrap();
            let mut completed = mine.tripwire(..).on(Access::COMPLETE).arm().unwrap();
            remote.put_from(100, &mine, ..LEN as u64 - 100).unwrap().wait().unwrap();
            assert_eq!(completed.take(), 1);
            let back = pair.ep.aperture(LEN).unwrap();
            let mut came = back.tripwire(LEN as u64 - 1..).on(Access::COMPLETE).arm().unwrap();
            remote.get_into(100, &back, 100..).unwrap().wait().unwrap();
            assert_eq!(came.take(), 1);
            let mut byte = [0];
            back.read(LEN as u64 - 1, &mut byte).unwrap();
            assert_eq!(byte[0], (LEN - 1 - 100 + 7) as u8);
            // Words.
            remote.put_list(&[(0, &5u64.to_le_bytes()), (8, &6u64.to_le_bytes())]).unwrap().wait().unwrap();
            assert_eq!(remote.fetch_add(0, 10).unwrap().wait().unwrap(), 5);
            assert_eq!(remote.compare_swap(0, 14, 1).unwrap().wait().unwrap(), 15);
            assert_eq!(remote.compare_swap(0, 15, 1).unwrap().wait().unwrap(), 15);
            assert_eq!(remote.swap(0, 99).unwrap().wait().unwrap(), 1);
            assert_eq!(
                remote.get(0, 16).unwrap().wait().unwrap(),
                [[99, 0, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]].concat()
            );
            remote.put_pieces(50, &[b"ga", b"th", b"er"]).unwrap().wait().unwrap();
            remote.flush().unwrap().wait().unwrap();
            remote.fence().unwrap().wait().unwrap();
            assert_eq!(remote.get(3, 0).unwrap().wait().unwrap(), []);
            pair.say("done");
        }
        pair.close();
    });
}

/// a request that its cookie does not allow is refused, counted, and touches nothing; after
/// revocation, expiry or closing, every request is.
#[test]
fn forbidden_requests_are_refused() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            let mut wire = aperture.tripwire(..).on(Access::WRITE.or(Access::READ)).arm().unwrap();
            let reading = aperture.cookie(8..24, Rights::READ).unwrap();
            let writing = aperture.cookie(8..24, Rights::WRITE).unwrap();
            let brief = aperture.cookie_for(.., Rights::ALL, Duration::from_millis(1)).unwrap();
            for cookie in [&reading, &writing, &brief] {
                pair.give(cookie);
            }
            assert_eq!(pair.receive(), b"rights");
            assert_eq!(pair.ep.memory_counters().refused, 9);
            assert_eq!(wire.take(), 0);
            assert!(aperture.revoke(&writing).unwrap());
            assert!(!aperture.revoke(&writing).unwrap());
            pair.say("revoked");
            assert_eq!(pair.receive(), b"again");
            let mut all = [1; 64];
            aperture.read(0, &mut all).unwrap();
            assert_eq!(all, [0; 64]);
            drop(aperture);
            pair.say("closed");
            assert_eq!(pair.receive(), b"once more");
            assert_eq!(pair.ep.memory_counters().refused, 11);
        } else {
            let (reading, writing, brief) = (pair.take_cookie(), pair.take_cookie(), pair.take_cookie());
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(refused(reading.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Rights);
            assert_eq!(refused(reading.swap(0, 1).unwrap().wait()), Refusal::Rights);
            assert_eq!(refused(writing.get(0, 1).unwrap().wait().map(|_| 0)), Refusal::Rights);
            assert_eq!(refused(writing.put_with_completion(9, &[1; 8]).unwrap().wait()), Refusal::OutOfRange);
            assert_eq!(
                refused(writing.put_with_completion(u64::MAX, &[1; 8]).unwrap().wait()),
                Refusal::OutOfRange
            );
            assert_eq!(refused(reading.get(16, 1).unwrap().wait().map(|_| 0)), Refusal::OutOfRange);
            assert_eq!(refused(brief.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Expired);
            let mut forged = writing.cookie().to_bytes();
            forged[20] ^= 1;
            let forged = pair.ep.remote(&Cookie::from_bytes(&forged));
            assert_eq!(refused(forged.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Forged);
            let mut old = writing.cookie().to_bytes();
            old[8] ^= 1;
            let old = pair.ep.remote(&Cookie::from_bytes(&old));
            assert_eq!(refused(old.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Stale);
            pair.say("rights");
            assert_eq!(pair.receive(), b"revoked");
            assert_eq!(refused(writing.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Revoked);
            pair.say("again");
            assert_eq!(pair.receive(), b"closed");
            // Nobody waits for this one: the refusal is an event.
            reading.put(0, &[1]).unwrap();
            reading.flush().unwrap().wait().unwrap();
            let refused_event = std::iter::from_fn(|| pair.ep.poll_event())
                .any(|e| matches!(e, Event::Memory(MemoryEvent::Refused { peer: 0, why: Refusal::Revoked })));
            assert!(refused_event);
            pair.say("once more");
        }
        pair.close();
    });
}

/// T-1, T-2, T-4, T-6, T-7: conditions, single fires, events with counts, tripsets; nothing after disarming.
#[test]
fn tripwire_conditions_events_and_sets() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(4096).unwrap();
            let mut high = aperture.tripwire(0..8).when(Test::AtLeast(3)).arm().unwrap();
            let four = aperture.tripwire(0..8).when(Test::Equal(4)).event(44).arm().unwrap();
            let odd = Condition::new(0, 1, Test::Masked(1, 1));
            let odd = aperture.tripwire(0..8).condition(odd).each_event(11).arm().unwrap();
            let mut once = aperture.tripwire(..).once().arm().unwrap();
            let reads = aperture.tripwire(0..8).on(Access::READ).arm().unwrap();
            let dropped = aperture.tripwire(..).event(99).arm().unwrap();
            let (a, b, c) = (
                aperture.tripwire(64..65).arm().unwrap(),
                aperture.tripwire(128..129).arm().unwrap(),
                aperture.tripwire(192..193).arm().unwrap(),
            );
            let mut two = pair.ep.tripset(&[&a, &b, &c], 2, Some(2)).unwrap();
            let mut any = pair.ep.tripset(&[&a, &b, &c], 1, None).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"put");
            assert_eq!((high.take(), four.fires(), odd.fires(), once.take()), (3, 1, 3, 1));
            assert_eq!(reads.fires(), 1);
            assert_eq!((any.take(), two.take()), (4, 1));
            dropped.disarm();
            let mut events: Vec<_> = std::iter::from_fn(|| pair.ep.poll_event())
                .filter_map(|event| match event {
                    Event::Memory(MemoryEvent::Tripwire { tag, fires, .. }) => Some((tag, fires)),
                    Event::Memory(MemoryEvent::Tripset { tag, times, .. }) => Some((tag, times)),
                    _ => None,
                })
                .collect();
            events.sort_unstable();
            assert_eq!(events, [(2, 1), (11, 1), (11, 1), (11, 1), (44, 1)]);
            once.rearm().unwrap();
            pair.say("more");
            assert_eq!(once.wait().unwrap(), 1);
            two.wait().unwrap();
        } else {
            let remote = pair.take_cookie();
            for i in 1..=5u64 {
                remote.put(0, &i.to_le_bytes()).unwrap();
            }
            remote.get(0, 8).unwrap().wait().unwrap();
            for at in [64, 64, 64, 192] {
                remote.put(at, &[1]).unwrap();
            }
            pair.say("put");
            assert_eq!(pair.receive(), b"more");
            remote.put(128, &[1]).unwrap();
            remote.put(64, &[1]).unwrap();
        }
        pair.close();
    });
}

/// T-2: repeated puts of one word that is waited for are no special case: a change of its cookie,
/// its tripwire, its aperture, or a second tripwire takes effect at once.
#[test]
fn repeated_puts_of_one_word() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.adopt(vec![0; 64]).unwrap();
            let mut wire = aperture.tripwire(8..16).arm().unwrap();
            let cookie = aperture.cookie(.., Rights::ALL).unwrap();
            pair.give(&cookie);
            for number in 1..=10 {
                wire.wait().unwrap();
                assert_eq!(aperture.read_u64(8).unwrap(), number);
                pair.say("next");
            }
            // A second one beside it, and then without the first.
            let mut wide = aperture.tripwire(..).arm().unwrap();
            pair.say("go on");
            wide.wait().unwrap();
            assert_eq!(wire.take(), 1);
            wire.disarm();
            pair.say("go on");
            wide.wait().unwrap();
            drop(wide);
            let mut once = aperture.tripwire(8..16).once().arm().unwrap();
            pair.say("go on");
            assert_eq!(pair.receive(), b"three more");
            assert_eq!((once.take(), aperture.read_u64(8).unwrap()), (1, 15));
            assert!(aperture.revoke(&cookie).unwrap());
            pair.say("go on");
            assert_eq!(pair.receive(), b"refused");
            assert_eq!(aperture.read_u64(8).unwrap(), 15);
            drop(once);
            let again = aperture.cookie(.., Rights::ALL).unwrap();
            let mut wire = aperture.tripwire(8..16).arm().unwrap();
            pair.give(&again);
            for number in 20..25 {
                wire.wait().unwrap();
                assert_eq!(aperture.read_u64(8).unwrap(), number);
                pair.say("next");
            }
            drop(wire);
            let back = aperture.close().unwrap().expect("nobody else has it");
            assert_eq!(back[8..16], 24u64.to_le_bytes());
        } else {
            let remote = pair.take_cookie();
            let put = |remote: &Remote, number: u64| {
                remote.put_with_completion(8, &number.to_le_bytes()).unwrap().wait().map(drop)
            };
            for number in 1u64..=10 {
                remote.put(8, &number.to_le_bytes()).unwrap();
                assert_eq!(pair.receive(), b"next");
            }
            for number in [11u64, 12] {
                assert_eq!(pair.receive(), b"go on");
                remote.put(8, &number.to_le_bytes()).unwrap();
            }
            assert_eq!(pair.receive(), b"go on");
            (13..=15).for_each(|number| put(&remote, number).unwrap());
            pair.say("three more");
            assert_eq!(pair.receive(), b"go on");
            let result = remote.put_with_completion(8, &16u64.to_le_bytes()).unwrap().wait();
            assert_eq!(refused(result), Refusal::Revoked);
            pair.say("refused");
            let remote = pair.take_cookie();
            for number in 20u64..25 {
                remote.put(8, &number.to_le_bytes()).unwrap();
                assert_eq!(pair.receive(), b"next");
            }
        }
        pair.close();
    });
}

/// T-5: header and body of one long put have tripwires of their own; each fires once, when its bytes are in
/// place.
#[test]
fn header_and_body_have_their_own_tripwires() {
    run(2, |job| {
        let pair = Pair::join(job);
        const LEN: u64 = 1 << 20;
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(LEN as usize).unwrap();
            let mut header = aperture.tripwire(0..16).event(1).arm().unwrap();
            let mut middle = aperture.tripwire(1000..LEN / 2).event(2).arm().unwrap();
            let mut end = aperture.tripwire(LEN / 2..).event(3).arm().unwrap();
            let mut all = aperture.tripwire(..).event(4).arm().unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            header.wait().unwrap();
            assert_eq!(aperture.read_u64(8).unwrap(), u64::from_le_bytes([9; 8]));
            all.wait().unwrap();
            assert_eq!((header.take(), middle.take(), end.take(), all.take()), (0, 1, 1, 0));
            let tags: Vec<u64> = std::iter::from_fn(|| pair.ep.poll_event())
                .filter_map(|event| match event {
                    Event::Memory(MemoryEvent::Tripwire { tag, fires: 1, .. }) => Some(tag),
                    _ => None,
                })
                .collect();
            assert_eq!(tags, [1, 2, 3, 4]);
        } else {
            let remote = pair.take_cookie();
            remote.put(0, &vec![9; LEN as usize]).unwrap();
        }
        pair.close();
    });
}

/// memory is served while its owner computes, over datagrams and through shared memory.
#[test]
fn served_while_the_owner_computes() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            // Computes, without a call to the library.
            let memory = aperture.memory().clone();
            while memory.read_u64(0).unwrap() < 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(pair.receive(), b"done");
        } else {
            let remote = pair.take_cookie();
            for i in 0..20 {
                assert_eq!(remote.fetch_add(0, 1).unwrap().wait().unwrap(), i);
            }
            pair.say("done");
        }
        pair.close();
    });
}

/// an operation of a chain begins when the one before is complete, and is not tried if that failed; a
/// notice arrives after the put it announces.
#[test]
fn chains_and_notices() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"done");
            let notices: Vec<_> = std::iter::from_fn(|| pair.ep.poll_event())
                .filter_map(|event| match event {
                    Event::Memory(MemoryEvent::Notice { peer: 1, at, len, value, .. }) => {
                        Some((at, len, value))
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(notices, [(8, 8, 77), (0, 8, 78)]);
            assert_eq!(aperture.read_u64(0).unwrap(), 6);
        } else {
            let remote = pair.take_cookie();
            let (ones, other) = (pair.ep.adopt(vec![0; 8]).unwrap(), pair.ep.adopt(vec![5; 8]).unwrap());
            // Put the word at 0, then add one to it, then send a notice.
            ones.write_u64(0, 5).unwrap();
            let put = remote.put_from(0, &ones, ..).unwrap();
            let got = remote.after(&put).get_into(0, &other, ..).unwrap();
            let added = remote.after(&got).fetch_add(0, 1).unwrap();
            remote.put_notice(8, &[1; 8], 77).unwrap().wait().unwrap();
            let notice = remote.after(&added).notice(0, 8, 78).unwrap();
            notice.wait().unwrap();
            assert_eq!((other.read_u64(0).unwrap(), added.wait().unwrap()), (5, 5));
            put.wait().unwrap();
            got.wait().unwrap();
            // The same with the program's bytes: put, swap, put back, get, and all is in place.
            let put = remote.fetch_add(16, 1).unwrap();
            let put = remote.after(&put).put(16, &[7; 40]).unwrap();
            let swapped = remote.after(&put).swap(48, 1).unwrap();
            let back = remote.after(&swapped).put(48, &[8; 8]).unwrap();
            let got = remote.after(&back).get(16, 48).unwrap();
            let all = remote.after(&back).flush().unwrap();
            assert_eq!(got.wait().unwrap(), [&[7; 32][..], &[8; 8], &[0; 8]].concat());
            assert_eq!((swapped.wait().unwrap(), all.wait().unwrap()), (0x0707_0707_0707_0707, 0));
            assert_eq!((put.wait().unwrap(), back.wait().unwrap()), (0, 0));
            let bad = remote.fetch_add(61, 1).unwrap();
            let never = remote.after(&bad).fetch_add(0, 100).unwrap();
            assert_eq!(refused(bad.wait()), Refusal::OutOfRange);
            assert!(matches!(never.wait(), Err(Error::Operation(Failure::Before))));
            let odd = remote.fetch_add(4, 1).unwrap();
            assert_eq!(refused(odd.wait()), Refusal::Misaligned);
            pair.ep.send_out_of_band(0, b"by the way").unwrap();
            pair.say("done");
        }
        pair.close();
    });
}

/// a peer that serves nothing holds back requests to it, and nothing else.
#[test]
fn a_stalled_owner_stalls_no_other() {
    let _limit = crate::common::Limit::seconds(60);
    for device in [tautline::DeviceName::Udp, tautline::DeviceName::Shm] {
        let (signal, wake) = std::sync::mpsc::channel::<()>();
        let (signal, wake) = (std::sync::Mutex::new(signal), std::sync::Mutex::new(wake));
        crate::common::run_over(device, 3, |job| {
            let rank = job.rank;
            let mail = Rc::new(RefCell::new(Vec::new()));
            let inbox = mail.clone();
            let config = tautline::Config::with(|config| {
                config.watchdog = None;
                // However long the others take, the stalled rank is not dead.
                config.link.silence = 600_000_000_000;
            });
            let builder = Endpoint::builder()
                .config(config)
                .on_short("mail", move |m: Short<'_>| inbox.borrow_mut().push((m.from(), m.data().to_vec())));
            let ep = join(builder, job);
            if rank > 0 {
                let aperture = ep.aperture(1 << 20).unwrap();
                let cookie = aperture.cookie(.., Rights::ALL).unwrap();
                ep.send(0, "mail", &cookie.to_bytes()).unwrap();
                if rank == 1 {
                    ep.progress().unwrap();
                    wake.lock().unwrap().recv().unwrap();
                }
                ep.run_until(|| !mail.borrow().is_empty()).unwrap();
                return ep.close().unwrap();
            }
            ep.run_until(|| mail.borrow().len() == 2).unwrap();
            mail.borrow_mut().sort_by_key(|(from, _)| *from);
            let remotes: Vec<Remote> = mail
                .borrow()
                .iter()
                .map(|(_, bytes)| ep.remote(&Cookie::from_bytes(bytes.as_slice().try_into().unwrap())))
                .collect();
            let mine = ep.aperture(1 << 20).unwrap();
            let mut big: Vec<_> = (0..32).map(|_| remotes[0].put_from(0, &mine, ..).unwrap()).collect();
            // What goes straight to the other peer, and what waits for its turn.
            for i in 1..=100_u64 {
                remotes[1].put_with_completion(0, &[1; 8]).unwrap().wait().unwrap();
                assert_eq!(remotes[1].get(0, 8).unwrap().wait().unwrap(), [1; 8]);
                remotes[1].put_from(8, &mine, ..4096).unwrap().wait().unwrap();
                assert_eq!(remotes[1].fetch_add(1 << 19, 1).unwrap().wait().unwrap(), i - 1);
            }
            assert!(big.last_mut().unwrap().try_take().is_none());
            signal.lock().unwrap().send(()).unwrap();
            for op in big {
                op.wait().unwrap();
            }
            (1..3).for_each(|peer| ep.send(peer, "mail", b"over").unwrap());
            ep.close().unwrap();
        });
    }
}

/// when the owner dies, every operation on its memory fails, once.
#[test]
fn operations_fail_when_the_owner_dies() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(1 << 20).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"go");
            pair.ep.close().unwrap();
        } else {
            let remote = pair.take_cookie();
            pair.say("go");
            let mine = pair.ep.aperture(1 << 20).unwrap();
            let mut ops = Vec::new();
            // Until the owner is gone; then one more.
            loop {
                match remote.get_into(0, &mine, ..) {
                    Ok(op) => ops.push(op),
                    Err(Error::PeerGone(0, _)) => break,
                    Err(other) => panic!("{other}"),
                }
                pair.ep.extract(usize::MAX).unwrap();
            }
            let (mut good, mut bad) = (0, 0);
            for op in ops {
                match op.wait() {
                    Ok(_) => good += 1,
                    Err(Error::PeerGone(0, _) | Error::Operation(Failure::Refused(Refusal::Revoked))) => {
                        bad += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            println!("{good} got, {bad} ended with the owner");
            pair.ep.close().unwrap();
        }
    });
}

/// on one host an aperture can be mapped, for reading or writing; revocation is complete when it
/// is unmapped.
#[test]
fn mapped_apertures() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(10_000).unwrap();
            aperture.write_u64(8, 5).unwrap();
            let (reading, writing) =
                (aperture.share(Rights::READ).unwrap(), aperture.share(Rights::ALL).unwrap());
            for share in [&reading, &writing] {
                pair.ep.send(1, "mail", &share.cookie().to_bytes()).unwrap();
            }
            let memory = aperture.memory().clone();
            while memory.read_u64(0).unwrap() != 77 {
                std::thread::yield_now();
            }
            assert_eq!(writing.mapped_by(), [1]);
            aperture.write_u64(16, 9).unwrap();
            assert_eq!(pair.receive(), b"mapped");
            writing.revoke();
            assert!(!writing.is_over());
            pair.say("revoked");
            assert_eq!(pair.receive(), b"let go");
            assert!(writing.is_over() && !reading.is_over());
            assert!(pair.ep.adopt(vec![0; 8]).unwrap().share(Rights::READ).is_err());
        } else {
            let take = || MapCookie::from_bytes(pair.receive().as_slice().try_into().unwrap());
            let (reading, writing) = (take(), take());
            let (read, written) = (pair.ep.map(&reading).unwrap(), pair.ep.map(&writing).unwrap());
            assert_eq!((read.read_u64(8).unwrap(), written.fetch_add(8, 1).unwrap()), (5, 5));
            assert!(matches!(read.write_u64(8, 1), Err(Error::ReadOnly)));
            written.write_u64(0, 77).unwrap();
            assert!(read.poll_until(16, Test::AtLeast(9), Duration::from_secs(10)).unwrap());
            let mut forged = writing.to_bytes();
            forged[40] ^= 1;
            assert!(matches!(pair.ep.map(&MapCookie::from_bytes(&forged)), Err(Error::CannotMap(_))));
            pair.say("mapped");
            assert_eq!(pair.receive(), b"revoked");
            assert!(matches!(written.write_u64(0, 1), Err(Error::Revoked)));
            assert!(matches!(pair.ep.map(&writing), Err(Error::Revoked)));
            drop(written);
            assert_eq!(read.read_u64(8).unwrap(), 6);
            pair.say("let go");
        }
        pair.close();
    });
}

/// handlers await operations and tripwires.
#[test]
fn operations_awaited_in_handlers() {
    run(2, |job| {
        let sum = Rc::new(Cell::new(0));
        let (total, cookie) = (sum.clone(), Rc::new(Cell::new(None::<Cookie>)));
        let given = cookie.clone();
        let builder = Endpoint::builder()
            .on("work", move |mut message: tautline::Message| {
                let total = total.clone();
                async move {
                    let bytes = message.read_to_end().await?;
                    let cookie = Cookie::from_bytes(bytes.as_slice().try_into().expect("a cookie"));
                    let remote = message.endpoint().remote(&cookie);
                    for i in 0..10u64 {
                        remote.put(8, &i.to_le_bytes()).await?;
                        total.set(total.get() + remote.fetch_add(0, 1).await?);
                    }
                    let bytes = remote.get(8, 8).await?;
                    assert_eq!(bytes[0], 9);
                    let first = remote.put_with_completion(24, &[1]).await?;
                    let second = remote.after(&first).fetch_add(32, 5).await?;
                    remote.after(&second).put(16, &[1]).await?.await?;
                    assert_eq!(remote.after(&second).get(32, 1).await?.await?, [5]);
                    Ok(())
                }
            })
            .on_short("over", move |m: Short<'_>| {
                given.set(m.data().try_into().ok().map(Cookie::from_bytes));
            });
        let ep = join(builder, job);
        let peer = 1 - ep.rank();
        let aperture: Aperture = ep.aperture(64).unwrap();
        let mut wire = aperture.tripwire(16..17).arm().unwrap();
        let mine = aperture.cookie(.., Rights::ALL).unwrap();
        ep.send(peer, "work", &mine.to_bytes()).unwrap();
        wire.wait().unwrap();
        assert_eq!(aperture.read_u64(0).unwrap(), 10);
        ep.run_until(|| sum.get() == 45).unwrap();
        ep.send(peer, "over", &mine.to_bytes()).unwrap();
        ep.run_until(|| cookie.get().is_some()).unwrap();
        ep.close().unwrap();
    });
}
