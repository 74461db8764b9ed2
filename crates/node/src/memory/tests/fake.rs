//! A channel whose room each test sets, and the parts that it lends.

use tautline_wire::record::{Class, RecordHead};

use super::*;

/// What a channel does with a part that it is asked to lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lending {
    /// It has nothing to lend, ever.
    Impossible,
    /// It has nothing to lend now.
    NoRoom,
    Possible,
}

/// A channel that keeps each record as a frame of its own.
#[derive(Debug)]
pub(super) struct FakeWriter {
    /// Records that it still has room for.
    pub(super) room: usize,
    pub(super) limit: usize,
    pub(super) lending: Option<Lending>,
    pub(super) express: bool,
    /// The number of frames from which on enough of them wait to leave.
    pub(super) train: usize,
    pub(super) frames: Vec<Vec<u8>>,
    /// The bytes of each part that was lent.
    pub(super) lent: Vec<Vec<u8>>,
    pub(super) flushes: usize,
}

impl FakeWriter {
    pub(super) fn new(room: usize) -> FakeWriter {
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

    pub(super) fn without_room() -> FakeWriter {
        FakeWriter::new(0)
    }

    fn take_room(&mut self) -> bool {
        let room = self.room > 0;
        self.room -= usize::from(room);
        room
    }
}

impl RecordWriter for FakeWriter {
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

/// The parts that a [`FakeWriter`] lent.
pub(super) struct FakeLent<'a> {
    pub(super) parts: &'a [Vec<u8>],
    pub(super) returned: Vec<u32>,
}

impl LentParts for FakeLent<'_> {
    fn is_sound(&mut self, extent: ExtentRef) -> bool {
        self.parts.get(extent.number as usize).is_some_and(|part| part.len() == extent.len as usize)
    }

    fn copy_part(&mut self, extent: ExtentRef, to: &ApertureMemory, at: usize) -> bool {
        to.write(at, &self.parts[extent.number as usize]).is_ok()
    }

    fn read_part(&mut self, extent: ExtentRef, out: &mut [u8]) {
        out.copy_from_slice(&self.parts[extent.number as usize]);
    }

    fn return_part(&mut self, extent: ExtentRef) {
        self.returned.push(extent.number);
    }
}
