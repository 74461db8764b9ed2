//! A pool of slots of equal size in private memory.
//!
//! A slot is [`HEADROOM`] bytes, where the headers of all layers are written for each transmission, followed
//! by the payload, which is written once and stays until it is acknowledged. Nothing is allocated after
//! start-up.
//!
//! In a *packed* arena only the last bytes of a slot's headroom are its own; the others are the end of the
//! slot before it. Full frames of consecutive slots are then one piece of memory, which the kernel copies
//! faster than as many pieces.

use std::any::Any;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes before a slot's payload, for Ethernet, VLAN, IPv6 and UDP headers, the frame header, and its
/// extensions.
pub const HEADROOM: usize = 256;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The number of a slot in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub u32);

/// A pool of slots. Not shared between threads: it moves with the device that owns it.
///
/// A device that reads a slot after its flush *holds* it (D-9). A held slot that is given back becomes free
/// when the device releases its last hold.
#[derive(Debug)]
pub struct Arena {
    bytes: SlotBytes,
    stride: usize,
    payload: usize,
    /// Bytes before the payload that are the slot's own.
    headers: usize,
    free: FreeSlots,
    /// Per slot: [`TAKEN`], and the number of the device's holds.
    states: Box<[u16]>,
}

/// The slot is taken and was not given back.
const TAKEN: u16 = 1 << 15;
/// The most holds of one slot.
const HOLDS_MAX: u16 = TAKEN - 1;

impl Arena {
    /// Creates `count` slots with room for `payload` bytes each.
    pub fn new(count: usize, payload: usize) -> Arena {
        assert!(count > 0 && count <= u32::MAX as usize && payload > 0);
        // An odd number of lines, so that the first lines of consecutive slots fall into different cache
        // sets.
        let lines = (HEADROOM + payload).div_ceil(LINE) | 1;
        let stride = lines * LINE;
        Arena::with(SlotBytes::new(stride * count), count, stride, (payload, HEADROOM))
    }

    /// Creates `count` packed slots with room for `headers` and `payload` bytes each.
    pub fn packed(count: usize, payload: usize, headers: usize) -> Arena {
        assert!(count > 0 && count <= u32::MAX as usize && payload > 0 && headers <= HEADROOM);
        let stride = headers + payload;
        let bytes = SlotBytes::new(HEADROOM - headers + stride * count);
        Arena::with(bytes, count, stride, (payload, headers))
    }

    /// Creates `count` slots, `stride` bytes apart, in memory that belongs to `owner`.
    ///
    /// # Safety
    /// While `owner` lives, the memory must be valid and initialised, and nobody else may write it; only a
    /// device that was told to send a slot may read it.
    pub unsafe fn over(
        bytes: NonNull<[u8]>,
        owner: Arc<dyn Any + Send + Sync>,
        count: usize,
        stride: usize,
        payload: usize,
    ) -> Arena {
        assert!(count > 0 && count <= u32::MAX as usize && payload > 0);
        assert!(
            HEADROOM + payload <= stride && stride.checked_mul(count).is_some_and(|all| all <= bytes.len())
        );
        Arena::with(SlotBytes { bytes, owner: Some(owner) }, count, stride, (payload, HEADROOM))
    }

    fn with(bytes: SlotBytes, count: usize, stride: usize, (payload, headers): (usize, usize)) -> Arena {
        Arena {
            bytes,
            stride,
            payload,
            headers,
            free: FreeSlots::new(count),
            states: vec![0; count].into_boxed_slice(),
        }
    }

    /// Returns the payload bytes of a slot.
    pub fn payload_len(&self) -> usize {
        self.payload
    }

    /// Returns how many bytes before its payload are a slot's own: all of its headroom, unless the arena is
    /// packed.
    #[inline]
    pub fn headers(&self) -> usize {
        self.headers
    }

    /// Returns the longest frame that a slot holds.
    pub fn frame_len(&self) -> usize {
        if self.headers < HEADROOM { self.headers + self.payload } else { self.payload }
    }

    /// Returns the number of all slots.
    pub fn capacity(&self) -> usize {
        self.states.len()
    }

    /// Returns the number of free slots.
    pub fn available(&self) -> usize {
        self.free.count
    }

    /// Takes a slot. Its bytes are left from its last use.
    #[inline]
    pub fn take(&mut self) -> Option<SlotId> {
        let slot = self.free.take()?;
        self.states[slot.0 as usize] = TAKEN;
        Some(slot)
    }

    /// Gives a slot back. If the device holds it, it becomes free with the last hold.
    ///
    /// # Panics
    /// If the slot is not taken: a slot freed twice would let two messages share memory.
    #[inline]
    pub fn give(&mut self, slot: SlotId) {
        let state = &mut self.states[slot.0 as usize];
        if *state != TAKEN {
            return give_held(slot, state);
        }
        *state = 0;
        self.free.give(slot);
    }

    /// Adds a hold: the device reads the slot after its flush (D-9).
    ///
    /// # Panics
    /// If the slot is not taken.
    #[inline]
    pub fn hold(&mut self, slot: SlotId) {
        let state = &mut self.states[slot.0 as usize];
        assert!(*state & TAKEN != 0 && *state & HOLDS_MAX < HOLDS_MAX, "slot {} cannot be held", slot.0);
        *state += 1;
    }

    /// Releases one hold. A slot that was given back meanwhile becomes free with the last one.
    ///
    /// # Panics
    /// If the slot is not held.
    #[inline]
    pub fn unhold(&mut self, slot: SlotId) {
        let state = &mut self.states[slot.0 as usize];
        assert!(*state & HOLDS_MAX > 0, "slot {} is not held", slot.0);
        *state -= 1;
        if *state == 0 {
            self.free.give(slot);
        }
    }

    /// Whether the device may still read a slot; it must not be written then (D-9, D-16).
    #[inline]
    pub fn is_held(&self, slot: SlotId) -> bool {
        self.states[slot.0 as usize] & HOLDS_MAX > 0
    }

    /// Returns a slot's payload.
    #[inline]
    pub fn payload(&self, slot: SlotId) -> &[u8] {
        let at = slot.0 as usize * self.stride + HEADROOM;
        &self.bytes[at..at + self.payload]
    }

    /// Returns a slot's payload for writing.
    #[inline]
    pub fn payload_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let at = slot.0 as usize * self.stride + HEADROOM;
        &mut self.bytes[at..at + self.payload]
    }

    /// Returns a slot's headroom and payload for writing.
    #[inline]
    pub fn split_mut(&mut self, slot: SlotId) -> (&mut [u8], &mut [u8]) {
        let at = slot.0 as usize * self.stride;
        self.bytes[at..at + HEADROOM + self.payload].split_at_mut(HEADROOM)
    }

    /// Returns a whole slot, headroom and payload, for writing.
    #[inline]
    pub fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let at = slot.0 as usize * self.stride;
        &mut self.bytes[at..at + HEADROOM + self.payload]
    }

    /// Copies part of a slot's payload to another slot, at `to` bytes from the start of its headroom.
    pub fn copy(&mut self, from: SlotId, range: Range<usize>, target: SlotId, to: usize) {
        assert!(range.end <= self.payload && to + range.len() <= HEADROOM + self.payload && from != target);
        let source = from.0 as usize * self.stride + HEADROOM;
        let target = target.0 as usize * self.stride + to;
        self.bytes.copy_within(source + range.start..source + range.end, target);
    }

    /// Returns bytes of a slot, counted from the start of its headroom.
    #[inline]
    pub fn bytes(&self, slot: SlotId, range: Range<usize>) -> &[u8] {
        let at = slot.0 as usize * self.stride;
        &self.bytes[at..at + HEADROOM + self.payload][range]
    }
}

/// The free slots: the lowest is taken first. Few slots are used again and again, which keeps them in the
/// cache, and trains get neighbours in order.
#[derive(Debug)]
struct FreeSlots {
    /// A bit for each slot.
    bits: Box<[u64]>,
    count: usize,
    /// No word before this one has a bit.
    first: usize,
}

impl FreeSlots {
    fn new(count: usize) -> FreeSlots {
        let mut bits = vec![u64::MAX; count.div_ceil(64)];
        if !count.is_multiple_of(64) {
            bits[count / 64] = (1 << (count % 64)) - 1;
        }
        FreeSlots { bits: bits.into_boxed_slice(), count, first: 0 }
    }

    #[inline]
    fn take(&mut self) -> Option<SlotId> {
        while let Some(word) = self.bits.get_mut(self.first) {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                self.count -= 1;
                return Some(SlotId(self.first as u32 * 64 + bit));
            }
            self.first += 1;
        }
        None
    }

    #[inline]
    fn give(&mut self, slot: SlotId) {
        let word = slot.0 as usize / 64;
        self.bits[word] |= 1 << (slot.0 % 64);
        self.count += 1;
        self.first = self.first.min(word);
    }
}

#[cold]
fn give_held(slot: SlotId, state: &mut u16) {
    assert!(*state & TAKEN != 0, "slot {} given back twice", slot.0);
    *state &= !TAKEN;
}

/// The bytes of all slots, owned by the arena or by `owner`.
#[derive(Debug)]
struct SlotBytes {
    bytes: NonNull<[u8]>,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl SlotBytes {
    fn new(len: usize) -> SlotBytes {
        SlotBytes { bytes: Box::leak(vec![0; len].into_boxed_slice()).into(), owner: None }
    }
}

// SAFETY: the bytes are accessed through this value alone, on whichever thread it is; the owner is Send and
// Sync.
unsafe impl Send for SlotBytes {}
// SAFETY: a shared `SlotBytes` only gives shared access to the bytes.
unsafe impl Sync for SlotBytes {}

impl Deref for SlotBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: valid and initialised while this value lives, and written only through `deref_mut`, which
        // is exclusive.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for SlotBytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid and initialised while this value lives, and borrowed exclusively.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for SlotBytes {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: without an owner the bytes came from a leaked box, and nothing refers to them.
            drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every slot is taken once, the lowest first, and all come back.
    #[test]
    fn the_lowest_free_slot_is_taken() {
        for count in [1, 63, 64, 65, 200] {
            let mut arena = Arena::new(count, 8);
            for _ in 0..2 {
                assert_eq!(arena.available(), count);
                let taken: Vec<_> = std::iter::from_fn(|| arena.take()).map(|slot| slot.0).collect();
                assert_eq!((taken, arena.available()), ((0..count as u32).collect(), 0));
                (0..count as u32).rev().for_each(|slot| arena.give(SlotId(slot)));
            }
        }
    }

    #[test]
    fn slots_do_not_overlap() {
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

    /// D-32: the frames of neighbours in a packed arena touch and do not overlap, and neighbours
    /// are taken one after the other, in whatever order they were given back.
    #[test]
    fn packed_slots_are_one_piece() {
        let (payload, headers) = (100, 48);
        let mut arena = Arena::packed(8, payload, headers);
        assert_eq!((arena.headers(), arena.frame_len()), (headers, 148));
        let slots: Vec<_> = std::iter::from_fn(|| arena.take()).collect();
        let own = HEADROOM - headers..HEADROOM + payload;
        for (i, slot) in slots.iter().enumerate() {
            arena.slot_mut(*slot)[own.clone()].fill(i as u8);
        }
        for (i, pair) in slots.windows(2).enumerate() {
            let (first, second) = (arena.bytes(pair[0], own.clone()), arena.bytes(pair[1], own.clone()));
            assert!(first.iter().all(|b| *b == i as u8) && second.iter().all(|b| *b == i as u8 + 1));
            assert_eq!(first.as_ptr_range().end, second.as_ptr());
        }
        [5, 2, 4, 3].iter().for_each(|i| arena.give(slots[*i]));
        assert_eq!(std::array::from_fn(|_| arena.take().unwrap()), [slots[2], slots[3], slots[4], slots[5]]);
        assert_eq!(Arena::new(1, 100).headers(), HEADROOM);
    }

    /// D-9, D-16: a held slot is not taken again, however often it was sent and whenever it was given back.
    #[test]
    fn a_held_slot_is_not_free() {
        let mut arena = Arena::new(1, 8);
        let slot = arena.take().unwrap();
        arena.hold(slot);
        arena.hold(slot);
        arena.give(slot);
        assert!(arena.is_held(slot) && arena.take().is_none());
        arena.unhold(slot);
        assert!(arena.is_held(slot) && arena.take().is_none());
        arena.unhold(slot);
        assert_eq!((arena.is_held(slot), arena.take()), (false, Some(slot)));
        arena.hold(slot);
        arena.unhold(slot);
        assert_eq!(arena.available(), 0, "released, and still taken");
        arena.give(slot);
        assert_eq!(arena.available(), 1);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_held_slot_is_given_once() {
        let mut arena = Arena::new(2, 8);
        let slot = arena.take().unwrap();
        arena.hold(slot);
        arena.give(slot);
        arena.give(slot);
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
