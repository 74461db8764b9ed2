//! Frames from one process to another, through a ring of cache lines and a ring of bytes (S-3, S-10, S-11).
//!
//! A frame takes a line: a word with a stamp (the lap of the ring) and the frame's length, followed by the
//! frame's first bytes. The rest lies in the next few lines, each with a stamp of its own; if that would take
//! too many lines, it lies in the ring of bytes, at a position that both sides compute. The sender writes the
//! bytes first and the word last. A frame exists only when all its words are there, so the receiver never
//! sees part of one, whenever the sender dies. The receiver publishes what it has consumed only now and then,
//! in a line of its own, which the sender reads only when it seems to have no room. There are no locks.
//!
//! The lines of a frame are written in order, first to last. A processor makes stores visible in program
//! order: if the first line, which the receiver polls, had to wait for the others, the receiver would pull it
//! into its own cache in the meantime.

mod receiver;
mod sender;
mod words;

pub use receiver::{Peeked, Receiver};
pub use sender::Sender;
pub use words::{LineWords, PeekedLine, PoppedLine};

use crate::Segment;
use crate::segment::Lines;
use crate::sync::Arc;

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes of a frame in one line.
pub const LINE_DATA: usize = LINE - 8;
/// Words of a frame in one line.
pub const LINE_DATA_WORDS: usize = LINE_DATA / 8;
/// The most lines of a frame without bytes in the ring of bytes.
pub const MAX_SPAN: usize = 4;

/// In place of a length: no frame follows.
const END: u32 = u32::MAX;
/// In place of a length: the line continues the frame before it.
const CONTINUED: u32 = u32::MAX - 1;

/// Beside a length: the rest of the frame begins at the start of the ring of bytes.
const WRAPPED: u32 = 1 << 30;

/// Lines by which the two sides tell each other their positions. The frames' lines follow, and then the
/// bytes.
const HEAD: usize = 4;
/// The line in which the receiver publishes what it has consumed: lines, bytes.
const CONSUMED: u64 = 0;

/// The other side wrote something that no correct peer writes; nothing in the segment can be trusted any more
/// (S-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A copy of a frame that lay in lines alone.
#[derive(Clone, Copy, Debug)]
pub struct InlineFrame {
    bytes: [u8; MAX_SPAN * LINE_DATA],
    len: usize,
}

impl InlineFrame {
    /// An empty frame.
    pub const EMPTY: InlineFrame = InlineFrame { bytes: [0; MAX_SPAN * LINE_DATA], len: 0 };

    /// Returns the frame's bytes.
    #[inline(always)]
    pub fn frame(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Lines; a power of two.
    pub lines: usize,
    /// The most lines of a frame, up to [`MAX_SPAN`]; a longer frame takes one line, and bytes.
    pub span: usize,
    /// Size of the ring of bytes; a power of two, and at least eight times the longest frame.
    pub bytes: usize,
    /// Bytes of the longest frame.
    pub max_frame: usize,
}

/// The part of the ring of bytes that a sender uses at first.
const FIRST_PART: usize = 16;

impl Shape {
    /// Returns the bytes of a segment that a ring of this shape takes.
    pub const fn size(&self) -> usize {
        (HEAD + self.lines) * LINE + self.bytes
    }

    /// Returns the bytes of the ring of bytes that its sender uses until traffic needs more (S-35).
    pub const fn first_bytes(&self) -> usize {
        let first = self.bytes / FIRST_PART;
        let longest = self.max_frame.next_power_of_two();
        if first > longest { first } else { longest }
    }

    /// Returns the bytes of a segment that a ring of this shape uses until traffic needs more.
    pub const fn first_size(&self) -> usize {
        (HEAD + self.lines) * LINE + self.first_bytes()
    }

    /// Whether the numbers fit together.
    pub const fn is_sound(&self) -> bool {
        self.lines.is_power_of_two()
            && self.span >= 1
            && self.span <= MAX_SPAN
            && self.lines >= 2 * self.span
            && self.lines >= 4
            && self.bytes.is_power_of_two()
            && self.bytes.is_multiple_of(LINE)
            && self.max_frame >= LINE_DATA
            && self.max_frame <= self.bytes / 8
            && self.bytes < 1 << 31
    }

    /// Returns the bytes of the longest frame that lies in lines alone.
    #[inline(always)]
    pub const fn inline_max(&self) -> usize {
        self.span * LINE_DATA
    }
}

/// The layout of a ring in its segment, computed alike by both ends.
#[derive(Debug)]
struct RingMemory {
    head: Lines,
    lines: Lines,
    segment: Arc<Segment>,
    /// The offset of the ring of bytes.
    bytes: usize,
    shape: Shape,
    /// The low bits of a line's number that are its index; the others are its lap.
    bits: u32,
    /// The receiver publishes its progress after so many bytes (S-12).
    publish_bytes: u64,
}

impl RingMemory {
    fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> RingMemory {
        assert!(shape.is_sound() && base.is_multiple_of(LINE) && base + shape.size() <= segment.len());
        let lines = base + HEAD * LINE;
        RingMemory {
            head: Lines::new(&segment, base, HEAD),
            lines: Lines::new(&segment, lines, shape.lines),
            segment,
            bytes: lines + shape.lines * LINE,
            shape,
            bits: shape.lines.trailing_zeros(),
            publish_bytes: shape.first_bytes() as u64 / 2,
        }
    }

    /// Returns the lower half of a line's word when its frame is there.
    #[inline(always)]
    fn stamp(&self, number: u64) -> u32 {
        (number >> self.bits) as u32 + 1
    }

    /// Returns a line's word when its frame of `len` bytes is there. It is written last: before, there is no
    /// frame.
    #[inline(always)]
    fn word(&self, number: u64, len: u32) -> u64 {
        u64::from(self.stamp(number)) | u64::from(len) << 32
    }

    /// Returns the bytes from `at` to the end of the ring of bytes.
    #[inline]
    fn left(&self, at: u64) -> u64 {
        let size = self.shape.bytes as u64;
        size - (at & (size - 1))
    }

    #[inline(always)]
    fn byte(&self, at: u64) -> usize {
        self.bytes + (at as usize & (self.shape.bytes - 1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
