//! Frames from one process to another, through a ring of cache lines and a ring of bytes (S-3).
//!
//! A frame takes one line: a word that says whose turn it is (the stamp) and how long the frame is, and behind it the frame's first bytes. What does
//! not fit there lies in the ring of bytes, at a place that both sides work out for themselves. The sender writes the bytes, then the word; until
//! the word is there, there is no frame, and so nobody ever sees half of one, whenever the sender dies. The receiver says what it has consumed
//! only now and then, in a line of its own, which the sender reads only when it seems to have no room left. Nothing on the way is locked.

mod words;

pub use words::Line;

use crate::sync::{Arc, Ordering};
use crate::{Barrier, Segment};

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes of a frame that lie in its line.
pub const INLINE: usize = LINE - 8;
/// Words of a frame that lie in its line.
pub const INLINE_WORDS: usize = INLINE / 8;

/// Says, in place of a length, that no frame will follow.
const END: u32 = u32::MAX;

/// Where the receiver says what it has consumed: lines, bytes.
const CONSUMED: usize = 0;
/// Where the receiver says that it sleeps.
const ASLEEP: usize = 2 * LINE;
/// Where the lines begin; they are followed by the bytes.
const LINES: usize = 4 * LINE;

/// The other side wrote what no correct one writes; nothing in the segment can be believed any more (S-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Lines; a power of two.
    pub lines: usize,
    /// Bytes beside them; a power of two, and at least eight times the longest frame.
    pub bytes: usize,
    /// The longest frame.
    pub max_frame: usize,
}

impl Shape {
    /// Bytes of a segment that a ring of this shape takes.
    pub const fn size(&self) -> usize {
        LINES + self.lines * LINE + self.bytes
    }

    /// Whether a ring can be like that.
    pub const fn is_sound(&self) -> bool {
        self.lines.is_power_of_two()
            && self.lines >= 4
            && self.bytes.is_power_of_two()
            && self.bytes.is_multiple_of(LINE)
            && self.max_frame >= INLINE
            && self.max_frame <= self.bytes / 8
            && self.bytes < 1 << 31
    }
}

/// What both ends work out alike.
#[derive(Debug)]
struct Place {
    segment: Arc<Segment>,
    base: usize,
    shape: Shape,
    /// So many bits of a frame's number say in which line it lies; the others, in which lap.
    bits: u32,
}

impl Place {
    fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Place {
        assert!(shape.is_sound() && base.is_multiple_of(LINE) && base + shape.size() <= segment.len());
        Place { segment, base, shape, bits: shape.lines.trailing_zeros() }
    }

    #[inline(always)]
    fn line(&self, number: u64) -> usize {
        self.base + LINES + (number as usize & (self.shape.lines - 1)) * LINE
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
        self.base + LINES + self.shape.lines * LINE + (at as usize & (self.shape.bytes - 1))
    }
}

/// The end that frames go into.
#[derive(Debug)]
pub struct Sender {
    place: Place,
    /// Lines written, and bytes, since the beginning.
    lines: u64,
    bytes: u64,
    /// What the receiver had consumed when we last looked.
    seen_lines: u64,
    seen_bytes: u64,
    ended: bool,
}

impl Sender {
    /// The sending end of the ring at `base` of a segment that is still all zeros there.
    ///
    /// # Panics
    /// If the shape is not sound, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Sender {
        let place = Place::new(segment, base, shape);
        Sender { place, lines: 0, bytes: 0, seen_lines: 0, seen_bytes: 0, ended: false }
    }

    /// Sends a frame of up to [`INLINE`] bytes, given as words. False if there is no room.
    #[inline(always)]
    pub fn push_line(&mut self, words: &[u64; INLINE_WORDS], len: usize) -> Result<bool, Corrupt> {
        debug_assert!(len <= INLINE);
        if !self.has_line()? {
            return Ok(false);
        }
        let line = self.place.segment.line(self.place.line(self.lines));
        for (to, word) in line[1..].iter().zip(words).take(len.div_ceil(8)) {
            to.store(*word, Ordering::Relaxed);
        }
        line[0].store(self.place.word(self.lines, len as u32), Ordering::Release);
        self.lines += 1;
        Ok(true)
    }

    /// As [`Sender::push_line`], from where it is: a first word, and up to [`INLINE`] - 8 bytes behind it.
    #[inline(always)]
    pub fn push_short(&mut self, head: u64, body: &[u8]) -> Result<bool, Corrupt> {
        assert!(body.len() <= INLINE - 8, "the frame is longer than a line");
        if !self.has_line()? {
            return Ok(false);
        }
        self.write(head, body, 8 + body.len());
        Ok(true)
    }

    /// As [`Sender::push_short`], with more bytes behind the first word than a line holds.
    #[inline]
    pub fn push_long(&mut self, head: u64, body: &[u8]) -> Result<bool, Corrupt> {
        let len = 8 + body.len();
        assert!(INLINE < len && len <= self.place.shape.max_frame, "the frame is too short, or too long");
        let (first, rest) = body.split_at(INLINE - 8);
        let (start, end) = self.place.rest(self.bytes, rest.len());
        if !self.has_room(end) && !self.look(end)? || self.ended {
            return Ok(false);
        }
        self.place.segment.copy_in(self.place.byte(start), rest);
        self.bytes = end;
        self.write(head, first, len);
        Ok(true)
    }

    /// Writes the next line, of a frame of `len` bytes.
    #[inline(always)]
    fn write(&mut self, head: u64, body: &[u8], len: usize) {
        let line = self.place.segment.line(self.place.line(self.lines));
        line[1].store(head, Ordering::Relaxed);
        let (whole, rest) = body.as_chunks::<8>();
        for (to, part) in line[2..].iter().zip(whole) {
            to.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
        if let Some(to) = line[2..].get(whole.len()).filter(|_| !rest.is_empty()) {
            to.store(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), Ordering::Relaxed);
        }
        line[0].store(self.place.word(self.lines, len as u32), Ordering::Release);
        self.lines += 1;
    }

    /// Whether there is a line to write. One is kept for the end.
    #[inline(always)]
    fn has_line(&mut self) -> Result<bool, Corrupt> {
        let free = self.lines - self.seen_lines < self.place.shape.lines as u64 - 1;
        Ok((free || self.look(0)?) && !self.ended)
    }

    /// Sends a frame made of two parts. False if there is no room.
    ///
    /// # Panics
    /// If it is longer than the longest frame.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: &[u8]) -> Result<bool, Corrupt> {
        let len = head.len() + body.len();
        assert!(len <= self.place.shape.max_frame, "the frame is too long");
        let mut words = [0; INLINE_WORDS];
        let (head, rest_of_head) = head.split_at(head.len().min(INLINE));
        let (first, rest) = body.split_at((INLINE - head.len()).min(body.len()));
        put(&mut words, head, first);
        if len <= INLINE {
            return self.push_line(&words, len);
        }
        let (start, end) = self.place.rest(self.bytes, len - INLINE);
        if !self.has_room(end) && !self.look(end)? || self.ended {
            return Ok(false);
        }
        let to = self.place.byte(start);
        self.place.segment.copy_in(to, rest_of_head);
        self.place.segment.copy_in(to + rest_of_head.len(), rest);
        let line = self.place.segment.line(self.place.line(self.lines));
        for (to, word) in line[1..].iter().zip(&words) {
            to.store(*word, Ordering::Relaxed);
        }
        self.bytes = end;
        line[0].store(self.place.word(self.lines, len as u32), Ordering::Release);
        self.lines += 1;
        Ok(true)
    }

    /// Says that nothing will follow; there is always room for that.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let line = self.place.segment.line(self.place.line(self.lines));
            line[0].store(self.place.word(self.lines, END), Ordering::Release);
            self.lines += 1;
        }
    }

    /// Frames sent.
    pub fn sent(&self) -> u64 {
        self.lines
    }

    /// Whether the end has been said.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    #[inline(always)]
    fn has_room(&self, end: u64) -> bool {
        self.lines - self.seen_lines < self.place.shape.lines as u64 - 1
            && end.saturating_sub(self.seen_bytes) <= self.place.shape.bytes as u64
    }

    /// Looks what the receiver has consumed; whether there is room for another line, and for bytes up to `end`.
    #[cold]
    fn look(&mut self, end: u64) -> Result<bool, Corrupt> {
        let consumed =
            |i: usize| self.place.segment.word(self.place.base + CONSUMED + 8 * i).load(Ordering::Acquire);
        let (lines, bytes) = (consumed(0), consumed(1));
        let sound = (self.seen_lines..=self.lines).contains(&lines)
            && (self.seen_bytes..=self.bytes).contains(&bytes);
        if !sound {
            return Err(Corrupt);
        }
        (self.seen_lines, self.seen_bytes) = (lines, bytes);
        Ok(self.has_room(end))
    }

    /// How many frames of the largest size there is room for, as far as the receiver has said.
    pub fn room(&mut self) -> Result<usize, Corrupt> {
        self.look(0)?;
        if self.ended {
            return Ok(0);
        }
        let lines = self.place.shape.lines as u64 - 1 - (self.lines - self.seen_lines);
        // Worked out step by step, because what is left at the end of the ring of bytes may be wasted.
        let (mut frames, mut at) = (0, self.bytes);
        while frames < lines {
            let (_, end) = self.place.rest(at, self.place.shape.max_frame - INLINE);
            if end.saturating_sub(self.seen_bytes) > self.place.shape.bytes as u64 {
                break;
            }
            at = end;
            frames += 1;
        }
        Ok(frames as usize)
    }

    /// Whether a frame of any size can be sent, without looking again unless it must.
    #[inline]
    pub fn is_clear(&mut self) -> Result<bool, Corrupt> {
        let (_, end) = self.place.rest(self.bytes, self.place.shape.max_frame - INLINE);
        Ok(!self.ended && (self.has_room(end) || self.look(end)?))
    }

    /// After sending: whether the receiver has said that it sleeps, and so must be rung for. Says so once per sleep.
    #[inline(always)]
    pub fn must_ring(&self, barrier: Barrier) -> bool {
        barrier.light();
        let asleep = self.place.segment.word(self.place.base + ASLEEP);
        if asleep.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Whoever clears it rings; a sleeper that has said so anew meanwhile is rung for, too.
        asleep.store(0, Ordering::Relaxed);
        true
    }
}

/// Packs two parts into words.
#[inline(always)]
fn put(words: &mut [u64; INLINE_WORDS], head: &[u8], body: &[u8]) {
    let mut bytes = [0; INLINE];
    bytes[..head.len()].copy_from_slice(head);
    bytes[head.len()..head.len() + body.len()].copy_from_slice(body);
    for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(part.try_into().expect("eight bytes"));
    }
}

/// A frame that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame of so many bytes.
    Frame(usize),
    /// The sender has said that nothing will follow.
    End,
}

/// The end that frames come out of.
#[derive(Debug)]
pub struct Receiver {
    place: Place,
    /// Lines and bytes consumed since the beginning.
    lines: u64,
    bytes: u64,
    /// What the sender has been told of.
    told_lines: u64,
    told_bytes: u64,
}

impl Receiver {
    /// The receiving end of the ring at `base`.
    ///
    /// # Panics
    /// If the shape is not sound, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Receiver {
        let place = Place::new(segment, base, shape);
        Receiver { place, lines: 0, bytes: 0, told_lines: 0, told_bytes: 0 }
    }

    /// The word of the next frame, if it is there. Read once; what it says is checked and then believed.
    #[inline(always)]
    fn word(&self) -> Option<u32> {
        let word = self.place.segment.word(self.place.line(self.lines)).load(Ordering::Acquire);
        (word as u32 == self.place.stamp(self.lines)).then_some((word >> 32) as u32)
    }

    /// Whether there is anything.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.word().is_none()
    }

    /// What there is, without taking it.
    #[inline]
    pub fn peek(&self) -> Result<Option<Next>, Corrupt> {
        match self.word() {
            None => Ok(None),
            Some(END) => Ok(Some(Next::End)),
            Some(len) if len as usize <= self.place.shape.max_frame => Ok(Some(Next::Frame(len as usize))),
            Some(_) => Err(Corrupt),
        }
    }

    /// The first byte of what [`Receiver::peek`] showed.
    #[inline(always)]
    pub fn head(&self) -> u8 {
        self.place.segment.line(self.place.line(self.lines))[1].load(Ordering::Relaxed) as u8
    }

    /// Takes the next frame if it is short enough for its line, and its first byte is as wanted. `None` if there is none, or it is not.
    #[inline(always)]
    pub fn pop_line(&mut self, out: &mut [u8; INLINE], wanted: impl FnOnce(u8) -> bool) -> Option<usize> {
        let line = self.place.segment.line(self.place.line(self.lines));
        // Read once, as everywhere.
        let word = line[0].load(Ordering::Acquire);
        let len = (word >> 32) as usize;
        if word as u32 != self.place.stamp(self.lines) || len > INLINE {
            return None;
        }
        let first = line[1].load(Ordering::Relaxed);
        if !wanted(first as u8) {
            return None;
        }
        let (parts, _) = out.as_chunks_mut::<8>();
        parts[0] = first.to_le_bytes();
        for (part, word) in parts[1..].iter_mut().zip(&line[2..]) {
            *part = word.load(Ordering::Relaxed).to_le_bytes();
        }
        self.lines += 1;
        // It took no bytes.
        if self.lines - self.told_lines >= self.place.shape.lines as u64 / 4 {
            self.tell();
        }
        Some(len)
    }

    #[inline(always)]
    fn take_line(&self, out: &mut [u8; INLINE]) {
        let line = self.place.segment.line(self.place.line(self.lines));
        for (part, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(&line[1..]) {
            *part = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    /// Takes the frame that [`Receiver::peek`] showed; `out` is as long as it said, whatever the segment says now.
    pub fn pop(&mut self, out: &mut [u8]) {
        let len = out.len();
        assert!(len <= self.place.shape.max_frame, "no frame is that long");
        if let Some((first, rest)) = out.split_first_chunk_mut::<INLINE>() {
            self.take_line(first);
            if !rest.is_empty() {
                let (start, end) = self.place.rest(self.bytes, rest.len());
                self.place.segment.copy_out(self.place.byte(start), rest);
                self.bytes = end;
            }
        } else {
            let mut line = [0; INLINE];
            self.take_line(&mut line);
            out.copy_from_slice(&line[..len]);
        }
        self.advance();
    }

    #[inline(always)]
    fn advance(&mut self) {
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
        let consumed = |i: usize| self.place.segment.word(self.place.base + CONSUMED + 8 * i);
        consumed(0).store(self.lines, Ordering::Release);
        consumed(1).store(self.bytes, Ordering::Release);
        true
    }

    /// What the sender has been told of: changes when it may be waiting for that.
    #[inline(always)]
    pub fn told(&self) -> u64 {
        self.told_lines
    }

    /// Frames taken.
    pub fn taken(&self) -> u64 {
        self.lines
    }

    /// Says that this side sleeps, or no longer does. Before sleeping: say so, [`Barrier::heavy`], look again.
    pub fn set_asleep(&self, asleep: bool) {
        self.place.segment.word(self.place.base + ASLEEP).store(u64::from(asleep), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
