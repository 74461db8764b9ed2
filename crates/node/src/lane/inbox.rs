//! Frames on their way to the program.
//!
//! Received frames are ready in the batch that they were received into. A [`Delivery`] takes them out under
//! the owner word and is read without it. Frames that have to wait are copied to buffers of their own,
//! because the batch is used again.

use std::collections::VecDeque;

use tautline_device::{RxBatch, RxFrame};
use tautline_wire::record;

use crate::PeerId;
use crate::limits::BATCH_BUFFERS;

/// Bytes that a frame which has to wait takes without more memory.
const HELD: usize = 256;

/// Where a delivered slot lies.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the batch: the part of a frame that is the slot.
    Batch(RxFrame),
    /// In a buffer of its own.
    Held(Vec<u8>),
}

/// One delivered slot.
#[derive(Debug)]
pub struct Item {
    from: PeerId,
    place: Place,
}

impl Item {
    /// The peer that sent it.
    #[inline]
    pub fn from(&self) -> PeerId {
        self.from
    }
}

/// Slots taken out of the inbox, in order of arrival per peer.
#[derive(Debug, Default)]
pub struct Delivery {
    batch: Option<Box<RxBatch>>,
    items: Vec<Item>,
}

impl Delivery {
    /// The slots.
    #[inline]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// A slot's bytes: records.
    #[inline]
    pub fn bytes(&self, item: usize) -> &[u8] {
        match &self.items[item].place {
            Place::Held(bytes) => bytes,
            Place::Batch(frame) => {
                self.batch.as_ref().expect("a delivery with frames in place has their batch").bytes(*frame)
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.batch.is_none()
    }
}

/// Slots that wait for the program.
#[derive(Debug)]
pub(crate) struct Inbox {
    batch: Option<Box<RxBatch>>,
    ready: VecDeque<Item>,
    /// How many slots of `ready` lie in the batch.
    in_place: usize,
    /// Buffers for slots that have to wait, kept for the next ones.
    buffers: Vec<Vec<u8>>,
    /// Buffers that are kept at most.
    most_buffers: usize,
    /// Slots that had to be copied because the program was not extracting.
    pub(crate) held: u64,
}

impl Inbox {
    /// An inbox for channels that leave up to `credit` slots with the program.
    pub(crate) fn new(credit: usize) -> Inbox {
        Inbox {
            batch: Some(fresh_batch()),
            ready: VecDeque::with_capacity(1024),
            in_place: 0,
            buffers: Vec::new(),
            most_buffers: 4 * credit,
            held: 0,
        }
    }

    /// Makes sure that there are buffers for `count` slots: what a program that only sends leaves untaken
    /// waits there.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.buffers.resize_with(self.buffers.len().max(count), || Vec::with_capacity(HELD));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether slots lie in the batch, so that another poll would have to copy them.
    #[inline]
    pub(crate) fn has_in_place(&self) -> bool {
        self.in_place > 0
    }

    /// Takes the batch out to receive into. [`Inbox::hold`] must have been called.
    #[inline]
    pub(crate) fn take_batch(&mut self) -> Box<RxBatch> {
        self.batch.take().unwrap_or_else(fresh_batch)
    }

    #[inline]
    pub(crate) fn return_batch(&mut self, batch: Box<RxBatch>) {
        self.batch = Some(batch);
    }

    #[inline]
    pub(crate) fn push(&mut self, from: PeerId, place: Place) {
        if matches!(place, Place::Batch(_)) {
            self.in_place += 1;
        }
        self.ready.push_back(Item { from, place });
    }

    /// Puts a copy of a slot in front of all others.
    pub(crate) fn push_front(&mut self, from: PeerId, bytes: &[u8]) {
        let place = Place::Held(self.copy(bytes));
        self.ready.push_front(Item { from, place });
    }

    /// Moves slots out of the batch, which is about to be used again.
    #[inline]
    pub(crate) fn hold(&mut self) {
        if self.in_place > 0 {
            self.hold_all();
        }
    }

    #[cold]
    fn hold_all(&mut self) {
        let batch = self.batch.take();
        for i in 0..self.ready.len() {
            if let (Place::Batch(frame), Some(batch)) = (&self.ready[i].place, &batch) {
                let copy = self.copy(batch.bytes(*frame));
                self.ready[i].place = Place::Held(copy);
                self.held += 1;
            }
        }
        self.in_place = 0;
        self.batch = batch;
    }

    /// An empty buffer.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.take_buffer();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < self.most_buffers {
            self.buffers.push(buffer);
        }
    }

    /// Moves slots of up to `limit` bytes (at least one, if there is any) into an empty delivery. What a slot
    /// lends counts as if it were there (M-8), if `lends` says that slots may.
    #[inline]
    pub(crate) fn take(&mut self, limit: usize, lends: bool, delivery: &mut Delivery) {
        let mut bytes = 0_usize;
        while bytes < limit {
            let Some(item) = self.ready.pop_front() else { break };
            bytes += match &item.place {
                Place::Batch(frame) => frame.len as usize,
                Place::Held(held) => held.len(),
            };
            if lends {
                bytes = bytes.saturating_add(self.lent_by(&item));
            }
            if matches!(item.place, Place::Batch(_)) {
                self.in_place -= 1;
            }
            delivery.items.push(item);
        }
        // The rest stays here and has to be copied: the batch goes along with what was taken.
        self.hold();
        delivery.batch = self.batch.take();
    }

    fn lent_by(&self, item: &Item) -> usize {
        let slot = match &item.place {
            Place::Batch(frame) => self.batch.as_ref().map_or(&[][..], |batch| batch.bytes(*frame)),
            Place::Held(held) => held,
        };
        record::loaned_len(slot) as usize
    }

    /// Takes a delivery back. Slots beyond the first `consumed` go back to the front of the inbox; `grant` is
    /// called for the others, with how many there are from one peer in a row.
    #[inline]
    pub(crate) fn give_back(
        &mut self,
        delivery: &mut Delivery,
        consumed: usize,
        mut grant: impl FnMut(PeerId, u32),
    ) {
        while delivery.items.len() > consumed {
            let Item { from, place } = delivery.items.pop().expect("longer than consumed");
            let place = match place {
                Place::Held(bytes) => Place::Held(bytes),
                Place::Batch(frame) => {
                    let batch = delivery.batch.as_ref().expect("frames in place have their batch");
                    Place::Held(self.copy(batch.bytes(frame)))
                }
            };
            self.ready.push_front(Item { from, place });
        }
        let mut run: Option<(PeerId, u32)> = None;
        for Item { from, place } in delivery.items.drain(..) {
            if let Place::Held(bytes) = place {
                self.recycle(bytes);
            }
            match &mut run {
                Some((peer, slots)) if *peer == from => *slots += 1,
                _ => {
                    if let Some((peer, slots)) = run.replace((from, 1)) {
                        grant(peer, slots);
                    }
                }
            }
        }
        if let Some((peer, slots)) = run {
            grant(peer, slots);
        }
        if let Some(batch) = delivery.batch.take()
            && self.batch.is_none()
        {
            self.batch = Some(batch);
        }
    }
}

fn fresh_batch() -> Box<RxBatch> {
    Box::new(RxBatch::new(BATCH_BUFFERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId::new(3, 1);

    fn receive(inbox: &mut Inbox, slots: &[&[u8]]) {
        inbox.hold();
        let mut batch = inbox.take_batch();
        batch.clear();
        for slot in slots {
            let frame = batch.append(slot.len(), |room| room.copy_from_slice(slot)).unwrap();
            inbox.push(PEER, Place::Batch(frame));
        }
        inbox.return_batch(batch);
    }

    fn taken(delivery: &Delivery) -> Vec<&[u8]> {
        (0..delivery.items().len()).map(|item| delivery.bytes(item)).collect()
    }

    /// Slots come out in order, whether they lie in the batch, were copied because another batch came, or
    /// were given back.
    #[test]
    fn order_survives_copies() {
        let mut inbox = Inbox::new(8);
        receive(&mut inbox, &[b"one", b"two"]);
        receive(&mut inbox, &[b"three", b"four"]);
        assert_eq!(inbox.held, 2, "the first batch was copied");
        let mut delivery = Delivery::default();
        inbox.take(7, false, &mut delivery);
        assert_eq!(taken(&delivery), [&b"one"[..], b"two", b"three"]);
        assert_eq!(inbox.held, 3, "the slot that was left had to leave the batch");
        let mut granted = 0;
        inbox.give_back(&mut delivery, 1, |from, slots| granted += u32::from(from == PEER) * slots);
        assert_eq!(granted, 1);
        inbox.take(usize::MAX, false, &mut delivery);
        assert_eq!(taken(&delivery), [&b"two"[..], b"three", b"four"]);
        inbox.give_back(&mut delivery, 3, |_, slots| granted += slots);
        assert!(inbox.is_empty() && delivery.is_empty() && granted == 4);
    }

    /// A limit of bytes takes at least one slot, however long.
    #[test]
    fn a_limit_takes_at_least_one() {
        let mut inbox = Inbox::new(8);
        receive(&mut inbox, &[&[7; 5000], b"next"]);
        let mut delivery = Delivery::default();
        inbox.take(1, false, &mut delivery);
        assert_eq!(taken(&delivery), [&[7; 5000][..]]);
        inbox.give_back(&mut delivery, 1, |_, _| {});
        assert!(!inbox.is_empty());
    }
}
