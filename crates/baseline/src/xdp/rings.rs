//! Memory that the kernel and we share: the frames, and the rings that say who owns each of them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;

/// Mapped until dropped.
struct Map {
    at: NonNull<u8>,
    len: usize,
}

impl Map {
    fn of(result: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> io::Result<Self> {
        let at = NonNull::new(result?.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { at, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and no holder of a map lets a reference outlive it.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Room for one frame.
pub(super) const CHUNK: usize = 2048;

/// The frames.
pub(super) struct Frames(Map);

impl Frames {
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        let len = count * CHUNK;
        // SAFETY: the kernel picks the place, so that nothing of ours is overlaid.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
        Ok(Self(Map::of(at, len)?))
    }

    pub(super) fn address(&self) -> u64 {
        self.0.at.as_ptr() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    /// The bytes of a frame.
    ///
    /// # Safety
    /// The frame must be ours: taken from a ring and not yet given to another.
    #[inline]
    pub(super) unsafe fn bytes(&mut self, at: u64, len: usize) -> &mut [u8] {
        let at = at as usize;
        assert!(at <= self.0.len && len <= self.0.len - at, "beyond the end of the frames");
        // SAFETY: in bounds as just checked, and exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.0.at.as_ptr().add(at), len) }
    }
}

/// A ring of one producer and one consumer, one of which is this process.
pub(super) struct Ring<T> {
    map: Map,
    producer: usize,
    consumer: usize,
    first: usize,
    size: u32,
    /// Our position, and the last known position of the kernel.
    ours: u32,
    theirs: u32,
    of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two, at this offset of a socket.
    pub(super) fn map(socket: impl AsFd, size: u32, place: &XdpRingOffset, offset: u64) -> io::Result<Self> {
        let len = place.desc as usize + size as usize * size_of::<T>();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the kernel picks the place, so that nothing of ours is overlaid.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, socket, offset) };
        let map = Map::of(at, len)?;
        let (producer, consumer) = (place.producer as usize, place.consumer as usize);
        let first = place.desc as usize;
        Ok(Self { map, producer, consumer, first, size, ours: 0, theirs: 0, of: PhantomData })
    }

    fn counter(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel says that a counter lies there, inside of what it mapped, and it is only ever
        // used as one.
        unsafe { self.map.at.add(at).cast().as_ref() }
    }

    fn slot(&self) -> NonNull<T> {
        let index = (self.ours & (self.size - 1)) as usize;
        // SAFETY: the kernel says that the entries lie there, and the mask keeps the index below their
        // number.
        unsafe { self.map.at.add(self.first).cast::<T>().add(index) }
    }

    /// As producer: whether one more fits.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        if self.ours.wrapping_sub(self.theirs) == self.size {
            self.theirs = self.counter(self.consumer).load(Ordering::Acquire);
        }
        self.ours.wrapping_sub(self.theirs) < self.size
    }

    /// As producer: adds an entry, to be published by [`Ring::publish`]. There must be room.
    #[inline]
    pub(super) fn put(&mut self, value: T) {
        debug_assert!(self.has_room());
        // SAFETY: the kernel has consumed what was here, and reads it again only when it is published.
        unsafe { self.slot().write(value) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// As producer: publishes the new entries.
    #[inline]
    pub(super) fn publish(&self) {
        self.counter(self.producer).store(self.ours, Ordering::Release);
    }

    /// As consumer: takes the next entry, if there is one.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        if self.ours == self.theirs {
            self.theirs = self.counter(self.producer).load(Ordering::Acquire);
            if self.ours == self.theirs {
                return None;
            }
        }
        // SAFETY: the kernel has produced this one, and writes here again only when we give it back.
        let value = unsafe { self.slot().read() };
        self.ours = self.ours.wrapping_add(1);
        Some(value)
    }

    /// As consumer: gives back the entries that were taken.
    #[inline]
    pub(super) fn give_back(&self) {
        self.counter(self.consumer).store(self.ours, Ordering::Release);
    }
}
