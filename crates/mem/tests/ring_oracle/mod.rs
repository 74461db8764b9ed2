//! A ring against a `VecDeque`: the same operations give the same results until a word of the memory is
//! overwritten. From then on nothing may panic or run forever, and nothing else is required. The operations
//! are read from bytes; the fuzz target `shm_ring` runs this, too.

use std::collections::VecDeque;

use tautline_mem::Segment;
use tautline_mem::ring::{
    Corrupt, InlineFrame, LINE, LINE_DATA, LINE_DATA_WORDS, Peeked, PoppedLine, Receiver, Sender, Shape,
};
use tautline_mem::sync::{Arc, Ordering};

const SHAPES: [Shape; 3] = [
    Shape { lines: 8, span: 4, bytes: 4096, max_frame: 512 },
    Shape { lines: 4, span: 1, bytes: 512, max_frame: 64 },
    Shape { lines: 64, span: 2, bytes: 1024, max_frame: 128 },
];

/// What a program did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub pushed: u64,
    pub refused: u64,
    pub popped: u64,
    pub overwritten: u64,
    pub detected: u64,
}

/// The operations, read byte by byte.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> Option<usize> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(usize::from(*first))
    }

    fn number(&mut self) -> usize {
        self.byte().unwrap_or(0) << 8 | self.byte().unwrap_or(0)
    }
}

struct Ring {
    segment: Arc<Segment>,
    base: usize,
    shape: Shape,
    sender: Sender,
    receiver: Receiver,
    frames: VecDeque<Vec<u8>>,
    tally: Tally,
}

/// Runs a program of operations.
///
/// # Panics
/// If the ring and the queue differ.
pub fn run(program: &[u8]) -> Tally {
    let mut program = Program(program);
    let first = program.byte().unwrap_or(0);
    let shape = SHAPES[first % SHAPES.len()];
    // Not always at the segment's start, so that errors in the base show.
    let base = first / SHAPES.len() % 2 * LINE;
    let segment = Arc::new(Segment::create(base + shape.size()).unwrap());
    let mut ring = Ring {
        sender: Sender::new(segment.clone(), base, shape),
        receiver: Receiver::new(segment.clone(), base, shape),
        segment,
        base,
        shape,
        frames: VecDeque::new(),
        tally: Tally::default(),
    };
    while let Some(op) = program.byte() {
        // Goes on with a corrupt ring: a caller that ignores the error must not cause harm.
        if ring.step(op, &mut program).is_err() {
            assert!(ring.tally.overwritten > 0, "corrupt, and nothing was overwritten");
            ring.tally.detected += 1;
        }
    }
    ring.drain();
    ring.tally
}

impl Ring {
    fn is_sound(&self) -> bool {
        self.tally.overwritten == 0
    }

    fn step(&mut self, op: usize, program: &mut Program<'_>) -> Result<(), Corrupt> {
        match op % 16 {
            0..4 => {
                let len = program.byte().unwrap_or(0) % (LINE_DATA + 1);
                self.push_line(len)
            }
            4..8 => {
                let (len, split) = (program.number() % (self.shape.max_frame + 1), program.number());
                self.push(len, split % (len + 1))
            }
            8..12 => self.pop(),
            12 => match program.byte().unwrap_or(0) {
                0..128 => self.pop_words(),
                limit => self.pop_inline(limit - 127),
            },
            13 => self.inspect(program.byte().unwrap_or(0)),
            14 => {
                self.receiver.publish();
                Ok(())
            }
            _ => {
                self.overwrite(program);
                Ok(())
            }
        }
    }

    fn frame(&self, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i as u64 * 7 + self.tally.pushed * 13) as u8).collect()
    }

    fn note_push(&mut self, frame: Vec<u8>, pushed: bool, room: usize) {
        if pushed {
            assert!(!self.sender.has_ended(), "after the end");
            self.frames.push_back(frame);
            self.tally.pushed += 1;
        } else {
            assert!(room == 0 || !self.is_sound(), "refused although there was room");
            self.tally.refused += 1;
        }
    }

    fn push_line(&mut self, len: usize) -> Result<(), Corrupt> {
        let frame = self.frame(len);
        let mut words = [0; LINE_DATA_WORDS];
        for (word, part) in words.iter_mut().zip(frame.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(bytes);
        }
        let room = self.sender.room()?;
        // Both ways to send a small frame are equivalent.
        let pushed = match frame.split_at_checked(8) {
            Some((_, body)) if self.tally.pushed.is_multiple_of(2) => {
                self.sender.push_words([words[0]], body)?
            }
            _ => self.sender.push_line(&words, len)?,
        };
        self.note_push(frame, pushed, room);
        Ok(())
    }

    fn push(&mut self, len: usize, split: usize) -> Result<(), Corrupt> {
        let frame = self.frame(len);
        let room = self.sender.room()?;
        let (head, body) = frame.split_at(split);
        // Both ways to send a long frame are equivalent.
        let pushed = match frame.split_first_chunk::<8>() {
            Some((head, body)) if len > LINE_DATA && split.is_multiple_of(2) => {
                self.sender.push_long([u64::from_le_bytes(*head)], body)?
            }
            _ => self.sender.push(head, body)?,
        };
        self.note_push(frame, pushed, room);
        Ok(())
    }

    fn pop(&mut self) -> Result<(), Corrupt> {
        let next = self.receiver.peek()?;
        let expected = self.frames.pop_front();
        match next {
            Some(Peeked::Frame(len)) => {
                let mut out = vec![0; len];
                self.receiver.pop(&mut out);
                self.tally.popped += 1;
                assert!(!self.is_sound() || Some(out) == expected, "not what was pushed");
            }
            Some(Peeked::End) => {
                assert!(!self.is_sound() || self.sender.has_ended() && expected.is_none(), "the end is last");
            }
            None => {
                assert!(
                    !self.is_sound() || !self.sender.has_ended() && expected.is_none(),
                    "a frame is missing"
                );
            }
        }
        Ok(())
    }

    fn pop_words(&mut self) -> Result<(), Corrupt> {
        let popped = self.receiver.pop_words(|_| true);
        if !self.is_sound() {
            self.frames.pop_front();
            return Ok(());
        }
        match popped {
            PoppedLine::Words(len, words) => {
                let out: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let expected = self.frames.pop_front();
                assert_eq!(expected.as_deref(), Some(&out[..len]), "not what was pushed");
                self.tally.popped += 1;
            }
            PoppedLine::Other => {
                let ended = self.sender.has_ended();
                assert!(self.frames.front().map_or(ended, |f| f.len() > LINE_DATA), "a line is missing");
            }
            PoppedLine::Empty => {
                assert!(self.frames.is_empty() && !self.sender.has_ended(), "a line is missing");
            }
        }
        Ok(())
    }

    fn pop_inline(&mut self, limit: usize) -> Result<(), Corrupt> {
        let mut frames = [InlineFrame::EMPTY; 3];
        let (count, _) = self.receiver.pop_inline(&mut frames, limit, |_| true);
        if !self.is_sound() {
            self.frames.drain(..count.min(self.frames.len()));
            return Ok(());
        }
        for small in &frames[..count] {
            let expected = self.frames.pop_front();
            assert_eq!(expected.as_deref(), Some(small.frame()), "not what was pushed");
            self.tally.popped += 1;
        }
        let small = self.shape.inline_max();
        assert!(count > 0 || self.frames.front().is_none_or(|f| f.len() > small), "lines are missing");
        Ok(())
    }

    fn inspect(&mut self, which: usize) -> Result<(), Corrupt> {
        match which {
            0 => self.sender.end(),
            1..100 => {
                let (any, room) = (self.sender.has_room()?, self.sender.room()?);
                assert!(room < self.shape.lines);
                assert!(!self.is_sound() || !any || room > 0, "room for any frame, and no room");
            }
            _ => assert!(!self.is_sound() || self.receiver.taken() == self.tally.popped, "counts"),
        }
        Ok(())
    }

    /// Overwrites a word, as a faulty or hostile process could.
    fn overwrite(&mut self, program: &mut Program<'_>) {
        let (place, kind, value) = (program.number(), program.byte().unwrap_or(0), program.number());
        let words = self.shape.size() / 8;
        let word = match kind % 4 {
            // A control word, the word of a line, or any word.
            0 => place % 32,
            1 => 32 + 8 * (place % self.shape.lines),
            _ => place % words,
        };
        let word = self.segment.word(self.base + 8 * word);
        let old = word.load(Ordering::Relaxed);
        let new = match kind / 4 % 4 {
            0 => old ^ 1 << (value % 64),
            1 => (value as u64 & 0xff) | (value as u64 >> 8) << 32,
            2 => old.wrapping_add(value as u64).wrapping_sub(1 << 15),
            _ => u64::MAX - value as u64,
        };
        word.store(new, Ordering::Relaxed);
        self.tally.overwritten += 1;
    }

    /// Takes what is left, and then the end.
    fn drain(&mut self) {
        self.sender.end();
        for _ in 0..=self.shape.lines {
            if self.pop().is_err() {
                return self.tally.detected += 1;
            }
        }
        assert!(!self.is_sound() || self.receiver.peek() == Ok(Some(Peeked::End)), "it ends");
    }
}
