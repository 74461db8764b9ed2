//! What a program asks of a tripwire, and the counter that it reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tautline_mem::ApertureMemory;

/// The accesses that a tripwire watches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(pub(crate) u8);

impl Access {
    /// A peer writes: a put, or an atomic operation.
    pub const WRITE: Access = Access(1);
    /// A peer reads: a get, or an atomic operation.
    pub const READ: Access = Access(2);
    /// An operation of this node is complete whose local side touches the range: a get has written it, or a
    /// put has read it.
    pub const COMPLETE: Access = Access(4);

    /// Returns the union of both.
    pub const fn or(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Test {
    /// It equals this.
    Equal(u64),
    /// It does not equal this.
    NotEqual(u64),
    /// It is at least this.
    AtLeast(u64),
    /// Its bits in the first mask equal those of the second value.
    Masked(u64, u64),
}

impl Test {
    /// Returns whether a value passes.
    #[inline]
    pub fn passes(self, value: u64) -> bool {
        match self {
            Test::Equal(it) => value == it,
            Test::NotEqual(it) => value != it,
            Test::AtLeast(it) => value >= it,
            Test::Masked(mask, it) => value & mask == it & mask,
        }
    }
}

/// A condition on a word of memory, tested when the access is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Condition {
    /// The place of the word, a multiple of its width.
    pub at: u64,
    /// Its width in bytes: 1, 2, 4 or 8.
    pub width: u8,
    /// The comparison.
    pub test: Test,
}

impl Condition {
    /// Returns the condition that the word of `width` bytes at `at` passes the test.
    pub fn new(at: u64, width: u8, test: Test) -> Condition {
        Condition { at, width, test }
    }

    /// Returns whether the word is aligned and lies in a memory of `len` bytes.
    pub fn is_sound(&self, len: u64) -> bool {
        matches!(self.width, 1 | 2 | 4 | 8)
            && self.at.is_multiple_of(self.width.into())
            && self.at.checked_add(self.width.into()).is_some_and(|end| end <= len)
    }

    pub(super) fn holds(&self, memory: &ApertureMemory) -> bool {
        let mut word = [0; 8];
        if memory.read(self.at as usize, &mut word[..usize::from(self.width)]).is_err() {
            return false;
        }
        let value = u64::from_le_bytes(word);
        self.test.passes(value)
    }
}

/// How the program learns that a tripwire fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Report {
    /// It reads the counter.
    Poll,
    /// By an event. Further fires are counted with an event that has not been read.
    Once,
    /// By an event for each fire; as [`Report::Once`] when the queue is full.
    Each,
}

/// The description of a tripwire.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Trip {
    /// The first byte of its range.
    pub start: u64,
    /// The bytes of its range, at least one.
    pub len: u64,
    /// The accesses that it watches for.
    pub on: Access,
    /// Fire only if this holds.
    pub condition: Option<Condition>,
    /// Disarm at the first fire.
    pub once: bool,
    /// How the program learns of a fire.
    pub report: Report,
    /// The program's tag, which its events carry.
    pub tag: u64,
}

impl Trip {
    /// Describes a tripwire that watches for writes, fires every time, and is polled.
    pub fn new(start: u64, len: u64) -> Trip {
        Trip { start, len, on: Access::WRITE, condition: None, once: false, report: Report::Poll, tag: 0 }
    }
}

/// The counter of a tripwire's fires, which the program reads with one load (T-4).
#[derive(Debug, Default)]
pub struct WireCell {
    fires: AtomicU64,
    over: AtomicBool,
}

impl WireCell {
    /// Returns how often it fired. A thread that sees a fire sees the bytes that caused it.
    #[inline]
    pub fn fires(&self) -> u64 {
        self.fires.load(Ordering::Acquire)
    }

    /// Returns whether it will never count again: the tripwire is disarmed, or the set has too few tripwires
    /// left.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Notes that it will never count again.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn add(&self) -> u64 {
        // There is a single writer, the holder of the owner word.
        let fires = self.fires.load(Ordering::Relaxed) + 1;
        self.fires.store(fires, Ordering::Release);
        fires
    }
}
