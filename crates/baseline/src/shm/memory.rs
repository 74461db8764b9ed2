//! Memory that both sides see: some cache lines of atomic words, followed by a plain area.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::descriptors::{give, take};
use crate::transport::{Setup, SpinLimit};

/// A cache line.
#[repr(C, align(64))]
pub(crate) struct Line {
    pub(crate) flag: AtomicU64,
    pub(crate) payload: AtomicU64,
    _rest: [u64; 6],
}

const LINE: usize = size_of::<Line>();
const _: () = assert!(LINE == 64);

impl Line {
    /// Spins until the flag has this value.
    #[inline]
    pub(crate) fn wait_for(&self, value: u64) -> io::Result<()> {
        let mut spin_limit = SpinLimit::new();
        while self.flag.load(Ordering::Acquire) != value {
            spin_limit.spin()?;
        }
        Ok(())
    }
}

/// A mapping of the shared memory, until dropped.
pub(crate) struct SharedMapping {
    at: NonNull<u8>,
    lines: usize,
    bytes: usize,
}

impl SharedMapping {
    /// One memory that this side writes to, and one that it reads from. Both are zeroed, and all their pages
    /// are present.
    pub(crate) fn pair(setup: &mut Setup<'_>, lines: usize, bytes: usize) -> io::Result<[Self; 2]> {
        let ours = rustix::fs::memfd_create("tautline-baseline", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&ours, (lines * LINE + bytes) as u64)?;
        give(setup.control, &ours)?;
        let theirs = take(setup.control)?;
        let both = [Self::map(&ours, lines, bytes)?, Self::map(&theirs, lines, bytes)?];
        setup.barrier()?;
        Ok(both)
    }

    fn map(fd: &OwnedFd, lines: usize, bytes: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the kernel picks the place, so that nothing of ours is overlaid.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), lines * LINE + bytes, prot, flags, fd, 0)? };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { at, lines, bytes })
    }

    /// The lines at the front.
    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: the mapping begins at a page and has that many lines, zeroed at first. They are only used
        // as atomics, and nothing else refers to them.
        unsafe { std::slice::from_raw_parts(self.at.cast().as_ptr(), self.lines) }
    }

    /// A part of the area behind the lines.
    ///
    /// # Safety
    /// Until the slice is gone, the other side must neither read nor write these bytes; a flag says whose
    /// they are.
    #[inline]
    pub(crate) unsafe fn area(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.bytes && len <= self.bytes - at, "beyond the end of the memory");
        // SAFETY: in bounds of the mapping as just checked, and exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(self.lines * LINE + at), len) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and every reference to it has ended with the borrow of `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.lines * LINE + self.bytes) };
    }
}
