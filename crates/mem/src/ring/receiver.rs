//! The end that frames come out of.

use super::{ASLEEP, CONSUMED, Corrupt, END, InlineFrame, LINE, LINE_DATA, Place, Shape};
use crate::Segment;
use crate::segment::{Line, Lines};
use crate::sync::{Arc, Ordering};

/// A frame that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// A frame of so many bytes.
    Frame(usize),
    /// The sender has said that nothing will follow.
    End,
}

/// The end that frames come out of.
#[derive(Debug)]
pub struct Receiver {
    pub(super) place: Place,
    /// Lines and bytes consumed since the beginning.
    pub(super) lines: u64,
    pub(super) bytes: u64,
    /// What the sender has been told of.
    pub(super) told_lines: u64,
    told_bytes: u64,
    /// Lines that continued frames.
    continued: u64,
}

/// So many lines before it reads one, a receiver that takes many frames asks for it. What is not there yet has not left this core's caches since the last lap, so asking for it
/// costs nothing.
const AHEAD: u64 = 16;

/// Lines of a long frame that are asked for as soon as it is seen; the processor finds out about the others.
const BEGINNING: usize = 4;

/// Reads what a line holds of a frame.
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
    /// The receiving end of the ring at `base`.
    ///
    /// # Panics
    /// If the shape is not sound, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Receiver {
        let place = Place::new(segment, base, shape);
        Receiver { place, lines: 0, bytes: 0, told_lines: 0, told_bytes: 0, continued: 0 }
    }

    /// The length that the word of a line tells, if its frame is there, all of it. Read once; what it says is checked and then believed.
    #[inline(always)]
    pub(super) fn len_in(&self, line: &Line, number: u64) -> Option<u32> {
        let word = line[0].load(Ordering::Acquire);
        let len = (word >> 32) as u32;
        let there = word as u32 == self.place.stamp(number);
        (there && (len as usize <= LINE_DATA || self.is_whole(number, len as usize))).then_some(len)
    }

    /// Whether the last line of a frame that takes several is there.
    #[inline(always)]
    fn is_whole(&self, number: u64, len: usize) -> bool {
        if len > self.place.shape.inline_max() {
            return true;
        }
        let last = number + (len.div_ceil(LINE_DATA) - 1) as u64;
        self.place.lines.get(last)[0].load(Ordering::Acquire) as u32 == self.place.stamp(last)
    }

    #[inline(always)]
    fn len(&self) -> Option<u32> {
        let len = self.len_in(self.place.lines.get(self.lines), self.lines)?;
        self.expect(len as usize);
        Some(len)
    }

    /// What lies behind the line of a frame of `len` bytes is about to be read: more of the frame, or the next one.
    #[inline(always)]
    fn expect(&self, len: usize) {
        if len <= self.place.shape.inline_max() {
            return self.place.lines.expect(self.lines + 1);
        }
        let (start, _) = self.place.rest(self.bytes, len.min(self.place.shape.max_frame) - LINE_DATA);
        for line in 0..BEGINNING {
            self.place.segment.expect(self.place.byte(start) + line * LINE);
        }
    }

    /// Whether there is anything.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len().is_none()
    }

    /// What there is, without taking it.
    #[inline]
    pub fn peek(&self) -> Result<Option<Peeked>, Corrupt> {
        match self.len() {
            None => Ok(None),
            Some(END) => Ok(Some(Peeked::End)),
            Some(len) if len as usize <= self.place.shape.max_frame => Ok(Some(Peeked::Frame(len as usize))),
            Some(_) => Err(Corrupt),
        }
    }

    /// The first byte of what [`Receiver::peek`] showed.
    #[inline(always)]
    pub fn first_byte(&self) -> u8 {
        self.place.lines.get(self.lines)[1].load(Ordering::Relaxed) as u8
    }

    /// Takes frames that lie in lines, for as long as their first bytes are as wanted and they have fewer than `limit` bytes together, up to as many as
    /// there are slips. Returns how many, and whether there is something behind them.
    #[inline(always)]
    pub fn pop_inline(
        &mut self,
        frames: &mut [InlineFrame],
        limit: usize,
        wanted: impl Fn(u8) -> bool,
    ) -> (usize, bool) {
        let (mut count, mut bytes) = (0, 0);
        // Many at a time, so that the processor can fetch them at a time.
        let more = loop {
            let line = self.place.lines.get(self.lines);
            let Some(len) = self.len_in(line, self.lines) else { break false };
            self.place.lines.expect(self.lines + AHEAD);
            let first = line[1].load(Ordering::Relaxed) as u8;
            let Some(frame) = frames.get_mut(count).filter(|_| bytes < limit && wanted(first)) else {
                break true;
            };
            let len = len as usize;
            let (out, rest) = frame.bytes.split_first_chunk_mut().expect("a line's bytes, and more");
            if len > LINE_DATA {
                if len > self.place.shape.inline_max() {
                    break true;
                }
                let more = read_continued(&self.place.lines, self.lines, &mut rest[..len - LINE_DATA]);
                (self.lines, self.continued) = (self.lines + more, self.continued + more);
            }
            read(line, out);
            frame.len = len;
            self.lines += 1;
            count += 1;
            bytes += len;
        };
        // They took no bytes.
        if self.lines - self.told_lines >= self.place.shape.lines as u64 / 4 {
            self.tell();
        }
        (count, more)
    }

    /// Takes the frame that [`Receiver::peek`] showed; `out` is as long as it said, whatever the segment says now.
    pub fn pop(&mut self, out: &mut [u8]) {
        let len = out.len();
        assert!(len <= self.place.shape.max_frame, "no frame is that long");
        let line = self.place.lines.get(self.lines);
        let mut first = [0; LINE_DATA];
        read(line, &mut first);
        let (begin, rest) = out.split_at_mut(LINE_DATA.min(len));
        begin.copy_from_slice(&first[..begin.len()]);
        if len > self.place.shape.inline_max() {
            let (start, end) = self.place.rest(self.bytes, rest.len());
            self.place.segment.copy_out(self.place.byte(start), rest);
            self.bytes = end;
        } else {
            self.pop_continued(rest);
        }
        self.advance();
    }

    /// Reads the lines behind the next one, and goes past them.
    #[inline]
    pub(super) fn pop_continued(&mut self, rest: &mut [u8]) {
        let more = read_continued(&self.place.lines, self.lines, rest);
        (self.lines, self.continued) = (self.lines + more, self.continued + more);
    }

    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.lines += 1;
        if self.lines - self.told_lines >= self.place.shape.lines as u64 / 4
            || self.bytes - self.told_bytes >= self.place.shape.bytes as u64 / 8
        {
            self.tell();
        }
    }

    /// Tells the sender what has been consumed. Returns whether that was news.
    #[cold]
    pub fn tell(&mut self) -> bool {
        if (self.told_lines, self.told_bytes) == (self.lines, self.bytes) {
            return false;
        }
        (self.told_lines, self.told_bytes) = (self.lines, self.bytes);
        let consumed = self.place.head.get(CONSUMED);
        consumed[0].store(self.lines, Ordering::Release);
        consumed[1].store(self.bytes, Ordering::Release);
        true
    }

    /// What the sender has been told of: changes when it may be waiting for that.
    #[inline(always)]
    pub fn told(&self) -> u64 {
        self.told_lines
    }

    /// Frames taken.
    pub fn taken(&self) -> u64 {
        self.lines - self.continued
    }

    /// Says that this side sleeps, or no longer does. Before sleeping: say so, [`crate::Barrier::heavy`], look again.
    pub fn set_asleep(&self, asleep: bool) {
        self.place.head.get(ASLEEP)[0].store(u64::from(asleep), Ordering::Relaxed);
    }
}
