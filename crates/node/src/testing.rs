//! What unit tests of several modules use.

use tautline_mem::ApertureMemory;
use tautline_wire::memory::ExtentRef;

use crate::memory::LentParts;

/// Seeded numbers.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn any<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// The lent parts of a peer on another host: there are none.
pub(crate) struct NothingLent;

impl LentParts for NothingLent {
    fn is_sound(&mut self, _: ExtentRef) -> bool {
        false
    }

    fn copy_part(&mut self, _: ExtentRef, _: &ApertureMemory, _: usize) -> bool {
        unreachable!("no extent is sound")
    }

    fn read_part(&mut self, _: ExtentRef, _: &mut [u8]) {
        unreachable!("no extent is sound")
    }

    fn return_part(&mut self, _: ExtentRef) {
        unreachable!("no extent is sound")
    }
}
