//! Detects a forked child, and reads a flag, by one load.

use crate::sync::Ordering;
use std::sync::atomic::AtomicU32 as RawU32;

/// A word that reads as "mine" in the process that created it, and as "not mine" in every child forked from
/// it.
///
/// The kernel zeroes the page in the child (`MADV_WIPEONFORK`), so a check needs no system call. The word
/// also holds a flag: the usual case, "mine and not flagged", is one comparison.
#[derive(Debug)]
pub struct ForkGuard {
    word: Word,
}

const MINE: u32 = 0x7461_7574;
const FLAGGED: u32 = MINE | 1 << 31;

impl ForkGuard {
    /// Creates a guard for this process. On kernels without `MADV_WIPEONFORK` (before 4.14) it always says
    /// "mine".
    pub fn new() -> ForkGuard {
        let word = Word::in_page().unwrap_or_else(Word::in_heap);
        word.get().store(MINE, Ordering::Relaxed);
        ForkGuard { word }
    }

    #[inline(always)]
    fn word(&self) -> &RawU32 {
        self.word.get()
    }

    /// Whether this process created the guard.
    #[inline]
    pub fn is_mine(&self) -> bool {
        [MINE, FLAGGED].contains(&self.word().load(Ordering::Relaxed))
    }

    /// Whether this process created the guard, and the flag is not set.
    #[inline(always)]
    pub fn is_mine_unflagged(&self) -> bool {
        self.word().load(Ordering::Relaxed) == MINE
    }

    /// Whether the flag is set.
    pub fn is_flagged(&self) -> bool {
        self.word().load(Ordering::Relaxed) == FLAGGED
    }

    /// Sets the flag, or clears it. Nothing happens in a forked child.
    pub fn set_flag(&self, flag: bool) {
        let (from, to) = if flag { (MINE, FLAGGED) } else { (FLAGGED, MINE) };
        let _ = self.word().compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Default for ForkGuard {
    fn default() -> ForkGuard {
        ForkGuard::new()
    }
}

/// A word at a fixed place, reached without a check for which place that is.
#[derive(Debug)]
struct Word {
    at: std::ptr::NonNull<RawU32>,
    /// The length of its page; zero if it is in the heap.
    page: usize,
}

// SAFETY: the word is plain memory, accessed only as an atomic, and freed only by drop.
unsafe impl Send for Word {}
// SAFETY: as above; shared accesses are atomic.
unsafe impl Sync for Word {}

impl Word {
    /// A word in a page of its own that the kernel zeroes in a forked child.
    fn in_page() -> Option<Word> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let page = rustix::param::page_size();
        // SAFETY: a new private anonymous mapping; nothing else refers to it.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .ok()?
        };
        let word = Word { at: std::ptr::NonNull::new(at.cast())?, page };
        // SAFETY: the range is exactly the mapping made above.
        unsafe { madvise(at, page, Advice::LinuxWipeOnFork).ok()? };
        Some(word)
    }

    fn in_heap() -> Word {
        Word { at: std::ptr::NonNull::from(Box::leak(Box::new(RawU32::new(0)))), page: 0 }
    }

    #[inline(always)]
    fn get(&self) -> &RawU32 {
        // SAFETY: it is an aligned and initialised word (a new mapping is zero) that lives as long as self.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        if self.page == 0 {
            // SAFETY: `in_heap` leaked this box, and no reference to it lives longer than self.
            drop(unsafe { Box::from_raw(self.at.as_ptr()) });
        } else {
            // SAFETY: the range is the mapping made in `in_page`, and no reference to it lives longer than
            // self.
            unsafe {
                let _ = rustix::mm::munmap(self.at.as_ptr().cast(), self.page);
            }
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

    /// N-6, N-10: the flag leaves the guard as it is.
    #[test]
    fn the_flag_does_not_disturb_the_guard() {
        let guard = ForkGuard::new();
        assert!(guard.is_mine_unflagged() && !guard.is_flagged());
        guard.set_flag(true);
        guard.set_flag(true);
        assert!(guard.is_mine() && guard.is_flagged() && !guard.is_mine_unflagged());
        guard.set_flag(false);
        assert!(guard.is_mine_unflagged() && !guard.is_flagged());
        // As in a forked child.
        guard.word().store(0, Ordering::Relaxed);
        guard.set_flag(true);
        assert!(!guard.is_mine() && !guard.is_flagged());
    }

    /// N-10: a kernel that cannot zero a page in a child gets a word in the heap.
    #[test]
    fn a_word_in_the_heap() {
        let guard = ForkGuard { word: Word::in_heap() };
        guard.word().store(MINE, Ordering::Relaxed);
        assert!(guard.is_mine_unflagged());
    }
}
