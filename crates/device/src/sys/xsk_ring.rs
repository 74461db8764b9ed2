//! One ring of an AF_XDP socket, which is shared with the kernel.

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::last_errno;

/// One of the four rings. The kernel is the other side; the methods determine which of the two words is ours.
#[derive(Debug)]
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    map_len: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Our own word, ahead of what was submitted to the kernel.
    pub(super) ours: u32,
    /// The kernel's word when it was last read.
    kernel: u32,
}

// SAFETY: the pointers are to a mapping of the socket that only this value uses; the kernel does not care
// about threads.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    pub(super) fn map(
        fd: &OwnedFd,
        at: libc::xdp_ring_offset,
        count: u32,
        offset: libc::off_t,
    ) -> Result<Ring<T>, Errno> {
        assert!(count.is_power_of_two());
        let len = at.desc as usize + count as usize * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of this socket's ring, at an address that the kernel chooses.
        let map = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd.as_raw_fd(), offset) };
        if map == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: (all four) the kernel says where in the mapping its words and entries lie; they are aligned
        // to their size.
        let at_word = |offset: u64| unsafe { map.add(offset as usize) }.cast::<AtomicU32>();
        Ok(Ring {
            producer: at_word(at.producer),
            consumer: at_word(at.consumer),
            flags: at_word(at.flags),
            // SAFETY: as above.
            entries: unsafe { map.add(at.desc as usize) }.cast(),
            map,
            map_len: len,
            mask: count - 1,
            ours: 0,
            kernel: 0,
        })
    }

    #[inline]
    fn word(at: &NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: it points into the mapping, which lives as long as the ring that the pointer is borrowed
        // from.
        unsafe { at.as_ref() }
    }

    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        Self::word(&self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Producer: whether `entries` entries can be written.
    #[inline]
    pub(super) fn has_room(&mut self, entries: u32) -> bool {
        if self.ours.wrapping_sub(self.kernel) + entries <= self.mask + 1 {
            return true;
        }
        self.kernel = Self::word(&self.consumer).load(Ordering::Acquire);
        self.ours.wrapping_sub(self.kernel) + entries <= self.mask + 1
    }

    /// Producer: returns the number of entries that the kernel has not taken.
    #[inline]
    pub(super) fn untaken(&mut self) -> u32 {
        self.kernel = Self::word(&self.consumer).load(Ordering::Acquire);
        Self::word(&self.producer).load(Ordering::Relaxed).wrapping_sub(self.kernel)
    }

    /// Producer: writes the next entry. There must be room.
    #[inline]
    pub(super) fn write(&mut self, entry: T) {
        // SAFETY: within the ring; the kernel does not read it before the word is advanced.
        unsafe { self.entry(self.ours).write(entry) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// Producer: makes written entries visible to the kernel.
    #[inline]
    pub(super) fn submit(&mut self) {
        Self::word(&self.producer).store(self.ours, Ordering::Release);
    }

    /// Returns the address of an entry, by its number since the beginning.
    #[inline]
    pub(super) fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: masked, so within the ring.
        unsafe { self.entries.add((number & self.mask) as usize) }
    }

    /// Producer: returns an entry that was written, by its number since the beginning, if it was not
    /// overwritten since.
    #[inline]
    pub(super) fn at(&self, number: u32) -> T {
        // SAFETY: within the ring; only this side writes there, and the mapping is initially zero, which is a
        // valid entry.
        unsafe { self.entry(number).read() }
    }

    /// Consumer: returns the number of entries that are known to be there.
    #[inline]
    pub(super) fn known(&self) -> u32 {
        self.kernel.wrapping_sub(self.ours)
    }

    /// Consumer: returns the number of entries that can be read.
    #[inline]
    pub(super) fn available(&mut self) -> u32 {
        let known = self.known();
        if known > 0 {
            return known;
        }
        self.kernel = Self::word(&self.producer).load(Ordering::Acquire);
        self.kernel.wrapping_sub(self.ours)
    }

    /// Consumer: reads the next entry.
    #[inline]
    pub(super) fn read(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        // SAFETY: within the ring; the kernel wrote it before it advanced its word, and does not touch it
        // until ours advances.
        let entry = unsafe { self.entry(self.ours).read() };
        self.ours = self.ours.wrapping_add(1);
        Some(entry)
    }

    /// Consumer: lets the kernel overwrite what was read.
    #[inline]
    pub(super) fn release(&mut self) {
        Self::word(&self.consumer).store(self.ours, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once, and nothing refers to it.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
