//! The sending end of a ring.

use super::{
    ASLEEP, CONSUMED, CONTINUED, Corrupt, END, LINE_DATA, LINE_DATA_WORDS, MAX_SPAN, RingMemory, Shape,
};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::{Barrier, Segment};

/// The sending end of a ring.
#[derive(Debug)]
pub struct Sender {
    memory: RingMemory,
    /// Lines and bytes written since the beginning.
    lines: u64,
    bytes: u64,
    /// The number of lines that may be written, by what the receiver last published; one line is kept for the
    /// end. Zero after the end.
    limit: u64,
    /// What the receiver had consumed when it was last read.
    consumed_lines: u64,
    consumed_bytes: u64,
    /// Lines that continue frames.
    continued: u64,
    ended: bool,
}

/// How many lines ahead the sender prefetches, so that consecutive frames need not wait for each line to move
/// between the cores. Not further: the receiver may be polling there.
const AHEAD: u64 = 4;

/// Writes bytes to words; the last word is padded with zeros.
#[inline(always)]
fn write(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (to, part) in words.iter().zip(whole) {
        to.store(u64::from_le_bytes(*part), Ordering::Relaxed);
    }
    if let Some(to) = words.get(whole.len()).filter(|_| !rest.is_empty()) {
        let word = match bytes.last_chunk::<8>() {
            Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest.len())),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        to.store(word, Ordering::Relaxed);
    }
}

impl Sender {
    /// Creates the sending end of the ring at `base` of a segment that is still zero there.
    ///
    /// # Panics
    /// If the shape is not sound, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Sender {
        let memory = RingMemory::new(segment, base, shape);
        let limit = shape.lines as u64 - 1;
        Sender {
            memory,
            lines: 0,
            bytes: 0,
            limit,
            consumed_lines: 0,
            consumed_bytes: 0,
            continued: 0,
            ended: false,
        }
    }

    /// Sends a frame of up to [`LINE_DATA`] bytes, given as words. Returns false if there is no room.
    #[inline(always)]
    pub fn push_line(&mut self, words: &[u64; LINE_DATA_WORDS], len: usize) -> Result<bool, Corrupt> {
        debug_assert!(len <= LINE_DATA);
        if !self.has_lines(1)? {
            return Ok(false);
        }
        let line = self.memory.lines.get(self.lines);
        for (to, word) in line[1..].iter().zip(words).take(len.div_ceil(8)) {
            to.store(*word, Ordering::Relaxed);
        }
        line[0].store(self.memory.word(self.lines, len as u32), Ordering::Release);
        self.advance();
        Ok(true)
    }

    /// Sends a frame of one line: words first, followed by bytes. Returns false if there is no room.
    ///
    /// # Panics
    /// If it does not fit a line.
    #[inline(always)]
    pub fn push_words<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, Corrupt> {
        assert!(8 * N + body.len() <= LINE_DATA, "the frame is longer than a line");
        if !self.has_lines(1)? {
            return Ok(false);
        }
        self.write_first(head, body, 8 * N + body.len());
        Ok(true)
    }

    /// Sends a frame as [`Sender::push_words`] does, of more bytes than a line holds.
    ///
    /// # Panics
    /// If it fits a line, or is longer than the longest frame.
    #[inline]
    pub fn push_long<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, Corrupt> {
        let len = 8 * N + body.len();
        assert!(LINE_DATA < len && len <= self.memory.shape.max_frame, "the frame is too short, or too long");
        let (first, rest) = body.split_at(LINE_DATA - 8 * N);
        if len <= self.memory.shape.inline_max() {
            if !self.has_lines(len.div_ceil(LINE_DATA) as u64)? {
                return Ok(false);
            }
            self.write_first(head, first, len);
            self.write_continued(rest);
            return Ok(true);
        }
        let (start, end) = self.memory.rest(self.bytes, rest.len());
        if !self.fits(1, end) && !self.refresh(1, end)? {
            return Ok(false);
        }
        self.memory.segment.copy_in(self.memory.byte(start), rest);
        self.bytes = end;
        self.write_first(head, first, len);
        Ok(true)
    }

    /// Writes the rest of a frame to the next lines.
    #[inline(always)]
    fn write_continued(&mut self, rest: &[u8]) {
        for part in rest.chunks(LINE_DATA) {
            let line = self.memory.lines.get(self.lines);
            write(&line[1..], part);
            line[0].store(self.memory.word(self.lines, CONTINUED), Ordering::Release);
            self.advance();
            self.continued += 1;
        }
    }

    /// Goes to the next line, and prefetches a later one.
    #[inline(always)]
    fn advance(&mut self) {
        self.lines += 1;
        self.memory.lines.prefetch_for_write(self.lines + AHEAD);
    }

    /// Writes the first line of a frame of `len` bytes.
    #[inline(always)]
    fn write_first<const N: usize>(&mut self, head: [u64; N], body: &[u8], len: usize) {
        let line = self.memory.lines.get(self.lines);
        for (to, word) in line[1..].iter().zip(head) {
            to.store(word, Ordering::Relaxed);
        }
        write(&line[1 + N..], body);
        line[0].store(self.memory.word(self.lines, len as u32), Ordering::Release);
        if len <= self.memory.shape.inline_max() {
            self.advance();
        } else {
            // Long frames do not come in quick succession.
            self.lines += 1;
        }
    }

    /// Sends a frame made of two parts. Returns false if there is no room.
    ///
    /// # Panics
    /// If it is longer than the longest frame.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: &[u8]) -> Result<bool, Corrupt> {
        let len = head.len() + body.len();
        assert!(len <= self.memory.shape.max_frame, "the frame is too long");
        let mut both = [0; MAX_SPAN * LINE_DATA];
        if len <= self.memory.shape.inline_max() {
            both[..head.len()].copy_from_slice(head);
            both[head.len()..len].copy_from_slice(body);
            return self.push_gathered(&both, len);
        }
        let (head, rest_of_head) = head.split_at(head.len().min(LINE_DATA));
        let (first, rest) = body.split_at((LINE_DATA - head.len()).min(body.len()));
        both[..head.len()].copy_from_slice(head);
        both[head.len()..head.len() + first.len()].copy_from_slice(first);
        let (start, end) = self.memory.rest(self.bytes, len - LINE_DATA);
        if !self.fits(1, end) && !self.refresh(1, end)? {
            return Ok(false);
        }
        let to = self.memory.byte(start);
        self.memory.segment.copy_in(to, rest_of_head);
        self.memory.segment.copy_in(to + rest_of_head.len(), rest);
        self.bytes = end;
        self.write_gathered(&both, len);
        Ok(true)
    }

    fn push_gathered(&mut self, frame: &[u8; MAX_SPAN * LINE_DATA], len: usize) -> Result<bool, Corrupt> {
        if !self.has_lines(len.div_ceil(LINE_DATA).max(1) as u64)? {
            return Ok(false);
        }
        self.write_gathered(frame, len);
        self.write_continued(&frame[LINE_DATA.min(len)..len]);
        Ok(true)
    }

    /// Writes the first line of a frame that was copied together.
    fn write_gathered(&mut self, frame: &[u8; MAX_SPAN * LINE_DATA], len: usize) {
        let (head, body) = frame.split_first_chunk::<8>().expect("it has more than a word");
        self.write_first([u64::from_le_bytes(*head)], &body[..LINE_DATA - 8], len);
    }

    /// Ends the ring; there is always room for that (S-13).
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.limit = 0;
            let line = self.memory.lines.get(self.lines);
            line[0].store(self.memory.word(self.lines, END), Ordering::Release);
            self.lines += 1;
        }
    }

    /// Returns the number of frames sent.
    pub fn sent(&self) -> u64 {
        self.lines - self.continued
    }

    /// Whether the ring was ended.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether `count` lines may be written.
    #[inline(always)]
    fn has_lines(&mut self, count: u64) -> Result<bool, Corrupt> {
        Ok(self.lines + count <= self.limit || self.refresh(count, 0)?)
    }

    #[inline(always)]
    fn fits(&self, lines: u64, end: u64) -> bool {
        self.lines + lines <= self.limit && end <= self.consumed_bytes + self.memory.shape.bytes as u64
    }

    /// Reads what the receiver has consumed. Returns whether there is room for `lines` more lines, and for
    /// bytes up to `end`.
    #[cold]
    fn refresh(&mut self, lines: u64, end: u64) -> Result<bool, Corrupt> {
        let consumed = self.memory.head.get(CONSUMED);
        let (took, bytes) = (consumed[0].load(Ordering::Acquire), consumed[1].load(Ordering::Acquire));
        let sound = (self.consumed_lines..=self.lines).contains(&took)
            && (self.consumed_bytes..=self.bytes).contains(&bytes);
        if !sound {
            return Err(Corrupt);
        }
        (self.consumed_lines, self.consumed_bytes) = (took, bytes);
        self.limit = if self.ended { 0 } else { took + self.memory.shape.lines as u64 - 1 };
        Ok(self.fits(lines, end))
    }

    /// Returns the number of largest frames that there is room for, by what the receiver has published. If it
    /// is not zero, there is room for a frame of any size.
    pub fn room(&mut self) -> Result<usize, Corrupt> {
        self.refresh(0, 0)?;
        let lines = self.limit.saturating_sub(self.lines) / self.memory.shape.span as u64;
        // Computed frame by frame, because the end of the ring of bytes may be left unused.
        let (mut frames, mut at) = (0, self.bytes);
        while frames < lines {
            let (_, end) = self.memory.rest(at, self.memory.shape.max_frame - LINE_DATA);
            if !self.fits(1, end) {
                break;
            }
            at = end;
            frames += 1;
        }
        Ok(frames as usize)
    }

    /// Whether a frame of any size can be sent. Reads the receiver's position only if needed.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        let (_, end) = self.memory.rest(self.bytes, self.memory.shape.max_frame - LINE_DATA);
        let lines = self.memory.shape.span as u64;
        Ok(self.fits(lines, end) || self.refresh(lines, end)?)
    }

    /// Whether the receiver sleeps and must be rung for, to be called after sending. Returns true once per
    /// sleep.
    #[inline(always)]
    pub fn must_ring(&self, barrier: Barrier) -> bool {
        barrier.light();
        let asleep = &self.memory.head.get(ASLEEP)[0];
        if asleep.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // The side that clears it rings; a receiver that has announced its sleep again meanwhile is rung for,
        // too.
        asleep.store(0, Ordering::Relaxed);
        true
    }
}
