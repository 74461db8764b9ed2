//! The receiving half of a link. It accepts each slot once (L-4), keeps slots ahead of a gap (L-6), and
//! grants credit as the program consumes (L-12).

use tautline_wire::Seq;
use tautline_wire::ext::{EXT_HEADER, MAX_SACK_BYTES};

use crate::ack_timer::AckTimer;
use crate::queue::reserved_credit;
use crate::replay::ReplayWindow;

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
    /// One bit per slot from `next` on, addressed by sequence number; a ring.
    ahead: Box<[u64]>,
    ahead_count: u32,
    /// The sequence number after the farthest slot that has arrived.
    farthest: Seq,
    consumed: Seq,
    capacity: u32,
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
    pub(crate) fn new(start: Seq, capacity: u32) -> Receiver {
        let words = (capacity.next_power_of_two().max(64) / 64) as usize;
        Receiver {
            next: start,
            ahead: vec![0; words].into_boxed_slice(),
            ahead_count: 0,
            farthest: start,
            consumed: start,
            capacity,
            // What is reserved is of no use to most slots.
            low_credit: (capacity / 2).max(1 + reserved_credit(capacity)) as i32,
            worth_telling: (capacity / 4).max(1) as i32,
            advertised: start.ahead(capacity),
            duplicates: 0,
            replay: ReplayWindow::new(),
            ack: AckTimer::new(),
        }
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
        self.advertised = self.consumed.ahead(self.capacity);
        self.advertised
    }

    /// Returns whether the peer has used its credit, except what is reserved for priority slots.
    pub(crate) fn is_credit_used_up(&self) -> bool {
        let normal = self.capacity - reserved_credit(self.capacity);
        !self.next.before(self.consumed.ahead(normal))
    }

    /// Records that the program has consumed `slots` further slots. If the sender may be waiting for credit,
    /// an acknowledgement becomes due (L-12, L-26).
    #[inline]
    pub(crate) fn consume(&mut self, slots: u32) {
        self.consumed = self.consumed.ahead(slots);
        debug_assert!(!self.next.before(self.consumed), "more slots consumed than received");
        let left = self.advertised.distance(self.next);
        let fresh = self.consumed.ahead(self.capacity).distance(self.advertised);
        if left < self.low_credit && fresh >= self.worth_telling {
            self.ack.request();
        }
    }

    fn bit(&self, seq: Seq) -> (usize, u64) {
        let bits = self.ahead.len() as u32 * 64;
        let at = seq.0 & (bits - 1);
        ((at / 64) as usize, 1 << (at % 64))
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
        if !seq.before(self.consumed.ahead(self.capacity)) {
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
        self.ahead_count == 0 && self.next.before(self.consumed.ahead(self.capacity))
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
        let (word, bit) = self.bit(seq);
        if self.ahead[word] & bit != 0 {
            self.duplicates = self.duplicates.wrapping_add(1);
            return Some(Arrival::Duplicate);
        }
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
            let (word, bit) = self.bit(self.next);
            if self.ahead_count == 0 || self.ahead[word] & bit == 0 {
                return released;
            }
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
        let granted = seq.before(self.consumed.ahead(self.capacity));
        let (word, bit) = self.bit(seq);
        let arrived = distance > 0 && self.ahead[word] & bit != 0;
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
            let (word, bit) = self.bit(seq);
            if self.ahead[word] & bit != 0 {
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
        Receiver::new(Seq(u32::MAX - 2), 64)
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

    /// L-11: go-back-n keeps no slot ahead of a gap.
    #[test]
    fn go_back_n_drops_ahead() {
        let mut rx = receiver();
        assert_eq!(rx.accept(Seq(u32::MAX - 1), false), Some(Arrival::Duplicate));
        assert!(!rx.has_ahead() && rx.ack.is_immediate());
    }
}
