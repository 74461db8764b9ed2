//! The receiving half of a link. It accepts each slot once (L-4), keeps slots ahead of a gap (L-6), and
//! grants credit as the program consumes (L-12).

use tautline_wire::Seq;
use tautline_wire::ext::{EXT_HEADER, MAX_SACK_BYTES};

use crate::ack_timer::AckTimer;
use crate::queue::reserved_credit;
use crate::replay::ReplayWindow;

/// Shares of up to this many slots are granted again slot by slot (L-44).
const SMALL_SHARE: u32 = 8;

/// A slot in an accepted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next slot in order. The `released` slots after it, which arrived earlier, are now in order, too.
    Next {
        /// Slots after it that arrived earlier.
        released: u32,
    },
    /// A slot ahead of a gap, to be kept until it is released.
    Ahead {
        /// How far it is from the next slot in order.
        distance: u32,
    },
    /// A slot that arrived before, or that is not wanted now.
    Duplicate,
    /// Part of a slot. When all parts are there, the caller calls [`crate::Link::slot_complete`].
    Fragment {
        /// The slot.
        seq: Seq,
        /// Where in the slot the payload begins.
        offset: u32,
        /// Bytes of the whole slot.
        total: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Receiver {
    /// The next slot in order.
    next: Seq,
    /// One bit per slot from `next` on, addressed by sequence number; a ring. Empty while it is not needed.
    ahead: Box<[u64]>,
    ahead_count: u32,
    /// The sequence number after the farthest slot that has arrived.
    farthest: Seq,
    /// Slots before this one are granted.
    limit: Seq,
    /// How many slots are granted beyond those consumed, from the next frame on (L-41).
    share: u32,
    /// Slots that were granted beyond that when the share shrank, and that have not been consumed since.
    excess: u32,
    /// Slots that were consumed and not granted again, because they are few (L-44).
    pending: u32,
    /// From how many on they are granted again.
    step: u32,
    /// Whether consumed slots are not always granted again at once: there is an excess, or a step.
    is_restrained: bool,
    /// What the sender reserves of its credit (L-27).
    reserved: i32,
    /// The largest share.
    most: u32,
    /// The sender has used up its credit, and a larger share may be granted.
    wants_more: bool,
    /// A sender that has less credit left than this may be waiting for more.
    low_credit: i32,
    /// The least credit that is worth a frame of its own.
    worth_telling: i32,
    advertised: Seq,
    duplicates: u32,
    pub(crate) replay: ReplayWindow,
    pub(crate) ack: AckTimer,
}

impl Receiver {
    /// Makes the receiver of a peer that starts with a credit of `share` slots, and never has more than
    /// `most`.
    pub(crate) fn new(start: Seq, share: u32, most: u32) -> Receiver {
        let mut receiver = Receiver {
            next: start,
            ahead: Box::default(),
            ahead_count: 0,
            farthest: start,
            limit: start,
            share: 0,
            excess: 0,
            pending: 0,
            step: 0,
            is_restrained: false,
            reserved: reserved_credit(share) as i32,
            most,
            wants_more: false,
            low_credit: 0,
            worth_telling: 0,
            advertised: start.ahead(share),
            duplicates: 0,
            replay: ReplayWindow::new(),
            ack: AckTimer::new(),
        };
        receiver.set_share(share);
        receiver
    }

    /// Changes how many slots the peer may send beyond those consumed (L-41). What it was granted before
    /// stays granted.
    pub(crate) fn set_share(&mut self, share: u32) {
        let granted = (self.share + self.excess).saturating_sub(self.pending);
        self.limit = self.limit.ahead(share.saturating_sub(granted));
        self.excess = granted.saturating_sub(share);
        self.pending = 0;
        self.share = share;
        self.step = if (SMALL_SHARE + 1..self.most).contains(&share) { share / 4 } else { 0 };
        self.is_restrained = self.excess > 0 || self.step > 0;
        // What is reserved is of no use to most slots.
        self.low_credit = ((share / 2) as i32).max(1 + self.reserved);
        self.worth_telling = (share / 4).max(1) as i32;
    }

    /// Returns whether more is granted than was advertised.
    pub(crate) fn has_unannounced_credit(&self) -> bool {
        self.advertised.before(self.limit)
    }

    pub(crate) fn share(&self) -> u32 {
        self.share
    }

    /// Returns whether the peer has used up its credit since this was last asked.
    pub(crate) fn take_wants_more(&mut self) -> bool {
        std::mem::take(&mut self.wants_more)
    }

    #[inline]
    pub(crate) fn wants_more(&self) -> bool {
        self.wants_more
    }

    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    #[inline]
    pub(crate) fn has_ahead(&self) -> bool {
        self.ahead_count > 0
    }

    pub(crate) fn duplicates(&self) -> u32 {
        self.duplicates
    }

    /// Returns the credit to advertise, and records it as advertised.
    #[inline]
    pub(crate) fn advertise(&mut self) -> Seq {
        self.advertised = self.limit;
        self.advertised
    }

    /// Returns whether slots that were not consumed use up the peer's credit, except what is reserved for
    /// priority slots.
    pub(crate) fn is_credit_used_up(&self) -> bool {
        let left = self.limit.distance(self.next);
        left <= self.reserved && left + (self.pending as i32) < (self.share + self.excess) as i32
    }

    /// Records that the program has consumed `slots` further slots. If the sender may be waiting for credit,
    /// an acknowledgement becomes due (L-12, L-26).
    #[inline]
    pub(crate) fn consume(&mut self, slots: u32) {
        let granted = if self.is_restrained { self.consume_restrained(slots) } else { slots };
        self.limit = self.limit.ahead(granted);
        debug_assert!(
            self.limit.distance(self.next) <= (self.share + self.excess) as i32,
            "more slots consumed than received"
        );
        let left = self.advertised.distance(self.next);
        let fresh = self.limit.distance(self.advertised);
        if left < self.low_credit && fresh >= self.worth_telling {
            self.ack.request();
        }
    }

    /// Records that the peer requests an acknowledgement, with a slot if it has used up credit or window
    /// (L-24).
    #[inline]
    pub(crate) fn on_request(&mut self, with_slot: bool) {
        self.ack.request();
        // In a turn it has more to send only when the turn's slots are used up.
        self.wants_more |= with_slot && self.share < self.most && self.excess == 0;
    }

    /// Slots beyond the share are consumed: their room is not granted again. What is within the share is
    /// granted in steps. Returns how many are granted.
    #[cold]
    fn consume_restrained(&mut self, slots: u32) -> u32 {
        let within = slots.saturating_sub(self.excess);
        if self.excess > 0 {
            self.excess -= slots - within;
            self.wants_more |= self.limit.distance(self.next) <= self.reserved;
        }
        self.pending += within;
        let granted = if self.pending >= self.step { std::mem::take(&mut self.pending) } else { 0 };
        self.is_restrained = self.excess > 0 || self.step > 0;
        granted
    }

    /// Returns where the bit of a slot is in the ring, which must not be empty.
    fn bit(&self, seq: Seq) -> (usize, u64) {
        let bits = self.ahead.len() as u32 * 64;
        let at = seq.0 & (bits - 1);
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// Returns whether a slot after the next one in order has arrived.
    fn has_arrived(&self, seq: Seq) -> bool {
        self.has_ahead() && {
            let (word, bit) = self.bit(seq);
            self.ahead[word] & bit != 0
        }
    }

    /// Gives memory back, because the link is idle.
    pub(crate) fn shrink(&mut self) {
        if !self.has_ahead() {
            self.ahead = Box::default();
        }
        self.replay.shrink();
    }

    /// Accepts a whole slot (L-4, L-6). Returns `None` if it is beyond the credit granted.
    #[inline]
    pub(crate) fn accept(&mut self, seq: Seq, keeps_ahead: bool) -> Option<Arrival> {
        let distance = seq.distance(self.next);
        if distance < 0 {
            self.duplicates = self.duplicates.wrapping_add(1);
            self.ack.request();
            return Some(Arrival::Duplicate);
        }
        if !seq.before(self.limit) {
            return None;
        }
        if distance == 0 {
            self.take_next();
            let released = if self.ahead_count > 0 { self.release() } else { 0 };
            return Some(Arrival::Next { released });
        }
        self.accept_ahead(seq, distance as u32, keeps_ahead)
    }

    /// Returns whether [`Receiver::take_next`] may be called: nothing has arrived ahead of the next slot, and
    /// it is within the credit.
    #[inline]
    pub(crate) fn takes_next(&self) -> bool {
        self.ahead_count == 0 && self.next.before(self.limit)
    }

    /// Accepts the next slot in order.
    #[inline]
    pub(crate) fn take_next(&mut self) {
        self.next = self.next.next();
        if self.farthest.before(self.next) {
            self.farthest = self.next;
        }
    }

    #[cold]
    fn accept_ahead(&mut self, seq: Seq, distance: u32, keeps_ahead: bool) -> Option<Arrival> {
        // The sender must learn of the gap.
        self.ack.request();
        if !keeps_ahead {
            return Some(Arrival::Duplicate);
        }
        if self.has_arrived(seq) {
            self.duplicates = self.duplicates.wrapping_add(1);
            return Some(Arrival::Duplicate);
        }
        if self.ahead.is_empty() {
            self.ahead = vec![0; (self.most.next_power_of_two().max(64) / 64) as usize].into_boxed_slice();
        }
        let (word, bit) = self.bit(seq);
        self.ahead[word] |= bit;
        self.ahead_count += 1;
        if self.farthest.before(seq.next()) {
            self.farthest = seq.next();
        }
        Some(Arrival::Ahead { distance })
    }

    #[cold]
    fn release(&mut self) -> u32 {
        let mut released = 0;
        loop {
            if !self.has_arrived(self.next) {
                return released;
            }
            let (word, bit) = self.bit(self.next);
            self.ahead[word] &= !bit;
            self.ahead_count -= 1;
            self.next = self.next.next();
            released += 1;
        }
    }

    /// Returns whether a fragment is wanted: as `Fragment`, or else as `Duplicate` (L-19).
    #[cold]
    pub(crate) fn accept_fragment(
        &mut self,
        seq: Seq,
        offset: u32,
        total: u32,
        keeps_ahead: bool,
    ) -> Arrival {
        let distance = seq.distance(self.next);
        let granted = seq.before(self.limit);
        let arrived = distance > 0 && self.has_arrived(seq);
        let kept = distance == 0 || keeps_ahead;
        if distance < 0 || !granted || arrived || !kept {
            self.ack.request();
            return Arrival::Duplicate;
        }
        Arrival::Fragment { seq, offset, total }
    }

    /// Returns the length of the selective acknowledgement as an extension.
    #[cold]
    pub(crate) fn sack_len(&self) -> usize {
        (EXT_HEADER + self.sack_bytes()).next_multiple_of(4)
    }

    fn sack_bytes(&self) -> usize {
        let span = self.farthest.distance(self.next.next()).max(0) as usize;
        span.div_ceil(8).min(MAX_SACK_BYTES)
    }

    /// Returns the bitmap of slots that arrived after the next one in order.
    #[cold]
    pub(crate) fn sack(&self) -> Sack {
        let mut sack = Sack { bytes: [0; MAX_SACK_BYTES], len: self.sack_bytes() };
        for i in 0..sack.len as u32 * 8 {
            let seq = self.next.ahead(1 + i);
            if !seq.before(self.farthest) {
                break;
            }
            if self.has_arrived(seq) {
                sack.bytes[i as usize / 8] |= 1 << (i % 8);
            }
        }
        sack
    }
}

pub(crate) struct Sack {
    bytes: [u8; MAX_SACK_BYTES],
    len: usize,
}

impl Sack {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver() -> Receiver {
        Receiver::new(Seq(u32::MAX - 2), 64, 64)
    }

    /// L-4: each slot is accepted once, in any order, also when sequence numbers wrap.
    #[test]
    fn slots_are_accepted_once() {
        let mut rx = receiver();
        let s = |i: u32| Seq(u32::MAX - 2).ahead(i);
        assert_eq!(rx.accept(s(1), true), Some(Arrival::Ahead { distance: 1 }));
        assert_eq!(rx.accept(s(1), true), Some(Arrival::Duplicate));
        assert_eq!(rx.accept(s(3), true), Some(Arrival::Ahead { distance: 3 }));
        assert_eq!(rx.sack().as_slice(), [0b101]);
        assert_eq!(rx.accept(s(0), true), Some(Arrival::Next { released: 1 }));
        assert_eq!(rx.accept(s(0), true), Some(Arrival::Duplicate));
        assert_eq!(rx.sack().as_slice(), [0b1]);
        assert_eq!(rx.accept(s(2), true), Some(Arrival::Next { released: 1 }));
        assert!(!rx.has_ahead());
        assert_eq!(rx.duplicates(), 2);
    }

    /// L-12: slots beyond the credit are not accepted, and consuming grants more.
    #[test]
    fn credit_is_a_limit() {
        let mut rx = receiver();
        let s = |i: u32| Seq(u32::MAX - 2).ahead(i);
        assert_eq!(rx.accept(s(64), true), None);
        assert_eq!(rx.accept(s(0), true), Some(Arrival::Next { released: 0 }));
        rx.consume(1);
        assert_eq!(rx.accept(s(64), true), Some(Arrival::Ahead { distance: 63 }));
        assert_eq!(rx.accept(s(65), true), None);
    }

    /// L-41: a share that shrinks takes nothing back: slots that were granted are accepted, and the limit
    /// stays until no more than the share are granted. A larger share is granted at once.
    #[test]
    fn shares_change() {
        let start = Seq(u32::MAX - 2);
        let mut rx = Receiver::new(start, 8, 64);
        rx.set_share(0);
        for i in 0..8 {
            assert_eq!(rx.accept(start.ahead(i), true), Some(Arrival::Next { released: 0 }));
            assert_eq!((rx.is_credit_used_up(), rx.wants_more()), (i >= 5, false));
        }
        rx.consume(5);
        assert_eq!((rx.advertise(), rx.take_wants_more()), (start.ahead(8), true));
        rx.set_share(2);
        assert_eq!((rx.advertise(), rx.accept(start.ahead(8), true)), (start.ahead(8), None));
        rx.consume(1);
        assert_eq!(rx.advertise(), start.ahead(8));
        rx.consume(1);
        assert_eq!(rx.advertise(), start.ahead(9));
        rx.take_wants_more();
        rx.on_request(true);
        assert!(rx.take_wants_more());
        rx.set_share(64);
        assert_eq!(rx.advertise(), start.ahead(7 + 64));
        rx.consume(1);
        rx.on_request(true);
        assert!(!rx.is_credit_used_up() && !rx.wants_more());
    }

    /// L-44: a share that is neither small nor the largest is granted again in steps of a quarter.
    #[test]
    fn shares_are_granted_in_steps() {
        let start = Seq(u32::MAX - 2);
        let mut rx = Receiver::new(start, 8, 256);
        rx.set_share(40);
        for i in 0..40 {
            assert_eq!(rx.accept(start.ahead(i), true), Some(Arrival::Next { released: 0 }));
            rx.consume(1);
            assert_eq!(rx.advertise(), start.ahead(40 + (i + 1) / 10 * 10));
        }
        rx.set_share(48);
        assert_eq!(rx.advertise(), start.ahead(40 + 48));
    }

    /// L-11: go-back-n keeps no slot ahead of a gap.
    #[test]
    fn go_back_n_drops_ahead() {
        let mut rx = receiver();
        assert_eq!(rx.accept(Seq(u32::MAX - 1), false), Some(Arrival::Duplicate));
        assert!(!rx.has_ahead() && rx.ack.is_immediate());
    }
}
