//! What memory refuses: forged, expired and revoked cookies, extreme numbers, and operations after a failure.
//! Over datagrams and through shared memory.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::Duration;

use crate::common::pair::{Pair, refused};
use crate::common::run;
use tautline::memory::{Cookie, Failure, MapCookie, MemoryEvent, Refusal, Rights, Test};
use tautline::{Error, Event, SendError};

/// any bytes make a cookie. With one whose owner does not exist, every operation is an error.
#[test]
fn cookies_of_unknown_owners() {
    run(2, |job| {
        let pair = Pair::join(job);
        let aperture = pair.ep.aperture(4096).unwrap();
        let mut bytes = aperture.cookie(.., Rights::ALL).unwrap().to_bytes();
        // Of ranks that the job does not have, whatever their lane.
        for owner in [2, 0x1_0002, u32::MAX] {
            bytes[..4].copy_from_slice(&owner.to_le_bytes());
            let nobody = pair.ep.remote(&Cookie::from_bytes(&bytes));
            let said = [
                nobody.put(0, &[1]),
                nobody.put(0, &[1; 100_000]),
                nobody.try_put(0, &[1]),
                nobody.put_with_completion(0, &[1]).map(drop),
                nobody.put_list(&[(0, &[1]), (8, &[2])]).map(drop),
                nobody.put_notice(0, &[1], 1).map(drop),
                nobody.put_from(0, &aperture, ..).map(drop),
                nobody.fill(0, 8, |_, _| {}),
                nobody.get(0, 8).map(drop),
                nobody.fetch_add(0, 1).map(drop),
                nobody.flush().map(drop),
                nobody.fence().map(drop),
                tautline::queue::Sender::new(&pair.ep, nobody.cookie()).map(drop),
            ];
            for (i, said) in said.into_iter().enumerate() {
                let expected = matches!(&said, Err(Error::Send(SendError::NoSuchPeer(it))) if *it == owner);
                assert!(expected, "{i}: {said:?}");
            }
            assert!(!aperture.revoke(nobody.cookie()).unwrap());
        }
        pair.close();
    });
}

/// requests with an expired cookie are refused, whatever the owner does meanwhile: sleep, wait for a
/// tripwire, poll or compute; requests with a valid one are served.
#[test]
fn expired_cookies() {
    run(2, |job| {
        let pair = Pair::join(job);
        let brief = Duration::from_millis(20);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            let mut wire = aperture.tripwire(..).arm().unwrap();
            let (good, long) =
                (aperture.cookie(.., Rights::ALL), aperture.cookie_for(.., Rights::ALL, Duration::MAX));
            pair.give(&good.unwrap());
            pair.give(&long.unwrap());
            for round in 0..8 {
                pair.give(&aperture.cookie_for(.., Rights::ALL, brief).unwrap());
                match round % 4 {
                    0 => {}
                    1 => assert_eq!(wire.wait_for(Duration::from_millis(150)).unwrap(), 0),
                    2 => crate::common::extract_for(&pair.ep, Duration::from_millis(150)),
                    _ => std::thread::sleep(Duration::from_millis(150)),
                }
                assert_eq!(pair.receive(), b"refused");
            }
            assert_eq!(wire.take(), 0);
            // An hour is long enough.
            pair.give(&aperture.cookie_for(.., Rights::ALL, Duration::from_secs(3600)).unwrap());
            // One fire for each of three requests; the watchdog may serve the next ones before this thread is
            // back.
            let fires = wire.wait_for(Duration::MAX).unwrap();
            assert!(fires > 0);
            assert_eq!(pair.receive(), b"done");
            assert_eq!(fires + wire.take(), 3);
            assert_eq!(aperture.read_u64(0).unwrap(), 3);
            assert_eq!(pair.ep.memory_counters().refused, 16);
        } else {
            let (good, long) = (pair.take_cookie(), pair.take_cookie());
            for _ in 0..8 {
                let brief = pair.take_cookie();
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(refused(brief.put_with_completion(0, &[9]).unwrap().wait()), Refusal::Expired);
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(refused(brief.fetch_add(0, 9).unwrap().wait()), Refusal::Expired);
                pair.say("refused");
            }
            let hour = pair.take_cookie();
            for remote in [&good, &long, &hour] {
                remote.fetch_add(0, 1).unwrap().wait().unwrap();
            }
            pair.say("done");
        }
        pair.close();
    });
}

/// a list of puts completes as one: with an error if any of them was refused.
#[test]
fn a_list_fails_with_any_of_its_pieces() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(50_000).unwrap();
            pair.give(&aperture.cookie(..40_000, Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"done");
            let mut all = [0; 6];
            aperture.read(0, &mut all).unwrap();
            assert_eq!(all, [1, 2, 3, 4, 5, 6]);
        } else {
            let remote = pair.take_cookie();
            let long = vec![7; 40_000];
            let list = |pieces: &[(u64, &[u8])]| remote.put_list(pieces).unwrap().wait();
            assert_eq!(refused(list(&[(40_000, &[7]), (0, &[1])])), Refusal::OutOfRange);
            assert_eq!(refused(list(&[(1, &[2]), (40_000, &[7]), (2, &[3])])), Refusal::OutOfRange);
            assert_eq!(refused(list(&[(3, &[4]), (39_999, &[7, 7])])), Refusal::OutOfRange);
            assert_eq!(refused(list(&[(1, &long), (4, &[5]), (u64::MAX, &[7])])), Refusal::OutOfRange);
            list(&[(8, &long[8..]), (0, &[1, 2, 3]), (3, &[4, 5]), (5, &[])]).unwrap();
            list(&[]).unwrap();
            // Many, in one operation whose end is an event; operations after a list that fails are not tried.
            let many: Vec<(u64, &[u8])> = (0..10_000).map(|i| (100 + i, &[9][..])).collect();
            remote.put_list(&many).unwrap().into_event(5).unwrap();
            let bad = remote.put_list(&[(40_000, &[7]), (5, &[6])]).unwrap();
            let next = remote.after(&bad).fetch_add(0, 1).unwrap();
            assert!(matches!(next.wait(), Err(Error::Operation(Failure::Before))));
            assert_eq!(refused(bad.wait()), Refusal::OutOfRange);
            let events: Vec<_> = std::iter::from_fn(|| pair.ep.poll_event()).collect();
            let ends =
                |e: &Event| matches!(e, Event::Memory(MemoryEvent::Completed { tag: 5, result: Ok(_), .. }));
            assert_eq!(events.iter().filter(|e| ends(e)).count(), 1, "{events:?}");
            // Every refusal was the answer to some request.
            assert!(!events.iter().any(|e| matches!(e, Event::Memory(MemoryEvent::Refused { .. }))));
            pair.say("done");
        }
        pair.close();
    });
}

/// a list of gets completes as one, with all pieces or with an error.
#[test]
fn a_list_of_gets() {
    run(2, |job| {
        let pair = Pair::join(job);
        const LEN: usize = 100_000;
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.adopt(crate::common::pattern(LEN, 0)).unwrap();
            pair.give(&aperture.cookie(.., Rights::READ).unwrap());
            assert_eq!(pair.receive(), b"done");
        } else {
            let remote = pair.take_cookie();
            let all = crate::common::pattern(LEN, 0);
            let pieces = [(5, 3), (90_000, 10_000), (0, 0), (7, 70_001), (99_999, 1)];
            let wanted: Vec<u8> =
                pieces.iter().flat_map(|(at, len)| all[*at as usize..*at as usize + len].to_vec()).collect();
            assert!(remote.get_list(&pieces).unwrap().wait().unwrap() == wanted);
            assert_eq!(remote.get_list(&[]).unwrap().wait().unwrap(), []);
            let many: Vec<(u64, usize)> = (0..10_000).map(|i| (i, 1)).collect();
            assert!(remote.get_list(&many).unwrap().wait().unwrap() == all[..10_000]);
            // To ranges of an aperture of this node, whose tripwires fire.
            let mine = pair.ep.aperture(LEN).unwrap();
            let wires: Vec<_> = [0..10, 500..501, 60_000..80_000]
                .map(|range| mine.tripwire(range).on(tautline::memory::Access::COMPLETE).arm().unwrap())
                .into();
            remote.get_list_into(&mine, &[(1, 60_000..90_000), (3, 2..5)]).unwrap().wait().unwrap();
            assert_eq!(wires.iter().map(tautline::Tripwire::fires).collect::<Vec<_>>(), [1, 0, 1]);
            let mut got = vec![0; LEN];
            mine.read(0, &mut got).unwrap();
            assert!(got[60_000..90_000] == all[1..30_001] && got[2..5] == all[3..6]);
            assert!(got[5..60_000].iter().all(|byte| *byte == 0));
            // One that is refused fails the whole list; the others are tried nevertheless.
            for at in [0, 1, 2] {
                let mut pieces = [(0, 8); 3];
                pieces[at] = (LEN as u64 - 7, 8);
                let said = remote.get_list(&pieces).unwrap().wait().map(|_| 0);
                assert_eq!(refused(said), Refusal::OutOfRange);
            }
            let said = remote.get_list_into(&mine, &[(0, 0..8), (u64::MAX, 8..16)]).unwrap().wait();
            assert_eq!(refused(said), Refusal::OutOfRange);
            assert!(matches!(remote.get_list_into(&mine, &[(0, 0..LEN as u64 + 1)]), Err(Error::OutOfRange)));
            assert!(remote.get_list(&[(0, usize::MAX), (0, 9)]).is_err());
            pair.say("done");
        }
        pair.close();
    });
}

/// A-26, T-4: operations after a failure are not tried, whether or not its result was taken; a set takes no
/// tripwire twice.
#[test]
fn operations_after_a_failure() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            let (one, two) =
                (aperture.tripwire(0..8).arm().unwrap(), aperture.tripwire(8..16).arm().unwrap());
            for wires in [&[&one, &one][..], &[&one, &two, &one]] {
                let said = pair.ep.tripset(wires, 2, None).map(drop);
                assert!(said.unwrap_err().to_string().contains("twice"));
            }
            pair.ep.tripset(&[&one, &two], 2, None).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"done");
            assert_eq!(aperture.read_u64(0).unwrap(), 1);
        } else {
            let remote = pair.take_cookie();
            let take = |at: u64, value: u64| {
                let mut first = remote.fetch_add(at, value).unwrap();
                loop {
                    pair.ep.extract(usize::MAX).unwrap();
                    if let Some(result) = first.try_take() {
                        return (first, result);
                    }
                }
            };
            let (bad, result) = take(4, 1);
            assert_eq!(refused(result), Refusal::Misaligned);
            let next = remote.after(&bad).fetch_add(0, 100).and_then(tautline::memory::Completion::wait);
            assert!(matches!(next, Err(Error::Operation(Failure::Before))), "{next:?}");
            let (good, result) = take(8, 1);
            assert_eq!(result.unwrap(), 0);
            remote.after(&good).fetch_add(0, 1).unwrap().wait().unwrap();
            pair.say("done");
        }
        pair.close();
    });
}

/// offsets and lengths beyond all memory are errors, and nothing worse.
#[test]
fn extreme_numbers() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(100).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.receive(), b"done");
            let mut all = [1; 100];
            aperture.read(0, &mut all).unwrap();
            assert_eq!(all, [0; 100]);
        } else {
            let remote = pair.take_cookie();
            let fetch = |at: u64, len: usize| remote.get(at, len).and_then(tautline::memory::Fetch::wait);
            for len in [usize::MAX, usize::MAX - 8, isize::MAX as usize, 1 << 60] {
                assert!(remote.get(0, len).is_err(), "{len}");
            }
            assert_eq!(fetch(100, 0).unwrap(), []);
            for (at, len) in [(101, 0), (u64::MAX, 0), (u64::MAX, 8), (0, 101)] {
                assert_eq!(refused(fetch(at, len).map(|_| 0)), Refusal::OutOfRange, "{at} {len}");
            }
            assert!(matches!(remote.put_pieces(u64::MAX, &[&[7], &[7]]), Err(Error::OutOfRange)));
            let (long, mine) = (vec![7; 300_000], pair.ep.adopt(vec![7; 300_000]).unwrap());
            for at in [101, u64::MAX - 100_000, u64::MAX] {
                let put = remote.put_with_completion(at, &long).unwrap();
                assert_eq!(refused(put.wait()), Refusal::OutOfRange);
                assert_eq!(refused(remote.put_from(at, &mine, ..).unwrap().wait()), Refusal::OutOfRange);
                assert_eq!(refused(remote.put_with_completion(at, &[]).unwrap().wait()), Refusal::OutOfRange);
                remote.fill(at, long.len(), |_, room| room.fill(7)).unwrap();
                remote.flush().unwrap().wait().unwrap();
            }
            pair.say("done");
        }
        pair.close();
    });
}

/// a request with a revoked cookie fails, also if it is the first one with it; an aperture revokes only
/// its own cookies.
#[test]
fn revoked_cookies() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let (one, two) = (pair.ep.aperture(64).unwrap(), pair.ep.aperture(64).unwrap());
            let (revoked, closed) =
                (one.cookie(.., Rights::ALL).unwrap(), two.cookie(.., Rights::ALL).unwrap());
            assert!(!one.revoke(&closed).unwrap() && !two.revoke(&revoked).unwrap());
            assert!(one.revoke(&revoked).unwrap());
            drop(two);
            // Their numbers may belong to others by now.
            let other = one.cookie(.., Rights::ALL).unwrap();
            for cookie in [&revoked, &closed, &other] {
                pair.give(cookie);
            }
            assert_eq!(pair.receive(), b"done");
            assert_eq!((pair.ep.memory_counters().refused, pair.ep.memory_counters().forged), (3, 1));
        } else {
            let (revoked, closed, other) = (pair.take_cookie(), pair.take_cookie(), pair.take_cookie());
            for gone in [&revoked, &closed] {
                assert_eq!(refused(gone.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Revoked);
            }
            let mut forged = revoked.cookie().to_bytes();
            forged[16] ^= 1;
            let forged = pair.ep.remote(&Cookie::from_bytes(&forged));
            assert_eq!(refused(forged.put_with_completion(0, &[1]).unwrap().wait()), Refusal::Forged);
            other.put_with_completion(0, &[1]).unwrap().wait().unwrap();
            pair.say("done");
        }
        pair.close();
    });
}

/// a cookie for a mapping that claims more than its owner granted maps nothing.
#[test]
fn mapping_more_than_was_granted() {
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(4096).unwrap();
            let share = aperture.share(Rights::READ).unwrap();
            pair.ep.send(1, "mail", &share.cookie().to_bytes()).unwrap();
            assert_eq!(pair.receive(), b"done");
            assert_eq!(aperture.read_u64(0).unwrap(), 0);
        } else {
            let given: [u8; MapCookie::LEN] = pair.receive().as_slice().try_into().unwrap();
            let altered = |at: usize, bytes: &[u8]| {
                let mut it = given;
                it[at..at + bytes.len()].copy_from_slice(bytes);
                pair.ep.map(&MapCookie::from_bytes(&it)).map(drop)
            };
            assert!(matches!(altered(20, &[1]), Err(Error::CannotMap(_))));
            for ranks in [0, 1, 3, 100_000, u32::MAX] {
                assert!(matches!(altered(16, &ranks.to_le_bytes()), Err(Error::CannotMap(_))));
            }
            for len in [0, 4095, 4097, 1 << 30, u64::MAX] {
                assert!(matches!(altered(24, &u64::to_le_bytes(len)), Err(Error::CannotMap(_))));
            }
            let own = altered(0, &1u32.to_le_bytes());
            assert!(matches!(own, Err(Error::CannotMap(_))), "{own:?}");
            assert!(altered(0, &2u32.to_le_bytes()).is_err());
            let mapped = pair.ep.map(&MapCookie::from_bytes(&given)).unwrap();
            assert!(matches!(mapped.write_u64(0, 1), Err(Error::ReadOnly)));
            assert!(mapped.poll_until(0, Test::Equal(0), Duration::MAX).unwrap());
            pair.say("done");
        }
        pair.close();
    });
}

/// closing an aperture returns adopted memory, also while a peer reads it; the peer gets an error, or
/// all of it.
#[test]
fn apertures_closed_while_read() {
    const LEN: usize = 16 << 20;
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.adopt(vec![7; LEN]).unwrap();
            pair.give(&aperture.cookie(.., Rights::READ).unwrap());
            while pair.ep.memory_counters().gets == 0 {
                pair.ep.extract(usize::MAX).unwrap();
                std::thread::yield_now();
            }
            let memory: std::sync::Weak<tautline::ApertureMemory> =
                std::sync::Arc::downgrade(aperture.memory());
            assert_eq!(aperture.close().unwrap().map(|bytes| bytes.len()), Some(LEN));
            assert!(memory.upgrade().is_none());
        } else {
            let got = pair.take_cookie().get(0, LEN).unwrap().wait();
            match got {
                Ok(bytes) => assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == 7)),
                Err(error) => assert_eq!(refused(Err(error)), Refusal::Revoked),
            }
        }
        pair.close();
    });
}

/// Waiting for a result that was taken fails; as a future, too.
#[test]
fn a_result_is_taken_once() {
    run(2, |job| {
        let pair = Pair::join(job);
        let aperture = pair.ep.aperture(64).unwrap();
        pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
        let remote = pair.take_cookie();
        let mut added = remote.fetch_add(0, 1).unwrap();
        let result = loop {
            pair.ep.extract(usize::MAX).unwrap();
            if let Some(result) = added.try_take() {
                break result;
            }
            pair.ep.wait(Some(Duration::from_millis(1))).unwrap();
        };
        assert_eq!(result.unwrap(), 0);
        assert!(added.try_take().is_none());
        assert!(matches!(added.wait(), Err(Error::Stale)));
        pair.close();
    });
}
