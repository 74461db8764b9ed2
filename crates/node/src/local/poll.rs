//! In which order and how often the rings of local peers are polled.

use crate::Rank;

/// The datagram device is polled once for so many polls of the rings that found something.
const DEVICE_EVERY: u32 = 64;
/// Polls of the fast path before everything else has its turn.
const FAST_POLLS: u32 = 256;
/// The same while a message waits for its receiver's window.
const FEW_FAST_POLLS: u32 = 8;
/// Finds in close succession that make a burst.
const BURST: u32 = 8;
/// Spins of a receiver that has caught up with a burst.
const PAUSE: u32 = 3;

/// The polling state of a lane's rings.
#[derive(Debug, Default)]
pub(crate) struct ShmPoll {
    /// Peers that memory is shared with.
    active: Vec<Rank>,
    /// The place in `active` that is polled first.
    turn: usize,
    /// Polls until the datagram device is polled again.
    until_device: u32,
    /// Fast polls until everything else has its turn.
    budget: u32,
    /// Finds in close succession, and vain polls since the last one.
    burst: u32,
    vain: u32,
    /// Peers have been told that this node sleeps.
    pub(crate) asleep: bool,
}

impl ShmPoll {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.active.len()
    }

    /// The peers that memory is shared with.
    #[inline]
    pub(crate) fn active(&self) -> &[Rank] {
        &self.active
    }

    pub(crate) fn add(&mut self, rank: Rank) {
        self.active.push(rank);
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        self.active.retain(|active| *active != rank);
    }

    pub(crate) fn take_all(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.active)
    }

    /// The place of the peer that is polled after `i` others.
    #[inline(always)]
    pub(crate) fn place(&self, i: usize) -> usize {
        let count = self.active.len();
        // The turn may be one past the last, and peers may have gone since.
        let first = if self.turn < count { self.turn } else { 0 };
        if first + i < count { first + i } else { (first + i).saturating_sub(count) }
    }

    /// The peer at a place; peers may have gone since the place was worked out.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize) -> Option<Rank> {
        self.active.get(place).copied()
    }

    /// The peer at `place` was found last, and is polled last.
    #[inline]
    pub(crate) fn found_at(&mut self, place: usize) {
        self.turn = place + 1;
    }

    /// The next peer is polled first.
    #[inline]
    pub(crate) fn next_turn(&mut self) {
        self.turn = self.place(1);
    }

    /// Whether the fast path may poll. If not, everything else has its turn first.
    #[inline]
    pub(crate) fn may_poll_fast(&mut self, others_wait: bool) -> bool {
        if others_wait || self.asleep || self.budget == 0 {
            self.budget = FAST_POLLS;
            return false;
        }
        self.budget -= 1;
        true
    }

    /// A message waits for its receiver's window, which the fast path does not look for.
    pub(crate) fn poll_slowly_soon(&mut self) {
        self.budget = self.budget.min(FEW_FAST_POLLS);
    }

    /// Waits a moment for a sender that is sending one small frame after the other, if that is so. A receiver
    /// that reads the line all the time that is being written makes it travel to and fro for every word.
    #[inline]
    pub(crate) fn spin_pause(&self) -> bool {
        let bursting = self.burst > BURST;
        if bursting {
            for _ in 0..PAUSE {
                std::hint::spin_loop();
            }
        }
        bursting
    }

    /// A poll found frames, or did not.
    #[inline]
    pub(crate) fn note(&mut self, found: bool) {
        if found {
            self.burst = if self.vain <= 2 { self.burst.saturating_add(1) } else { 0 };
            self.vain = 0;
        } else {
            self.note_vain();
        }
    }

    /// A poll found nothing.
    #[inline]
    pub(crate) fn note_vain(&mut self) {
        self.vain = self.vain.saturating_add(1);
    }

    /// Whether the datagram device is polled now, after `found` frames were found in rings.
    #[inline]
    pub(crate) fn is_device_due(&mut self, found: usize, has_links: bool) -> bool {
        let due = self.until_device == 0 || found == 0 && has_links;
        self.until_device = if due { DEVICE_EVERY } else { self.until_device - 1 };
        due
    }

    /// The next poll that is not a fast one polls the datagram device.
    pub(crate) fn poll_device_soon(&mut self) {
        self.until_device = 0;
    }

    /// The next poll is not a fast one, and polls the datagram device.
    pub(crate) fn poll_device_next(&mut self) {
        self.until_device = 0;
        self.budget = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each peer is polled once per round, the one found last comes last, and peers that go do not disturb
    /// that.
    #[test]
    fn turns_are_fair() {
        let mut poll = ShmPoll::default();
        [5, 6, 7].iter().for_each(|rank| poll.add(*rank));
        let round =
            |poll: &ShmPoll| (0..poll.len()).filter_map(|i| poll.at(poll.place(i))).collect::<Vec<_>>();
        assert_eq!(round(&poll), [5, 6, 7]);
        poll.found_at(0);
        assert_eq!(round(&poll), [6, 7, 5]);
        poll.found_at(2);
        assert_eq!(round(&poll), [5, 6, 7]);
        poll.found_at(1);
        poll.remove(7);
        assert_eq!(round(&poll), [5, 6]);
        poll.remove(5);
        poll.remove(6);
        assert_eq!(round(&poll), []);
    }

    /// N-3: however busy the rings are, everything else has its turn.
    #[test]
    fn the_fast_path_yields() {
        let mut poll = ShmPoll::default();
        poll.add(1);
        assert!(!poll.may_poll_fast(false), "the first poll is a whole one");
        assert_eq!((0..).take_while(|_| poll.may_poll_fast(false)).count(), FAST_POLLS as usize);
        assert!(!poll.may_poll_fast(true));
        assert!(poll.is_device_due(1, true), "the first poll");
        assert_eq!((0..).take_while(|_| !poll.is_device_due(1, true)).count(), DEVICE_EVERY as usize);
        assert!(poll.is_device_due(0, true));
        assert!(!poll.is_device_due(0, false));
        assert!(poll.may_poll_fast(false));
        poll.poll_device_next();
        assert!(!poll.may_poll_fast(false) && poll.is_device_due(0, false));
        poll.poll_slowly_soon();
        assert_eq!((0..).take_while(|_| poll.may_poll_fast(false)).count(), FEW_FAST_POLLS as usize);
    }
}
