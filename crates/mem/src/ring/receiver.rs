//! The receiving end of a ring.

use super::{CONSUMED, Corrupt, END, InlineFrame, LINE, LINE_DATA, RingMemory, Shape, WRAPPED};
use crate::Segment;
use crate::segment::{Line, Lines};
use crate::sync::{Arc, Ordering};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// A frame of this many bytes.
    Frame(usize),
    /// The end: the sender sends nothing more.
    End,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Receiver {
    pub(super) memory: RingMemory,
    /// Lines and bytes consumed since the beginning.
    pub(super) lines: u64,
    pub(super) bytes: u64,
    /// What was published to the sender.
    pub(super) published_lines: u64,
    published_bytes: u64,
    /// Lines that continued frames.
    continued: u64,
    /// The rest of the frame that was peeked at begins at the start of the ring of bytes.
    wrapped: bool,
}

/// How many lines ahead a receiver that takes many frames prefetches. A line that is not written yet has not
/// left this core's cache since the last lap, so prefetching it costs nothing.
const AHEAD: u64 = 16;

/// Lines of a long frame that are prefetched when it is seen; the hardware prefetcher fetches the others.
const FIRST_LINES: usize = 4;

/// Reads a frame's bytes in a line.
#[inline(always)]
fn read(line: &Line, out: &mut [u8; LINE_DATA]) {
    for (part, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(&line[1..]) {
        *part = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

/// Reads the lines behind this one; returns how many.
#[inline(always)]
fn read_continued(lines: &Lines, number: u64, rest: &mut [u8]) -> u64 {
    let mut more = 0;
    for part in rest.chunks_mut(LINE_DATA) {
        more += 1;
        let line = lines.get(number + more);
        if let Ok(part) = <&mut [u8; LINE_DATA]>::try_from(&mut *part) {
            read(line, part);
            continue;
        }
        let (whole, rest) = part.as_chunks_mut::<8>();
        for (part, word) in whole.iter_mut().zip(&line[1..]) {
            *part = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if !rest.is_empty() {
            let word = line[1 + whole.len()].load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }
    more
}

impl Receiver {
    /// Creates the receiving end of the ring at `base`.
    ///
    /// # Panics
    /// If the shape is not sound, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Receiver {
        let memory = RingMemory::new(segment, base, shape);
        Receiver {
            memory,
            lines: 0,
            bytes: 0,
            published_lines: 0,
            published_bytes: 0,
            continued: 0,
            wrapped: false,
        }
    }

    /// Returns the length in a line's word if the whole frame is there. The word is read once; its value is
    /// checked and then trusted.
    #[inline(always)]
    pub(super) fn len_in(&self, line: &Line, number: u64) -> Option<u32> {
        let word = line[0].load(Ordering::Acquire);
        let len = (word >> 32) as u32;
        let there = word as u32 == self.memory.stamp(number);
        (there && (len as usize <= LINE_DATA || self.is_whole(number, len as usize))).then_some(len)
    }

    /// Whether the last line of a frame of several lines is there.
    #[inline(always)]
    fn is_whole(&self, number: u64, len: usize) -> bool {
        if len > self.memory.shape.inline_max() {
            return true;
        }
        let last = number + (len.div_ceil(LINE_DATA) - 1) as u64;
        self.memory.lines.get(last)[0].load(Ordering::Acquire) as u32 == self.memory.stamp(last)
    }

    #[inline(always)]
    fn len(&self) -> Option<u32> {
        let len = self.len_in(self.memory.lines.get(self.lines), self.lines)?;
        self.prefetch(len);
        Some(len)
    }

    /// Prefetches what follows the line of a frame with this length: more of the frame, or the next one.
    #[inline(always)]
    fn prefetch(&self, len: u32) {
        if len as usize <= self.memory.shape.inline_max() {
            return self.memory.lines.prefetch(self.lines + 1);
        }
        let start = self.rest(len & WRAPPED != 0);
        for line in 0..FIRST_LINES {
            self.memory.segment.prefetch(self.memory.byte(start) + line * LINE);
        }
    }

    /// Returns where the rest of the next frame begins, counted as bytes consumed are.
    #[inline]
    fn rest(&self, wrapped: bool) -> u64 {
        if wrapped { self.bytes + self.memory.left(self.bytes) } else { self.bytes }
    }

    /// Skips the `len` bytes that are the rest of the frame that was peeked at. Returns where they are.
    #[inline]
    pub(super) fn take_bytes(&mut self, len: usize) -> usize {
        let start = self.rest(self.wrapped);
        self.bytes = start + len.next_multiple_of(LINE) as u64;
        self.memory.byte(start)
    }

    /// Whether there is neither a frame nor the end.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len().is_none()
    }

    /// Returns what comes next, without taking it.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Peeked>, Corrupt> {
        match self.len() {
            None => Ok(None),
            Some(END) => Ok(Some(Peeked::End)),
            Some(len) if len as usize <= self.memory.shape.inline_max() => {
                Ok(Some(Peeked::Frame(len as usize)))
            }
            Some(len) => self.peek_long(len),
        }
    }

    /// Checks the length of a frame that takes bytes: it must not reach beyond the end of the ring of bytes.
    #[inline(never)]
    fn peek_long(&mut self, len: u32) -> Result<Option<Peeked>, Corrupt> {
        let (len, wrapped) = ((len & !WRAPPED) as usize, len & WRAPPED != 0);
        let shape = &self.memory.shape;
        let takes_bytes = len > shape.inline_max() && len <= shape.max_frame;
        let left = self.memory.left(self.rest(wrapped));
        if !takes_bytes || (len - LINE_DATA).next_multiple_of(LINE) as u64 > left {
            return Err(Corrupt);
        }
        self.wrapped = wrapped;
        Ok(Some(Peeked::Frame(len)))
    }

    /// Returns the first byte of the frame that [`Receiver::peek`] returned.
    #[inline(always)]
    pub fn first_byte(&self) -> u8 {
        self.memory.lines.get(self.lines)[1].load(Ordering::Relaxed) as u8
    }

    /// Takes frames that lie in lines alone, while `wanted` accepts their first bytes and they have fewer
    /// than `limit` bytes together, up to the length of `frames`. Returns their number, and whether something
    /// follows them.
    #[inline(always)]
    pub fn pop_inline(
        &mut self,
        frames: &mut [InlineFrame],
        limit: usize,
        wanted: impl Fn(u8) -> bool,
    ) -> (usize, bool) {
        let (mut count, mut bytes) = (0, 0);
        // In one loop, so that the processor overlaps the cache misses.
        let more = loop {
            let line = self.memory.lines.get(self.lines);
            let Some(len) = self.len_in(line, self.lines) else { break false };
            self.memory.lines.prefetch(self.lines + AHEAD);
            let first = line[1].load(Ordering::Relaxed) as u8;
            let Some(frame) = frames.get_mut(count).filter(|_| bytes < limit && wanted(first)) else {
                break true;
            };
            let len = len as usize;
            let (out, rest) =
                frame.bytes.split_first_chunk_mut().expect("an inline frame has room for a line");
            if len > LINE_DATA {
                if len > self.memory.shape.inline_max() {
                    break true;
                }
                let more = read_continued(&self.memory.lines, self.lines, &mut rest[..len - LINE_DATA]);
                (self.lines, self.continued) = (self.lines + more, self.continued + more);
            }
            read(line, out);
            frame.len = len;
            self.lines += 1;
            count += 1;
            bytes += len;
        };
        // These frames took no bytes.
        if self.lines - self.published_lines >= self.memory.shape.lines as u64 / 4 {
            self.publish();
        }
        (count, more)
    }

    /// Takes the frame that [`Receiver::peek`] returned; `out` must have the length that it returned,
    /// whatever the segment says now.
    pub fn pop(&mut self, out: &mut [u8]) {
        let len = out.len();
        assert!(len <= self.memory.shape.max_frame, "the frame is too long");
        let line = self.memory.lines.get(self.lines);
        let mut first = [0; LINE_DATA];
        read(line, &mut first);
        let (begin, rest) = out.split_at_mut(LINE_DATA.min(len));
        begin.copy_from_slice(&first[..begin.len()]);
        if len > self.memory.shape.inline_max() {
            let at = self.take_bytes(rest.len());
            self.memory.segment.copy_out(at, rest);
        } else {
            self.pop_continued(rest.len(), rest);
        }
        self.advance();
    }

    /// Skips the lines behind the next one, which hold `len` bytes of its frame, and reads the first bytes of
    /// them.
    #[inline]
    pub(super) fn pop_continued(&mut self, len: usize, out: &mut [u8]) {
        read_continued(&self.memory.lines, self.lines, out);
        let more = len.div_ceil(LINE_DATA) as u64;
        (self.lines, self.continued) = (self.lines + more, self.continued + more);
    }

    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.lines += 1;
        if self.lines - self.published_lines >= self.memory.shape.lines as u64 / 4
            || self.bytes - self.published_bytes >= self.memory.publish_bytes
        {
            self.publish();
        }
    }

    /// Publishes to the sender what was consumed (S-12). Returns whether that was new.
    #[cold]
    pub fn publish(&mut self) -> bool {
        if (self.published_lines, self.published_bytes) == (self.lines, self.bytes) {
            return false;
        }
        (self.published_lines, self.published_bytes) = (self.lines, self.bytes);
        let consumed = self.memory.head.get(CONSUMED);
        consumed[0].store(self.lines, Ordering::Release);
        consumed[1].store(self.bytes, Ordering::Release);
        true
    }

    /// Returns what was published to the sender; it changes when a waiting sender may go on.
    #[inline(always)]
    pub fn published(&self) -> u64 {
        self.published_lines
    }

    /// Returns the number of frames taken.
    pub fn taken(&self) -> u64 {
        self.lines - self.continued
    }
}
