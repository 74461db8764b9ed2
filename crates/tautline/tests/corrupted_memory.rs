//! Nodes talk through shared memory that is overwritten with random bytes: channels close, and nothing else
//! happens. Bits by which nodes find work delay frames, and lose none.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Limit, jobs, pattern};
use tautline::group::{Algorithm, Choice, Choices, Kind, Sum};
use tautline::{DeviceName, Down, Endpoint, Event, Job, Message, PeerState, Short, Waiting};

/// One test at a time: the segments of this process are those of one test.
static ALONE: Mutex<()> = Mutex::new(());

/// The files of shared memory with this name that this process has open.
fn files(name: &str) -> Vec<File> {
    let Ok(links) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let paths = links.flatten().map(|entry| entry.path());
    let ours = paths.filter(|path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(&format!("memfd:{name} ")))
    });
    ours.filter_map(|path| File::options().read(true).write(true).open(path).ok()).collect()
}

/// The segments that this process has open.
fn segments() -> Vec<File> {
    files("tautline")
}

/// Pseudo-random numbers below a bound.
fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
    state += tautline_skips::number(tautline_skips::SEED, 0) << 8;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    }
}

/// Overwrites the pages of lanes and the memory that is lent, as far as a peer can: the bits of lanes (S-38).
/// Returns how many writes were done, and how many refused.
fn scribble_pages(dice: &mut impl FnMut(u64) -> u64) -> (u64, u64) {
    let (mut done, mut refused) = (0, 0);
    for file in files("tautline-pages").into_iter().chain(files("tautline-loans")) {
        // Most rings have bits in the first word.
        let at = 8 * [0, 0, dice(512)][dice(3) as usize];
        let word = [0, u64::MAX, dice(u64::MAX)][dice(3) as usize];
        match file.write_at(&word.to_le_bytes(), at) {
            Ok(_) => done += 1,
            Err(_) => refused += 1,
        }
    }
    (done, refused)
}

/// Overwrites `wanted` times.
fn scribble(wanted: u64, count: &AtomicU64) {
    let mut dice = dice(99);
    let (mut done, mut refused) = (0, 0);
    while count.load(Ordering::Relaxed) < wanted {
        let pages = scribble_pages(&mut dice);
        (done, refused) = (done + pages.0, refused + pages.1);
        for segment in segments() {
            let len = segment.metadata().map_or(0, |meta| meta.len());
            if len == 0 {
                // It is being created.
                continue;
            }
            for _ in 0..64 {
                let ring = dice(2) * ((len - 4224) / 2);
                let at = match dice(4) {
                    0 => ring + 8 * dice(32),
                    1 => ring + 256 + 8 * dice(8 * 512),
                    2 => ring + 256 + 64 * 512 + dice(4096),
                    _ => dice(len - 8),
                };
                let word = match dice(3) {
                    // A stamp of the first laps with a plausible length, so that the rest is parsed as
                    // records.
                    0 => (1 + dice(4)) | (dice(400) << 32),
                    1 => dice(u64::MAX),
                    _ => 1 << dice(64),
                };
                let _ = segment.write_at(&word.to_le_bytes()[..1 + dice(8) as usize], at);
            }
            count.fetch_add(64, Ordering::Relaxed);
            // Pauses, so that the nodes make progress in between.
            std::thread::sleep(Duration::from_micros(dice(300)));
        }
    }
    println!("{done} words of bits overwritten, {refused} writes to pages and loans refused");
    assert!(done > 0 && refused > 0, "peers can write bits, and nothing else of pages and loans");
}

/// Talks, whatever happens, until `over`; counts why the peer was down.
fn talk(job: Job, over: &(dyn Fn() -> bool + Sync)) -> BTreeMap<String, u64> {
    let builder = Endpoint::builder()
        .on("long", |mut msg: Message| async move {
            let _ = msg.read_to_end().await?;
            Ok(())
        })
        .on_loan("lent", |message: tautline::Borrowed| message.for_each_part(|_| {}))
        .on_short("short", |_: Short<'_>| {});
    let ep = builder.join_job(job).unwrap();
    let peer = 1 - ep.rank();
    let mut downs = BTreeMap::new();
    let long = pattern(40_000, 1);
    let mut going: Option<(tautline::Outgoing, usize)> = None;
    while !over() {
        ep.connect(peer).unwrap();
        for i in 0..20 {
            let _ = ep.try_send(peer, "short", &pattern(i * 17, i));
        }
        for handler in ["lent", "long"] {
            let _ = ep.try_loan(peer, 20_000).map(|loan| loan.try_send(handler));
        }
        if going.is_none() {
            going = ep.try_begin(peer, "long", long.len() as u64).ok().map(|out| (out, 0));
        }
        going = going.take().and_then(|(mut out, at)| {
            let at = at + out.try_piece(&long[at..]).ok()?;
            if at < long.len() {
                return Some((out, at));
            }
            let _ = out.end();
            None
        });
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            let Event::PeerDown { why, .. } = event else { continue };
            assert!(!matches!(why, Down::Refused(_)), "{why}");
            *downs.entry(why.to_string()).or_default() += 1;
        }
        while let Some(failure) = ep.poll_failure() {
            assert!(!failure.panicked, "{failure:?}");
        }
        ep.wait(Some(Duration::from_micros(100))).unwrap();
    }
    *downs.entry("messages".into()).or_default() += ep.handled();
    // Not closed in good order: the peer may be in any state.
    downs
}

/// S-7, N-12: on one host a channel uses shared memory by itself, and a message of 40 bytes is a record in a
/// frame, with nothing around it.
#[test]
fn frames_are_records() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    tautline::node::device::shm::keep_descriptors();
    let _limit = Limit::seconds(30);
    let said = pattern(40, 77);
    let ends: Vec<_> = jobs(2)
        .into_iter()
        .map(|job| Endpoint::builder().on_short("short", |_: Short<'_>| {}).join_job(job).unwrap())
        .collect();
    ends[0].connect(1).unwrap();
    let up = |ep: &Endpoint| matches!(ep.peer_state(1 - ep.rank()), Some(PeerState::Up));
    while !(up(&ends[0]) && up(&ends[1])) {
        for ep in &ends {
            ep.extract(usize::MAX).unwrap();
        }
    }
    for ep in &ends {
        let ways: Vec<_> = std::iter::from_fn(|| ep.poll_event())
            .filter_map(|event| match event {
                Event::Transport { device, .. } => Some(device),
                _ => None,
            })
            .collect();
        assert_eq!(ways, ["shm"]);
    }
    ends[0].send(1, "short", &said).unwrap();
    let memory = segments().remove(0);
    let mut bytes = vec![0; memory.metadata().unwrap().len() as usize];
    memory.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(said.len()).position(|part| part == said).expect("it is there");
    // The line's word, the record's head, the message.
    assert_eq!(at % 64, 16);
    assert_eq!(bytes[at - 12..at - 8], 48_u32.to_le_bytes(), "the frame's length");
    ends[1].serve(1).unwrap();
}

/// Where this process has the memory of groups of three mapped.
fn group_memory() -> Vec<u64> {
    const LEN: u64 = 257 * 4096;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:tautline "));
    let ranges = ours.filter_map(|line| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        (end - start == LEN).then_some(start)
    });
    ranges.collect()
}

/// G-17: random words in the memory of a group fail its collectives, or give wrong numbers; nothing panics,
/// and no member waits for ever.
#[test]
fn overwritten_group_memory() {
    const GROUPS: u32 = 60;
    const CALLS: u64 = 400;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _limit = Limit::seconds(120);
    let (failed, written, ended) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let together = std::sync::Barrier::new(3);
    let (failed, written, ended, together) = (&failed, &written, &ended, &together);
    std::thread::scope(|scope| {
        for mut job in jobs(3) {
            job.device = Some(DeviceName::Shm);
            scope.spawn(move || {
                let ep = Endpoint::builder().join_job(job).unwrap();
                let everywhere =
                    |kind, algorithm| Choice { kind, bytes: usize::MAX, members: usize::MAX, algorithm };
                // Groups are made by collectives, which are not to fail: those of this group are messages.
                let by_messages = Kind::ALL.map(|kind| everywhere(kind, kind.algorithms()[0]));
                let world = ep.world().unwrap().with_choices(Choices::with(by_messages)).unwrap();
                let kinds =
                    Kind::ALL.into_iter().filter(|kind| kind.algorithms().contains(&Algorithm::Shared));
                let choices = Choices::with(kinds.map(|kind| everywhere(kind, Algorithm::Shared)));
                for _ in 0..GROUPS {
                    let group = world.with_choices(choices.clone()).unwrap();
                    let call = |at: u64| match at % 7 {
                        0 => group.barrier(),
                        1 => group.all_reduce(&mut [1_u64; 8], Sum),
                        2 => group.broadcast(at as usize % 3, &mut [at; 8]),
                        3 => group.reduce(at as usize % 3, &mut [at; 8], Sum),
                        4 => group.all_gather(&[at; 8], &mut [0; 24]),
                        5 => group.all_to_all(&[at; 24], &mut [0; 24]),
                        _ => group.reduce_scatter(&[at; 24], &mut [0; 8], &[8; 3], Sum),
                    };
                    if (0..CALLS).any(|at| call(at).is_err()) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    // Whoever waits for a word of this member that was overwritten hears of its end.
                    group.revoke();
                    together.wait();
                }
                ended.fetch_add(1, Ordering::Relaxed);
                together.wait();
                ep.close().unwrap();
            });
        }
        scope.spawn(move || {
            let memory = File::options().write(true).open("/proc/self/mem").unwrap();
            let mut dice = dice(99);
            while ended.load(Ordering::Relaxed) < 3 {
                for at in group_memory() {
                    // Mostly the words by which members wait.
                    let at = at + 8 * [8 + dice(12), 80 + dice(32), dice(8_000)][dice(3) as usize];
                    let word = [0, u64::MAX, dice(1 << 24), 1 << 16 | dice(3)][dice(4) as usize];
                    written.fetch_add(
                        memory.write_at(&word.to_le_bytes(), at).is_ok().into(),
                        Ordering::Relaxed,
                    );
                }
                std::thread::sleep(Duration::from_micros(dice(2_000)));
            }
        });
    });
    let (failed, written) = (failed.load(Ordering::Relaxed), written.load(Ordering::Relaxed));
    assert!(failed > 10 && written > 100, "{failed} of {} failed by {written} words", 3 * GROUPS);
}

/// S-2, N-8: random bytes in the memory close channels, which are opened again, and harm neither a node nor
/// its program. `TAUTLINE_SCRIBBLES` says how many.
#[test]
fn nodes_survive_corrupted_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    tautline::node::device::shm::keep_descriptors();
    let wanted = tautline_skips::number("TAUTLINE_SCRIBBLES", 100_000);
    let _limit = Limit::seconds(60 + wanted / 20_000);
    let mut jobs = jobs(2);
    jobs.iter_mut().for_each(|job| job.device = Some(DeviceName::Shm));
    let count = AtomicU64::new(0);
    let over = || count.load(Ordering::Relaxed) >= wanted;
    std::thread::scope(|scope| {
        let talkers: Vec<_> = jobs.into_iter().map(|job| scope.spawn(|| talk(job, &over))).collect();
        scribble(wanted, &count);
        for (rank, talker) in talkers.into_iter().enumerate() {
            let downs = talker.join().unwrap();
            println!("rank {rank}, {} scribbles: {downs:?}", count.load(Ordering::Relaxed));
            assert!(downs["messages"] > 0 && downs.len() > 1, "{downs:?}");
        }
    });
    tautline_skips::did(count.load(Ordering::Relaxed));
}

/// S-37, S-40: a process that overwrites the bits of all lanes delays others, and makes them lose neither a
/// message nor a wake-up: two ranks that sleep after each message exchange all of them, beside idle peers
/// that are more than those whose rings are always checked.
#[test]
fn overwritten_bits_harm_nobody() {
    const RANKS: u64 = 12;
    const ROUNDS: u64 = 300;
    const WRITES: u64 = 5_000;
    const LAST: u64 = 1 << 63;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _limit = Limit::seconds(120);
    let (met, writes, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let ranks = |job: Job| {
        let (got, last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (counted, ends) = (got.clone(), last.clone());
        let builder =
            Endpoint::builder().waiting(Waiting::Park).on_short("round", move |message: Short<'_>| {
                let round = u64::from_le_bytes(message.data().try_into().unwrap());
                assert_eq!(round & !LAST, counted.get(), "every message, in order");
                counted.set(counted.get() + 1);
                ends.set(round & LAST != 0);
            });
        let ep = builder.join_job(job).unwrap();
        // Everybody shares memory with ranks 0 and 1.
        for peer in (0..2).filter(|peer| *peer != ep.rank()) {
            ep.connect(peer).unwrap();
            ep.run_until(|| ep.peer_state(peer) == Some(PeerState::Up)).unwrap();
        }
        met.fetch_add(1, Ordering::Relaxed);
        for round in (0..).take_while(|_| ep.rank() < 2 && !last.get()) {
            // Rank 0 says which round is the last one, and rank 1 says so when it answers.
            let is_last = round >= ROUNDS && writes.load(Ordering::Relaxed) >= WRITES;
            let say = |last: bool| {
                ep.send(1 - ep.rank(), "round", &(round | (LAST * u64::from(last))).to_le_bytes())
            };
            if ep.rank() == 0 {
                say(is_last).unwrap();
            }
            ep.run_until(|| got.get() > round).unwrap();
            if ep.rank() == 1 {
                say(last.get()).unwrap();
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < RANKS {
            ep.extract(usize::MAX).unwrap();
            ep.wait(Some(Duration::from_millis(5))).unwrap();
        }
        let downs: Vec<_> = std::iter::from_fn(|| ep.poll_event())
            .filter(|event| matches!(event, Event::PeerDown { why, .. } if *why != Down::Closed))
            .collect();
        assert!(downs.is_empty(), "{downs:?}");
        got.get()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = dice(7);
            while done.load(Ordering::Relaxed) < RANKS {
                if met.load(Ordering::Relaxed) == RANKS {
                    writes.fetch_add(scribble_pages(&mut dice).0, Ordering::Relaxed);
                }
                std::thread::yield_now();
            }
        });
        common::run_over(DeviceName::Shm, RANKS as usize, |job| {
            let rank = job.rank;
            let rounds = ranks(job);
            if rank == 0 {
                println!("{rounds} rounds beside {} writes", writes.load(Ordering::Relaxed));
            }
        });
    });
}
