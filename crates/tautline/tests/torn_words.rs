//! Long puts and gets while somebody reads the same words, and long ones that are abandoned.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::pair::Pair;
use crate::common::run_over;
use tautline::DeviceName;
use tautline::memory::Rights;

const DEVICES: [DeviceName; 2] = [DeviceName::Udp, DeviceName::Shm];
/// Bytes of a put: many parts, over every device.
const LEN: usize = 300_000;
/// How many looks at the words must find old and new ones, so that a copy was in progress.
const ENOUGH: u64 = 100;
/// In place of their number: nothing more is to be seen.
const OVER: u64 = u64::MAX / 2;
/// The most copies until there are as many.
const MOST: u64 = 50_000;

/// Looks at words: whether they differ. A torn one, which does not consist of one repeated byte, is an error.
fn differ(words: impl Iterator<Item = u64>) -> Result<bool, String> {
    let (mut first, mut differ) = (None, false);
    for (at, word) in words.enumerate() {
        if word != u64::from(word as u8) * 0x0101_0101_0101_0101 {
            return Err(format!("word {at} is torn: {word:016x}"));
        }
        differ |= *first.get_or_insert(word) != word;
    }
    Ok(differ)
}

/// Sets its flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// a word that is read while a put in parts passes over it is old or new, wherever the put and the
/// cookie begin.
#[test]
fn long_puts_tear_no_word() {
    for device in DEVICES {
        for (start, at) in [(0, 0), (3, 0), (0, 5), (6, 7)] {
            let (what, seen) = (format!("{device:?}, cookie at {start}, put at {at}"), AtomicU64::new(0));
            run_over(device, 2, |job| {
                let p = Pair::join(job);
                if p.ep.rank() == 0 {
                    let aperture = p.ep.aperture(LEN + 64).unwrap();
                    p.give(&aperture.cookie(start..(LEN + 64) as u64, Rights::ALL).unwrap());
                    let (over, memory) = (AtomicBool::new(false), aperture.memory());
                    std::thread::scope(|scope| {
                        let looker = scope.spawn(|| {
                            while !over.load(Ordering::Relaxed) {
                                // The first and the last word belong to the put only in part.
                                let words = (2..LEN / 8).map(|i| memory.read_u64(8 * i).unwrap());
                                match differ(words) {
                                    Ok(differ) => seen.fetch_add(differ.into(), Ordering::Relaxed),
                                    Err(torn) => {
                                        seen.store(OVER, Ordering::Relaxed);
                                        return Err(torn);
                                    }
                                };
                            }
                            Ok(())
                        });
                        let ending = Over(&over);
                        p.receive();
                        drop(ending);
                        assert_eq!(looker.join().unwrap(), Ok(()), "{what}");
                    });
                } else {
                    let remote = p.take_cookie();
                    let mut byte = 0;
                    for transport in 0..3 {
                        let (mut puts, wanted) = (0, (seen.load(Ordering::Relaxed) + ENOUGH).min(OVER));
                        while seen.load(Ordering::Relaxed) < wanted {
                            puts += 1;
                            assert!(puts <= MOST, "{what}: hardly a put was seen in progress");
                            byte = u8::wrapping_add(byte, 1);
                            let batch = (transport == 2).then(|| p.ep.batch());
                            match transport {
                                0 => remote.fill(at, LEN, |_, room| room.fill(byte)).unwrap(),
                                _ => remote.put(at, &vec![byte; LEN]).unwrap(),
                            }
                            drop(batch);
                        }
                    }
                    remote.flush().unwrap().wait().unwrap();
                    p.say("enough");
                }
                p.close();
            });
        }
    }
}

/// the same for gets, while the owner stores words.
#[test]
fn long_gets_tear_no_word() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let p = Pair::join(job);
            if p.ep.rank() == 0 {
                let aperture = p.ep.aperture(LEN).unwrap();
                p.give(&aperture.cookie(0..LEN as u64, Rights::ALL).unwrap());
                let (over, memory) = (AtomicBool::new(false), aperture.memory());
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut byte = 0;
                        while !over.load(Ordering::Relaxed) {
                            byte = u8::wrapping_add(byte, 1);
                            let word = u64::from(byte) * 0x0101_0101_0101_0101;
                            (0..LEN / 8).for_each(|i| memory.write_u64(8 * i, word).unwrap());
                        }
                    });
                    // Also if the other side fails.
                    let _over = Over(&over);
                    p.receive();
                });
            } else {
                let remote = p.take_cookie();
                for at in [0, 5] {
                    let (mut gets, mut seen) = (0, 0);
                    while seen < ENOUGH {
                        gets += 1;
                        assert!(gets <= MOST, "{device:?}: hardly a get met a store");
                        let got = remote.get(at, LEN - 8).unwrap().wait().unwrap();
                        let skip = (8 - at as usize) % 8;
                        let words =
                            got[skip..].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                        let differ =
                            differ(words).unwrap_or_else(|torn| panic!("{device:?}, from {at}: {torn}"));
                        seen += u64::from(differ);
                    }
                }
                p.say("enough");
            }
            p.close();
        });
    }
}

/// a put that was abandoned halfway, with or without a completion before it, blocks neither a fence nor
/// later operations.
#[test]
fn abandoned_puts_block_nothing() {
    for device in DEVICES {
        for before in [0, 510, 511, 512] {
            run_over(device, 2, |job| {
                let p = Pair::join(job);
                if p.ep.rank() == 0 {
                    let aperture = p.ep.aperture(LEN).unwrap();
                    p.give(&aperture.cookie(0..LEN as u64, Rights::ALL).unwrap());
                    assert_eq!(p.receive(), b"done");
                    assert_eq!(aperture.read_u64(0).unwrap(), 7);
                } else {
                    let remote = p.take_cookie();
                    (0..before).for_each(|_| remote.put(8, &1_u64.to_le_bytes()).unwrap());
                    let mut parts = 0;
                    let filled = catch_unwind(AssertUnwindSafe(|| {
                        remote.fill(0, LEN, |_, _| {
                            parts += 1;
                            assert!(parts < 2, "as it should");
                        })
                    }));
                    assert!(filled.is_err() && parts == 2, "it was begun, and not ended");
                    remote.fence().unwrap().wait().unwrap();
                    remote.put(0, &7_u64.to_le_bytes()).unwrap();
                    remote.flush().unwrap().wait().unwrap();
                    p.say("done");
                }
                p.close();
            });
        }
    }
}
