//! Repair of losses, as a policy (L-11): what the evidence shows to be lost, what an expired timer means, and whether
//! slots ahead of a gap are kept.

use crate::Policy;
use crate::queue::{SendQueue, SlotState};

/// Packets that must overtake one before it counts as lost, to begin with (L-9).
pub(crate) const REORDER_MIN: u64 = 3;
/// The most that this grows to when frames prove to be reordered.
pub(crate) const REORDER_MAX: u64 = 128;

/// One way to repair losses. Both methods return the last packet found lost, if any.
pub(crate) trait Recovery {
    /// Whether a receiver keeps slots that arrive ahead of a gap.
    fn keeps_ahead(&self) -> bool;
    /// The peer has received `largest`; packets older by `reorder` that carried unacknowledged slots are lost (L-9).
    fn on_evidence(&self, queue: &mut SendQueue, largest: u64, reorder: u64) -> Option<u64>;
    /// The timer expired (L-10).
    fn on_timeout(&self, queue: &mut SendQueue);
}

pub(crate) struct SelectiveRepeat;
pub(crate) struct GoBackN;

impl Policy {
    pub(crate) fn rules(self) -> &'static dyn Recovery {
        match self {
            Policy::SelectiveRepeat => &SelectiveRepeat,
            Policy::GoBackN => &GoBackN,
        }
    }
}

impl Recovery for SelectiveRepeat {
    fn keeps_ahead(&self) -> bool {
        true
    }

    fn on_evidence(&self, queue: &mut SendQueue, largest: u64, reorder: u64) -> Option<u64> {
        let mut last = None;
        for i in 0..queue.next.distance(queue.base) as u32 {
            let seq = queue.base.ahead(i);
            let slot = *queue.slot_mut(seq);
            if slot.state != SlotState::Flying {
                continue;
            }
            if slot.packet + reorder <= largest {
                queue.lose(seq);
                last = last.max(Some(slot.packet));
            } else if !slot.resent {
                // First transmissions go out in order: all that follow are younger.
                break;
            }
        }
        last
    }

    fn on_timeout(&self, queue: &mut SendQueue) {
        // Only the oldest: it makes the peer answer, and the answer is evidence about the rest.
        for i in 0..queue.next.distance(queue.base) as u32 {
            let seq = queue.base.ahead(i);
            match queue.slot_mut(seq).state {
                SlotState::Flying => return queue.lose(seq),
                SlotState::Lost => return,
                _ => {}
            }
        }
    }
}

impl Recovery for GoBackN {
    fn keeps_ahead(&self) -> bool {
        false
    }

    fn on_evidence(&self, queue: &mut SendQueue, largest: u64, reorder: u64) -> Option<u64> {
        let front = queue.slots.front()?;
        if front.state != SlotState::Flying || front.packet + reorder > largest {
            return None;
        }
        let packet = front.packet;
        self.on_timeout(queue);
        Some(packet)
    }

    fn on_timeout(&self, queue: &mut SendQueue) {
        queue.lost.clear();
        for i in 0..queue.next.distance(queue.base) as u32 {
            let seq = queue.base.ahead(i);
            match queue.slot_mut(seq).state {
                SlotState::Flying => queue.lose(seq),
                SlotState::Lost => queue.lost.push_back(seq),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_wire::Seq;

    fn queue(n: u32) -> SendQueue {
        let mut queue = SendQueue::new(Seq(u32::MAX - 1), 100);
        for i in 0..n {
            let seq = queue.push(i, 1000);
            queue.next = seq.next();
            let slot = queue.slot_mut(seq);
            slot.packet = u64::from(i) + 1;
            slot.state = SlotState::Flying;
            queue.in_flight += crate::queue::charge(1000);
        }
        queue
    }

    /// L-9, L-11: selective repeat finds exactly the overtaken slots, go-back-n takes all from the gap on.
    #[test]
    fn evidence() {
        let mut q = queue(6);
        let second = q.base.next();
        q.acknowledge(second);
        assert_eq!(SelectiveRepeat.on_evidence(&mut q, 6, 3), Some(3));
        let lost: Vec<_> = q.lost.iter().map(|s| s.distance(q.base)).collect();
        assert_eq!(lost, [0, 2]);

        let mut q = queue(6);
        assert_eq!(GoBackN.on_evidence(&mut q, 3, 3), None);
        assert_eq!(GoBackN.on_evidence(&mut q, 4, 3), Some(1));
        assert_eq!(q.lost.len(), 6);
        assert_eq!(q.in_flight, 0);
    }

    /// L-10: an expired timer repeats the oldest slot, or everything, and never the same slot twice at once.
    #[test]
    fn timeout() {
        let mut q = queue(4);
        SelectiveRepeat.on_timeout(&mut q);
        SelectiveRepeat.on_timeout(&mut q);
        assert_eq!(q.lost.len(), 1);
        let mut q = queue(4);
        GoBackN.on_timeout(&mut q);
        GoBackN.on_timeout(&mut q);
        assert_eq!(q.lost.len(), 4);
    }
}
