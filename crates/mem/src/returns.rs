//! Numbers that one process gives back to another, in whatever order: a ring of words that never fills up (S-8).

use crate::Segment;
use crate::sync::{Arc, Ordering};

/// Where a pair of ends meets, and how many numbers can be out at a time.
#[derive(Debug)]
struct Place {
    segment: Arc<Segment>,
    base: usize,
    count: usize,
}

impl Place {
    fn new(segment: Arc<Segment>, base: usize, count: usize) -> Place {
        assert!(count.is_power_of_two() && base.is_multiple_of(64) && base + 8 * count <= segment.len());
        Place { segment, base, count }
    }

    #[inline]
    fn at(&self, turn: u64) -> usize {
        self.base + 8 * (turn as usize & (self.count - 1))
    }

    /// What tells this lap's words from the last one's.
    #[inline]
    fn stamp(&self, turn: u64) -> u32 {
        (turn >> self.count.trailing_zeros()) as u32 + 1
    }
}

/// Where numbers are given back.
#[derive(Debug)]
pub struct ReturnSender {
    place: Place,
    turn: u64,
}

impl ReturnSender {
    /// The giving end at `base` of a segment that is still all zeros there.
    ///
    /// # Panics
    /// If `count` is no power of two, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, count: usize) -> ReturnSender {
        ReturnSender { place: Place::new(segment, base, count), turn: 0 }
    }

    /// Gives a number back. No more than `count` are out at a time, so there is always room.
    #[inline]
    pub fn send(&mut self, number: u32) {
        let word = u64::from(self.place.stamp(self.turn)) | u64::from(number) << 32;
        self.place.segment.word(self.place.at(self.turn)).store(word, Ordering::Release);
        self.turn += 1;
    }
}

/// Where numbers come back.
#[derive(Debug)]
pub struct ReturnReceiver {
    place: Place,
    turn: u64,
}

impl ReturnReceiver {
    /// The other end.
    ///
    /// # Panics
    /// If `count` is no power of two, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, count: usize) -> ReturnReceiver {
        ReturnReceiver { place: Place::new(segment, base, count), turn: 0 }
    }

    #[inline]
    fn word(&self) -> Option<u32> {
        let word = self.place.segment.word(self.place.at(self.turn)).load(Ordering::Acquire);
        (word as u32 == self.place.stamp(self.turn)).then_some((word >> 32) as u32)
    }

    /// Whether nothing has come back since the last look.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.word().is_none()
    }

    /// The next number that came back; whether it was ever out is for the caller to check.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        let number = self.word()?;
        self.turn += 1;
        Some(number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// S-8: what is given comes back, once and in order, for many laps.
    #[test]
    fn round_and_round() {
        let segment = Arc::new(Segment::create(4096).unwrap());
        let (mut giver, mut returns) =
            (ReturnSender::new(segment.clone(), 64, 4), ReturnReceiver::new(segment.clone(), 64, 4));
        for i in 0..1000 {
            assert!(returns.is_empty());
            for j in 0..=i % 4 {
                giver.send(i * 7 + j);
            }
            for j in 0..=i % 4 {
                assert_eq!(returns.take(), Some(i * 7 + j));
            }
            assert_eq!(returns.take(), None);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::thread;

    /// S-8: what the giver did before it gave is seen by whoever takes, and nothing is taken twice.
    #[test]
    fn given_means_done_with() {
        loom::model(|| {
            let segment = Arc::new(Segment::create(256).unwrap());
            let theirs = segment.clone();
            let giver = thread::spawn(move || {
                let mut giver = ReturnSender::new(theirs.clone(), 64, 2);
                for number in 1..=2 {
                    theirs.word(0).store(number, Ordering::Relaxed);
                    giver.send(number as u32);
                }
            });
            let mut returns = ReturnReceiver::new(segment.clone(), 64, 2);
            let mut last = 0;
            for _ in 0..3 {
                if let Some(number) = returns.take() {
                    assert_eq!(number, last + 1);
                    last = number;
                    assert!(segment.word(0).load(Ordering::Relaxed) >= u64::from(number));
                }
            }
            giver.join().unwrap();
            while let Some(number) = returns.take() {
                assert_eq!(number, last + 1);
                last = number;
            }
            assert_eq!(last, 2);
        });
    }
}
