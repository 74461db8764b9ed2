//! Memory that belongs to code outside this library, such as a buffer of a C program, lent for the time of an
//! operation.

use std::ptr::NonNull;

/// Memory that the program has lent for one send or receive.
///
/// Whoever makes it promises what [`Region::new`] asks for; so its users need no unsafe code.
#[derive(Debug, PartialEq, Eq)]
pub struct Region {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: `Region::new` asks that the memory may be used from any thread.
unsafe impl Send for Region {}

impl Region {
    /// The `len` bytes at `at`; a null pointer is allowed if there are none.
    ///
    /// # Safety
    /// Until the region is dropped, the memory is valid for reads from any thread, and nobody else writes to
    /// it. If it is used for a receive, it is valid for writes, and nobody else reads it either. `len` is at
    /// most `isize::MAX`.
    #[inline]
    pub unsafe fn new(at: *mut u8, len: usize) -> Region {
        let at = if len == 0 { None } else { NonNull::new(at) };
        Region { len: if at.is_some() { len } else { 0 }, at: at.unwrap_or(NonNull::dangling()) }
    }

    /// Returns how many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes from `at` on, all of which there are. It only reads, so the same memory may be lent for
    /// several sends at once.
    ///
    /// # Panics
    /// If there are not as many.
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at <= self.len && out.len() <= self.len - at, "{} bytes at {at} of {}", out.len(), self.len);
        // SAFETY: the range was checked, and the memory is valid for reads; `out` is memory of this library,
        // which the program has not lent.
        unsafe { std::ptr::copy_nonoverlapping(self.at.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
    }

    /// The memory, to be written.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: it is a receive that writes; nobody else uses its memory, and the region is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_and_written_where_they_lie() {
        let mut memory = *b"abcdef";
        // SAFETY: `memory` outlives the region and is not used meanwhile.
        let mut region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()) };
        let mut out = [0; 3];
        region.read(2, &mut out);
        assert_eq!((&out, region.len()), (b"cde", 6));
        region.as_mut_slice()[..2].copy_from_slice(b"xy");
        assert_eq!(&memory, b"xycdef");
    }

    #[test]
    fn no_memory_has_no_bytes() {
        // SAFETY: there are no bytes.
        let mut region = unsafe { Region::new(std::ptr::null_mut(), 0) };
        region.read(0, &mut []);
        assert!(region.is_empty() && region.as_mut_slice().is_empty());
    }

    #[test]
    #[should_panic(expected = "2 bytes at 5 of 6")]
    fn reading_past_the_end_panics() {
        let mut memory = [0; 6];
        // SAFETY: `memory` outlives the region and is not used meanwhile.
        unsafe { Region::new(memory.as_mut_ptr(), 6) }.read(5, &mut [0; 2]);
    }
}
