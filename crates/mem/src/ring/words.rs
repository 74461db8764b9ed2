//! Frames whose heads are words, written to their line and read from it without a detour through bytes.

#[cfg(not(loom))]
use super::MAX_SPAN;
use super::{LINE_DATA, LINE_DATA_WORDS, Receiver};
use crate::segment::Line;
use crate::sync::Ordering;
#[cfg(not(loom))]
use crate::{ApertureMemory, OutOfRange};

/// The result of [`Receiver::pop_words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoppedLine {
    /// Nothing yet.
    Empty,
    /// A frame longer than a line, an unwanted frame, or the end; it was not taken.
    Other,
    /// A frame of this many bytes, which was taken.
    Words(usize, [u64; LINE_DATA_WORDS]),
}

/// The words of a line. Each is to be read once: the sender can change it.
#[derive(Clone, Copy, Debug)]
pub struct LineWords<'a>(&'a Line);

impl LineWords<'_> {
    /// Reads a word.
    ///
    /// # Panics
    /// If the line does not have as many.
    #[inline(always)]
    pub fn get(&self, at: usize) -> u64 {
        self.0[1 + at].load(Ordering::Relaxed)
    }
}

/// The result of [`Receiver::peek_line`].
#[derive(Clone, Copy, Debug)]
pub enum PeekedLine<'a> {
    /// Nothing yet.
    Empty,
    /// A frame longer than a line, or the end.
    Other,
    /// A frame of this many bytes.
    Words(usize, LineWords<'a>),
}

impl Receiver {
    /// Returns the words of the next frame if it fits a line, without taking it.
    #[inline(always)]
    pub fn peek_line(&self) -> PeekedLine<'_> {
        let line = self.memory.lines.get(self.lines);
        match self.len_in(line, self.lines) {
            None => PeekedLine::Empty,
            Some(len) if len as usize <= LINE_DATA => PeekedLine::Words(len as usize, LineWords(line)),
            Some(_) => PeekedLine::Other,
        }
    }

    /// Takes the frame that [`Receiver::peek_line`] returned. True if that published room to the sender.
    #[inline(always)]
    pub fn skip_line(&mut self) -> bool {
        self.lines += 1;
        self.publish_when_due()
    }

    /// Publishes what was taken when it is a quarter of the ring's lines. True if it did.
    #[inline(always)]
    fn publish_when_due(&mut self) -> bool {
        let due = self.lines - self.published_lines >= self.memory.shape.lines as u64 / 4;
        if due {
            self.publish();
        }
        due
    }

    /// Takes the next frame if it fits a line and `wanted` accepts its first byte.
    #[inline(always)]
    pub fn pop_words(&mut self, wanted: impl FnOnce(u8) -> bool) -> PoppedLine {
        let line = self.memory.lines.get(self.lines);
        let Some(len) = self.len_in(line, self.lines) else { return PoppedLine::Empty };
        let len = len as usize;
        let words = std::array::from_fn(|i| line[1 + i].load(Ordering::Relaxed));
        if len > LINE_DATA || !wanted(words[0] as u8) {
            return PoppedLine::Other;
        }
        self.lines += 1;
        // The frame took no bytes.
        self.publish_when_due();
        PoppedLine::Words(len, words)
    }

    /// Returns the words in the first line of the frame that [`Receiver::peek`] returned, without taking it.
    #[inline]
    pub fn first_words(&self) -> [u64; LINE_DATA_WORDS] {
        let line = self.memory.lines.get(self.lines);
        std::array::from_fn(|i| line[1 + i].load(Ordering::Relaxed))
    }

    /// Takes the frame of `len` bytes that [`Receiver::peek`] returned, and copies what is not in its first
    /// line to `out`. What `out` has no room for is dropped.
    ///
    /// # Panics
    /// If no frame can be that long.
    #[inline]
    pub fn pop_rest_into(&mut self, len: usize, out: &mut [u8]) {
        assert!(len <= self.memory.shape.max_frame, "the frame is too long");
        let rest = len.saturating_sub(LINE_DATA);
        let kept = out.len().min(rest);
        if len <= self.memory.shape.inline_max() {
            self.pop_continued(rest, &mut out[..kept]);
        } else {
            let at = self.take_bytes(rest);
            self.memory.segment.copy_out(at, &mut out[..kept]);
        }
        self.advance();
    }

    /// Takes the frame of `len` bytes that [`Receiver::peek`] returned, and copies what is not in its first
    /// line to an aperture.
    ///
    /// # Panics
    /// If no frame can be that long.
    #[cfg(not(loom))]
    #[inline]
    pub fn pop_rest(&mut self, len: usize, to: (&ApertureMemory, usize)) -> Result<(), OutOfRange> {
        assert!(len <= self.memory.shape.max_frame, "the frame is too long");
        let rest = len.saturating_sub(LINE_DATA);
        let placed = if len <= self.memory.shape.inline_max() {
            let mut bytes = [0; (MAX_SPAN - 1) * LINE_DATA];
            self.pop_continued(rest, &mut bytes[..rest]);
            to.0.write(to.1, &bytes[..rest])
        } else {
            let at = self.take_bytes(rest);
            self.memory.segment.copy_to(at, rest, to)
        };
        self.advance();
        placed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Corrupt, HEAD, LINE, Peeked, Sender, Shape};
    use super::*;
    use crate::Segment;
    use crate::sync::Arc;

    const SHAPE: Shape = Shape { lines: 8, span: 3, bytes: 4096, max_frame: 512 };

    fn ends() -> (Arc<Segment>, Sender, Receiver) {
        let segment = Arc::new(Segment::create(SHAPE.size()).unwrap());
        (segment.clone(), Sender::new(segment.clone(), 0, SHAPE), Receiver::new(segment, 0, SHAPE))
    }

    /// S-3: frames made of words equal frames made of bytes, for every length, and vice versa.
    #[test]
    fn words_and_bytes_make_the_same_frames() {
        let (_, mut sender, mut receiver) = ends();
        let memory = ApertureMemory::allocate(512).unwrap();
        for len in 0..=512 - 16 {
            let head = [0x0807_0605_0403_0201, !len as u64];
            let body: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let frame = [&head[0].to_le_bytes()[..], &head[1].to_le_bytes(), &body].concat();
            let short = frame.len() <= LINE_DATA;
            let pushed = if short { sender.push_words(head, &body) } else { sender.push_long(head, &body) };
            assert_eq!(pushed, Ok(true));
            assert_eq!(receiver.peek(), Ok(Some(Peeked::Frame(frame.len()))));
            assert_eq!(receiver.first_words()[..2], head);
            let mut got = vec![0; frame.len()];
            receiver.pop(&mut got);
            assert_eq!(got, frame);
            assert_eq!(receiver.pop_words(|_| true), PoppedLine::Empty);
            // Sent as bytes, taken as words.
            assert_eq!(sender.push(&frame[..16], &body), Ok(true));
            assert_eq!(receiver.pop_words(|first| first == 2), PoppedLine::Other);
            if !short {
                assert_eq!(receiver.pop_words(|_| true), PoppedLine::Other);
                assert_eq!(receiver.peek(), Ok(Some(Peeked::Frame(frame.len()))));
                assert_eq!(receiver.pop_rest(frame.len(), (&memory, 9)), Ok(()));
                let mut rest = vec![0; frame.len() - LINE_DATA];
                memory.read(9, &mut rest).unwrap();
                assert_eq!(rest, frame[LINE_DATA..]);
                // As much as there is room for; the frame behind it is the next one.
                let room = len % (frame.len() - LINE_DATA + 2);
                let mut rest = vec![0xee; room];
                assert_eq!(sender.push(&frame[..16], &body), Ok(true));
                assert_eq!(sender.push(&[5; 100], &[]), Ok(true));
                assert_eq!(receiver.peek(), Ok(Some(Peeked::Frame(frame.len()))));
                receiver.pop_rest_into(frame.len(), &mut rest);
                let kept = room.min(frame.len() - LINE_DATA);
                assert_eq!(rest[..kept], frame[LINE_DATA..][..kept]);
                assert!(rest[kept..].iter().all(|byte| *byte == 0xee));
                assert_eq!(receiver.peek(), Ok(Some(Peeked::Frame(100))));
                receiver.pop(&mut [0; 100]);
                continue;
            }
            let PoppedLine::Words(taken, words) = receiver.pop_words(|first| first == 1) else {
                panic!("a line")
            };
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!((taken, &bytes[..taken]), (frame.len(), &frame[..]));
        }
    }

    /// S-2: whatever a line says, only the ring and the memory are accessed; a frame that is too long for the
    /// memory is taken and not copied.
    #[test]
    fn bad_lengths_touch_no_other_memory() {
        let (segment, mut sender, mut receiver) = ends();
        let memory = ApertureMemory::adopt(vec![7; 100]).unwrap();
        assert_eq!(sender.push_long([1], &[9; 200]), Ok(true));
        assert_eq!(receiver.peek(), Ok(Some(Peeked::Frame(208))));
        assert_eq!(receiver.pop_rest(208, (&memory, 0)), Err(OutOfRange));
        assert_eq!(receiver.pop_words(|_| true), PoppedLine::Empty);
        assert_eq!(memory.into_vec(), Some(vec![7; 100]));
        // The frame before took one line, and bytes. The next one has an impossible length; then comes the
        // end.
        segment.word((HEAD + 1) * LINE).store(1 | 513 << 32, Ordering::Relaxed);
        assert_eq!(receiver.pop_words(|_| true), PoppedLine::Other);
        assert_eq!(receiver.peek(), Err(Corrupt));
        let (_, mut sender, mut receiver) = ends();
        sender.end();
        assert_eq!(receiver.pop_words(|_| true), PoppedLine::Other);
        assert_eq!(sender.push_words([1, 2, 3], b"late"), Ok(false));
        assert_eq!(sender.push_long([1, 2, 3], &[0; 100]), Ok(false));
    }
}
