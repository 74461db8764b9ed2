//! Entries in a segment that one process fills in turn and another reads: each begins with a word of a stamp
//! and a number. The stamp is the lap of the ring, so that an entry of this lap is told from one of the last.

use crate::Segment;
use crate::sync::{Arc, AtomicU64, Ordering};

/// A ring of entries of `ENTRY` bytes.
#[derive(Debug)]
pub(crate) struct StampedRing<const ENTRY: usize> {
    segment: Arc<Segment>,
    base: usize,
    count: usize,
}

impl<const ENTRY: usize> StampedRing<ENTRY> {
    /// # Panics
    /// If `count` is not a power of two, or the entries do not fit the segment from `base` on.
    pub(crate) fn new(segment: Arc<Segment>, base: usize, count: usize) -> StampedRing<ENTRY> {
        assert!(count.is_power_of_two() && base.is_multiple_of(64) && base + ENTRY * count <= segment.len());
        StampedRing { segment, base, count }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count as u64
    }

    #[inline]
    fn at(&self, turn: u64) -> usize {
        self.base + ENTRY * (turn as usize & (self.count - 1))
    }

    #[inline]
    fn stamp(&self, turn: u64) -> u32 {
        (turn >> self.count.trailing_zeros()) as u32 + 1
    }

    /// A further word of the entry of a turn: written before [`StampedRing::publish`], read after
    /// [`StampedRing::number`].
    #[inline]
    pub(crate) fn word(&self, turn: u64, offset: usize) -> &AtomicU64 {
        debug_assert!(offset > 0 && offset < ENTRY);
        self.segment.word(self.at(turn) + offset)
    }

    /// Makes the entry of a turn visible, with its number.
    #[inline]
    pub(crate) fn publish(&self, turn: u64, number: u32) {
        let word = u64::from(self.stamp(turn)) | u64::from(number) << 32;
        self.segment.word(self.at(turn)).store(word, Ordering::Release);
    }

    /// The number of the entry of a turn, if it was published.
    #[inline]
    pub(crate) fn number(&self, turn: u64) -> Option<u32> {
        let word = self.segment.word(self.at(turn)).load(Ordering::Acquire);
        (word as u32 == self.stamp(turn)).then_some((word >> 32) as u32)
    }
}
