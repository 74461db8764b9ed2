//! The bytes of one incoming message, between arrival and handler.

use std::collections::VecDeque;
use std::task::Poll;

use tautline_node::wire::LONG_LEN;
use tautline_node::{Delivery, MessageId};

use super::borrowed::LoanGuard;
use crate::Rank;
use crate::core::{Budgets, Charge, WindowGrant};
use crate::error::{Error, Result};

/// Bytes of a borrowed message that are copied and shown at a time: they fit the first-level cache.
const PART: usize = 16 << 10;
/// Bytes of an empty buffer that stay allocated.
const KEPT: usize = 16 << 10;

/// Why no more bytes will arrive.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Aborted,
    /// Borrowed bytes can no longer be read where the sender has them.
    Unreadable,
    PeerGone(crate::Down),
    /// The sender has more bytes here than it may, and this message is the one that is given up (M-19).
    TooMuchHeld {
        limit: u64,
    },
}

/// Bytes that have arrived and were not taken. They lie in three places, oldest first: in a buffer of this
/// message, in memory that was borrowed from the sender, and in the delivery that is lent to this message
/// while its handler runs.
#[derive(Debug, Default)]
pub(super) struct IncomingBytes {
    /// Counts the messages that used this slot, so that a [`super::Message`] kept too long is noticed.
    pub(super) generation: u64,
    pub(super) from: Rank,
    pub(super) message: Option<MessageId>,
    pub(super) total: u64,
    pub(super) arrived: u64,
    taken: u64,
    window: Window,
    pub(super) end: Option<End>,
    buffer: Buffer,
    /// For the buffer.
    charge: Charge,
    /// The borrowed parts, and whether they are the whole message and nobody waits for their return.
    borrowed: VecDeque<BorrowedPart>,
    borrowed_whole: bool,
    /// Borrowed bytes are copied here to be shown.
    copy: Vec<u8>,
    delivered: Delivered,
}

/// How far the sender may send (M-5).
#[derive(Debug, Default)]
struct Window {
    granted: u64,
    /// Bytes that are granted beyond those taken.
    size: u64,
}

/// Bytes that had to be copied, because the handler did not take them in time.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    taken: usize,
}

impl Buffer {
    #[inline]
    fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Empties it. The slot of a handler keeps little memory for its next message.
    fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
    }

    /// Removes bytes that were taken, once they are most of it.
    fn compact(&mut self) {
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }
}

#[derive(Debug)]
struct BorrowedPart {
    loan: LoanGuard,
    taken: usize,
}

impl BorrowedPart {
    #[inline]
    fn left(&self) -> usize {
        self.loan.len() as usize - self.taken
    }
}

/// Bytes in a delivery. The delivery itself is here only while the handler runs.
#[derive(Debug, Default)]
struct Delivered {
    delivery: Option<Box<Delivery>>,
    ranges: VecDeque<DeliveredRange>,
}

/// Bytes of a record, or of the records of a train.
#[derive(Clone, Copy, Debug)]
struct DeliveredRange {
    item: u32,
    /// The slot of the item that the bytes begin in, and how many slots they lie in.
    slot: u32,
    slots: u32,
    /// Where in the first slot they begin, and how many of its bytes they are.
    start: u32,
    len: u32,
    /// The bytes in all slots.
    total: u32,
}

impl DeliveredRange {
    /// The bytes in the first slot.
    #[inline]
    fn bytes(self, delivery: &Delivery) -> &[u8] {
        &delivery.slot(self.item as usize, self.slot as usize)[self.start as usize..][..self.len as usize]
    }

    /// Passes all its bytes on, slot by slot.
    #[inline]
    fn each_part(self, delivery: &Delivery, mut part: impl FnMut(&[u8])) {
        part(self.bytes(delivery));
        if self.slots > 1 {
            delivery.each_slot(self.item as usize, self.slot as usize + 1, |slot| part(&slot[LONG_LEN..]));
        }
    }

    /// Takes bytes of the first slot. False if none are left in any slot.
    #[inline]
    fn advance(&mut self, delivery: &Delivery, taken: usize) -> bool {
        self.start += taken as u32;
        self.len -= taken as u32;
        self.total -= taken as u32;
        if self.len > 0 || self.slots == 1 {
            return self.len > 0;
        }
        (self.slot, self.slots) = (self.slot + 1, self.slots - 1);
        let slot = delivery.slot(self.item as usize, self.slot as usize);
        (self.start, self.len) = (LONG_LEN as u32, (slot.len() - LONG_LEN) as u32);
        true
    }
}

impl IncomingBytes {
    /// Begins a new message in this slot.
    pub(super) fn restart(&mut self, from: Rank, message: Option<MessageId>, total: u64, window: u64) {
        self.generation += 1;
        self.from = from;
        self.message = message;
        self.total = total;
        self.arrived = 0;
        self.taken = 0;
        self.window = Window { granted: window, size: window };
        self.end = None;
        self.clear_buffer();
        self.delivered.ranges.clear();
        self.borrowed.clear();
        self.borrowed_whole = false;
    }

    /// Ends the message in this slot. Returns what is needed to discard the rest of it, if more is to arrive.
    pub(super) fn finish(&mut self) -> Option<IncomingBytes> {
        // After an abort, and after its peer is lost, nothing more arrives.
        let over = matches!(self.end, Some(End::Aborted | End::PeerGone(_)));
        let incomplete = self.message.is_some() && self.arrived < self.total && !over;
        let rest = incomplete.then(|| {
            let mut rest = IncomingBytes::default();
            rest.restart(self.from, self.message, self.total, self.window.size);
            (rest.window.granted, rest.arrived) = (self.window.granted, self.arrived);
            rest
        });
        self.generation += 1;
        self.borrowed.clear();
        self.clear_buffer();
        rest
    }

    fn clear_buffer(&mut self) {
        self.buffer.clear();
        if self.charge.is_any() {
            self.charge.clear();
        }
    }

    /// A message whose rest is discarded, and that needs no further window.
    pub(super) fn discarded(message: MessageId, total: u64, arrived: u64) -> IncomingBytes {
        let mut rest = IncomingBytes::default();
        rest.restart(message.peer.rank, Some(message), total, total);
        rest.arrived = arrived;
        rest
    }

    /// Whether bytes lie in a delivery.
    pub(super) fn has_delivered(&self) -> bool {
        !self.delivered.ranges.is_empty()
    }

    /// The whole message is there, borrowed.
    pub(super) fn arrive_whole(&mut self, loan: LoanGuard) {
        self.borrowed_whole = !loan.is_wanted_back();
        self.arrive_borrowed(loan);
    }

    /// Bytes are there, borrowed. None lie in a delivery.
    pub(super) fn arrive_borrowed(&mut self, loan: LoanGuard) {
        debug_assert!(self.delivered.ranges.is_empty(), "they would be overtaken");
        self.arrived += loan.len();
        if self.end.is_some() {
            return;
        }
        if loan.len() > 0 || self.total == 0 {
            self.borrowed.push_back(BorrowedPart { loan, taken: 0 });
        }
    }

    /// The whole message as it was borrowed, if it was, and nothing of it was taken.
    pub(super) fn take_borrowed(&mut self) -> Option<LoanGuard> {
        let mapped = self.borrowed.front().is_some_and(|part| part.loan.is_mapped());
        if !self.borrowed_whole || !mapped || self.taken > 0 {
            return None;
        }
        self.taken = self.total;
        self.borrowed.pop_front().map(|part| part.loan)
    }

    /// The whole of a short message is there, and is copied: its frame is about to be reused.
    pub(super) fn arrive_copied(&mut self, bytes: &[u8]) {
        self.arrived += bytes.len() as u64;
        self.buffer.bytes.extend_from_slice(bytes);
    }

    /// Whether `len` bytes from `offset` on are the next ones of the message.
    #[inline]
    pub(super) fn continues(&self, offset: u64, len: usize) -> bool {
        offset == self.arrived && len as u64 <= self.total - offset
    }

    /// Whether all bytes of the message have arrived.
    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        self.arrived == self.total
    }

    /// Bytes are there, in a delivery that will be lent.
    #[inline]
    pub(super) fn arrive(&mut self, (item, slot): (usize, usize), start: usize, len: usize) {
        self.arrived += len as u64;
        // What follows bytes that were lost is of no use.
        if len > 0 && self.end.is_none() {
            let (item, slot, start, len) = (item as u32, slot as u32, start as u32, len as u32);
            let range = DeliveredRange { item, slot, slots: 1, start, len, total: len };
            self.delivered.ranges.push_back(range);
        }
    }

    /// Bytes are there, in so many slots of an item, each behind the head of its record; `first` of them are
    /// in the first slot.
    #[inline]
    pub(super) fn arrive_train(
        &mut self,
        (item, slot): (usize, usize),
        slots: usize,
        first: usize,
        total: usize,
    ) {
        self.arrived += total as u64;
        if total > 0 && self.end.is_none() {
            let (item, slot, slots, start) = (item as u32, slot as u32, slots as u32, LONG_LEN as u32);
            let (len, total) = (first as u32, total as u32);
            self.delivered.ranges.push_back(DeliveredRange { item, slot, slots, start, len, total });
        }
    }

    /// Lends the delivery for as long as the handler runs.
    pub(super) fn lend(&mut self, delivery: Box<Delivery>) {
        self.delivered.delivery = Some(delivery);
    }

    /// Takes the delivery back; what the handler did not take is copied.
    pub(super) fn reclaim(&mut self, budgets: &Budgets) -> Box<Delivery> {
        let delivery = self.delivered.delivery.take().expect("lent for the time that the handler runs");
        self.settle(budgets);
        if !self.delivered.ranges.is_empty() {
            self.copy_delivered(&delivery, budgets);
        }
        delivery
    }

    fn copy_delivered(&mut self, delivery: &Delivery, budgets: &Budgets) {
        let more = self.delivered.ranges.iter().map(|range| range.total as usize).sum();
        if self.hold(more, budgets) {
            let buffer = &mut self.buffer.bytes;
            for range in self.delivered.ranges.drain(..) {
                range.each_part(delivery, |part| buffer.extend_from_slice(part));
            }
        }
    }

    /// The handler was polled; borrowed bytes that it did not take and that the sender waits for are copied
    /// (S-23).
    pub(super) fn settle(&mut self, budgets: &Budgets) {
        if self.buffer.len() == 0 {
            self.clear_buffer();
        }
        if !self.borrowed_whole && !self.borrowed.is_empty() {
            self.copy_borrowed(budgets);
        }
    }

    /// The buffer's memory is no longer needed if all of it was taken.
    #[inline]
    pub(super) fn release_taken(&mut self) {
        if self.charge.is_any() && self.buffer.len() == 0 {
            self.clear_buffer();
        }
    }

    /// Copies borrowed parts to the buffer: their memory is needed for the next parts, of whichever message.
    #[cold]
    fn copy_borrowed(&mut self, budgets: &Budgets) {
        let more = self.borrowed.iter().map(BorrowedPart::left).fold(0, usize::saturating_add);
        if !self.hold(more, budgets) {
            return;
        }
        while let Some(part) = self.borrowed.pop_front() {
            let start = self.buffer.bytes.len();
            self.buffer.bytes.resize(start + part.left(), 0);
            if !part.loan.copy_to(part.taken, &mut self.buffer.bytes[start..]) {
                self.buffer.bytes.truncate(start);
                return self.lose();
            }
        }
    }

    /// Makes room in the buffer for bytes that have arrived. False, and the message is given up, if that is
    /// more than its sender may have here (M-19).
    fn hold(&mut self, more: usize, budgets: &Budgets) -> bool {
        self.buffer.compact();
        let bytes = (self.buffer.bytes.len() as u64).saturating_add(more as u64);
        let charged = self.charge.set(budgets, self.from, bytes);
        if charged.is_ok() && self.buffer.bytes.try_reserve(more).is_ok() {
            return true;
        }
        self.clear_buffer();
        self.borrowed.clear();
        self.delivered.ranges.clear();
        self.end = Some(End::TooMuchHeld { limit: budgets.max_held() });
        false
    }

    /// Bytes that can be taken now.
    pub(super) fn available(&self) -> usize {
        let borrowed: usize = self.borrowed.iter().map(BorrowedPart::left).sum();
        let delivered: usize = self.delivered.ranges.iter().map(|range| range.total as usize).sum();
        self.buffer.len() + borrowed + delivered
    }

    /// Bytes of the message that were not taken, whether they have arrived or not.
    pub(super) fn left(&self) -> u64 {
        self.total - self.taken
    }

    /// Whether `want` bytes are there; an error if they never will be.
    pub(super) fn ready(&self, want: u64) -> Poll<Result<()>> {
        if want > self.left() {
            return Poll::Ready(Err(Error::EndOfMessage { left: self.left() }));
        }
        if self.available() as u64 >= want {
            return Poll::Ready(Ok(()));
        }
        match self.end {
            None => Poll::Pending,
            Some(End::Aborted) => Poll::Ready(Err(Error::Aborted)),
            Some(End::Unreadable) => Poll::Ready(Err(Error::Unreadable(self.from))),
            Some(End::PeerGone(why)) => Poll::Ready(Err(Error::PeerGone(self.from, why))),
            Some(End::TooMuchHeld { limit }) => {
                Poll::Ready(Err(Error::TooMuchHeld { peer: self.from, limit }))
            }
        }
    }

    /// Takes up to `out.len()` bytes; returns how many.
    #[inline]
    pub(super) fn take_into(&mut self, out: &mut [u8]) -> usize {
        let mut at = 0;
        if self.buffer.len() > 0 || self.borrowed.is_empty() {
            self.take_in_place(out.len(), |part| {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            });
        }
        while at < out.len() && !self.borrowed.is_empty() {
            let took = self.take_from_borrowed(&mut out[at..]);
            if took == 0 {
                return at;
            }
            at += took;
        }
        if at < out.len() && !self.delivered.ranges.is_empty() {
            self.take_in_place(out.len() - at, |part| {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            });
        }
        at
    }

    /// Takes bytes of the first borrowed part.
    #[inline]
    fn take_from_borrowed(&mut self, out: &mut [u8]) -> usize {
        let Some(part) = self.borrowed.front_mut() else { return 0 };
        let left = part.left();
        let take = left.min(out.len());
        if !part.loan.copy_to(part.taken, &mut out[..take]) {
            self.lose();
            return 0;
        }
        part.taken += take;
        if take == left {
            self.borrowed.pop_front();
        }
        self.taken += take as u64;
        take
    }

    /// The message can no longer be read: most likely its sender died.
    #[cold]
    fn lose(&mut self) {
        self.borrowed.clear();
        self.delivered.ranges.clear();
        self.end = Some(End::Unreadable);
    }

    /// Shows and takes up to `max` bytes, oldest first, in as few parts as they lie in. Returns the number of
    /// bytes.
    pub(super) fn take(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> usize {
        let mut done = 0;
        if self.buffer.len() > 0 || self.borrowed.is_empty() {
            done = self.take_in_place(max, &mut part);
        }
        if !self.borrowed.is_empty() && done < max {
            let mut copy = std::mem::take(&mut self.copy);
            copy.resize(PART, 0);
            while done < max && !self.borrowed.is_empty() {
                let most = PART.min(max - done);
                let took = self.take_from_borrowed(&mut copy[..most]);
                if took == 0 {
                    break;
                }
                part(&copy[..took]);
                done += took;
            }
            self.copy = copy;
            if done < max && self.borrowed.is_empty() {
                done += self.take_in_place(max - done, &mut part);
            }
        }
        done
    }

    /// Shows and takes up to `max` bytes of the buffer and, if no borrowed ones come before them, of the
    /// delivery. Returns the number of bytes.
    fn take_in_place(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> usize {
        let mut done = 0;
        let waiting = self.buffer.len().min(max);
        if waiting > 0 {
            part(&self.buffer.bytes[self.buffer.taken..self.buffer.taken + waiting]);
            self.buffer.taken += waiting;
            done = waiting;
        }
        while done < max && self.borrowed.is_empty() {
            let Delivered { delivery: Some(delivery), ranges } = &mut self.delivered else { break };
            let Some(range) = ranges.front_mut() else { break };
            if range.total as usize <= max - done {
                done += range.total as usize;
                range.each_part(delivery, &mut part);
                ranges.pop_front();
                continue;
            }
            let take = (range.len as usize).min(max - done);
            part(&range.bytes(delivery)[..take]);
            if !range.advance(delivery, take) {
                ranges.pop_front();
            }
            done += take;
        }
        self.taken += done as u64;
        done
    }

    /// The window to grant now, if enough was taken to make it worth a slot (M-5). `finished`: the handler
    /// has finished, and what arrives counts as taken.
    pub(super) fn window_due(&mut self, finished: bool) -> Option<WindowGrant> {
        let window = &mut self.window;
        if window.granted >= self.total {
            return None;
        }
        let used = if finished { self.arrived } else { self.taken };
        let limit = (used + window.size).min(self.total);
        let worth =
            limit >= window.granted + window.size / 2 || limit == self.total && limit > window.granted;
        if !worth {
            return None;
        }
        window.granted = limit;
        Some(WindowGrant { message: self.message?, limit })
    }
}
