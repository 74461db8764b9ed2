//! Which process has a share mapped, and how often: one word per rank, in the page that goes with the share
//!
//!
//! A rank may be restarted before its former process had time to unmap. So the word names the process, by its
//! number and its start time, and mappings of a process that has ended do not count.

use tautline_node::ApertureMemory;

use crate::error::{Error, Result};

/// Bits of the process number (Linux uses no more) and of the start time; the remaining bits count mappings.
const PROCESS_BITS: u32 = 22;
const START_BITS: u32 = 26;
const COUNT_BITS: u32 = 64 - PROCESS_BITS - START_BITS;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// A process, as the word names it: everything but the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder(u64);

impl Holder {
    /// This process.
    pub(super) fn me() -> Result<Holder> {
        Holder::of(std::process::id()).ok_or_else(|| Error::other("this process is not listed in /proc"))
    }

    /// A living process. One that has ended and was not reaped is none.
    fn of(process: u32) -> Option<Holder> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name may contain anything, but it ends with the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if matches!(fields.next()?, "Z" | "X" | "x") {
            return None;
        }
        // The 22nd field; the name is the second, the state the third.
        let start: u64 = fields.nth(18)?.parse().ok()?;
        let start = start & ((1 << START_BITS) - 1);
        Some(Holder(u64::from(process) << (64 - PROCESS_BITS) | start << COUNT_BITS))
    }

    fn is_alive(self) -> bool {
        Holder::of((self.0 >> (64 - PROCESS_BITS)) as u32) == Some(self)
    }

    /// Whether a word counts mappings of a living process.
    pub(super) fn holds(word: u64) -> bool {
        word & COUNT > 0 && Holder(word & !COUNT).is_alive()
    }

    /// Counts one more mapping in the word at `at`.
    pub(super) fn enter(self, page: &ApertureMemory, at: usize) -> Result<()> {
        let mut word = page.read_u64(at).map_err(|_| Error::OutOfRange)?;
        loop {
            let (mine, count) = (word & !COUNT == self.0, word & COUNT);
            if !mine && Holder::holds(word) {
                return Err(Error::CannotMap("another process of this rank still has it mapped"));
            }
            if mine && count == COUNT {
                return Err(Error::TooMany("mappings of this share"));
            }
            let next = self.0 | if mine { count + 1 } else { 1 };
            match page.compare_exchange(at, word, next) {
                Ok(before) if before == word => return Ok(()),
                Ok(before) => word = before,
                Err(_) => return Err(Error::OutOfRange),
            }
        }
    }

    /// Counts one mapping less, if the word still names this process.
    pub(super) fn leave(self, page: &ApertureMemory, at: usize) {
        while let Ok(word) = page.read_u64(at) {
            if word & !COUNT != self.0
                || word & COUNT == 0
                || page.compare_exchange(at, word, word - 1) == Ok(word)
            {
                return;
            }
        }
    }

    /// Whether it names the current process, which may be a forked child of the one that mapped.
    pub(super) fn is_me(self) -> bool {
        (self.0 >> (64 - PROCESS_BITS)) as u32 == std::process::id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mappings of a process count as long as it lives.
    #[test]
    fn mappings_of_dead_processes_do_not_count() {
        let page = ApertureMemory::allocate(64).unwrap();
        let me = Holder::me().unwrap();
        me.enter(&page, 8).unwrap();
        me.enter(&page, 8).unwrap();
        assert!(Holder::holds(page.read_u64(8).unwrap()));
        me.leave(&page, 8);
        assert!(Holder::holds(page.read_u64(8).unwrap()));
        me.leave(&page, 8);
        me.leave(&page, 8);
        assert!(!Holder::holds(page.read_u64(8).unwrap()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Holder::of(child.id()).unwrap();
        other.enter(&page, 8).unwrap();
        assert!(Holder::holds(page.read_u64(8).unwrap()));
        assert!(matches!(me.enter(&page, 8), Err(Error::CannotMap(_))));
        child.kill().unwrap();
        // It ends soon, reaped or not.
        while Holder::holds(page.read_u64(8).unwrap()) {
            std::thread::yield_now();
        }
        me.enter(&page, 8).unwrap();
        other.leave(&page, 8);
        assert!(Holder::holds(page.read_u64(8).unwrap()));
        child.wait().unwrap();
    }
}
