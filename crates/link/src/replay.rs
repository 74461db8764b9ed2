//! The replay window (L-3): accepts each packet number once, and none that is older than the window.

use crate::Nanos;

/// How many packet numbers the window covers.
const WINDOW: u64 = 4096;
const WORDS: usize = (WINDOW / 64) as usize;
/// How many it covers while the link is idle.
const FEW: u64 = 64;
/// After this many further packets a link is no longer idle.
const GROWS_AFTER: u64 = 16;

#[derive(Debug)]
pub(crate) struct ReplayWindow {
    largest: u64,
    /// When `largest` arrived.
    largest_at: Nanos,
    /// One bit per packet number up to `largest`; a ring, of one word or of [`WORDS`].
    seen: Box<[u64]>,
    /// The ring gets its full size with this packet.
    grows_at: u64,
}

impl ReplayWindow {
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow { largest: 0, largest_at: 0, seen: Box::new([0]), grows_at: GROWS_AFTER }
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
        self.largest - packet < self.seen.len() as u64 * 64 && !self.is_seen(packet)
    }

    /// Returns where the bit of a packet number is.
    #[inline]
    fn place(&self, packet: u64) -> (usize, u64) {
        ((packet / 64) as usize & (self.seen.len() - 1), 1 << (packet % 64))
    }

    #[inline]
    fn is_seen(&self, packet: u64) -> bool {
        let (word, bit) = self.place(packet);
        self.seen[word] & bit != 0
    }

    /// Marks a packet number as received.
    #[inline]
    pub(crate) fn mark(&mut self, now: Nanos, packet: u64) {
        if packet > self.largest {
            if packet - self.largest > 1 || packet >= self.grows_at {
                self.skip_to(packet);
            }
            self.largest = packet;
            self.largest_at = now;
        }
        let (word, bit) = self.place(packet);
        self.seen[word] |= bit;
    }

    #[inline]
    fn clear(&mut self, packet: u64) {
        let (word, bit) = self.place(packet);
        self.seen[word] &= !bit;
    }

    #[cold]
    fn skip_to(&mut self, packet: u64) {
        if packet >= self.grows_at {
            self.resize(WORDS);
            self.grows_at = u64::MAX;
        }
        if packet - self.largest >= WINDOW {
            self.seen.fill(0);
        } else {
            (self.largest + 1..=packet).for_each(|number| self.clear(number));
        }
    }

    /// Gives memory back, because the link is idle: older packets than the last [`FEW`] count as seen (L-3).
    pub(crate) fn shrink(&mut self) {
        if self.seen.len() > 1 {
            self.resize(1);
        }
        self.grows_at = self.largest.saturating_add(GROWS_AFTER);
    }

    /// Changes the size of the ring, and keeps what is known of the last [`FEW`] packets.
    fn resize(&mut self, words: usize) {
        let known = self.largest.saturating_sub(FEW - 1)..=self.largest;
        let fresh: Vec<u64> = known.filter(|packet| !self.is_seen(*packet)).collect();
        self.seen = vec![u64::MAX; words].into_boxed_slice();
        fresh.into_iter().for_each(|packet| self.clear(packet));
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

    /// L-3: the window of an idle link covers 64 packets. Nothing is accepted twice when it shrinks and
    /// grows, whatever comes next.
    #[test]
    fn the_window_of_an_idle_link_is_small() {
        for next in [1, 2, GROWS_AFTER, GROWS_AFTER + 40, FEW + 1, WINDOW - 1, WINDOW, 3 * WINDOW] {
            let mut window = ReplayWindow::new();
            let late = [9_000 - 3, 9_000 - 70, 9_000 - 500];
            let arrived = |packet: &u64| !late.contains(packet);
            (1..=9_000).filter(arrived).for_each(|packet| window.mark(0, packet));
            assert_eq!(window.seen.len(), WORDS);
            assert!(late.iter().all(|packet| window.is_fresh(*packet)));
            window.shrink();
            assert_eq!(window.seen.len(), 1);
            assert_eq!(late.map(|packet| window.is_fresh(packet)), [true, false, false]);
            let packet = 9_000 + next;
            assert!(window.is_fresh(packet));
            window.mark(0, packet);
            assert_eq!(window.seen.len(), if next < GROWS_AFTER { 1 } else { WORDS }, "{next}");
            for old in (1..=9_000).filter(|old| *old != 9_000 - 3) {
                assert!(!window.is_fresh(old), "{old} after {packet}");
            }
            let covered = window.seen.len() as u64 * 64;
            for between in 9_001..packet {
                assert_eq!(window.is_fresh(between), packet - between < covered, "{between} before {packet}");
            }
            assert!(!window.is_fresh(packet));
        }
    }

    /// Few packets between two times at which the link is idle need no more.
    #[test]
    fn heartbeats_leave_the_window_small() {
        let mut window = ReplayWindow::new();
        for packet in 1..1_000 {
            assert!(window.is_fresh(packet));
            window.mark(0, packet);
            if packet % 10 == 0 {
                window.shrink();
            }
            assert_eq!(window.seen.len(), 1);
        }
    }
}
