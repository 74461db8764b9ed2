//! The end that frames go into.

use super::{ASLEEP, CONSUMED, CONTINUED, Corrupt, END, LINE_DATA, LINE_DATA_WORDS, MAX_SPAN, Place, Shape};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::{Barrier, Segment};

/// The end that frames go into.
#[derive(Debug)]
pub struct Sender {
    place: Place,
    /// Lines written, and bytes, since the beginning.
    lines: u64,
    bytes: u64,
    /// How far lines may be written, as far as the receiver has said: one is kept for the end. Zero after the end.
    limit: u64,
    /// What the receiver had consumed when we last looked.
    seen_lines: u64,
    seen_bytes: u64,
    /// Lines that continue frames.
    continued: u64,
    ended: bool,
}

/// So many lines before it writes one, the sender asks for it: whoever sends one frame after the other need not wait for each line to come over. Not much
/// earlier: the receiver may be about to look there.
const AHEAD: u64 = 4;

/// Writes bytes to words; the last word is filled up with zeros.
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
    /// The sending end of the ring at `base` of a segment that is still all zeros there.
    ///
    /// # Panics
    /// If the shape is not sound, or does not fit there.
    pub fn new(segment: Arc<Segment>, base: usize, shape: Shape) -> Sender {
        let place = Place::new(segment, base, shape);
        let limit = shape.lines as u64 - 1;
        Sender { place, lines: 0, bytes: 0, limit, seen_lines: 0, seen_bytes: 0, continued: 0, ended: false }
    }

    /// Sends a frame of up to [`LINE_DATA`] bytes, given as words. False if there is no room.
    #[inline(always)]
    pub fn push_line(&mut self, words: &[u64; LINE_DATA_WORDS], len: usize) -> Result<bool, Corrupt> {
        debug_assert!(len <= LINE_DATA);
        if !self.has_lines(1)? {
            return Ok(false);
        }
        let line = self.place.lines.get(self.lines);
        for (to, word) in line[1..].iter().zip(words).take(len.div_ceil(8)) {
            to.store(*word, Ordering::Relaxed);
        }
        line[0].store(self.place.word(self.lines, len as u32), Ordering::Release);
        self.advance();
        Ok(true)
    }

    /// Sends a frame that fits its line: first words, and bytes behind them. False if there is no room.
    ///
    /// # Panics
    /// If it does not fit.
    #[inline(always)]
    pub fn push_words<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, Corrupt> {
        assert!(8 * N + body.len() <= LINE_DATA, "the frame is longer than a line");
        if !self.has_lines(1)? {
            return Ok(false);
        }
        self.write_first(head, body, 8 * N + body.len());
        Ok(true)
    }

    /// As [`Sender::push_words`], with more bytes behind the first words than the line holds.
    ///
    /// # Panics
    /// If it is not longer than a line, or longer than the longest frame.
    #[inline]
    pub fn push_long<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, Corrupt> {
        let len = 8 * N + body.len();
        assert!(LINE_DATA < len && len <= self.place.shape.max_frame, "the frame is too short, or too long");
        let (first, rest) = body.split_at(LINE_DATA - 8 * N);
        if len <= self.place.shape.inline_max() {
            if !self.has_lines(len.div_ceil(LINE_DATA) as u64)? {
                return Ok(false);
            }
            self.write_first(head, first, len);
            self.write_continued(rest);
            return Ok(true);
        }
        let (start, end) = self.place.rest(self.bytes, rest.len());
        if !self.fits(1, end) && !self.look(1, end)? {
            return Ok(false);
        }
        self.place.segment.copy_in(self.place.byte(start), rest);
        self.bytes = end;
        self.write_first(head, first, len);
        Ok(true)
    }

    /// Writes the next lines, with what is left of a frame.
    #[inline(always)]
    fn write_continued(&mut self, rest: &[u8]) {
        for part in rest.chunks(LINE_DATA) {
            let line = self.place.lines.get(self.lines);
            write(&line[1..], part);
            line[0].store(self.place.word(self.lines, CONTINUED), Ordering::Release);
            self.advance();
            self.continued += 1;
        }
    }

    /// The next line has been written, and others will be.
    #[inline(always)]
    fn advance(&mut self) {
        self.lines += 1;
        self.place.lines.claim(self.lines + AHEAD);
    }

    /// Writes the next line, of a frame of `len` bytes.
    #[inline(always)]
    fn write_first<const N: usize>(&mut self, head: [u64; N], body: &[u8], len: usize) {
        let line = self.place.lines.get(self.lines);
        for (to, word) in line[1..].iter().zip(head) {
            to.store(word, Ordering::Relaxed);
        }
        write(&line[1 + N..], body);
        line[0].store(self.place.word(self.lines, len as u32), Ordering::Release);
        if len <= self.place.shape.inline_max() {
            self.advance();
        } else {
            // There will not be many.
            self.lines += 1;
        }
    }

    /// Sends a frame made of two parts. False if there is no room.
    ///
    /// # Panics
    /// If it is longer than the longest frame.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: &[u8]) -> Result<bool, Corrupt> {
        let len = head.len() + body.len();
        assert!(len <= self.place.shape.max_frame, "the frame is too long");
        let mut both = [0; MAX_SPAN * LINE_DATA];
        if len <= self.place.shape.inline_max() {
            both[..head.len()].copy_from_slice(head);
            both[head.len()..len].copy_from_slice(body);
            return self.push_gathered(&both, len);
        }
        let (head, rest_of_head) = head.split_at(head.len().min(LINE_DATA));
        let (first, rest) = body.split_at((LINE_DATA - head.len()).min(body.len()));
        both[..head.len()].copy_from_slice(head);
        both[head.len()..head.len() + first.len()].copy_from_slice(first);
        let (start, end) = self.place.rest(self.bytes, len - LINE_DATA);
        if !self.fits(1, end) && !self.look(1, end)? {
            return Ok(false);
        }
        let to = self.place.byte(start);
        self.place.segment.copy_in(to, rest_of_head);
        self.place.segment.copy_in(to + rest_of_head.len(), rest);
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

    /// Writes the next line from the beginning of a frame that is gathered in one place.
    fn write_gathered(&mut self, frame: &[u8; MAX_SPAN * LINE_DATA], len: usize) {
        let (head, body) = frame.split_first_chunk::<8>().expect("it has more");
        self.write_first([u64::from_le_bytes(*head)], &body[..LINE_DATA - 8], len);
    }

    /// Says that nothing will follow; there is always room for that.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.limit = 0;
            let line = self.place.lines.get(self.lines);
            line[0].store(self.place.word(self.lines, END), Ordering::Release);
            self.lines += 1;
        }
    }

    /// Frames sent.
    pub fn sent(&self) -> u64 {
        self.lines - self.continued
    }

    /// Whether the end has been said.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether there are so many lines to write.
    #[inline(always)]
    fn has_lines(&mut self, count: u64) -> Result<bool, Corrupt> {
        Ok(self.lines + count <= self.limit || self.look(count, 0)?)
    }

    #[inline(always)]
    fn fits(&self, lines: u64, end: u64) -> bool {
        self.lines + lines <= self.limit && end <= self.seen_bytes + self.place.shape.bytes as u64
    }

    /// Looks what the receiver has consumed; whether there is room for so many lines more, and for bytes up to `end`.
    #[cold]
    fn look(&mut self, lines: u64, end: u64) -> Result<bool, Corrupt> {
        let consumed = self.place.head.get(CONSUMED);
        let (took, bytes) = (consumed[0].load(Ordering::Acquire), consumed[1].load(Ordering::Acquire));
        let sound =
            (self.seen_lines..=self.lines).contains(&took) && (self.seen_bytes..=self.bytes).contains(&bytes);
        if !sound {
            return Err(Corrupt);
        }
        (self.seen_lines, self.seen_bytes) = (took, bytes);
        self.limit = if self.ended { 0 } else { took + self.place.shape.lines as u64 - 1 };
        Ok(self.fits(lines, end))
    }

    /// How many frames of the largest size there is room for, as far as the receiver has said; and if for any, then for one of any size.
    pub fn room(&mut self) -> Result<usize, Corrupt> {
        self.look(0, 0)?;
        let lines = self.limit.saturating_sub(self.lines) / self.place.shape.span as u64;
        // Worked out step by step, because what is left at the end of the ring of bytes may be wasted.
        let (mut frames, mut at) = (0, self.bytes);
        while frames < lines {
            let (_, end) = self.place.rest(at, self.place.shape.max_frame - LINE_DATA);
            if !self.fits(1, end) {
                break;
            }
            at = end;
            frames += 1;
        }
        Ok(frames as usize)
    }

    /// Whether a frame of any size can be sent, without looking again unless it must.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        let (_, end) = self.place.rest(self.bytes, self.place.shape.max_frame - LINE_DATA);
        let lines = self.place.shape.span as u64;
        Ok(self.fits(lines, end) || self.look(lines, end)?)
    }

    /// After sending: whether the receiver has said that it sleeps, and so must be rung for. Says so once per sleep.
    #[inline(always)]
    pub fn must_ring(&self, barrier: Barrier) -> bool {
        barrier.light();
        let asleep = &self.place.head.get(ASLEEP)[0];
        if asleep.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Whoever clears it rings; a sleeper that has said so anew meanwhile is rung for, too.
        asleep.store(0, Ordering::Relaxed);
        true
    }
}
