//! Numbers that one process returns to another, in any order: a ring of words that never overflows (S-20).

use crate::Segment;
use crate::stamped::StampedRing;
use crate::sync::Arc;

type ReturnRing = StampedRing<8>;

/// The end that returns numbers.
#[derive(Debug)]
pub struct ReturnSender {
    ring: ReturnRing,
    turn: u64,
}

impl ReturnSender {
    /// Creates the sending end at `base` of a segment that is still zero there.
    ///
    /// # Panics
    /// If `count` is not a power of two, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, count: usize) -> ReturnSender {
        ReturnSender { ring: ReturnRing::new(segment, base, count), turn: 0 }
    }

    /// Returns a number to the other side. At most `count` numbers are out at a time, so there is always
    /// room.
    #[inline]
    pub fn send(&mut self, number: u32) {
        self.ring.publish(self.turn, number);
        self.turn += 1;
    }
}

/// The end that gets numbers back.
#[derive(Debug)]
pub struct ReturnReceiver {
    ring: ReturnRing,
    turn: u64,
}

impl ReturnReceiver {
    /// Creates the receiving end.
    ///
    /// # Panics
    /// If `count` is not a power of two, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, count: usize) -> ReturnReceiver {
        ReturnReceiver { ring: ReturnRing::new(segment, base, count), turn: 0 }
    }

    /// Whether no number has come back since the last [`ReturnReceiver::take`].
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.number(self.turn).is_none()
    }

    /// Takes the next number that came back. The caller must check that it was out.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        let number = self.ring.number(self.turn)?;
        self.turn += 1;
        Some(number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// S-20: numbers come back once and in order, for many laps.
    #[test]
    fn numbers_come_back_once_and_in_order() {
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
    use crate::sync::{Ordering, thread};

    /// S-20: the receiver sees what the sender did before it returned a number, and gets no number twice.
    #[test]
    fn loom_returned_numbers_are_ordered() {
        loom::model(|| {
            let segment = Arc::new(Segment::create(256).unwrap());
            let other = segment.clone();
            let giver = thread::spawn(move || {
                let mut giver = ReturnSender::new(other.clone(), 64, 2);
                for number in 1..=2 {
                    other.word(0).store(number, Ordering::Relaxed);
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
