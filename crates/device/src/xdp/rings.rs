//! The device's sockets and their memory: descriptors to send, and slots that the kernel may still read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::bind::FrameMemory;
use crate::sys::{Layout, Queues, Umem};
use crate::{Arena, SlotId};

/// Sockets on queues, the memory that they share, and what was pushed and not yet released.
pub(super) struct Rings {
    /// First, so that the sockets are closed before the memory is unmapped.
    pub queues: Queues,
    /// The numbers of the queues.
    pub numbers: Vec<u32>,
    pub umem: Arc<Umem>,
    pub layout: Layout,
    /// Slots for copies of frames that cannot be sent from where they lie.
    pub copies: Arena,
    /// The slot of each descriptor that the kernel has not released, oldest first.
    pub pending: VecDeque<Origin>,
    /// The kernel may read a frame until the completion ring returns it (D-9); otherwise until it has taken
    /// the descriptor.
    pub by_completion: bool,
    /// Doorbells that are not rung; for tests.
    pub lost_doorbells: u32,
}

/// The slot that a descriptor points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Slot(SlotId),
    Copy(SlotId),
}

impl Rings {
    /// Takes over sockets and memory, and gives the kernel all chunks to receive into. Returns the arena to
    /// send from, too.
    pub(super) fn new(
        mut queues: Queues,
        numbers: Vec<u32>,
        memory: FrameMemory,
        tx_ring: u32,
        by_completion: bool,
    ) -> (Rings, Arena) {
        let FrameMemory { layout, umem, arena, copies, chunks } = memory;
        chunks.into_iter().for_each(|chunk| queues.fill(chunk));
        queues.submit_chunks();
        let rings = Rings {
            queues,
            numbers,
            umem,
            layout,
            copies,
            pending: VecDeque::with_capacity(tx_ring as usize),
            by_completion,
            lost_doorbells: 0,
        };
        (rings, arena)
    }

    /// Pushes descriptors for these bytes of a slot: one, or several if they lie in several chunks. There
    /// must be room.
    #[inline]
    pub(super) fn push(&mut self, slots: &mut Arena, origin: Origin, range: Range<usize>, metadata: bool) {
        let (base, arena) = match origin {
            Origin::Slot(slot) => (slot.0 as usize, slots),
            Origin::Copy(slot) => (self.layout.slots + slot.0 as usize, &mut self.copies),
        };
        let (Origin::Slot(slot) | Origin::Copy(slot)) = origin;
        let base = base * self.layout.stride();
        let (mut at, end) = (base + range.start, base + range.end);
        while at < end {
            let stop = end.min((at / self.layout.chunk + 1) * self.layout.chunk);
            arena.hold(slot);
            self.pending.push_back(origin);
            self.queues.sender().push(at as u64, (stop - at) as u32, stop < end, metadata);
            at = stop;
        }
    }

    /// Takes back what the completion ring returned.
    #[inline]
    pub(super) fn reap(&mut self, slots: &mut Arena) {
        let stride = self.layout.stride() as u64;
        let mut any = false;
        while let Some(address) = self.queues.sender().completed() {
            any = true;
            if self.by_completion {
                let number = (address / stride) as u32;
                let count = self.layout.slots as u32;
                if number < count {
                    slots.unhold(SlotId(number));
                } else {
                    self.copies.unhold(SlotId(number - count));
                }
                self.pending.pop_front();
            }
        }
        if any {
            self.queues.sender().release_completed();
        }
    }

    /// Releases the slots of descriptors that the kernel has taken, if it is known to have copied the bytes
    /// by then.
    #[inline]
    pub(super) fn release_taken(&mut self, slots: &mut Arena) {
        if !self.by_completion {
            let untaken = self.queues.sender().untaken() as usize;
            while self.pending.len() > untaken {
                self.release_first(slots);
            }
        }
    }

    #[inline]
    fn release_first(&mut self, slots: &mut Arena) {
        match self.pending.pop_front() {
            Some(Origin::Slot(slot)) => slots.unhold(slot),
            Some(Origin::Copy(slot)) => self.copies.unhold(slot),
            None => {}
        }
    }

    /// Releases all slots: the sockets are closed, so the kernel reads none of them.
    pub(super) fn release_all(&mut self, slots: &mut Arena) {
        while !self.pending.is_empty() {
            self.release_first(slots);
        }
    }

    /// Replaces the sockets by those of an interface that came back. The memory and all slots stay.
    pub(super) fn replace(
        &mut self,
        slots: &mut Arena,
        queues: Queues,
        numbers: Vec<u32>,
        by_completion: bool,
    ) {
        let before = std::mem::replace(&mut self.queues, queues);
        for chunk in before.close() {
            self.queues.fill(chunk);
        }
        self.release_all(slots);
        self.queues.submit_chunks();
        (self.numbers, self.by_completion) = (numbers, by_completion);
    }

    /// Whether a test wants this doorbell to be lost.
    #[inline]
    pub(super) fn loses_doorbell(&mut self) -> bool {
        let loses = self.lost_doorbells > 0;
        self.lost_doorbells -= u32::from(loses);
        loses
    }
}
