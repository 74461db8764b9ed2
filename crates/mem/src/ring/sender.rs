//! The sending end of a ring.

use super::{
    CONSUMED, CONTINUED, Corrupt, END, LINE, LINE_DATA, LINE_DATA_WORDS, MAX_SPAN, RingMemory, Shape, WRAPPED,
};
use crate::Segment;
use crate::sync::{Arc, AtomicU64, Ordering};

/// The sending end of a ring.
#[derive(Debug)]
pub struct Sender {
    memory: RingMemory,
    /// Lines written since the beginning.
    lines: u64,
    bytes: BytesUsed,
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

/// How much of the ring of bytes is used (S-35): a sender goes back to its start early, so that few pages are
/// ever touched, as long as that costs it nothing.
#[derive(Clone, Copy, Debug)]
struct BytesUsed {
    /// Bytes written since the beginning; those that were left out count, too.
    at: u64,
    /// The bytes, from the start of the ring, that are used at present.
    part: u64,
    /// The last time that the sender went back to the start: from where, and to where, counted as `at` is.
    wrapped: (u64, u64),
}

/// The place of a frame in the ring of bytes.
struct Placed {
    start: u64,
    /// [`WRAPPED`], if it begins at the start of the ring.
    flag: u32,
    after: BytesUsed,
}

impl BytesUsed {
    /// Finds a place for `len` bytes in a ring of `size` of which the receiver has consumed bytes up to
    /// `consumed`: in the part in use, at its start, or behind it. A frame is never split.
    #[inline]
    fn place(self, len: usize, size: u64, consumed: u64) -> Option<Placed> {
        let len = len.next_multiple_of(LINE) as u64;
        let (from, to) = self.wrapped;
        // A receiver that has consumed everything before the jump has nothing left to read behind it.
        let limit = size + if consumed >= from { consumed.max(to) } else { consumed };
        let offset = self.at & (size - 1);
        let end = self.at + len;
        let next_lap = self.at - offset + size;
        if offset + len <= self.part && end <= limit {
            Some(Placed { start: self.at, flag: 0, after: BytesUsed { at: end, ..self } })
        } else if next_lap + len <= limit {
            let after = BytesUsed { at: next_lap + len, wrapped: (self.at, next_lap), ..self };
            Some(Placed { start: next_lap, flag: WRAPPED, after })
        } else if offset + len <= size && end <= limit {
            let part = self.part.max((offset + len).next_power_of_two());
            Some(Placed { start: self.at, flag: 0, after: BytesUsed { at: end, part, ..self } })
        } else {
            None
        }
    }
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
    write_rest(words, bytes, (whole, rest));
}

/// As [`write`], for a line at most: a branch for each word costs less than a loop.
#[inline(always)]
fn write_short(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for at in 0..LINE_DATA_WORDS {
        let (Some(to), Some(part)) = (words.get(at), whole.get(at)) else { break };
        to.store(u64::from_le_bytes(*part), Ordering::Relaxed);
    }
    write_rest(words, bytes, (whole, rest));
}

#[inline(always)]
fn write_rest(words: &[AtomicU64], bytes: &[u8], (whole, rest): (&[[u8; 8]], &[u8])) {
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
            bytes: BytesUsed { at: 0, part: shape.first_bytes() as u64, wrapped: (0, 0) },
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
        let line = self.memory.lines.get(self.lines);
        for (to, word) in line[1..].iter().zip(head) {
            to.store(word, Ordering::Relaxed);
        }
        write_short(&line[1 + N..], body);
        line[0].store(self.memory.word(self.lines, (8 * N + body.len()) as u32), Ordering::Release);
        self.advance();
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
            self.write_first(head, first, len as u32);
            self.write_continued(rest);
            return Ok(true);
        }
        let Some((to, flag)) = self.take_bytes(rest.len())? else { return Ok(false) };
        self.memory.segment.copy_in(to, rest);
        self.write_first(head, first, len as u32 | flag);
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

    /// Writes the first line of a frame; `len` is its length, with [`WRAPPED`] if that applies.
    #[inline(always)]
    fn write_first<const N: usize>(&mut self, head: [u64; N], body: &[u8], len: u32) {
        let line = self.memory.lines.get(self.lines);
        for (to, word) in line[1..].iter().zip(head) {
            to.store(word, Ordering::Relaxed);
        }
        write(&line[1 + N..], body);
        line[0].store(self.memory.word(self.lines, len), Ordering::Release);
        if len as usize <= self.memory.shape.inline_max() {
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
        let Some((to, flag)) = self.take_bytes(len - LINE_DATA)? else { return Ok(false) };
        self.memory.segment.copy_in(to, rest_of_head);
        self.memory.segment.copy_in(to + rest_of_head.len(), rest);
        self.write_gathered(&both, len as u32 | flag);
        Ok(true)
    }

    fn push_gathered(&mut self, frame: &[u8; MAX_SPAN * LINE_DATA], len: usize) -> Result<bool, Corrupt> {
        if !self.has_lines(len.div_ceil(LINE_DATA).max(1) as u64)? {
            return Ok(false);
        }
        self.write_gathered(frame, len as u32);
        self.write_continued(&frame[LINE_DATA.min(len)..len]);
        Ok(true)
    }

    /// Writes the first line of a frame that was copied together.
    fn write_gathered(&mut self, frame: &[u8; MAX_SPAN * LINE_DATA], len: u32) {
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
        if self.lines + count > self.limit {
            self.refresh()?;
        }
        Ok(self.lines + count <= self.limit)
    }

    /// Reads what the receiver has consumed.
    #[cold]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        let consumed = self.memory.head.get(CONSUMED);
        let (took, bytes) = (consumed[0].load(Ordering::Acquire), consumed[1].load(Ordering::Acquire));
        let sound = (self.consumed_lines..=self.lines).contains(&took)
            && (self.consumed_bytes..=self.bytes.at).contains(&bytes);
        if !sound {
            return Err(Corrupt);
        }
        (self.consumed_lines, self.consumed_bytes) = (took, bytes);
        self.limit = if self.ended { 0 } else { took + self.memory.shape.lines as u64 - 1 };
        Ok(())
    }

    /// Finds a place for `len` bytes, by what is known of the receiver's progress.
    #[inline]
    fn place(&self, len: usize) -> Option<Placed> {
        self.bytes.place(len, self.memory.shape.bytes as u64, self.consumed_bytes)
    }

    /// Takes a line and `len` bytes for a frame. Returns where the bytes are, and the flag of the line.
    #[inline]
    fn take_bytes(&mut self, len: usize) -> Result<Option<(usize, u32)>, Corrupt> {
        let mut placed = self.place(len);
        let ordinary = |placed: &Placed| placed.flag == 0 && placed.after.part == self.bytes.part;
        if self.lines >= self.limit || !placed.as_ref().is_some_and(ordinary) {
            self.refresh()?;
            placed = self.place(len).filter(|_| self.lines < self.limit);
        }
        let Some(Placed { start, flag, after }) = placed else {
            self.extend(2 * self.bytes.part);
            return Ok(None);
        };
        if after.part > self.bytes.part {
            self.extend(after.part);
        }
        self.bytes = after;
        Ok(Some((self.memory.byte(start), flag)))
    }

    /// There was no room: uses more of the ring of bytes from now on, up to `part` bytes.
    #[cold]
    fn extend(&mut self, part: u64) {
        let part = part.min(self.memory.shape.bytes as u64);
        let (from, to) = (self.bytes.part as usize, part as usize);
        // It spares page faults. If there is no memory, the next write fares as any other does then.
        let _ = self.memory.segment.populate(self.memory.bytes + from, to - from);
        self.bytes.part = part;
    }

    /// Returns the number of largest frames that there is room for, by what the receiver has published. If it
    /// is not zero, there is room for a frame of any size.
    pub fn room(&mut self) -> Result<usize, Corrupt> {
        self.refresh()?;
        let lines = self.limit.saturating_sub(self.lines) / self.memory.shape.span as u64;
        // Computed frame by frame, because bytes may be left out.
        let (mut frames, mut bytes) = (0, self.bytes);
        while frames < lines
            && let Some(placed) = bytes.place(
                self.memory.shape.max_frame - LINE_DATA,
                self.memory.shape.bytes as u64,
                self.consumed_bytes,
            )
        {
            bytes = placed.after;
            frames += 1;
        }
        Ok(frames as usize)
    }

    /// Whether a frame of any size can be sent. Reads the receiver's position only if needed.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        if self.has_room_now() {
            return Ok(true);
        }
        self.refresh()?;
        let room = self.has_room_now();
        if !room && self.bytes.part < self.memory.shape.bytes as u64 {
            self.extend(2 * self.bytes.part);
        }
        Ok(room)
    }

    #[inline]
    fn has_room_now(&self) -> bool {
        let longest = self.memory.shape.max_frame - LINE_DATA;
        self.lines + self.memory.shape.span as u64 <= self.limit && self.place(longest).is_some()
    }
}
