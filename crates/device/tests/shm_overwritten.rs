//! Shared memory is overwritten with random bytes while a pair uses it: that leads to errors and invalid
//! frames, but to no panic, no hang, and no access outside (S-2).
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod shm_pair;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shm_pair::{TempDir, frame, pair};
use tautline_device::Channel;
use tautline_device::shm::{
    self, InlineFrame, LINE_FRAME, LINE_WORDS, Listener, MAX_WINDOWS, PoppedLine, ReturnStatus, Shm,
};
use tautline_mem::Segment;

/// Pseudo-random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 16) % n as u64) as usize
    }
}

/// Opens the files of this process's shared memory that have a name.
fn files(name: &str) -> Vec<File> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let paths = links.map(|entry| entry.path()).filter(|path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(&format!("memfd:{name} ")))
    });
    paths.map(|path| File::options().read(true).write(true).open(path).unwrap()).collect()
}

/// Maps a file of shared memory once more, as a peer that writes does.
fn map(file: File) -> std::io::Result<Segment> {
    let len = file.metadata().unwrap().len() as usize;
    Segment::attach(OwnedFd::from(file), len)
}

/// Maps the segment of the only pair in this process, and the pages of both lanes that peers can write: the
/// other pages, and the memory that is lent, they can only read (S-37).
fn third_mapping() -> Memory {
    let segment = map(files("tautline").pop().expect("the pair has a segment")).unwrap();
    let (bits, refused): (Vec<_>, Vec<_>) =
        files("tautline-pages").into_iter().map(map).partition(Result::is_ok);
    let loans = files("tautline-loans").into_iter().map(map).filter(Result::is_ok).count();
    assert_eq!((bits.len(), refused.len(), loans), (2, 2, 0));
    Memory { segment, bits: bits.into_iter().flatten().collect() }
}

/// The memory of a pair that a peer can write.
struct Memory {
    segment: Segment,
    bits: Vec<Segment>,
}

/// Overwrites one place of what a peer can write.
fn overwrite(memory: &Memory, random: &mut Random) {
    if random.below(8) != 0 {
        return overwrite_segment(&memory.segment, random);
    }
    // The first word has the bits of this pair; the others have none.
    let word = memory.bits[random.below(2)].word(8 * [0, random.below(512)][random.below(2)]);
    word.store([0, u64::MAX, random.next()][random.below(3)], Ordering::Relaxed);
}

/// Overwrites what a lane alone can write, as one does that is not correct: the pages on which it says
/// whether it sleeps, and the memory that it lends. For a test of a single thread: the mappings stay where
/// they are.
fn overwrite_own(random: &mut Random) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_own = |line: &&str| {
        line.contains("rw-s") && (line.contains("tautline-pages") || line.contains("tautline-loans"))
    };
    let own: Vec<u64> = maps
        .lines()
        .filter(is_own)
        .map(|line| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
        .collect();
    assert!(own.len() >= 2 * 2 + 2, "two pages of each lane, and a pool of each side: {maps}");
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    for _ in 0..4 {
        let at = own[random.below(own.len())] + [0, random.below(4096 - 8)][random.below(2)] as u64;
        let bytes = [0, 1, u64::MAX, random.next()][random.below(4)].to_le_bytes();
        memory.write_all_at(&bytes, at).unwrap();
    }
}

/// Bytes of the rings for returned loans, and of those for windows at the segment's end.
const RETURNS: usize = 2 * (2048 + 64);
const WINDOWS: usize = 2 * (1024 + 64);

/// Overwrites one place of the segment: anywhere, or a critical one.
fn overwrite_segment(segment: &Segment, random: &mut Random) {
    // Two rings, and behind them the rings for returned loans and for windows.
    let rings = segment.len() - RETURNS - WINDOWS;
    let ring = random.below(2) * rings / 2;
    let word = match random.below(10) {
        4 => rings + 8 * random.below(RETURNS / 8),
        5 => rings + RETURNS + 8 * random.below(WINDOWS / 8),
        // Consumed positions, and who sleeps.
        0 => ring + 8 * random.below(32),
        // The words of lines, and their contents.
        1 => ring + 256 + 64 * random.below(512),
        2 => ring + 256 + 8 * random.below(8 * 512),
        3 => {
            let bytes = random.next().to_le_bytes();
            let at = random.below(segment.len() - 8);
            return segment.copy_in(at, &bytes[..1 + random.below(7)]);
        }
        _ => 8 * random.below(segment.len() / 8),
    };
    let old = segment.word(word).load(Ordering::Relaxed);
    let new = match random.below(5) {
        // A stamp of the first laps with a possible length.
        0 => (1 + random.below(4) as u64) | ((random.below(33 << 10) as u64) << 32),
        1 => (1 + random.below(4) as u64) | (random.next() << 32),
        2 => old ^ (1 << random.below(64)),
        3 => old.wrapping_add(random.below(5) as u64).wrapping_sub(2),
        _ => random.next(),
    };
    segment.word(word).store(new, Ordering::Relaxed);
}

/// Lends, reads a loan, and returns one.
fn lend_and_borrow(shm: &mut Shm, random: &mut Random) {
    let _ = shm.has_returns();
    if let Ok(mut extent) = shm.loan(random.below(9_000)) {
        extent.fill(7);
        if random.below(2) == 0 && shm.push_line(&[1; LINE_WORDS], 32) {
            shm.commit_loan(extent);
        } else {
            shm.cancel_loan(extent);
        }
    }
    let mut got = [0; 64];
    let (at, view) = (random.next() >> random.below(64), shm.view().expect("the other side lends").clone());
    if view.contains(at, 64) {
        view.copy_out(at as usize, &mut got);
    }
    if random.below(3) == 0 {
        shm.return_loan(
            random.below(300) as u32,
            [ReturnStatus::Read, ReturnStatus::Refused, ReturnStatus::Incomplete][random.below(3)],
        );
    }
}

/// Grants windows, and takes those of the other side.
fn exchange_windows(shm: &mut Shm, random: &mut Random) -> u64 {
    for _ in 0..random.below(2 * MAX_WINDOWS) {
        if !shm.push_window(random.next() as u32, random.next()) {
            break;
        }
    }
    let _ = shm.has_window_room();
    let most = random.below(2 * MAX_WINDOWS);
    (0..most).take_while(|_| shm.has_windows() && shm.take_window().is_some()).count() as u64
}

/// Does everything once that a node does with its end. Returns the numbers of frames sent, frames taken and
/// windows taken.
fn use_end(shm: &mut Shm, random: &mut Random, out: &mut [u8]) -> (u64, u64, u64) {
    let (mut sent, mut taken, mut windows) = (0, 0, 0);
    for _ in 0..1 + random.below(8) {
        let len = [16, 48, 56, 57, 224, 225, 5_000, 32 << 10][random.below(8)];
        sent += u64::from(match random.below(5) {
            4 => shm.push_long([random.next()], &frame(5, LINE_FRAME + random.below(5_000))),
            3 => shm.push_words([random.next()], &frame(4, random.below(LINE_FRAME - 7))),
            0 => shm.push_line(&[random.next(); LINE_WORDS], random.below(LINE_FRAME + 1)),
            1 => shm.push(&frame(1, len / 2), &frame(2, len - len / 2)).is_ok(),
            _ => shm.has_room() && shm.push(&[], &frame(3, len)).is_ok(),
        });
    }
    shm.flush();
    assert!(shm.room() <= 512);
    for _ in 0..1 + random.below(12) {
        let mut frames = [InlineFrame::EMPTY; 3];
        let popped = match random.below(3) {
            0 => match shm.pop_words(|_| true) {
                PoppedLine::Words(len, _) => Some(len),
                PoppedLine::Empty | PoppedLine::Other => None,
            },
            1 => {
                let (count, _) = shm.pop_inline(&mut frames, 1 + random.below(200), |_| true);
                taken += count.saturating_sub(1) as u64;
                frames[..count].iter().map(|frame| frame.frame().len()).max()
            }
            _ => shm.pop(out),
        };
        let Some(len) = popped else { continue };
        assert!(len <= shm.max_frame());
        taken += 1;
    }
    if random.below(4) == 0 {
        lend_and_borrow(shm, random);
    }
    if random.below(4) == 0 {
        windows += exchange_windows(shm, random);
    }
    if random.below(4) == 0 {
        shm.announce_sleep();
        shm.barrier();
        let _ = shm.has_frames();
        shm.announce_wake();
    }
    assert!(!shm.is_dead(), "the other end lives");
    (sent, taken, windows)
}

/// What happened.
#[derive(Default, Debug)]
struct Tally {
    pairs: u64,
    corrupt: u64,
    ended: u64,
    stuck: u64,
    sent: u64,
    taken: u64,
    windows: u64,
}

/// The memory in use; none while there is no pair.
type Current = Mutex<Option<Memory>>;

/// Uses pairs until `over`, a new one whenever one is corrupt or makes no progress.
fn use_pairs(
    seed: u64,
    current: &Current,
    mut before: impl FnMut(&mut Random),
    mut over: impl FnMut() -> bool,
) -> Tally {
    shm::keep_descriptors();
    let dir = TempDir::new("overwritten");
    let listener = Listener::bind(&dir.listener_path()).unwrap();
    let (mut random, mut tally) = (Random(seed), Tally::default());
    let mut out = vec![0; 32 << 10];
    while !over() {
        let (mut a, mut b) = pair(&listener, &dir.listener_path());
        *current.lock().unwrap() = Some(third_mapping());
        tally.pairs += 1;
        let mut idle = 0;
        for _ in 0..4_000 {
            before(&mut random);
            let (sent, taken, windows) = use_end(&mut a, &mut random, &mut out);
            let (sent_too, taken_too, windows_too) = use_end(&mut b, &mut random, &mut out);
            tally.sent += sent + sent_too;
            tally.taken += taken + taken_too;
            tally.windows += windows + windows_too;
            idle = if sent + taken + sent_too + taken_too == 0 { idle + 1 } else { 0 };
            tally.stuck += u64::from(idle == 20);
            let corrupt = a.is_corrupt() || b.is_corrupt();
            let ended = a.has_ended() || b.has_ended();
            tally.corrupt += u64::from(corrupt);
            tally.ended += u64::from(ended);
            if corrupt || ended || idle == 20 || over() {
                break;
            }
        }
        *current.lock().unwrap() = None;
        a.close();
        b.close();
        // Without its peer, whatever is left comes to an end.
        drop(a);
        (0..2_000).find(|_| b.pop(&mut out).is_none());
        assert!(b.is_dead());
    }
    tally
}

fn wanted() -> u64 {
    tautline_skips::number("TAUTLINE_SCRIBBLES", 200_000)
}

/// Of generator `which`; `TAUTLINE_SEED` selects others.
fn seed(which: u64) -> u64 {
    which + (tautline_skips::number(tautline_skips::SEED, 0) << 8)
}

/// Exits the process if a test hangs.
fn limit(seconds: u64) -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let (seen, start) = (done.clone(), Instant::now());
    std::thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
            if start.elapsed() > Duration::from_secs(seconds) {
                eprintln!("the test hangs");
                std::process::exit(124);
            }
        }
    });
    done
}

/// One test at a time: the pair's segment must be the only one.
static ALONE: Mutex<()> = Mutex::new(());

/// S-2: another thread overwrites the memory as fast as it can. `TAUTLINE_SCRIBBLES` sets how often.
#[test]
fn overwritten_concurrently() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let wanted = wanted();
    let done = limit(60 + wanted / 20_000);
    let current = Current::new(None);
    let count = AtomicU64::new(0);
    let tally = std::thread::scope(|scope| {
        let (count, current) = (&count, &current);
        let writer = scope.spawn(move || {
            let mut random = Random(seed(7));
            while count.load(Ordering::Relaxed) < wanted {
                if let Some(memory) = &*current.lock().unwrap() {
                    (0..16).for_each(|_| overwrite(memory, &mut random));
                    count.fetch_add(16, Ordering::Relaxed);
                }
                // Lets the pair make progress in between.
                (0..random.below(4_000)).for_each(|_| std::hint::spin_loop());
            }
        });
        use_pairs(seed(3), current, |_| {}, || writer.is_finished())
    });
    done.store(true, Ordering::Relaxed);
    println!("{} writes concurrently: {tally:?}", count.load(Ordering::Relaxed));
    assert!(tally.corrupt > 0 && tally.taken > 0 && tally.windows > 0, "{tally:?}");
    tautline_skips::did(count.load(Ordering::Relaxed));
}

/// S-2: places are overwritten between the steps of the pair, also those that a peer cannot write;
/// reproducible by the seed.
#[test]
fn overwritten_step_by_step() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let wanted = wanted();
    let done = limit(60 + wanted / 2_000);
    let (count, current) = (AtomicU64::new(0), Current::new(None));
    let step = |random: &mut Random| {
        // Often none, so that the rings make progress; sometimes many.
        let writes = [0, 0, 0, 1, 2, 40][random.below(6)];
        if let Some(memory) = &*current.lock().unwrap() {
            (0..writes).for_each(|_| overwrite(memory, random));
        }
        if writes > 0 {
            overwrite_own(random);
        }
        count.fetch_add(writes, Ordering::Relaxed);
    };
    let tally = use_pairs(seed(11), &current, step, || count.load(Ordering::Relaxed) >= wanted);
    done.store(true, Ordering::Relaxed);
    println!("{} writes step by step: {tally:?}", count.load(Ordering::Relaxed));
    assert!(tally.corrupt > 0 && tally.taken > 0 && tally.windows > 0, "{tally:?}");
    tautline_skips::did(count.load(Ordering::Relaxed));
}
