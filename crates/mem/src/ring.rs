//! Frames from one process to another, through a ring of cache lines and a ring of bytes (S-3).
//!
//! A frame takes a line: a word that says whose turn it is (the stamp) and how long the frame is, and behind it the frame's first bytes. What does
//! not fit there lies in the next few lines, each with a stamp of its own; what would take too many, in the ring of
//! bytes, at a place that both sides work out for themselves. The sender writes the bytes, then the word; until
//! all words are there, there is no frame, and so nobody ever sees half of one, whenever the sender dies. The receiver says what it has consumed
//! only now and then, in a line of its own, which the sender reads only when it seems to have no room left. Nothing on the way is locked.
//!
//! The lines of a frame are written in order, first to last. A processor makes stores visible in their order: if the first line, which the receiver looks at all the time,
//! had to wait for the others, the receiver would fetch it away in the meantime.

mod receiver;
mod sender;
mod words;

pub use receiver::{Peeked, Receiver};
pub use sender::Sender;
pub use words::PoppedLine;

use crate::Segment;
use crate::segment::Lines;
use crate::sync::Arc;

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes of a frame that lie in a line.
pub const LINE_DATA: usize = LINE - 8;
/// Words of a frame that lie in a line.
pub const LINE_DATA_WORDS: usize = LINE_DATA / 8;
/// Lines that a frame may take before it takes bytes.
pub const MAX_SPAN: usize = 4;

/// Says, in place of a length, that no frame will follow.
const END: u32 = u32::MAX;
/// Says, in place of a length, that the line belongs to the frame before it.
const CONTINUED: u32 = u32::MAX - 1;

/// Lines in which the two sides tell each other how far they are; the frames' lines follow them, and then the bytes.
const HEAD: usize = 4;
/// The line where the receiver says what it has consumed: lines, bytes.
const CONSUMED: u64 = 0;
/// The line where the receiver says that it sleeps.
const ASLEEP: u64 = 2;

/// The other side wrote what no correct one writes; nothing in the segment can be believed any more (S-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A frame that lay in lines, as it was taken out.
#[derive(Clone, Copy, Debug)]
pub struct InlineFrame {
    bytes: [u8; MAX_SPAN * LINE_DATA],
    len: usize,
}

impl InlineFrame {
    /// An empty one.
    pub const EMPTY: InlineFrame = InlineFrame { bytes: [0; MAX_SPAN * LINE_DATA], len: 0 };

    /// The frame.
    #[inline(always)]
    pub fn frame(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Lines; a power of two.
    pub lines: usize,
    /// Lines that a frame takes at most, up to [`MAX_SPAN`]: a longer one takes one line, and bytes.
    pub span: usize,
    /// Bytes beside them; a power of two, and at least eight times the longest frame.
    pub bytes: usize,
    /// The longest frame.
    pub max_frame: usize,
}

impl Shape {
    /// Bytes of a segment that a ring of this shape takes.
    pub const fn size(&self) -> usize {
        (HEAD + self.lines) * LINE + self.bytes
    }

    /// Whether a ring can be like that.
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

    /// Bytes of the longest frame that lies in lines alone.
    #[inline(always)]
    pub const fn inline_max(&self) -> usize {
        self.span * LINE_DATA
    }
}

/// What both ends work out alike.
#[derive(Debug)]
struct Place {
    head: Lines,
    lines: Lines,
    segment: Arc<Segment>,
    /// Where the bytes begin.
    bytes: usize,
    shape: Shape,
    /// So many bits of a line's number say which one it is; the others, in which lap.
    bits: u32,
}

impl Place {
    fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Place {
        assert!(shape.is_sound() && base.is_multiple_of(LINE) && base + shape.size() <= segment.len());
        let lines = base + HEAD * LINE;
        Place {
            head: Lines::new(&segment, base, HEAD),
            lines: Lines::new(&segment, lines, shape.lines),
            segment,
            bytes: lines + shape.lines * LINE,
            shape,
            bits: shape.lines.trailing_zeros(),
        }
    }

    /// What the word of a line holds in its lower half when its frame is there.
    #[inline(always)]
    fn stamp(&self, number: u64) -> u32 {
        (number >> self.bits) as u32 + 1
    }

    /// What the word of a line holds when its frame, of `len` bytes, is there. Written last: before it there is no frame.
    #[inline(always)]
    fn word(&self, number: u64, len: u32) -> u64 {
        u64::from(self.stamp(number)) | u64::from(len) << 32
    }

    /// Where in the ring of bytes the rest of a frame lies, if the ring is used up to `at`: it is never split. Returns the start and the
    /// end, counted as `at` is.
    #[inline]
    fn rest(&self, at: u64, len: usize) -> (u64, u64) {
        let len = len.next_multiple_of(LINE) as u64;
        let size = self.shape.bytes as u64;
        let left = size - (at & (size - 1));
        let start = if len <= left { at } else { at + left };
        (start, start + len)
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
