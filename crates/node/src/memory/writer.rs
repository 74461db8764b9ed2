//! What memory and tags need of a channel: a writer of records, and access to the parts that the peer lends.
//!
//! The channels implement both traits. Nothing in this module knows which kind of channel it writes to.

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::ExtentRef;
use tautline_wire::record::{Class, RecordHead};

/// Writes memory and tag records to the channel of one peer, in order.
///
/// A call that returns false for want of room has written nothing; the caller tries again at the peer's next
/// turn.
pub(crate) trait RecordWriter {
    /// Returns whether a memory record of `len` bytes, head included, can be written now.
    fn has_room(&mut self, len: usize) -> bool;

    /// Returns whether what is written leaves at once, so that [`RecordWriter::write_now`] is no use.
    fn is_immediate(&self) -> bool;

    /// Writes a record whose data lies in private memory. False for want of room.
    fn write(&mut self, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool;

    /// Writes a record that fits a line, its head given as words, if it leaves at once. False, with nothing
    /// done, otherwise.
    fn write_line<const N: usize>(&mut self, head: [u64; N], data: &[u8]) -> bool;

    /// Writes a record that is longer than a line, its head given as words, if it leaves at once. Some(false)
    /// for want of room. None, with nothing done, if the record is shorter, or does not leave at once.
    fn write_long<const N: usize>(&mut self, head: [u64; N], data: &[u8]) -> Option<bool>;

    /// Writes a record with `len` bytes of data that `fill` writes in place. False for want of room; `fill`
    /// may have run.
    fn write_with(
        &mut self,
        message: &impl RecordHead,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool;

    /// Writes a record that leaves at once in a frame of its own. False, with nothing done, if anything is in
    /// its way or the channel has no such path.
    fn write_now(&mut self, now: Nanos, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool;

    /// Returns the bytes of the longest record, head included, that goes in one frame.
    fn record_limit(&self) -> usize;

    /// Returns how much data a record with `head` bytes of head may have in a frame of its own.
    fn data_limit(&self, head: usize) -> usize;

    /// Returns how much data the next part of a put or message may have, of which `left` bytes remain: what
    /// the frame being written has room for, if that is worthwhile, or what a new frame has.
    fn part_limit(&self, class: Class, head: usize, left: u64) -> usize;

    /// Returns the length of the longest part that is worth lending, of a put or message of `whole` bytes
    /// of which `left` remain. None if it is not worth lending, or the channel cannot lend.
    fn lend_limit(&self, whole: u64, left: u64) -> Option<usize>;

    /// Lends a part of `len` bytes, which `fill` writes, instead of copying it to the channel; `record` says
    /// where it is. Some(false) for want of room; None if nothing can be lent, and `fill` has not run in
    /// either case.
    fn lend_part<H: RecordHead>(
        &mut self,
        part: (usize, u8),
        record: impl FnOnce(ExtentRef) -> H,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool>;

    /// Returns whether enough frames wait to be worth a system call; a put in parts then pauses so that they
    /// can leave.
    fn has_full_train(&self) -> bool;

    /// Closes the frame being written so that it can leave.
    fn flush(&mut self);
}

/// The parts of puts and messages that one peer has lent. They lie in memory of the peer, which may change
/// while it is read.
pub(crate) trait LentParts {
    /// Returns whether `extent` lies in the memory that the peer lends.
    fn is_sound(&mut self, extent: ExtentRef) -> bool;

    /// Copies a sound extent to `at` of an aperture. False if the extent or the range does not exist.
    fn copy_part(&mut self, extent: ExtentRef, to: &ApertureMemory, at: usize) -> bool;

    /// Copies a sound extent to private memory of the same length.
    fn read_part(&mut self, extent: ExtentRef, out: &mut [u8]);

    /// Returns an extent to the peer, which may use it again.
    fn return_part(&mut self, extent: ExtentRef);
}
