//! The shared-memory kind: rings that this process shares with a peer on its host (S-1 … S-8, S-28).

use tautline_device::shm::{
    Extent, INLINE_FRAME, InlineFrame, LINE_FRAME, LINE_WORDS, LoanError, MAX_FRAMES, PeekedLine, PoolView,
    PoppedLine, Shm,
};
use tautline_device::{Channel as _, RxBatch, RxFrame};
use tautline_link::Death;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::{ExtentRef, LOANED_PART_LEN, MAX_HEAD, PUT_HEAD};
use tautline_wire::record::{self, LOAN_LEN, LOAN_MORE_LEN, LONG_LEN, LoanLocation, RecordHead, SHORT_LEN};
use tautline_wire::tags::LOANED_DATA_LEN;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::awaited::Awaited;
use super::{ChannelNumbers, OutgoingMessages, Port};
use crate::Down;

/// Bytes of a long piece, a put or an answer that the receiver sees at a time: it copies them out while the
/// sender copies the next ones in.
pub(super) const PART: usize = 16 << 10;
/// Bytes of a part of a message that is lent.
const LENT_PART: usize = 32 << 10;
/// Bytes of a part of a put that is lent.
const LENT_PUT_PART: usize = 64 << 10;
/// The last bytes of a put are lent if they are at least this many.
const LEAST_LENT: u64 = 1 << 10;
/// A piece of at least this many bytes goes in parts of twice the length.
const MANY_PARTS: usize = 512 << 10;
const _: () = assert!(LOANED_PART_LEN <= LINE_FRAME && LOANED_DATA_LEN <= LINE_FRAME);

/// Memory that is shared with one peer, and what has been taken out of it.
#[derive(Debug)]
pub(crate) struct ShmChannel {
    pub(super) shm: Shm,
    /// Frames taken out that are ready or with the program; bounded as credit is.
    pending: usize,
    awaited: Awaited,
    /// Offers that the peer is not known to have read.
    pub(super) offered: Vec<u32>,
    /// Bytes of a message that may be sent before the peer grants more.
    window: u32,
    /// The low halves of the epochs.
    numbers: ChannelNumbers,
}

/// Bytes of the longest part of a put of `whole` bytes that is worth lending when `left` remain.
#[inline]
pub(super) fn lend_limit(whole: u64, left: u64) -> Option<usize> {
    (whole > PART as u64 && left >= LEAST_LENT).then_some(LENT_PUT_PART)
}

/// The words of a small frame.
#[inline]
pub(super) fn words_of<const N: usize>(bytes: &[u8; N]) -> [u64; LINE_WORDS] {
    let mut words = [0; LINE_WORDS];
    for (word, part) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

/// An extent while the program fills it: if the program panics, it is taken back.
struct Filling<'a> {
    shm: &'a mut Shm,
    extent: Option<Extent>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(extent) = self.extent.take() {
            self.shm.cancel_loan(extent);
        }
    }
}

/// Lets the program fill an extent.
#[inline]
fn filled(shm: &mut Shm, extent: Extent, fill: impl FnOnce(&mut [u8])) -> Extent {
    let mut filling = Filling { shm, extent: Some(extent) };
    fill(filling.extent.as_mut().expect("set above"));
    filling.extent.take().expect("nobody else takes it")
}

impl ShmChannel {
    /// `window`: bytes of a message that may be sent before the peer grants more.
    pub(crate) fn new(shm: Shm, window: u32, numbers: ChannelNumbers) -> ShmChannel {
        let awaited = Awaited::default();
        ShmChannel { shm, pending: 0, awaited, offered: Vec::new(), window, numbers }
    }

    pub(super) fn numbers(&self) -> ChannelNumbers {
        self.numbers
    }

    pub(super) fn max_frame(&self) -> usize {
        self.shm.max_frame()
    }

    pub(super) fn first_window(&self) -> u64 {
        self.window.into()
    }

    // Sending.

    /// Whether a frame of any size can be pushed.
    #[inline]
    pub(super) fn has_room(&mut self, port: &mut Port) -> bool {
        let clear = self.shm.has_room();
        // A sender that found no room may try again, and nobody else would notice that there is some.
        port.activity += u64::from(self.awaited.take_room() && clear);
        self.note_room(clear);
        clear
    }

    pub(super) fn has_room_for_record(&mut self) -> bool {
        let clear = self.shm.has_room();
        self.note_room(clear);
        clear
    }

    /// A sender has looked for room. If there was none, the lane polls this channel until there is (S-39).
    #[inline]
    fn note_room(&mut self, found: bool) {
        self.awaited.note_room(found);
        if !found {
            self.shm.attend();
        }
    }

    /// Pushes a frame, and wakes the peer if it sleeps.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let pushed = self.shm.push(bytes, &[]).is_ok();
        self.shm.flush();
        pushed
    }

    /// Pushes a control frame, beside `taken` frames whose room is promised. False for want of room.
    pub(super) fn push_control(&mut self, bytes: &[u8], taken: usize) -> bool {
        let pushed = self.shm.room() > taken && self.push(bytes);
        self.note_room(pushed);
        pushed
    }

    /// Sends a whole small message as one line, or a few. False, with nothing done, if it takes more than
    /// that.
    #[inline]
    pub(super) fn push_short(&mut self, port: &Port, handler: u16, data: &[u8]) -> bool {
        let mut head = [0; SHORT_LEN];
        record::write::short(&mut head, handler, data.len());
        let (head, len) = (u64::from_le_bytes(head), SHORT_LEN + data.len());
        if len <= LINE_FRAME {
            self.shm.push_words([head], data)
        } else if len <= INLINE_FRAME {
            self.shm.push_long([head], data)
        } else {
            self.push_long(port, head, data)
        }
    }

    /// Sends a whole message that fits one frame, but not a few lines.
    fn push_long(&mut self, port: &Port, head: u64, data: &[u8]) -> bool {
        let fits = LONG_LEN + data.len() <= self.shm.max_frame().min(port.slot_len());
        fits && self.shm.push_long([head], data)
    }

    /// Sends a whole put, its head given as words. False for want of room.
    #[inline(always)]
    pub(super) fn push_put(&mut self, head: [u64; PUT_HEAD / 8], bytes: &[u8]) -> bool {
        if PUT_HEAD + bytes.len() <= LINE_FRAME {
            self.shm.push_words(head, bytes)
        } else {
            self.push_long_put(head, bytes)
        }
    }

    /// Sends a record that fits a line, its head given as words. False for want of room.
    #[inline(always)]
    pub(super) fn push_line_words<const N: usize>(&mut self, head: [u64; N], bytes: &[u8]) -> bool {
        self.shm.push_words(head, bytes)
    }

    // A call, so that small puts do not pay for its registers.
    #[inline(never)]
    fn push_long_put(&mut self, head: [u64; PUT_HEAD / 8], bytes: &[u8]) -> bool {
        self.shm.push_long(head, bytes)
    }

    /// Sends a record that is longer than a line, its head given as words. False for want of room.
    #[inline]
    pub(super) fn push_long_words<const N: usize>(&mut self, head: [u64; N], bytes: &[u8]) -> bool {
        let sent = self.shm.push_long(head, bytes);
        self.note_room(sent);
        sent
    }

    /// Sends a memory or tag record; a small one moves one line. False for want of room.
    #[inline]
    pub(super) fn push_record(&mut self, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool {
        let mut head = [0; MAX_HEAD];
        let len = message.write(&mut head, flags, data.len());
        let whole = len + data.len();
        if whole <= LINE_FRAME {
            let mut line = [0; LINE_FRAME];
            line[..len].copy_from_slice(&head[..len]);
            line[len..whole].copy_from_slice(data);
            if self.shm.push_line(&words_of(&line), whole) {
                return true;
            }
        }
        let sent = self.shm.push(&head[..len], data).is_ok();
        self.note_room(sent);
        self.shm.flush();
        sent
    }

    /// Sends bytes of a message through the ring, part by part; returns how many.
    pub(super) fn push_piece(&mut self, (message, offset): (u32, u64), bytes: &[u8]) -> usize {
        let mut done = 0;
        for part in bytes.chunks(PART) {
            let mut head = [0; LONG_LEN];
            record::write::more(&mut head, message, offset + done as u64, part.len());
            if self.shm.push(&head, part).is_err() {
                self.note_room(false);
                break;
            }
            self.shm.flush();
            done += part.len();
        }
        done
    }

    /// Takes an extent for a part: none if nothing can be lent, an error for want of room.
    fn take_part(&mut self, len: usize) -> Option<Result<Extent, ()>> {
        match self.shm.loan_part(len) {
            Ok(extent) => Some(Ok(extent)),
            Err(LoanError::Exhausted) => {
                self.want_returns();
                Some(Err(()))
            }
            Err(_) => None,
        }
    }

    /// Lends bytes of a message part by part; `fill` writes each where the peer reads it. Returns how many;
    /// none if nothing can be lent now.
    pub(super) fn lend_parts(
        &mut self,
        (message, offset): (u32, u64),
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<usize> {
        // Short parts for the sake of latency; long ones are worth it when there are many.
        let longest = if len < MANY_PARTS { LENT_PART } else { 2 * LENT_PART };
        let mut done = 0;
        while done < len {
            if !self.has_room_for_record() {
                break;
            }
            let extent = match self.take_part(longest.min(len - done)) {
                Some(Ok(extent)) => extent,
                Some(Err(())) => break,
                // What was written so far is on its way; the rest goes another way.
                None => return (done > 0).then_some(done),
            };
            let extent = filled(&mut self.shm, extent, |room| fill(done, room));
            let (number, at, size) = extent.location();
            let mut bytes = [0; LOAN_MORE_LEN];
            record::write::loan_more(&mut bytes, message, offset + done as u64, (number, at, size as u32));
            self.shm.push_line(&words_of(&bytes), LOAN_MORE_LEN);
            self.shm.commit_loan(extent);
            done += size as usize;
        }
        Some(done)
    }

    /// Lends a message of which nothing has left as a whole: parts would cost more than copying them one
    /// after the other. Returns its bytes if it has gone, zero for want of room, none if it cannot be lent.
    pub(super) fn lend_whole(
        &mut self,
        handler: u16,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<usize> {
        // There was room for a frame when the message was begun; nothing has been sent since.
        let Ok(extent) = self.take_part(len)? else { return Some(0) };
        let extent = filled(&mut self.shm, extent, |room| fill(0, room));
        let (number, at, size) = extent.location();
        if !self.push_lend((handler, number), LoanLocation::Pool(at), size) {
            // The peer corrupted the ring: the channel ends.
            self.shm.cancel_loan(extent);
            return None;
        }
        self.shm.commit_loan(extent);
        Some(len)
    }

    /// Lends `len` bytes, which `fill` writes where the peer reads them, and sends the record that says where
    /// they are; it has no more than a line. False for want of room; none if nothing can be lent.
    pub(super) fn lend_record<H: RecordHead>(
        &mut self,
        (len, flags): (usize, u8),
        record: impl FnOnce(ExtentRef) -> H,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        if !self.has_room_for_record() {
            return Some(false);
        }
        let Ok(extent) = self.take_part(len)? else { return Some(false) };
        let extent = filled(&mut self.shm, extent, fill);
        let (number, at, _) = extent.location();
        let mut bytes = [0; LINE_FRAME];
        let head = record(ExtentRef { number, len: len as u32, at }).write(&mut bytes, flags, 0);
        self.shm.push_line(&words_of(&bytes), head);
        self.shm.commit_loan(extent);
        Some(true)
    }

    /// Tells the peer of a message that it reads elsewhere. False for want of room.
    #[inline]
    pub(super) fn push_lend(&mut self, (handler, number): (u16, u32), at: LoanLocation, len: u64) -> bool {
        let mut bytes = [0; LOAN_LEN];
        record::write::loan(&mut bytes, handler, number, at, len);
        let pushed = self.shm.push_line(&words_of(&bytes), LOAN_LEN);
        self.note_room(pushed);
        pushed
    }

    /// Lets the peer send up to `limit` bytes of a message (S-28). False for want of room.
    pub(super) fn push_window(&mut self, message: u32, limit: u64) -> bool {
        let pushed = self.shm.push_window(message, limit);
        self.awaited.note_window_room(pushed);
        if !pushed {
            self.shm.attend();
        }
        pushed
    }

    /// Windows that the peer grants count as activity, until no message is longer than its first window.
    pub(super) fn want_windows(&mut self) {
        self.awaited.want_windows();
        self.shm.attend();
    }

    /// Loans that come back from now on count as activity.
    #[inline]
    pub(super) fn want_returns(&mut self) {
        self.awaited.want_returns(self.shm.returned_count());
        self.shm.attend();
    }

    /// Whether there is room, a loan is back or a window was granted that a sender waits for.
    #[inline]
    pub(crate) fn has_new_room(&mut self) -> bool {
        self.awaited.is_there(&mut self.shm)
    }

    /// Turns what a sender waits for, and is there now, into activity; windows go to their `messages`.
    /// Returns whether a message waits for windows.
    #[inline]
    pub(crate) fn note_new_room(&mut self, port: &mut Port, messages: &mut OutgoingMessages) -> bool {
        self.awaited.take(&mut self.shm, port, messages)
    }

    // Receiving.

    /// Whether a frame, or the end, is there.
    #[inline(always)]
    pub(crate) fn has_frames(&self) -> bool {
        self.shm.has_frames()
    }

    /// Takes small frames that hold whole messages, fewer than `limit` bytes together. Returns how many, and
    /// whether there is something behind them.
    #[inline(always)]
    pub(crate) fn pop_inline(&mut self, frames: &mut [InlineFrame], limit: usize) -> (usize, bool) {
        self.shm.pop_inline(frames, limit, record::is_whole_message)
    }

    /// The first byte of the next frame.
    #[inline]
    pub(crate) fn first_byte(&self) -> u8 {
        self.shm.first_byte()
    }

    /// Bytes of the next frame, if there is one.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<usize> {
        self.shm.peek()
    }

    /// Takes the frame whose length [`ShmChannel::peek`] returned into exactly as many bytes.
    pub(crate) fn take(&mut self, out: &mut [u8]) {
        self.shm.take(out);
    }

    /// Returns the words of the next frame if it fits a line, without taking it.
    #[inline(always)]
    pub(super) fn peek_line(&self) -> PeekedLine<'_> {
        self.shm.peek_line()
    }

    /// Takes the frame that [`ShmChannel::peek_line`] returned.
    #[inline(always)]
    pub(super) fn skip_line(&mut self) {
        self.shm.skip_line();
    }

    /// Takes the next frame if it is a small memory or tag record.
    #[inline(always)]
    pub(crate) fn pop_served_words(&mut self) -> PoppedLine {
        self.shm.pop_words(record::is_served)
    }

    /// The first words of the frame whose length [`ShmChannel::peek`] returned.
    #[inline]
    pub(crate) fn first_words(&self) -> [u64; LINE_WORDS] {
        self.shm.first_words()
    }

    /// Takes the frame whose length [`ShmChannel::peek`] returned; what follows its first words goes straight
    /// to an aperture.
    #[inline]
    pub(crate) fn take_rest(&mut self, len: usize, to: (&ApertureMemory, usize)) {
        // A cookie never reaches beyond its aperture.
        let _ = self.shm.take_rest(len, to);
    }

    /// As [`ShmChannel::take_rest`], to private memory. What `out` has no room for is dropped.
    #[inline]
    pub(super) fn take_rest_into(&mut self, len: usize, out: &mut [u8]) {
        self.shm.take_rest_into(len, out);
    }

    /// Copies the next frame into `batch`, unless `limit` frames are pending; memory records are taken
    /// however many are.
    #[inline]
    pub(super) fn take_frame(&mut self, batch: &mut RxBatch, limit: usize) -> Option<RxFrame> {
        let len = self.shm.peek()?;
        if self.pending >= limit && !record::is_served(self.shm.first_byte()) {
            return None;
        }
        let frame = batch.append(len, |room| self.shm.take(room))?;
        self.pending += 1;
        Some(frame)
    }

    /// Takes the next frame of a peer that is gone into a buffer of its own.
    pub(crate) fn take_last(&mut self, buffer: &mut Vec<u8>) -> bool {
        let Some(len) = self.shm.peek() else { return false };
        buffer.resize(len, 0);
        self.shm.take(buffer);
        self.pending += 1;
        true
    }

    /// Frames that can be in the ring at once.
    pub(crate) const FRAMES: usize = MAX_FRAMES;

    /// A frame taken out counts as pending.
    #[inline]
    pub(crate) fn add_pending(&mut self) {
        self.pending += 1;
    }

    #[inline]
    pub(super) fn consumed(&mut self, frames: u32) {
        self.pending -= frames as usize;
    }

    /// Whether the next frame waits until the program takes what has come before.
    pub(crate) fn is_clogged(&self, limit: usize) -> bool {
        self.pending >= limit && self.shm.has_frames() && !record::is_served(self.shm.first_byte())
    }

    /// Whether the peer's loan memory has such an extent. The bytes there may be anything.
    pub(super) fn has_extent(&self, at: u64, len: u64) -> bool {
        self.shm.view().is_some_and(|view| view.contains(at, len))
    }

    pub(super) fn copy_extent(&self, extent: &ExtentRef, to: (&ApertureMemory, usize)) -> bool {
        let view = self.shm.view();
        view.is_some_and(|view| view.copy_to(extent.at as usize, extent.len as usize, to).is_ok())
    }

    pub(super) fn read_extent(&self, extent: &ExtentRef, out: &mut [u8]) {
        if let Some(view) = self.shm.view() {
            view.copy_out(extent.at as usize, out);
        }
    }

    pub(super) fn return_extent(&mut self, number: u32) {
        self.shm.return_loan(number, tautline_device::shm::ReturnStatus::Read);
    }

    /// The memory that the peer lends from.
    pub(crate) fn loan_memory(&self) -> Option<Arc<PoolView>> {
        self.shm.view().cloned()
    }

    // The end.

    /// Why the channel is over, if the peer closed it or corrupted it.
    #[inline]
    pub(crate) fn end(&self) -> Option<Down> {
        if self.shm.is_corrupt() {
            Some(Down::Died(Death::Violation))
        } else if self.shm.has_ended() {
            Some(Down::Closed)
        } else {
            None
        }
    }

    /// Whether the peer's process has ended or let go of the channel.
    pub(crate) fn is_dead(&self) -> bool {
        self.shm.is_dead()
    }

    /// Whether the peer lives and let go of the channel before it sent anything.
    pub(crate) fn was_rejected(&self) -> bool {
        !self.shm.has_exited() && !self.shm.has_frames()
    }

    /// Numbers of offers that the peer read before it went.
    pub(crate) fn read_offers(&mut self) -> Vec<u32> {
        let read =
            |number: &u32| self.shm.poll_offer(*number) == Some(tautline_device::shm::ReturnStatus::Read);
        std::mem::take(&mut self.offered).into_iter().filter(read).collect()
    }

    /// Says goodbye; what was sent stays where the peer finds it.
    pub(crate) fn close(&mut self) {
        self.shm.close();
    }

    // Sleeping.

    /// Tells the peer what was taken (S-12).
    pub(crate) fn publish(&mut self) {
        self.shm.publish();
    }

    /// Frames taken.
    pub(crate) fn taken(&self) -> u64 {
        self.shm.taken()
    }

    /// Whether there are no frames, and nobody waits for anything of the peer.
    pub(crate) fn is_idle(&self) -> bool {
        !self.shm.has_frames() && self.awaited.is_empty() && self.end().is_none()
    }

    /// Rings for the peer, whether or not it sleeps.
    pub(crate) fn ring(&mut self) {
        self.shm.ring();
    }

    /// Takes the peer's ring, if there is one (S-31).
    pub(crate) fn take_ring(&mut self) -> bool {
        self.shm.take_ring()
    }

    pub(crate) fn is_corrupt(&self) -> bool {
        self.shm.is_corrupt()
    }

    /// What becomes readable when the peer's process ends, or lets go of the channel.
    pub(crate) fn liveness_fds(&self) -> [BorrowedFd<'_>; 2] {
        self.shm.liveness_fds()
    }

    /// Frames sent, frames taken, and how often the peer had to be woken.
    pub(crate) fn counts(&self) -> [u64; 3] {
        self.shm.counts()
    }
}
