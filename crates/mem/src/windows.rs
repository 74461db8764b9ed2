//! Windows of messages that one process grants another: a ring of entries beside the ring of frames, so that
//! a window never waits behind messages (S-28).
//!
//! An entry is two words: a stamp (the lap of the ring) with a message number, and a limit in bytes. The
//! sender writes the limit first. The receiver publishes what it has taken after every half of the ring, and
//! the sender reads that only when it seems to have no room.

use crate::Segment;
use crate::ring::{Corrupt, LINE};
use crate::stamped::StampedRing;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Bytes of an entry, and the place of the limit in it.
const ENTRY: usize = 16;
const LIMIT: usize = 8;

/// Returns the bytes of a segment that a ring of `count` entries takes.
pub const fn windows_size(count: usize) -> usize {
    LINE + ENTRY * count
}

/// The ring in its segment: a line with the number of entries taken, followed by the entries.
#[derive(Debug)]
struct WindowRing {
    segment: Arc<Segment>,
    base: usize,
    entries: StampedRing<ENTRY>,
}

impl WindowRing {
    fn new(segment: Arc<Segment>, base: usize, count: usize) -> WindowRing {
        assert!(count >= 2);
        WindowRing { entries: StampedRing::new(segment.clone(), base + LINE, count), segment, base }
    }

    /// The number of entries that the receiver says it has taken.
    fn taken(&self) -> &AtomicU64 {
        self.segment.word(self.base)
    }
}

/// The end that grants windows.
#[derive(Debug)]
pub struct WindowSender {
    ring: WindowRing,
    turn: u64,
    /// What the receiver had taken when that was last read.
    taken: u64,
}

impl WindowSender {
    /// Creates the sending end at `base` of a segment that is still zero there.
    ///
    /// # Panics
    /// If `count` is not a power of two from 2 on, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, count: usize) -> WindowSender {
        WindowSender { ring: WindowRing::new(segment, base, count), turn: 0, taken: 0 }
    }

    /// Grants up to `limit` bytes of a message. Returns false if there is no room.
    pub fn send(&mut self, message: u32, limit: u64) -> Result<bool, Corrupt> {
        if !self.has_room()? {
            return Ok(false);
        }
        self.ring.entries.word(self.turn, LIMIT).store(limit, Ordering::Relaxed);
        self.ring.entries.publish(self.turn, message);
        self.turn += 1;
        Ok(true)
    }

    /// Whether there is room for an entry.
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        let count = self.ring.entries.count();
        if self.turn - self.taken == count {
            let taken = self.ring.taken().load(Ordering::Acquire);
            if !(self.taken..=self.turn).contains(&taken) {
                return Err(Corrupt);
            }
            self.taken = taken;
        }
        Ok(self.turn - self.taken < count)
    }
}

/// The end that is granted windows.
#[derive(Debug)]
pub struct WindowReceiver {
    ring: WindowRing,
    turn: u64,
    published: u64,
}

impl WindowReceiver {
    /// Creates the receiving end.
    ///
    /// # Panics
    /// As [`WindowSender::new`].
    pub fn new(segment: Arc<Segment>, base: usize, count: usize) -> WindowReceiver {
        WindowReceiver { ring: WindowRing::new(segment, base, count), turn: 0, published: 0 }
    }

    /// Whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.entries.number(self.turn).is_none()
    }

    /// Takes the next entry: a message and a limit, which the caller must not trust.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        let message = self.ring.entries.number(self.turn)?;
        let limit = self.ring.entries.word(self.turn, LIMIT).load(Ordering::Relaxed);
        self.turn += 1;
        // A sender without room has filled the ring beyond what was published, so that this is reached when
        // its entries are taken.
        if self.turn - self.published >= self.ring.entries.count() / 2 {
            self.published = self.turn;
            self.ring.taken().store(self.turn, Ordering::Release);
        }
        Some((message, limit))
    }

    /// Returns what was published to the sender; it changes when a waiting sender may go on.
    pub fn published(&self) -> u64 {
        self.published
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const COUNT: usize = 8;

    fn ends() -> (WindowSender, WindowReceiver, Arc<Segment>) {
        let segment = Arc::new(Segment::create(4096).unwrap());
        let sender = WindowSender::new(segment.clone(), LINE, COUNT);
        (sender, WindowReceiver::new(segment.clone(), LINE, COUNT), segment)
    }

    /// S-28: the ring behaves as a `VecDeque` of bounded length, for many laps; a full one has room again, at
    /// the latest, when all entries are taken.
    #[test]
    fn behaves_like_a_queue() {
        let (mut sender, mut receiver, _) = ends();
        let mut oracle = VecDeque::new();
        let (mut state, mut refused) = (5_u64, 0);
        for step in 0..100_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if state >> 40 & 1 == 0 {
                let (message, limit) = (state as u32, state.rotate_left(20) ^ step);
                if sender.send(message, limit).unwrap() {
                    oracle.push_back((message, limit));
                    assert!(oracle.len() <= COUNT);
                } else {
                    refused += 1;
                    assert!(oracle.len() > COUNT / 2, "refused with {} entries", oracle.len());
                }
            } else {
                assert_eq!(receiver.is_empty(), oracle.is_empty());
                assert_eq!(receiver.take(), oracle.pop_front());
            }
        }
        assert!(refused > 100);
    }

    /// S-28: what a sender that found no room waits for is published.
    #[test]
    fn a_full_ring_is_published() {
        let (mut sender, mut receiver, _) = ends();
        for round in 0..100 {
            while sender.send(round, 7).unwrap() {}
            let published = receiver.published();
            while receiver.take().is_some() {}
            assert_ne!(receiver.published(), published);
            assert_eq!(sender.has_room(), Ok(true));
        }
    }

    /// S-2: entries taken that were never sent are detected; any other bytes are an entry or none.
    #[test]
    fn corruption_is_detected() {
        let (mut sender, mut receiver, segment) = ends();
        (0..COUNT).for_each(|_| assert_eq!(sender.send(1, 2), Ok(true)));
        segment.word(LINE).store(COUNT as u64 + 1, Ordering::Relaxed);
        assert_eq!(sender.has_room(), Err(Corrupt));
        assert_eq!(sender.send(1, 2), Err(Corrupt));
        segment.word(LINE).store(4, Ordering::Relaxed);
        assert_eq!(sender.send(1, 2), Ok(true));
        (0..COUNT / 2 - 1).for_each(|_| assert_eq!(sender.send(1, 2), Ok(true)));
        segment.word(LINE).store(3, Ordering::Relaxed);
        assert_eq!(sender.has_room(), Err(Corrupt), "progress never goes back");
        (0..COUNT as u64)
            .for_each(|i| segment.word(2 * LINE + 16 * i as usize).store(1 | i << 32, Ordering::Relaxed));
        (0..COUNT as u32).for_each(|i| assert_eq!(receiver.take(), Some((i, 2))));
        assert_eq!(receiver.take(), None, "of the next lap");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Mutex, thread};
    use crate::{Barrier, LanePages};

    /// S-4, S-29: a receiver that announced its sleep, checked the windows again and found none is rung for.
    #[test]
    fn loom_no_window_is_slept_through() {
        loom::model(|| {
            let segment = Arc::new(Segment::create(windows_size(2)).unwrap());
            let pages = LanePages::create().unwrap();
            let mut peer = pages.take_number().unwrap().peer_pages();
            let mut sender = WindowSender::new(segment.clone(), 0, 2);
            let receiver = WindowReceiver::new(segment, 0, 2);
            let bell = Arc::new(Mutex::new(false));
            let rung = bell.clone();
            let thread = thread::spawn(move || {
                assert!(sender.send(1, 2).unwrap());
                if peer.must_ring(Barrier::symmetric()) {
                    *rung.lock().unwrap() = true;
                }
            });
            pages.announce_sleep();
            Barrier::symmetric().heavy();
            let sleeps = receiver.is_empty();
            thread.join().unwrap();
            assert!(!sleeps || *bell.lock().unwrap(), "asleep with a window to take");
        });
    }

    /// S-28: entries arrive whole, in order and once, also when their words are used again.
    #[test]
    fn loom_windows_are_whole_and_in_order() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let segment = Arc::new(Segment::create(windows_size(2)).unwrap());
            let mut sender = WindowSender::new(segment.clone(), 0, 2);
            let mut receiver = WindowReceiver::new(segment, 0, 2);
            let thread = thread::spawn(move || {
                let mut sent = 0;
                for _ in 0..4 {
                    if sender.send(sent + 1, u64::from(sent + 1) * 10).unwrap() {
                        sent += 1;
                    }
                }
                sent
            });
            let mut got = 0;
            let mut check = |(message, limit): (u32, u64)| {
                assert_eq!((message, limit), (got + 1, u64::from(got + 1) * 10));
                got += 1;
            };
            for _ in 0..4 {
                receiver.take().into_iter().for_each(&mut check);
            }
            let sent = thread.join().unwrap();
            while let Some(entry) = receiver.take() {
                check(entry);
            }
            assert_eq!(got, sent);
        });
    }
}
