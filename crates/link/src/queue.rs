//! The queue of slots that are to be sent, or sent and not yet acknowledged.

use std::collections::VecDeque;

use tautline_wire::Seq;

use crate::Token;

/// What a frame costs the receiving host beside its bytes; the kernel's bookkeeping for a datagram, roughly.
pub(crate) fn charge(len: u32) -> u32 {
    if len < 512 { 768 } else { len + 320 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Waiting,
    Flying,
    Lost,
    Done,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) token: Token,
    pub(crate) len: u32,
    /// The packet that carried it last.
    pub(crate) packet: u64,
    pub(crate) state: SlotState,
    pub(crate) resent: bool,
    /// It overtakes, and may use the last of the credit.
    pub(crate) ahead: bool,
}

/// What is kept of a credit for slots that overtake (L-12).
pub(crate) fn kept(credit: u32) -> u32 {
    (credit / 4).min(8)
}

/// Slots from the oldest unacknowledged one to the newest.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) slots: VecDeque<Slot>,
    /// Sequence number of `slots[0]`.
    pub(crate) base: Seq,
    /// The first slot never sent.
    pub(crate) next: Seq,
    /// Slots before this one may be sent: those that overtake, and all others.
    pub(crate) credit: Seq,
    pub(crate) room: Seq,
    kept: u32,
    /// Slots that overtake and were never sent.
    pub(crate) waiting_ahead: u32,
    /// Charged bytes of slots in state flying.
    pub(crate) in_flight: u32,
    pub(crate) lost: VecDeque<Seq>,
    /// A slot that is being sent in fragments, and how far that has come.
    pub(crate) fragmenting: Option<(Seq, u32)>,
    /// The next slot that overtakes comes no earlier than this.
    overtake: Seq,
}

impl SendQueue {
    pub(crate) fn new(start: Seq, credit: u32) -> SendQueue {
        SendQueue {
            slots: VecDeque::with_capacity(64),
            base: start,
            next: start,
            credit: start.ahead(credit),
            room: start.ahead(credit - kept(credit)),
            kept: kept(credit),
            waiting_ahead: 0,
            in_flight: 0,
            // Repairs allocate nothing, either.
            lost: VecDeque::with_capacity(credit.min(1024) as usize),
            fragmenting: None,
            overtake: start,
        }
    }

    /// As [`SendQueue::push`], but in front of those that wait; only every other slot overtakes, so that all get on (W-6).
    pub(crate) fn push_ahead(&mut self, token: Token, len: u32) -> Seq {
        let first = if self.next.before(self.overtake) { self.overtake } else { self.next };
        let at = (first.distance(self.base) as u32).min(self.slots.len() as u32);
        let slot = Slot { token, len, packet: 0, state: SlotState::Waiting, resent: false, ahead: true };
        self.slots.insert(at as usize, slot);
        self.waiting_ahead += 1;
        self.overtake = self.base.ahead(at + 2);
        self.base.ahead(at)
    }

    /// The peer grants more.
    #[inline]
    pub(crate) fn grant(&mut self, credit: Seq) {
        self.credit = credit;
        self.room = Seq(credit.0.wrapping_sub(self.kept));
    }

    /// There is no credit left for the next slot, unless it is one that overtakes: the first of those comes to the front, if there is one. Whoever waits
    /// for it may be the one that could grant more. Returns whether it can go.
    #[cold]
    pub(crate) fn find_ahead(&mut self) -> bool {
        if self.waiting_ahead == 0 || !self.next.before(self.credit) {
            return false;
        }
        let next = self.next.distance(self.base) as usize;
        let Some(at) = self.slots.range(next..).position(|slot| slot.ahead) else { return false };
        let slot = self.slots.remove(next + at).expect("found above");
        self.slots.insert(next, slot);
        true
    }

    pub(crate) fn push(&mut self, token: Token, len: u32) -> Seq {
        let seq = self.end();
        self.slots.push_back(Slot {
            token,
            len,
            packet: 0,
            state: SlotState::Waiting,
            resent: false,
            ahead: false,
        });
        seq
    }

    /// One past the newest slot.
    #[inline]
    pub(crate) fn end(&self) -> Seq {
        self.base.ahead(self.slots.len() as u32)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.end().distance(self.next) as usize
    }

    /// Nothing waits to be sent, for the first time or again.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.next == self.end() && self.lost.is_empty() && self.fragmenting.is_none()
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, seq: Seq) -> &mut Slot {
        &mut self.slots[seq.distance(self.base) as usize]
    }

    /// Slots have been sent that are neither acknowledged nor known to be lost.
    pub(crate) fn flying(&self) -> bool {
        self.in_flight > 0
    }

    /// Marks a flying slot lost; it will be sent again.
    pub(crate) fn lose(&mut self, seq: Seq) {
        let slot = self.slot_mut(seq);
        if slot.state == SlotState::Flying {
            slot.state = SlotState::Lost;
            self.in_flight -= charge(self.slot_mut(seq).len);
            // Oldest first: on a path that drops the tail of every burst, whatever comes first arrives.
            let at = self.lost.iter().rposition(|&other| other.before(seq)).map_or(0, |before| before + 1);
            self.lost.insert(at, seq);
        }
    }

    /// A slot was acknowledged; returns its token and charge if that is news.
    #[inline]
    pub(crate) fn acknowledge(&mut self, seq: Seq) -> Option<(Token, u32)> {
        let slot = self.slot_mut(seq);
        let (token, cost, state) = (slot.token, charge(slot.len), slot.state);
        match state {
            SlotState::Done | SlotState::Waiting => return None,
            SlotState::Flying => self.in_flight -= cost,
            SlotState::Lost => {}
        }
        self.slot_mut(seq).state = SlotState::Done;
        Some((token, cost))
    }

    pub(crate) fn drain(&mut self, mut free: impl FnMut(Token)) {
        for slot in self.slots.drain(..) {
            if slot.state != SlotState::Done {
                free(slot.token);
            }
        }
        self.waiting_ahead = 0;
        self.base = self.next;
        self.overtake = self.next;
        self.in_flight = 0;
        self.lost.clear();
        self.fragmenting = None;
    }

    pub(crate) fn next_lost(&mut self) -> Option<Seq> {
        while let Some(&seq) = self.lost.front() {
            if !seq.before(self.base) && self.slot_mut(seq).state == SlotState::Lost {
                return Some(seq);
            }
            self.lost.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-12: what overtakes goes on when there is no credit for anything else, in order, until there is none at all.
    #[test]
    fn the_last_credit_is_kept() {
        let mut queue = SendQueue::new(Seq(u32::MAX - 3), 16);
        assert_eq!(queue.room, Seq(u32::MAX - 3).ahead(12));
        (0..20).for_each(|token| _ = queue.push(token, 1));
        queue.next = queue.room;
        assert!(!queue.find_ahead());
        (30..36).for_each(|token| _ = queue.push_ahead(token, 1));
        for token in 30..34 {
            assert!(queue.find_ahead(), "{token}");
            assert_eq!(queue.slot_mut(queue.next).token, token);
            queue.next = queue.next.next();
        }
        assert!(!queue.find_ahead());
        queue.grant(queue.credit.ahead(4));
        assert_eq!((queue.next, queue.find_ahead()), (queue.room, true));
        let order: Vec<_> = queue.slots.iter().map(|slot| slot.token).filter(|token| *token < 30).collect();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
        // With hardly any credit none is kept.
        assert_eq!(SendQueue::new(Seq(0), 3).room, Seq(3));
    }

    /// W-6: what overtakes goes in front of what was never sent, with one of the others between it and the next.
    #[test]
    fn every_other_slot_overtakes() {
        let mut queue = SendQueue::new(Seq(u32::MAX - 3), 64);
        (0..4).for_each(|token| _ = queue.push(token, 1));
        queue.next = queue.next.next();
        (10..14).for_each(|token| _ = queue.push_ahead(token, 1));
        let order = |queue: &SendQueue| queue.slots.iter().map(|slot| slot.token).collect::<Vec<_>>();
        assert_eq!(order(&queue), [0, 10, 1, 11, 2, 12, 3, 13]);
        // When those are on their way, the next one is the first again.
        queue.next = queue.end();
        (20..23).for_each(|token| _ = queue.push(token, 1));
        queue.next = queue.next.next();
        queue.push_ahead(14, 1);
        assert_eq!(order(&queue)[8..], [20, 14, 21, 22]);
    }
}
