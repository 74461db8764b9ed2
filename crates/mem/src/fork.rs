//! Detects a forked child by one load.

use crate::sync::Ordering;
use std::sync::atomic::AtomicU32 as RawU32;

/// A word that reads as "mine" in the process that created it, and as "not mine" in every child forked from
/// it.
///
/// The kernel zeroes the page in the child (`MADV_WIPEONFORK`), so a check needs no system call.
#[derive(Debug)]
pub struct ForkGuard {
    page: Option<Page>,
}

const MINE: u32 = 0x7461_7574;

impl ForkGuard {
    /// Creates a guard for this process. On kernels without `MADV_WIPEONFORK` (before 4.14) it always says
    /// "mine".
    pub fn new() -> ForkGuard {
        ForkGuard { page: Page::new() }
    }

    /// Whether this process created the guard.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.page.as_ref().is_none_or(|page| page.word().load(Ordering::Relaxed) == MINE)
    }
}

impl Default for ForkGuard {
    fn default() -> ForkGuard {
        ForkGuard::new()
    }
}

#[derive(Debug)]
struct Page {
    at: std::ptr::NonNull<RawU32>,
    len: usize,
}

// SAFETY: the page is plain memory, accessed only through an atomic word, and unmapped only by drop.
unsafe impl Send for Page {}
// SAFETY: as above; shared access is an atomic load.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> Option<Page> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let len = rustix::param::page_size();
        // SAFETY: a new private anonymous mapping; nothing else refers to it.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .ok()?
        };
        let page = Page { at: std::ptr::NonNull::new(at.cast())?, len };
        // SAFETY: the range is exactly the mapping made above.
        unsafe { madvise(at, len, Advice::LinuxWipeOnFork).ok()? };
        page.word().store(MINE, Ordering::Relaxed);
        Some(page)
    }

    fn word(&self) -> &RawU32 {
        // SAFETY: the mapping is page-aligned, zero-initialised, at least four bytes, and lives as long as
        // self.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, and no reference to it lives longer than self.
        unsafe {
            let _ = rustix::mm::munmap(self.at.as_ptr().cast(), self.len);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mine_in_the_process_that_created_it() {
        assert!(ForkGuard::new().is_mine());
    }
}
