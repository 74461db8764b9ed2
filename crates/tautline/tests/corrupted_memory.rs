//! Two nodes talk through shared memory that is overwritten with random bytes: channels close, and nothing
//! else happens.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Limit, jobs, pattern};
use tautline::{DeviceName, Down, Endpoint, Event, Job, Message, PeerState, Short};

/// One test at a time: the segments of this process are those of one test.
static ALONE: Mutex<()> = Mutex::new(());

/// The segments that this process has open.
fn segments() -> Vec<File> {
    let Ok(links) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let paths = links.flatten().map(|entry| entry.path());
    let ours = paths.filter(|path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memfd:tautline "))
    });
    ours.filter_map(|path| File::options().read(true).write(true).open(path).ok()).collect()
}

/// Overwrites `wanted` times.
fn scribble(wanted: u64, count: &AtomicU64) {
    let mut state = 99_u64 + (tautline_skips::number(tautline_skips::SEED, 0) << 8);
    let mut dice = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    while count.load(Ordering::Relaxed) < wanted {
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
