//! The send queue: slots that are unsent, or sent and not yet acknowledged.

use std::collections::VecDeque;
use std::ops::Range;

use tautline_wire::Seq;

use crate::Token;

/// Returns what a frame counts in the congestion window: about what it takes up in the receiver's socket
/// buffer, with the kernel's overhead per datagram.
pub(crate) fn charge(len: u32) -> u32 {
    if len < 512 { 768 } else { len + 320 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Unsent,
    InFlight,
    Lost,
    Acknowledged,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) token: Token,
    pub(crate) len: u32,
    /// The packet that carried it last.
    pub(crate) packet: u64,
    pub(crate) state: SlotState,
    pub(crate) resent: bool,
    /// How often its first fragment has been sent.
    fragmented: u8,
    /// The slot goes in front of unsent ones, and may use the reserved credit.
    priority: bool,
}

/// What is left of a slot that is being sent in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragmenting {
    pub(crate) seq: Seq,
    /// Where the next fragment begins; after the end of the slot comes its beginning.
    at: u32,
    /// Bytes that are left.
    left: u32,
}

/// Returns how much of a credit is reserved for priority slots (L-27). One slot is left for the others.
pub(crate) fn reserved_credit(credit: u32) -> u32 {
    (credit / 4).clamp(1, 8).min(credit.saturating_sub(1))
}

/// Slots from the oldest unacknowledged one to the newest.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: VecDeque<Slot>,
    /// Sequence number of `slots[0]`.
    base: Seq,
    /// The first slot never sent.
    next: Seq,
    /// Priority slots before this one may be sent.
    credit: Seq,
    /// Other slots before this one may be sent.
    normal_credit: Seq,
    reserved: u32,
    /// Priority slots that were never sent.
    priority_unsent: u32,
    /// Priority slots that were sent; those before `base` are removed when others are looked for.
    priority_sent: VecDeque<Seq>,
    /// The next priority slot is inserted here at the earliest.
    priority_from: Seq,
    /// Charged bytes of slots in flight.
    in_flight: u32,
    lost: VecDeque<Seq>,
    /// A slot that is being sent in fragments.
    fragmenting: Option<Fragmenting>,
    /// Tokens of slots that are no longer needed.
    freed: Vec<Token>,
    /// Slots that were not acknowledged when the link ended, with their lengths.
    abandoned: Box<[(Token, u32)]>,
}

impl SendQueue {
    pub(crate) fn new(start: Seq, credit: u32) -> SendQueue {
        SendQueue {
            slots: VecDeque::new(),
            base: start,
            next: start,
            credit: start.ahead(credit),
            normal_credit: start.ahead(credit - reserved_credit(credit)),
            reserved: reserved_credit(credit),
            priority_unsent: 0,
            priority_sent: VecDeque::new(),
            priority_from: start,
            in_flight: 0,
            lost: VecDeque::new(),
            fragmenting: None,
            freed: Vec::new(),
            abandoned: Box::default(),
        }
    }

    /// Gives memory back, if nothing is queued.
    pub(crate) fn shrink(&mut self) {
        if self.slots.is_empty() {
            self.slots = VecDeque::new();
            self.lost = VecDeque::new();
            self.freed.shrink_to_fit();
        }
    }

    pub(crate) fn push(&mut self, token: Token, len: u32) -> Seq {
        let seq = self.end();
        self.slots.push_back(Slot {
            token,
            len,
            packet: 0,
            state: SlotState::Unsent,
            resent: false,
            fragmented: 0,
            priority: false,
        });
        seq
    }

    /// Adds a slot in front of the unsent ones. At least one other slot goes between two priority slots, so
    /// that all make progress (W-12).
    pub(crate) fn push_priority(&mut self, token: Token, len: u32) -> Seq {
        let first = if self.next.before(self.priority_from) { self.priority_from } else { self.next };
        let at = (first.distance(self.base) as u32).min(self.slots.len() as u32);
        self.slots.insert(
            at as usize,
            Slot {
                token,
                len,
                packet: 0,
                state: SlotState::Unsent,
                resent: false,
                fragmented: 0,
                priority: true,
            },
        );
        self.priority_unsent += 1;
        self.priority_from = self.base.ahead(at + 2);
        self.base.ahead(at)
    }

    /// Raises the credit.
    #[inline]
    pub(crate) fn grant(&mut self, credit: Seq) {
        self.credit = credit;
        self.normal_credit = Seq(credit.0.wrapping_sub(self.reserved));
    }

    #[inline]
    pub(crate) fn credit(&self) -> Seq {
        self.credit
    }

    /// Returns whether there is credit for the next slot, priority or not.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.next.before(self.normal_credit)
    }

    /// Returns the next slot to be sent for the first time, and counts it as sent. The caller has checked
    /// that there is one, and that there is credit for it.
    #[inline]
    pub(crate) fn take_next(&mut self) -> Seq {
        let seq = self.next;
        self.next = seq.next();
        if self.priority_unsent > 0 && self.slot_mut(seq).priority {
            self.note_priority_sent(seq);
        }
        seq
    }

    #[cold]
    fn note_priority_sent(&mut self, seq: Seq) {
        self.priority_unsent -= 1;
        self.prune_priority_sent();
        self.priority_sent.push_back(seq);
    }

    /// Forgets priority slots that were acknowledged.
    fn prune_priority_sent(&mut self) {
        while self.priority_sent.front().is_some_and(|seq| seq.before(self.base)) {
            self.priority_sent.pop_front();
        }
    }

    /// Returns whether there is credit for the next slot where [`SendQueue::has_credit`] says that there is
    /// none: priority slots use the reserved credit, and those in flight, which the peer consumes at once,
    /// use nothing of the other credit (L-35). One is moved to the front only if the next slot must wait.
    #[cold]
    pub(crate) fn has_reserved_credit(&mut self) -> bool {
        self.prune_priority_sent();
        let in_flight = self.priority_sent.len() as u32;
        let due = self.next.before(self.normal_credit.ahead(in_flight)) && self.next.before(self.credit);
        due || self.promote_priority()
    }

    /// Adds a slot that is sent now as `packet`. The queue must be idle.
    #[inline]
    pub(crate) fn push_in_flight(&mut self, token: Token, len: u32, packet: u64) -> Seq {
        let seq = self.next;
        let state = SlotState::InFlight;
        self.slots.push_back(Slot {
            token,
            len,
            packet,
            state,
            resent: false,
            fragmented: 0,
            priority: false,
        });
        self.in_flight += charge(len);
        self.next = seq.next();
        seq
    }

    /// Moves the first unsent priority slot in front of the other unsent slots. It may use the reserved
    /// credit, and the peer may need it before it grants more. Returns whether there is a priority slot and
    /// credit for it.
    fn promote_priority(&mut self) -> bool {
        if self.priority_unsent == 0 || !self.next.before(self.credit) {
            return false;
        }
        let next = self.next.distance(self.base) as usize;
        let Some(at) = self.slots.range(next..).position(|slot| slot.priority) else { return false };
        let slot = self.slots.remove(next + at).expect("found above");
        self.slots.insert(next, slot);
        true
    }

    /// Returns the sequence number of the oldest slot.
    #[inline]
    pub(crate) fn base(&self) -> Seq {
        self.base
    }

    /// Returns the first slot that was never sent.
    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    /// Returns the sequence number after the newest slot.
    #[inline]
    pub(crate) fn end(&self) -> Seq {
        self.base.ahead(self.slots.len() as u32)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.end().distance(self.next) as usize
    }

    /// Returns whether no slot waits to be sent, for the first time or again.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.next == self.end() && self.lost.is_empty() && self.fragmenting.is_none()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Slot> {
        self.slots.front()
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, seq: Seq) -> &mut Slot {
        &mut self.slots[seq.distance(self.base) as usize]
    }

    /// Iterates over the slots that were sent at least once, oldest first.
    pub(crate) fn sent(&self) -> impl Iterator<Item = Seq> + use<> {
        let base = self.base;
        (0..self.next.distance(base) as u32).map(move |i| base.ahead(i))
    }

    /// Returns the charge of slots that were sent and are neither acknowledged nor counted as lost.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    #[inline]
    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Charges a slot that is sent now as `packet`. Returns its token and length.
    #[inline]
    pub(crate) fn mark_in_flight(&mut self, seq: Seq, packet: u64) -> (Token, u32) {
        let slot = self.slot_mut(seq);
        slot.state = SlotState::InFlight;
        slot.packet = packet;
        let (token, len) = (slot.token, slot.len);
        self.in_flight += charge(len);
        (token, len)
    }

    /// Marks a slot in flight as lost, to be resent.
    pub(crate) fn mark_lost(&mut self, seq: Seq) {
        let slot = self.slot_mut(seq);
        if slot.state == SlotState::InFlight {
            slot.state = SlotState::Lost;
            self.in_flight -= charge(self.slot_mut(seq).len);
            // Oldest first: a path that drops the tail of every burst delivers what comes first.
            let at = self.lost.iter().rposition(|&other| other.before(seq)).map_or(0, |before| before + 1);
            self.lost.insert(at, seq);
        }
    }

    /// Marks all slots that were sent and are not acknowledged as lost.
    pub(crate) fn mark_all_lost(&mut self) {
        self.lost.clear();
        for seq in self.sent() {
            match self.slot_mut(seq).state {
                SlotState::InFlight => self.mark_lost(seq),
                SlotState::Lost => self.lost.push_back(seq),
                _ => {}
            }
        }
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(crate) fn lost_len(&self) -> usize {
        self.lost.len()
    }

    /// Removes the first slot that is still lost.
    pub(crate) fn take_lost(&mut self) -> Option<Seq> {
        while let Some(seq) = self.lost.pop_front() {
            if !seq.before(self.base) && self.slot_mut(seq).state == SlotState::Lost {
                return Some(seq);
            }
        }
        None
    }

    #[inline]
    pub(crate) fn is_fragmenting(&self) -> bool {
        self.fragmenting.is_some()
    }

    /// Begins to send a slot in fragments with `room` bytes each; each time another one is the first (L-19).
    pub(crate) fn begin_fragments(&mut self, seq: Seq, room: u32) -> Fragmenting {
        let slot = self.slot_mut(seq);
        let first = u32::from(slot.fragmented) % slot.len.div_ceil(room);
        slot.fragmented = slot.fragmented.wrapping_add(1);
        Fragmenting { seq, at: first * room, left: slot.len }
    }

    /// Returns the bytes of the next fragment, and remembers what is left.
    pub(crate) fn next_fragment(&mut self, rest: Fragmenting, room: u32) -> Range<u32> {
        let Fragmenting { seq, at, left } = rest;
        let len = self.slot_mut(seq).len;
        let end = len.min(at + room.min(left));
        let left = left - (end - at);
        self.fragmenting = (left > 0).then_some(Fragmenting { seq, at: end % len, left });
        at..end
    }

    /// Returns what is left to be sent in fragments, if its slot is still in flight.
    pub(crate) fn take_fragmenting(&mut self) -> Option<Fragmenting> {
        let rest = self.fragmenting.take()?;
        let needed = !rest.seq.before(self.base) && self.slot_mut(rest.seq).state == SlotState::InFlight;
        needed.then_some(rest)
    }

    /// Acknowledges every slot before `ack`. Returns the charge of those newly acknowledged.
    #[inline]
    pub(crate) fn acknowledge_until(&mut self, ack: Seq) -> u32 {
        let mut charged = 0;
        while self.base != ack
            && let Some(slot) = self.slots.pop_front()
        {
            self.base = self.base.next();
            charged += self.release(slot);
        }
        charged
    }

    /// Acknowledges one slot. Returns its charge if it was not acknowledged before.
    #[inline]
    pub(crate) fn acknowledge(&mut self, seq: Seq) -> u32 {
        let slot = self.slot_mut(seq);
        let before = *slot;
        if before.state != SlotState::Unsent {
            slot.state = SlotState::Acknowledged;
        }
        self.release(before)
    }

    /// Frees the token of a slot that is acknowledged now. Returns its charge.
    #[inline]
    fn release(&mut self, slot: Slot) -> u32 {
        let cost = charge(slot.len);
        match slot.state {
            SlotState::Acknowledged | SlotState::Unsent => return 0,
            SlotState::InFlight => self.in_flight -= cost,
            SlotState::Lost => {}
        }
        self.freed.push(slot.token);
        cost
    }

    /// Removes all slots and frees their tokens.
    pub(crate) fn clear(&mut self) {
        let mut abandoned = std::mem::take(&mut self.abandoned).into_vec();
        let before = abandoned.len();
        let left = self.slots.drain(..).filter(|slot| slot.state != SlotState::Acknowledged);
        abandoned.extend(left.map(|slot| (slot.token, slot.len)));
        self.freed.extend(abandoned[before..].iter().map(|(token, _)| *token));
        self.abandoned = abandoned.into();
        self.priority_unsent = 0;
        self.base = self.next;
        self.priority_from = self.next;
        self.in_flight = 0;
        self.lost.clear();
        self.fragmenting = None;
    }

    /// Iterates over the tokens and lengths of all slots that are not acknowledged, or were not when the
    /// queue was cleared.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = (Token, u32)> {
        let waiting = self.slots.iter().filter(|slot| slot.state != SlotState::Acknowledged);
        waiting.map(|slot| (slot.token, slot.len)).chain(self.abandoned.iter().copied())
    }

    #[inline]
    pub(crate) fn poll_freed(&mut self) -> Option<Token> {
        self.freed.pop()
    }

    #[inline]
    pub(crate) fn freed_len(&self) -> usize {
        self.freed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-19: the fragments cover a slot, and each time that it is sent another one is the first.
    #[test]
    fn fragments_take_turns_to_be_the_first() {
        for (len, room) in [(4_000, 1_000), (4_001, 1_000), (3_999, 1_000), (1_001, 1_000)] {
            let mut queue = SendQueue::new(Seq(7), 16);
            let seq = queue.push(0, len);
            queue.take_next();
            queue.mark_in_flight(seq, 1);
            let count = len.div_ceil(room);
            for turn in 0..300 {
                let mut rest = Some(queue.begin_fragments(seq, room));
                let mut parts = Vec::new();
                while let Some(next) = rest {
                    parts.push(queue.next_fragment(next, room));
                    rest = queue.take_fragmenting();
                }
                assert_eq!(parts[0].start, turn % 256 % count * room);
                parts.sort_by_key(|part| part.start);
                let bytes: Vec<u32> = parts.into_iter().flatten().collect();
                assert_eq!(bytes, (0..len).collect::<Vec<_>>());
            }
        }
    }

    /// L-27: priority slots are sent when there is no credit for others, in order, until there is none at
    /// all.
    #[test]
    fn the_last_credit_is_reserved() {
        let mut queue = SendQueue::new(Seq(u32::MAX - 3), 16);
        assert_eq!(queue.normal_credit, Seq(u32::MAX - 3).ahead(12));
        (0..20).for_each(|token| _ = queue.push(token, 1));
        queue.next = queue.normal_credit;
        assert!(!queue.promote_priority());
        (30..36).for_each(|token| _ = queue.push_priority(token, 1));
        for token in 30..34 {
            assert!(queue.promote_priority(), "{token}");
            assert_eq!(queue.slot_mut(queue.next).token, token);
            queue.next = queue.next.next();
        }
        assert!(!queue.promote_priority());
        queue.grant(queue.credit.ahead(4));
        assert_eq!((queue.next, queue.promote_priority()), (queue.normal_credit, true));
        let order: Vec<_> = queue.slots.iter().map(|slot| slot.token).filter(|token| *token < 30).collect();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
        for (credit, normal) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (256, 248)] {
            assert_eq!(SendQueue::new(Seq(0), credit).normal_credit, Seq(normal));
        }
    }

    /// L-27, L-35: priority slots in flight, however many follow them, do not keep other slots from their
    /// part of the credit, and the other slots leave the reserved credit alone.
    #[test]
    fn priority_slots_starve_no_others() {
        for credit in [2, 3, 4, 8, 64] {
            let mut queue = SendQueue::new(Seq(u32::MAX - 3), credit);
            let (mut normal, mut priority) = (0, 0);
            (0..300).for_each(|token| _ = queue.push(token, 1));
            // The peer consumes priority slots alone, each a round trip after it was sent.
            for round in 0..300 {
                (0..credit).for_each(|_| _ = queue.push_priority(1_000, 1));
                while queue.has_credit() || queue.has_reserved_credit() {
                    let seq = queue.take_next();
                    let first = queue.slot_mut(seq).priority;
                    (normal, priority) = (normal + u32::from(!first), priority + u32::from(first));
                }
                assert!(priority > round, "credit {credit}: there is always room for a priority slot");
                queue.base = queue.next;
                queue
                    .slots
                    .drain(..queue.slots.len() - (300 - normal as usize) - queue.priority_unsent as usize);
                queue.grant(Seq(u32::MAX - 3).ahead(credit + priority));
            }
            assert_eq!(normal, credit - reserved_credit(credit), "credit {credit}");
        }
    }

    /// W-12: priority slots go in front of unsent ones, with one other slot between two of them.
    #[test]
    fn every_other_slot_has_priority() {
        let mut queue = SendQueue::new(Seq(u32::MAX - 3), 64);
        (0..4).for_each(|token| _ = queue.push(token, 1));
        queue.next = queue.next.next();
        (10..14).for_each(|token| _ = queue.push_priority(token, 1));
        let order = |queue: &SendQueue| queue.slots.iter().map(|slot| slot.token).collect::<Vec<_>>();
        assert_eq!(order(&queue), [0, 10, 1, 11, 2, 12, 3, 13]);
        // When those have been sent, the next one is the first again.
        queue.next = queue.end();
        (20..23).for_each(|token| _ = queue.push(token, 1));
        queue.next = queue.next.next();
        queue.push_priority(14, 1);
        assert_eq!(order(&queue)[8..], [20, 14, 21, 22]);
    }
}
