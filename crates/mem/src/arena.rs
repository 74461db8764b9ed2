//! A pool of equal slots in one piece of private memory.
//!
//! A slot is [`HEADROOM`] bytes, where headers of every layer are built anew for each transmission, and behind them
//! the payload, which is written once and stays until it is acknowledged. Nothing is allocated after start-up.

use std::ops::Range;

/// Bytes before a slot's payload: Ethernet, VLAN, IPv6 and UDP headers, the frame header, and its extensions.
pub const HEADROOM: usize = 256;

/// The longest run of cache lines between two slots that still spreads their first lines over all cache sets.
const LINE: usize = 64;

/// Names a slot of one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub u32);

/// A pool of slots. Not shared between threads: it moves with the device that owns it.
#[derive(Debug)]
pub struct Arena {
    bytes: Box<[u8]>,
    stride: usize,
    payload: usize,
    free: Vec<SlotId>,
    taken: Box<[bool]>,
}

impl Arena {
    /// Makes `count` slots with room for `payload` bytes each.
    pub fn new(count: usize, payload: usize) -> Arena {
        assert!(count > 0 && count <= u32::MAX as usize && payload > 0);
        // An odd number of lines, so that the heads of consecutive slots fall into different cache sets.
        let lines = (HEADROOM + payload).div_ceil(LINE) | 1;
        let stride = lines * LINE;
        Arena {
            bytes: vec![0; stride * count].into_boxed_slice(),
            stride,
            payload,
            free: (0..count as u32).rev().map(SlotId).collect(),
            taken: vec![false; count].into_boxed_slice(),
        }
    }

    /// Room for payload in every slot.
    pub fn payload_len(&self) -> usize {
        self.payload
    }

    /// How many slots there are in all.
    pub fn capacity(&self) -> usize {
        self.taken.len()
    }

    /// How many slots may still be taken.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot; its bytes are whatever was there before.
    #[inline]
    pub fn take(&mut self) -> Option<SlotId> {
        let slot = self.free.pop()?;
        self.taken[slot.0 as usize] = true;
        Some(slot)
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// If the slot is not taken: a slot freed twice would let two messages share memory.
    #[inline]
    pub fn give(&mut self, slot: SlotId) {
        let taken = &mut self.taken[slot.0 as usize];
        assert!(*taken, "slot {} given back twice", slot.0);
        *taken = false;
        self.free.push(slot);
    }

    /// The slot's payload.
    #[inline]
    pub fn payload(&self, slot: SlotId) -> &[u8] {
        let at = slot.0 as usize * self.stride + HEADROOM;
        &self.bytes[at..at + self.payload]
    }

    /// The slot's payload, to write.
    #[inline]
    pub fn payload_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let at = slot.0 as usize * self.stride + HEADROOM;
        &mut self.bytes[at..at + self.payload]
    }

    /// The slot's headroom and payload, to write both.
    #[inline]
    pub fn split_mut(&mut self, slot: SlotId) -> (&mut [u8], &mut [u8]) {
        let at = slot.0 as usize * self.stride;
        self.bytes[at..at + HEADROOM + self.payload].split_at_mut(HEADROOM)
    }

    /// All of a slot, headroom and payload in one piece.
    #[inline]
    pub fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let at = slot.0 as usize * self.stride;
        &mut self.bytes[at..at + HEADROOM + self.payload]
    }

    /// Copies part of one slot's payload into another slot, at `to` bytes from the start of its headroom.
    pub fn copy(&mut self, from: SlotId, range: Range<usize>, target: SlotId, to: usize) {
        assert!(range.end <= self.payload && to + range.len() <= HEADROOM + self.payload && from != target);
        let source = from.0 as usize * self.stride + HEADROOM;
        let target = target.0 as usize * self.stride + to;
        self.bytes.copy_within(source + range.start..source + range.end, target);
    }

    /// Bytes of a slot, counted from the start of its headroom.
    #[inline]
    pub fn bytes(&self, slot: SlotId, range: Range<usize>) -> &[u8] {
        let at = slot.0 as usize * self.stride;
        &self.bytes[at..at + HEADROOM + self.payload][range]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slots_are_apart() {
        let mut arena = Arena::new(8, 100);
        let slots: Vec<_> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!(slots.iter().collect::<HashSet<_>>().len(), 8);
        for (i, slot) in slots.iter().enumerate() {
            arena.payload_mut(*slot).fill(i as u8);
        }
        for (i, slot) in slots.iter().enumerate() {
            assert!(arena.payload(*slot).iter().all(|b| *b == i as u8));
            assert_eq!(arena.bytes(*slot, HEADROOM..HEADROOM + 3), [i as u8; 3]);
        }
        assert!(arena.take().is_none());
        arena.give(slots[3]);
        assert_eq!(arena.take(), Some(slots[3]));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn double_free_is_caught() {
        let mut arena = Arena::new(2, 8);
        let slot = arena.take().unwrap();
        arena.give(slot);
        arena.give(slot);
    }
}
