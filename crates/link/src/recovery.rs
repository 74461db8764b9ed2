//! Recovery policies (L-11): which slots count as lost, by evidence or when the timer expires, and whether
//! slots ahead of a gap are kept.

use crate::RecoveryPolicy;
use crate::queue::{SendQueue, SlotState};

/// The initial and smallest reorder threshold (L-9).
const REORDER_MIN: u64 = 3;
/// The largest reorder threshold.
const REORDER_MAX: u64 = 128;

/// A recovery policy.
pub(crate) trait Recovery {
    /// Returns whether a receiver keeps slots that arrive ahead of a gap.
    fn keeps_ahead(&self) -> bool;
    /// Marks slots as lost whose packet number is at least `threshold` below `largest`, the largest that the
    /// peer has received (L-9). Returns the last packet found lost, if any.
    fn on_evidence(&self, queue: &mut SendQueue, largest: u64, threshold: u64) -> Option<u64>;
    /// Marks slots as lost when the timer expires (L-10).
    fn on_timeout(&self, queue: &mut SendQueue);
}

pub(crate) struct SelectiveRepeat;
pub(crate) struct GoBackN;

impl RecoveryPolicy {
    pub(crate) fn rules(self) -> &'static dyn Recovery {
        match self {
            RecoveryPolicy::SelectiveRepeat => &SelectiveRepeat,
            RecoveryPolicy::GoBackN => &GoBackN,
        }
    }
}

impl Recovery for SelectiveRepeat {
    fn keeps_ahead(&self) -> bool {
        true
    }

    fn on_evidence(&self, queue: &mut SendQueue, largest: u64, threshold: u64) -> Option<u64> {
        let mut last = None;
        for seq in queue.sent() {
            let slot = *queue.slot_mut(seq);
            if slot.state != SlotState::InFlight {
                continue;
            }
            if slot.packet + threshold <= largest {
                queue.mark_lost(seq);
                last = last.max(Some(slot.packet));
            } else if !slot.resent {
                // First transmissions are sent in order, so the packets of all further slots are newer.
                break;
            }
        }
        last
    }

    fn on_timeout(&self, queue: &mut SendQueue) {
        // Only the oldest: it makes the peer answer, and the answer shows what became of the rest.
        for seq in queue.sent() {
            match queue.slot_mut(seq).state {
                SlotState::InFlight => return queue.mark_lost(seq),
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

    fn on_evidence(&self, queue: &mut SendQueue, largest: u64, threshold: u64) -> Option<u64> {
        let front = queue.front()?;
        if front.state != SlotState::InFlight || front.packet + threshold > largest {
            return None;
        }
        let packet = front.packet;
        queue.mark_all_lost();
        Some(packet)
    }

    fn on_timeout(&self, queue: &mut SendQueue) {
        queue.mark_all_lost();
    }
}

/// How many later packets must arrive before a packet counts as lost (L-9). The threshold grows when slots
/// were resent without need, and falls when the timer expires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReorderThreshold {
    packets: u64,
    /// The peer's count of duplicate slots.
    peer_duplicates: u32,
}

impl ReorderThreshold {
    pub(crate) fn new() -> ReorderThreshold {
        ReorderThreshold { packets: REORDER_MIN, peer_duplicates: 0 }
    }

    #[inline]
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    #[inline]
    pub(crate) fn peer_duplicates(&self) -> u32 {
        self.peer_duplicates
    }

    /// Doubles the threshold if the peer received further duplicates: some slots counted as lost were not.
    #[inline]
    pub(crate) fn on_duplicates(&mut self, duplicates: u32) {
        if duplicates != self.peer_duplicates {
            self.grow(duplicates);
        }
    }

    #[cold]
    fn grow(&mut self, duplicates: u32) {
        if duplicates.wrapping_sub(self.peer_duplicates) as i32 > 0 {
            self.peer_duplicates = duplicates;
            self.packets = (self.packets * 2).clamp(REORDER_MIN, REORDER_MAX);
        }
    }

    /// Halves the threshold: evidence came too late, and later losses should not wait for the timer, too.
    pub(crate) fn on_timeout(&mut self) {
        self.packets = (self.packets / 2).max(REORDER_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_wire::Seq;

    fn queue(n: u32) -> SendQueue {
        let mut queue = SendQueue::new(Seq(u32::MAX - 1), 100);
        for i in 0..n {
            queue.push_in_flight(i, 1000, u64::from(i) + 1);
        }
        queue
    }

    fn lost(queue: &mut SendQueue) -> Vec<i32> {
        let base = queue.base();
        std::iter::from_fn(|| queue.take_lost()).map(|seq| seq.distance(base)).collect()
    }

    /// L-9, L-11: selective repeat marks the overtaken slots as lost, go-back-n all slots from the gap on.
    #[test]
    fn evidence_of_loss() {
        let mut q = queue(6);
        let second = q.base().next();
        q.acknowledge(second);
        assert_eq!(SelectiveRepeat.on_evidence(&mut q, 6, 3), Some(3));
        assert_eq!(lost(&mut q), [0, 2]);

        let mut q = queue(6);
        assert_eq!(GoBackN.on_evidence(&mut q, 3, 3), None);
        assert_eq!(GoBackN.on_evidence(&mut q, 4, 3), Some(1));
        assert_eq!((q.lost_len(), q.in_flight()), (6, 0));
    }

    /// L-10: an expired timer marks the oldest slot as lost, or all, and never the same slot twice.
    #[test]
    fn losses_by_timeout() {
        let mut q = queue(4);
        SelectiveRepeat.on_timeout(&mut q);
        SelectiveRepeat.on_timeout(&mut q);
        assert_eq!(q.lost_len(), 1);
        let mut q = queue(4);
        GoBackN.on_timeout(&mut q);
        GoBackN.on_timeout(&mut q);
        assert_eq!(q.lost_len(), 4);
    }
}
