//! Long puts and gets while somebody reads the same words, and long ones that are abandoned.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::pair::Pair;
use crate::common::run_over;
use tautline::DeviceName;
use tautline::memory::Rights;

const DEVICES: [DeviceName; 2] = [DeviceName::Udp, DeviceName::Shm];
/// Bytes of a put: many parts, over every device.
const LEN: usize = 300_000;
/// How long each way to put is observed.
const TIME: Duration = Duration::from_millis(300);

/// The first word that does not consist of one repeated byte.
fn torn(words: impl Iterator<Item = u64>) -> Option<(usize, u64)> {
    words.enumerate().find(|(_, word)| *word != u64::from(*word as u8) * 0x0101_0101_0101_0101)
}

/// a word that is read while a put in parts passes over it is old or new, wherever the put and the
/// cookie begin.
#[test]
fn long_puts_tear_no_word() {
    for device in DEVICES {
        for (start, at) in [(0, 0), (3, 0), (0, 5), (6, 7)] {
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
                                assert_eq!(torn(words), None, "{device:?}, cookie at {start}, put at {at}");
                            }
                        });
                        p.receive();
                        over.store(true, Ordering::Relaxed);
                        looker.join().unwrap();
                    });
                } else {
                    let remote = p.take_cookie();
                    let mut byte = 0;
                    for transport in 0..3 {
                        let until = Instant::now() + TIME;
                        while Instant::now() < until {
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
                    p.receive();
                    over.store(true, Ordering::Relaxed);
                });
            } else {
                let remote = p.take_cookie();
                let until = Instant::now() + 2 * TIME;
                while Instant::now() < until {
                    for at in [0, 5] {
                        let got = remote.get(at, LEN - 8).unwrap().wait().unwrap();
                        let skip = (8 - at as usize) % 8;
                        let words =
                            got[skip..].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                        assert_eq!(torn(words), None, "{device:?}, from {at}");
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
