//! Long puts to a peer on the same host: the owner reads their bytes from shared loan memory and copies them
//! to their place.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::launch::{Launcher, again, is_member};
use common::pair::{Pair, refused};
use common::victim::{await_down, await_up, until};
use common::{Limit, jobs, join, pattern, run_over};
use tautline::memory::{Cookie, Refusal, Rights};
use tautline::{DeviceName, Down, Endpoint, Event, Short};

/// Lengths around the limits at which puts take another path, and some in between.
const LENGTHS: [usize; 14] = [
    33,
    64,
    1_000,
    16_359,
    16_360,
    16_361,
    16_384,
    16_385,
    32_768 + 1_023,
    32_768 + 1_024,
    100_000,
    512 << 10,
    (512 << 10) + 5,
    (1 << 20) - 3,
];
const SIZE: usize = 1 << 20;

/// One test at a time: they inspect what this process has mapped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// S-24: whatever the length and offset of a put, every byte is put in its place and none beside
/// it, the tripwires of its parts fire in order, and puts and messages keep their order.
#[test]
fn puts_of_every_length() {
    let _alone = alone();
    run_over(DeviceName::Shm, 2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(SIZE + 16).unwrap();
            let mut wire = aperture.tripwire(..).arm().unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            let mut model = vec![0; SIZE + 16];
            for (salt, len) in LENGTHS.into_iter().enumerate() {
                for at in [0, 8, 3] {
                    wire.wait().unwrap();
                    model[at..at + len].copy_from_slice(&pattern(len, salt + at));
                    let mut got = vec![0; SIZE + 16];
                    aperture.read(0, &mut got).unwrap();
                    assert!(got == model, "{len} bytes at {at}");
                    assert_eq!(wire.take(), 0);
                    pair.say("next");
                }
            }
            // Many in a row: the last one counts, and each fires.
            pair.receive();
            let mut got = vec![0; SIZE];
            aperture.read(0, &mut got).unwrap();
            assert!(got == pattern(SIZE, 39), "the last put, before the message behind it");
            assert_eq!(wire.take(), 40);
        } else {
            let remote = pair.take_cookie();
            for (salt, len) in LENGTHS.into_iter().enumerate() {
                for at in [0, 8, 3] {
                    let bytes = pattern(len, salt + at);
                    if salt % 2 == 0 {
                        remote.put(at as u64, &bytes).unwrap();
                    } else {
                        let fill = |from: usize, room: &mut [u8]| {
                            room.copy_from_slice(&bytes[from..from + room.len()]);
                        };
                        remote.fill(at as u64, len, fill).unwrap();
                    }
                    assert_eq!(pair.receive(), b"next");
                }
            }
            for salt in 0..40 {
                remote.put(0, &pattern(SIZE, salt)).unwrap();
            }
            pair.say("behind them");
        }
        pair.close();
    });
}

/// S-24: a put that is refused, at once or halfway, returns its loan: other puts find room,
/// however many are refused.
#[test]
fn refused_puts_return_their_loans() {
    let _alone = alone();
    run_over(DeviceName::Shm, 2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(SIZE).unwrap();
            pair.give(&aperture.cookie(..SIZE as u64 / 2, Rights::ALL).unwrap());
            pair.give(&aperture.cookie(.., Rights::READ).unwrap());
            let first = aperture.cookie(.., Rights::ALL).unwrap();
            pair.give(&first);
            pair.receive();
            let counters = pair.ep.memory_counters();
            assert_eq!((counters.refused, counters.bytes_put), (100, 0));
            assert!(aperture.revoke(&first).unwrap());
            pair.say("revoked");
            pair.receive();
            assert_eq!(pair.ep.memory_counters().bytes_put, SIZE as u64 / 2);
        } else {
            let (half, read, whole) = (pair.take_cookie(), pair.take_cookie(), pair.take_cookie());
            let bytes = pattern(SIZE, 5);
            for _ in 0..50 {
                assert_eq!(refused(half.put_with_completion(0, &bytes).unwrap().wait()), Refusal::OutOfRange);
                assert_eq!(refused(read.put_with_completion(0, &bytes).unwrap().wait()), Refusal::Rights);
            }
            pair.say("so far");
            assert_eq!(pair.receive(), b"revoked");
            assert_eq!(refused(whole.put_with_completion(0, &bytes).unwrap().wait()), Refusal::Revoked);
            half.put_with_completion(0, &bytes[..SIZE / 2]).unwrap().wait().unwrap();
            pair.say("over");
        }
        pair.close();
    });
}

/// The segment that the two nodes of this process share.
fn segment() -> File {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let mut ours = links.filter(|path| {
        let to = std::fs::read_link(path).unwrap_or_default();
        to.to_string_lossy().contains("memfd:tautline ")
            // Apertures are such segments, too, and shorter.
            && std::fs::metadata(path).is_ok_and(|meta| meta.len() > 1 << 20)
    });
    File::options().read(true).write(true).open(ours.next().unwrap()).unwrap()
}

/// Two nodes on one thread, the second of which has given the first one a cookie.
fn both() -> ([Endpoint; 2], tautline::Aperture, tautline::Remote) {
    tautline::node::device::shm::keep_descriptors();
    let mail = Rc::new(RefCell::new(Vec::new()));
    let mut ends = jobs(2).into_iter().map(|mut job| {
        job.device = Some(DeviceName::Shm);
        let inbox = mail.clone();
        let take = move |m: Short<'_>| inbox.borrow_mut().extend_from_slice(m.data());
        Endpoint::builder().on_short("mail", take).join_job(job).unwrap()
    });
    let ends = [ends.next().unwrap(), ends.next().unwrap()];
    ends[0].connect(1).unwrap();
    let aperture = ends[1].aperture(4096).unwrap();
    let letter = aperture.cookie(.., Rights::ALL).unwrap().to_bytes();
    while ends[1].try_send(0, "mail", &letter).is_err() {
        for ep in &ends {
            ep.extract(usize::MAX).unwrap();
        }
    }
    while mail.borrow().is_empty() {
        for ep in &ends {
            ep.extract(usize::MAX).unwrap();
        }
    }
    let remote = ends[0].remote(&Cookie::from_bytes(mail.borrow().as_slice().try_into().unwrap()));
    (ends, aperture, remote)
}

/// S-2, S-24: a part that claims to lie outside the pool closes the channel, and nothing is written.
#[test]
fn parts_outside_the_pool_are_rejected() {
    let _alone = alone();
    let _limit = Limit::seconds(60);
    for (place, len) in [(1_u64 << 40, 64_u32), (u64::MAX - 8, 64), (u64::MAX, 0), (0, u32::MAX)] {
        let (ends, aperture, remote) = both();
        let mark = 0x1234_5678_9abc_def0_u64;
        remote.put(0, &mark.to_le_bytes()).unwrap();
        while aperture.read_u64(0).unwrap() != mark {
            ends[1].progress().unwrap();
        }
        // The line behind this put's gets what a part would write: stamp and length, and the record.
        let memory = segment();
        let mut bytes = vec![0; memory.metadata().unwrap().len() as usize];
        memory.read_exact_at(&mut bytes, 0).unwrap();
        let at = bytes.windows(8).position(|part| part == mark.to_le_bytes()).expect("it is there");
        let (line, word) = (at - 32, |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
        assert_eq!((line % 64, word(line + 8) as u8, word(line + 8) >> 32), (0, 17, 24));
        let (handle, id) = (word(line + 16) as u32, (word(line + 16) >> 32) as u32);
        let record = [
            30 | 40 << 32,
            u64::from(handle) | u64::from(id + 1) << 32,
            8,
            0,
            5 | u64::from(len) << 32,
            place,
        ];
        let forged: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write_all_at(&forged, line as u64 + 64 + 8).unwrap();
        let stamp = word(line) as u32;
        memory.write_all_at(&(u64::from(stamp) | 48 << 32).to_le_bytes(), line as u64 + 64).unwrap();
        let why = loop {
            ends[1].extract(usize::MAX).unwrap();
            if let Some(Event::PeerDown { why, .. }) = ends[1].poll_event() {
                break why;
            }
        };
        assert!(matches!(why, Down::Died(_)), "{why}");
        let mut got = [0; 4096];
        aperture.read(0, &mut got).unwrap();
        assert!(got[8..].iter().all(|byte| *byte == 0), "something was written");
    }
}

/// Not a test by itself: sends half of a long put and exits.
#[test]
fn half_put_member() {
    if !is_member("half_put_member") {
        return;
    }
    let mail = Rc::new(RefCell::new(Vec::new()));
    let inbox = mail.clone();
    let take = move |m: Short<'_>| inbox.borrow_mut().extend_from_slice(m.data());
    let ep = Endpoint::builder().on_short("mail", take).join().unwrap();
    ep.connect(0).unwrap();
    ep.run_until(|| mail.borrow().len() > Cookie::LEN).unwrap();
    let mail = mail.borrow();
    let remote = ep.remote(&Cookie::from_bytes(mail[..Cookie::LEN].try_into().unwrap()));
    let until = usize::from(mail[Cookie::LEN]) << 16;
    let fill = |at: usize, room: &mut [u8]| {
        if at >= until {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        room.fill(7);
    };
    remote.fill(0, SIZE, fill).unwrap();
    remote.flush().unwrap().wait().unwrap();
    ep.close().unwrap();
}

/// A-8, S-24: a process that dies in the middle of a long put leaves whole parts and nothing else: no
/// tripwire fires for the whole, and its loan memory is unmapped. Its next incarnation puts as any other.
#[test]
fn death_in_the_middle_of_a_put() {
    let _alone = alone();
    let _limit = Limit::seconds(120);
    let launcher = Launcher::over(DeviceName::Shm, 2);
    let ep = join(Endpoint::builder().on_short("mail", |_: Short<'_>| {}), launcher.job(0));
    let aperture = ep.aperture(SIZE).unwrap();
    let mut whole = aperture.tripwire(..).arm().unwrap();
    let cookie = aperture.cookie(.., Rights::WRITE).unwrap();
    let lent = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("tautline-loans")).count()
    };
    for parts in [1, 8, 15, 1, 255] {
        aperture.write(0, &vec![0; SIZE]).unwrap();
        let _member = launcher.start(1, again("half_put_member"));
        await_up(&ep, 1);
        ep.send(1, "mail", &[&cookie.to_bytes()[..], &[parts]].concat()).unwrap();
        let mut got = vec![0; SIZE];
        if parts == 255 {
            whole.wait().unwrap();
            aperture.read(0, &mut got).unwrap();
            assert!(got.iter().all(|byte| *byte == 7));
            assert_eq!(await_down(&ep, 1), Down::Closed);
        } else {
            assert_eq!(await_down(&ep, 1), Down::Exited);
            aperture.read(0, &mut got).unwrap();
            let put = got.iter().take_while(|byte| **byte == 7).count();
            assert_eq!((put % (32 << 10), got[put..].iter().all(|byte| *byte == 0)), (0, true));
            assert!(put <= usize::from(parts) << 16, "{put} bytes");
            assert_eq!(whole.take(), 0);
        }
        until(&ep, || lent() == 0);
    }
    ep.close().unwrap();
}
