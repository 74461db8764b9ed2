//! The replay window (L-3): accepts each packet number once, and none that is older than the window.

use crate::Nanos;

/// How many packet numbers the window covers.
const WINDOW: u64 = 4096;
const WORDS: usize = (WINDOW / 64) as usize;

#[derive(Debug)]
pub(crate) struct ReplayWindow {
    largest: u64,
    /// When `largest` arrived.
    largest_at: Nanos,
    /// One bit per packet number up to `largest`; a ring.
    seen: Box<[u64; WORDS]>,
}

impl ReplayWindow {
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow { largest: 0, largest_at: 0, seen: Box::new([0; WORDS]) }
    }

    /// Returns the largest packet number received; zero before the first.
    #[inline]
    pub(crate) fn largest(&self) -> u64 {
        self.largest
    }

    /// Returns what a frame echoes: the largest packet number, and how long ago it arrived (L-8).
    #[inline]
    pub(crate) fn echo(&self, now: Nanos) -> (u32, u32) {
        let waited = now.saturating_sub(self.largest_at).min(u64::from(u32::MAX));
        (self.largest as u32, waited as u32)
    }

    /// Returns whether a packet number is new. Does not mark it.
    #[inline]
    pub(crate) fn is_fresh(&self, packet: u64) -> bool {
        if packet > self.largest {
            return true;
        }
        self.largest - packet < WINDOW && {
            let at = packet % WINDOW;
            self.seen[(at / 64) as usize] & (1 << (at % 64)) == 0
        }
    }

    /// Marks a packet number as received.
    #[inline]
    pub(crate) fn mark(&mut self, now: Nanos, packet: u64) {
        if packet > self.largest {
            if packet - self.largest == 1 {
                let at = packet % WINDOW;
                self.seen[(at / 64) as usize] &= !(1 << (at % 64));
            } else {
                self.skip_to(packet);
            }
            self.largest = packet;
            self.largest_at = now;
        }
        let at = packet % WINDOW;
        self.seen[(at / 64) as usize] |= 1 << (at % 64);
    }

    #[cold]
    fn skip_to(&mut self, packet: u64) {
        let gap = packet - self.largest;
        if gap >= WINDOW {
            self.seen.fill(0);
        } else {
            for number in self.largest + 1..=packet {
                let at = number % WINDOW;
                self.seen[(at / 64) as usize] &= !(1 << (at % 64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-3: a packet number is accepted once, and never when it is older than the window.
    #[test]
    fn packet_numbers_are_accepted_once() {
        let mut window = ReplayWindow::new();
        for packet in [1, 2, 5, 4, 1 << 20] {
            assert!(window.is_fresh(packet), "{packet}");
            window.mark(0, packet);
            assert!(!window.is_fresh(packet), "{packet}");
        }
        assert!(!window.is_fresh(3));
        assert!(window.is_fresh((1 << 20) - WINDOW + 1));
        assert!(!window.is_fresh((1 << 20) - WINDOW));
    }
}
