//! Frames whose heads are words: written into their line, and read out of it, without a detour through bytes.

#[cfg(not(loom))]
use crate::{ApertureMemory, OutOfRange};

use super::{Corrupt, INLINE, INLINE_WORDS, Receiver, Sender};
use crate::sync::Ordering;

/// What the next line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing yet.
    Empty,
    /// A frame that is longer than its line, or not wanted, or the end; it was not taken.
    Other,
    /// A frame of so many bytes, which was taken.
    Words(usize, [u64; INLINE_WORDS]),
}

impl Sender {
    /// Sends a frame that fits its line: first words, and bytes behind them. False if there is no room.
    ///
    /// # Panics
    /// If it does not fit.
    #[inline(always)]
    pub fn push_words<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, Corrupt> {
        assert!(8 * N + body.len() <= INLINE, "the frame is longer than a line");
        if !self.has_line()? {
            return Ok(false);
        }
        self.write_words(head, body, 8 * N + body.len());
        Ok(true)
    }

    /// As [`Sender::push_words`], with more bytes behind the first words than the line holds.
    ///
    /// # Panics
    /// If it is not longer than a line, or longer than the longest frame.
    #[inline]
    pub fn push_many<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, Corrupt> {
        let len = 8 * N + body.len();
        assert!(INLINE < len && len <= self.place.shape.max_frame, "the frame is too short, or too long");
        let (first, rest) = body.split_at(INLINE - 8 * N);
        let (start, end) = self.place.rest(self.bytes, rest.len());
        if !self.has_room(end) && !self.look(end)? || self.ended {
            return Ok(false);
        }
        self.place.segment.copy_in(self.place.byte(start), rest);
        self.bytes = end;
        self.write_words(head, first, len);
        Ok(true)
    }

    /// Writes the next line, of a frame of `len` bytes.
    #[inline(always)]
    fn write_words<const N: usize>(&mut self, head: [u64; N], body: &[u8], len: usize) {
        let line = self.place.segment.line(self.place.line(self.lines));
        for (to, word) in line[1..].iter().zip(head) {
            to.store(word, Ordering::Relaxed);
        }
        let (whole, rest) = body.as_chunks::<8>();
        for (to, part) in line[1 + N..].iter().zip(whole) {
            to.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
        if let Some(to) = line[1 + N..].get(whole.len()).filter(|_| !rest.is_empty()) {
            to.store(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), Ordering::Relaxed);
        }
        line[0].store(self.place.word(self.lines, len as u32), Ordering::Release);
        self.lines += 1;
    }
}

impl Receiver {
    /// Takes the next frame if it is short enough for its line, and its first byte is as wanted.
    #[inline(always)]
    pub fn pop_words(&mut self, wanted: impl FnOnce(u8) -> bool) -> Line {
        let line = self.place.segment.line(self.place.line(self.lines));
        // Read once, as everywhere.
        let word = line[0].load(Ordering::Acquire);
        if word as u32 != self.place.stamp(self.lines) {
            return Line::Empty;
        }
        let len = (word >> 32) as usize;
        let words = std::array::from_fn(|i| line[1 + i].load(Ordering::Relaxed));
        if len > INLINE || !wanted(words[0] as u8) {
            return Line::Other;
        }
        self.lines += 1;
        // It took no bytes.
        if self.lines - self.told_lines >= self.place.shape.lines as u64 / 4 {
            self.tell();
        }
        Line::Words(len, words)
    }

    /// The words in the line of the frame that [`Receiver::peek`] showed, which stays where it is.
    #[inline]
    pub fn words(&self) -> [u64; INLINE_WORDS] {
        let line = self.place.segment.line(self.place.line(self.lines));
        std::array::from_fn(|i| line[1 + i].load(Ordering::Relaxed))
    }

    /// Takes the frame of `len` bytes that [`Receiver::peek`] showed; what is not in its line goes straight to where others may reach it.
    ///
    /// # Panics
    /// If no frame is so long.
    #[cfg(not(loom))]
    #[inline]
    pub fn pop_rest(&mut self, len: usize, to: (&ApertureMemory, usize)) -> Result<(), OutOfRange> {
        assert!(len <= self.place.shape.max_frame, "no frame is that long");
        let mut placed = Ok(());
        if let Some(rest) = len.checked_sub(INLINE).filter(|rest| *rest > 0) {
            let (start, end) = self.place.rest(self.bytes, rest);
            placed = self.place.segment.copy_to(self.place.byte(start), rest, to);
            self.bytes = end;
        }
        self.advance();
        placed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{LINES, Next, Shape};
    use super::*;
    use crate::Segment;
    use crate::sync::Arc;

    const SHAPE: Shape = Shape { lines: 8, bytes: 4096, max_frame: 512 };

    fn ends() -> (Arc<Segment>, Sender, Receiver) {
        let segment = Arc::new(Segment::create(SHAPE.size()).unwrap());
        (segment.clone(), Sender::new(segment.clone(), 0, SHAPE), Receiver::new(segment, 0, SHAPE))
    }

    /// S-3: frames that are made of words are the frames that bytes make, of every length, and the other way round.
    #[test]
    fn words_are_bytes() {
        let (_, mut sender, mut receiver) = ends();
        let memory = ApertureMemory::allocate(512).unwrap();
        for len in 0..=512 - 16 {
            let head = [0x0807_0605_0403_0201, !len as u64];
            let body: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let frame = [&head[0].to_le_bytes()[..], &head[1].to_le_bytes(), &body].concat();
            let short = frame.len() <= INLINE;
            let pushed = if short { sender.push_words(head, &body) } else { sender.push_many(head, &body) };
            assert_eq!(pushed, Ok(true));
            assert_eq!(receiver.peek(), Ok(Some(Next::Frame(frame.len()))));
            assert_eq!(receiver.words()[..2], head);
            let mut got = vec![0; frame.len()];
            receiver.pop(&mut got);
            assert_eq!(got, frame);
            assert_eq!(receiver.pop_words(|_| true), Line::Empty);
            // By bytes, and out as words.
            assert_eq!(sender.push(&frame[..16], &body), Ok(true));
            assert_eq!(receiver.pop_words(|first| first == 2), Line::Other);
            if !short {
                assert_eq!(receiver.pop_words(|_| true), Line::Other);
                assert_eq!(receiver.pop_rest(frame.len(), (&memory, 9)), Ok(()));
                let mut rest = vec![0; frame.len() - INLINE];
                memory.read(9, &mut rest).unwrap();
                assert_eq!(rest, frame[INLINE..]);
                continue;
            }
            let Line::Words(taken, words) = receiver.pop_words(|first| first == 1) else { panic!("a line") };
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!((taken, &bytes[..taken]), (frame.len(), &frame[..]));
        }
    }

    /// S-2: whatever a line says, nothing beyond the ring or the memory is touched; what is too long for the memory is taken and not placed.
    #[test]
    fn nonsense_stays_where_it_is() {
        let (segment, mut sender, mut receiver) = ends();
        let memory = ApertureMemory::adopt(vec![7; 100]).unwrap();
        assert_eq!(sender.push_many([1], &[9; 200]), Ok(true));
        assert_eq!(receiver.pop_rest(208, (&memory, 0)), Err(OutOfRange));
        assert_eq!(receiver.pop_words(|_| true), Line::Empty);
        assert_eq!(memory.give_back(), Some(vec![7; 100]));
        // A length that no frame has, and the end.
        segment.word(LINES + 64).store(1 | 513 << 32, Ordering::Relaxed);
        assert_eq!(receiver.pop_words(|_| true), Line::Other);
        assert_eq!(receiver.peek(), Err(Corrupt));
        let (_, mut sender, mut receiver) = ends();
        sender.end();
        assert_eq!(receiver.pop_words(|_| true), Line::Other);
        assert_eq!(sender.push_words([1, 2, 3], b"late"), Ok(false));
        assert_eq!(sender.push_many([1, 2, 3], &[0; 100]), Ok(false));
    }
}
