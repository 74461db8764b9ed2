//! What a pair of processes costs: memory and descriptors.

mod shm_pair;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use shm_pair::{TempDir, frame, pair};
use tautline_device::Channel;
use tautline_device::shm::{Listener, Shm};

const PAIRS: usize = 24;

/// One test at a time: what is counted is that of one test.
static ALONE: Mutex<()> = Mutex::new(());

/// The descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident bytes of the segments that this process has mapped. Both ends of a pair map the same memory: each
/// segment counts once, as resident as where it is mapped best.
fn resident() -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut segments: BTreeMap<String, usize> = BTreeMap::new();
    let mut segment = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.contains("memfd:tautline ") {
            segment = Some(words[4].to_owned());
        } else if words.first().is_some_and(|word| word.contains('-')) {
            segment = None;
        } else if let (Some(inode), ["Rss:", kib, _]) = (&segment, &words[..]) {
            let most = segments.entry(inode.clone()).or_default();
            *most = (*most).max(1024 * kib.parse::<usize>().unwrap());
        }
    }
    segments.values().sum()
}

/// Bytes that the kernel holds for the segments that this process has mapped, touched by a process or not;
/// `None` if this process may not ask.
fn allocated() -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut segments: BTreeMap<u64, usize> = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains("memfd:tautline ")) {
        // Nobody has a descriptor of it any more.
        let file = format!("/proc/self/map_files/{}", line.split_whitespace().next().unwrap());
        let file = match std::fs::metadata(file) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
            file => file.unwrap(),
        };
        segments.insert(file.ino(), 512 * file.blocks() as usize);
    }
    Some(segments.values().sum())
}

/// Bytes of the segments that this process has mapped: resident ones, or all that are allocated if they are
/// more.
fn held() -> usize {
    let resident = resident();
    allocated().map_or(resident, |allocated| allocated.max(resident))
}

/// Makes pairs, whose ends are all in this process, and says what they cost.
fn pairs(dir: &TempDir, listener: &Listener) -> Vec<(Shm, Shm)> {
    (0..PAIRS).map(|_| pair(listener, &dir.listener_path())).collect()
}

/// S-36: each end of a pair has two descriptors, and closes them.
#[test]
fn two_descriptors_for_each_peer() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new("descriptors");
    let listener = Listener::bind(&dir.listener_path()).unwrap();
    // The pages of the two lanes are created with the first pair.
    drop(pair(&listener, &dir.listener_path()));
    let before = descriptors();
    let pairs = pairs(&dir, &listener);
    assert_eq!(descriptors() - before, 2 * 2 * PAIRS);
    let [process, socket] = pairs[0].0.liveness_fds().map(|fd| fd.as_raw_fd());
    assert_ne!(process, socket);
    drop(pairs);
    assert_eq!(descriptors(), before);
}

/// S-35: a pair takes at most 150 KiB of shared memory while it is quiet, and while it exchanges messages of
/// 1 KiB in turn; one that sends more than its peer takes at once uses more.
#[test]
fn memory_of_quiet_pairs() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new("sizes");
    let listener = Listener::bind(&dir.listener_path()).unwrap();
    let mut pairs = pairs(&dir, &listener);
    if allocated().is_none() {
        tautline_skips::skip("memory_of_quiet_pairs", "in part: what is allocated, which needs root");
    }
    let quiet = held() / PAIRS;
    assert!((1..=150 << 10).contains(&quiet), "{quiet} bytes for each quiet pair");
    let mut out = vec![0; pairs[0].0.max_frame()];
    for round in 0..1_000 {
        for (a, b) in &mut pairs {
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut *a, &mut *b];
                ends[from].push(&frame(round, 8), &frame(round, 1_016)).unwrap();
                ends[from].flush();
                assert_eq!(ends[to].pop(&mut out), Some(1_024));
            }
        }
    }
    let busy = held() / PAIRS;
    assert!(busy <= 150 << 10, "{busy} bytes for each pair that exchanges 1 KiB");
    let (a, b) = &mut pairs[0];
    let mut sent = 0;
    for _ in 0..8 {
        sent = (0..).take_while(|round| a.push(&[], &frame(*round, 16 << 10)).is_ok()).count();
        assert_eq!(std::iter::from_fn(|| b.pop(&mut out)).count(), sent);
    }
    assert!(sent >= 480 / 16, "{sent} frames of 16 KiB in flight");
    assert!(held() > PAIRS * busy + (300 << 10));
}
