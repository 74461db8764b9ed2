//! What unit tests of several modules use.

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::ExtentRef;
use tautline_wire::record::{Class, RecordHead};

use crate::memory::{LentParts, RecordWriter};

/// Seeded numbers.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn any<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// The lent parts of a peer on another host: there are none.
pub(crate) struct NothingLent;

impl LentParts for NothingLent {
    fn is_sound(&mut self, _: ExtentRef) -> bool {
        false
    }

    fn copy_part(&mut self, _: ExtentRef, _: &ApertureMemory, _: usize) -> bool {
        unreachable!("no extent is sound")
    }

    fn read_part(&mut self, _: ExtentRef, _: &mut [u8]) {
        unreachable!("no extent is sound")
    }

    fn return_part(&mut self, _: ExtentRef) {
        unreachable!("no extent is sound")
    }
}

/// What a channel does with a part that it is asked to lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lending {
    /// It has nothing to lend, ever.
    Impossible,
    /// It has nothing to lend now.
    NoRoom,
    Possible,
}

/// A channel that keeps each record as a frame of its own.
#[derive(Debug)]
pub(crate) struct FakeWriter {
    /// Records that it still has room for.
    pub(crate) room: usize,
    pub(crate) limit: usize,
    pub(crate) lending: Option<Lending>,
    pub(crate) express: bool,
    /// The number of frames from which on enough of them wait to leave.
    pub(crate) train: usize,
    pub(crate) frames: Vec<Vec<u8>>,
    /// The bytes of each part that was lent.
    pub(crate) lent: Vec<Vec<u8>>,
    pub(crate) flushes: usize,
}

impl FakeWriter {
    pub(crate) fn new(room: usize) -> FakeWriter {
        FakeWriter {
            room,
            limit: 128,
            lending: None,
            express: false,
            train: usize::MAX,
            frames: Vec::new(),
            lent: Vec::new(),
            flushes: 0,
        }
    }

    pub(crate) fn without_room() -> FakeWriter {
        FakeWriter::new(0)
    }

    /// Takes out the first frame, which gives its room back.
    pub(crate) fn take_frame(&mut self) -> Option<Vec<u8>> {
        let frame = (!self.frames.is_empty()).then(|| self.frames.remove(0))?;
        self.room += 1;
        Some(frame)
    }

    fn take_room(&mut self) -> bool {
        let room = self.room > 0;
        self.room -= usize::from(room);
        room
    }
}

impl RecordWriter for FakeWriter {
    fn write_long<const N: usize>(&mut self, _: [u64; N], _: &[u8]) -> Option<bool> {
        None
    }

    fn write_line<const N: usize>(&mut self, _: [u64; N], _: &[u8]) -> bool {
        false
    }

    fn has_room(&mut self, _: usize) -> bool {
        self.room > 0
    }

    fn is_immediate(&self) -> bool {
        false
    }

    fn write(&mut self, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool {
        self.write_with(message, flags, data.len(), |out| out.copy_from_slice(data))
    }

    fn write_with(
        &mut self,
        message: &impl RecordHead,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if !self.take_room() {
            return false;
        }
        let mut frame = vec![0; message.head_len() + len];
        assert!(frame.len() <= self.limit);
        let head = message.write(&mut frame, flags, len);
        fill(&mut frame[head..]);
        self.frames.push(frame);
        true
    }

    fn write_now(&mut self, _: Nanos, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool {
        self.express && self.write(message, flags, data)
    }

    fn record_limit(&self) -> usize {
        self.limit
    }

    fn data_limit(&self, head: usize) -> usize {
        self.limit - head
    }

    fn part_limit(&self, _: Class, head: usize, _: u64) -> usize {
        self.limit - head
    }

    fn lend_limit(&self, _: u64, left: u64) -> Option<usize> {
        self.lending.filter(|_| left >= 64).map(|_| 256)
    }

    fn lend_part<H: RecordHead>(
        &mut self,
        (len, flags): (usize, u8),
        record: impl FnOnce(ExtentRef) -> H,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        if self.lending == Some(Lending::Impossible) {
            return None;
        }
        if self.lending == Some(Lending::NoRoom) || !self.take_room() {
            return Some(false);
        }
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        let extent = ExtentRef { number: self.lent.len() as u32, len: len as u32, at: 0 };
        self.lent.push(bytes);
        let message = record(extent);
        let mut frame = vec![0; message.head_len()];
        message.write(&mut frame, flags, 0);
        self.frames.push(frame);
        Some(true)
    }

    fn has_full_train(&self) -> bool {
        self.frames.len() >= self.train
    }

    fn flush(&mut self) {
        self.flushes += 1;
    }
}
