//! Frames on their way to the program.
//!
//! Received frames are ready in the batch that they were received into. A [`Delivery`] takes them out under
//! the owner word and is read without it. Frames that have to wait are copied to buffers of their own,
//! because the batch is used again.

use std::collections::VecDeque;

use tautline_device::{RxBatch, RxFrame};
use tautline_wire::record;

use super::train::Train;
use crate::PeerId;
use crate::limits::BATCH_BUFFERS;

/// Bytes that a frame which has to wait takes without more memory.
const HELD: usize = 256;

/// Where delivered slots lie.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the batch: the part of a frame that is the slot.
    Batch(RxFrame),
    /// Several in the batch.
    Train(Train),
    /// In a buffer of its own.
    Held(Vec<u8>),
}

/// One delivered slot, or several that go on with the same message.
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

    /// How many slots it is. If several, each goes on with the message where the one before it ended, and
    /// holds nothing else.
    #[inline]
    pub fn slots(&self) -> usize {
        match &self.place {
            Place::Train(train) => train.slots(),
            Place::Batch(_) | Place::Held(_) => 1,
        }
    }

    /// The bytes of its slots from `slot` on.
    #[inline]
    pub fn bytes_from(&self, slot: usize) -> usize {
        match &self.place {
            Place::Batch(frame) => frame.len as usize,
            Place::Train(train) => train.bytes_from(slot),
            Place::Held(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn is_in_place(&self) -> bool {
        matches!(self.place, Place::Batch(_) | Place::Train(_))
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

    /// The bytes of an item's first slot: records.
    #[inline]
    pub fn bytes(&self, item: usize) -> &[u8] {
        self.slot(item, 0)
    }

    /// The bytes of a slot of an item.
    #[inline]
    pub fn slot(&self, item: usize, slot: usize) -> &[u8] {
        let batch = || self.batch.as_ref().expect("a delivery with frames in place has their batch");
        match &self.items[item].place {
            Place::Held(bytes) => bytes,
            Place::Batch(frame) => batch().bytes(*frame),
            Place::Train(train) => batch().bytes(train.slot(batch(), slot)),
        }
    }

    /// Passes the bytes of an item's slots from `first` on to `with`.
    #[inline]
    pub fn each_slot(&self, item: usize, first: usize, mut with: impl FnMut(&[u8])) {
        match (&self.items[item].place, &self.batch) {
            (Place::Train(train), Some(batch)) => {
                train.frames(batch, first).for_each(|frame| with(batch.bytes(frame)));
            }
            _ if first == 0 => with(self.slot(item, 0)),
            _ => {}
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
        let item = Item { from, place };
        self.in_place += usize::from(item.is_in_place());
        self.ready.push_back(item);
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
        for _ in 0..self.ready.len() {
            let Some(item) = self.ready.pop_front() else { break };
            match (&item.place, &batch) {
                (Place::Batch(frame), Some(batch)) => self.hold_slot(item.from, batch, *frame),
                (Place::Train(train), Some(batch)) => {
                    (0..train.slots()).for_each(|at| self.hold_slot(item.from, batch, train.slot(batch, at)));
                }
                _ => self.ready.push_back(item),
            }
        }
        self.in_place = 0;
        self.batch = batch;
    }

    fn hold_slot(&mut self, from: PeerId, batch: &RxBatch, slot: RxFrame) {
        let place = Place::Held(self.copy(batch.bytes(slot)));
        self.ready.push_back(Item { from, place });
        self.held += 1;
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
            let Some(mut item) = self.ready.pop_front() else { break };
            self.in_place -= usize::from(item.is_in_place());
            if let Place::Train(train) = &mut item.place
                && let Some(rest) = train.split(limit - bytes)
            {
                self.ready.push_front(Item { from: item.from, place: Place::Train(rest) });
                self.in_place += 1;
            }
            bytes = bytes.saturating_add(item.bytes_from(0));
            if lends {
                bytes = bytes.saturating_add(self.lent_by(&item));
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
            // Their records lend nothing.
            Place::Train(_) => return 0,
            Place::Held(held) => held,
        };
        record::loaned_len(slot) as usize
    }

    /// Takes a delivery back. Items beyond the first `consumed` go back to the front of the inbox; `grant` is
    /// called for the others, with how many slots there are from one peer in a row.
    #[inline]
    pub(crate) fn give_back(
        &mut self,
        delivery: &mut Delivery,
        consumed: usize,
        mut grant: impl FnMut(PeerId, u32),
    ) {
        while delivery.items.len() > consumed {
            let Item { from, place } = delivery.items.pop().expect("longer than consumed");
            match (place, &delivery.batch) {
                (Place::Batch(frame), Some(batch)) => self.push_front(from, batch.bytes(frame)),
                (Place::Train(train), Some(batch)) => {
                    let slots = (0..train.slots()).rev();
                    slots.for_each(|at| self.push_front(from, batch.bytes(train.slot(batch, at))));
                }
                (place, _) => self.ready.push_front(Item { from, place }),
            }
        }
        let mut run: Option<(PeerId, u32)> = None;
        for item in delivery.items.drain(..) {
            let (from, more) = (item.from, item.slots() as u32);
            if let Place::Held(bytes) = item.place {
                self.recycle(bytes);
            }
            match &mut run {
                Some((peer, slots)) if *peer == from => *slots += more,
                _ => {
                    if let Some((peer, slots)) = run.replace((from, more)) {
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
    use super::super::train::Coupling;
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

    /// Receives a message in four slots as a train.
    fn receive_train(inbox: &mut Inbox) -> Vec<Vec<u8>> {
        let part = |at: usize| {
            let mut slot = vec![at as u8; record::LONG_LEN + if at < 3 { 30 } else { 5 }];
            let len = slot.len() - record::LONG_LEN;
            record::write::more(&mut slot, 9, at as u64 * 30, len);
            slot
        };
        let slots: Vec<_> = (0..4).map(part).collect();
        inbox.hold();
        let mut batch = inbox.take_batch();
        batch.clear();
        let mut coupling = Coupling::start(0, 0, &slots[0]).unwrap();
        for (at, slot) in slots.iter().enumerate() {
            batch.append(slot.len(), |room| room.copy_from_slice(slot)).unwrap();
            assert!(at == 0 || coupling.append(at, 0, slot));
        }
        inbox.push(PEER, Place::Train(coupling.train()));
        inbox.return_batch(batch);
        slots
    }

    /// L-38: a train is one item, and its slots count as they would alone: towards a limit, as room that is
    /// granted again, and when they have to wait.
    #[test]
    fn a_train_counts_as_its_slots() {
        let mut inbox = Inbox::new(8);
        let slots = receive_train(&mut inbox);
        let all_of = |delivery: &Delivery| -> Vec<Vec<u8>> {
            let mut all = Vec::new();
            for item in 0..delivery.items().len() {
                delivery.each_slot(item, 0, |slot| all.push(slot.to_vec()));
                assert_eq!(delivery.slot(item, 0), delivery.bytes(item));
            }
            all
        };
        // Two slots, with which the batch goes; the rest has to be copied.
        let mut delivery = Delivery::default();
        inbox.take(slots[0].len() + 1, false, &mut delivery);
        assert_eq!(delivery.items().iter().map(Item::slots).collect::<Vec<_>>(), [2]);
        assert_eq!((all_of(&delivery), inbox.held), (slots[..2].to_vec(), 2));
        let mut granted = 0;
        inbox.give_back(&mut delivery, 1, |_, slots| granted += slots);
        inbox.take(usize::MAX, false, &mut delivery);
        assert_eq!((all_of(&delivery), granted), (slots[2..].to_vec(), 2));
        inbox.give_back(&mut delivery, 2, |_, slots| granted += slots);
        assert!(inbox.is_empty() && granted == 4);
        // Given back unread, or overtaken by another batch.
        for overtaken in [false, true] {
            let slots = receive_train(&mut inbox);
            if overtaken {
                inbox.hold();
            } else {
                inbox.take(usize::MAX, false, &mut delivery);
                assert_eq!(delivery.items().iter().map(Item::slots).collect::<Vec<_>>(), [4]);
                inbox.give_back(&mut delivery, 0, |_, _| unreachable!("nothing was consumed"));
            }
            assert!(!inbox.has_in_place());
            inbox.take(usize::MAX, false, &mut delivery);
            assert_eq!((all_of(&delivery), delivery.items().len()), (slots, 4));
            inbox.give_back(&mut delivery, 4, |_, _| {});
        }
    }
}
