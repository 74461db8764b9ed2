//! Receiving: from the device's frames to slots that are ready for the program.

use tautline_device::{RxBatch, RxFrame};
use tautline_link::{Arrival, Death, Nanos, Reassembly};
use tautline_wire::frame::{Kind, channel_of};
use tautline_wire::record::{self, Record, Records, is_memory};

use crate::delivery::{Delivery, Item, Place};
use crate::interface::Interface;
use crate::limits::{BATCH_BUFFERS, MAX_REASSEMBLIES};
use crate::peer::Ahead;
use crate::{Down, PeerState, Rank};

impl Interface {
    /// Takes what the device has. Slots that are due end up in `ready`, in place.
    #[inline]
    pub(crate) fn receive(&mut self, now: Nanos) -> usize {
        self.hold_in_place();
        self.memory.now = now;
        // N-13: what peers on this host have sent waits where it is while the program is absent, unless memory is to be served.
        if !self.near_up.is_empty() && (!self.absent || self.serves_memory()) {
            let found = self.receive_near();
            if !self.far_is_due(found) && self.own.is_empty() {
                return found;
            }
            self.hold_in_place();
            self.has_links = self.peers.iter().any(|p| p.peering.link().is_some() || p.peering.is_knocking());
        }
        self.listened = now;
        let mut batch = self.batch.take().unwrap_or_else(|| Box::new(Interface::fresh_batch()));
        let count = self.device.recv(&mut batch).unwrap_or(0);
        for i in 0..count {
            let frame = batch.frames()[i];
            self.handle(now, &mut batch, frame);
        }
        self.batch = Some(batch);
        self.activity += count as u64;
        if !self.own.is_empty() {
            self.receive_own();
        }
        count
    }

    pub(crate) fn fresh_batch() -> RxBatch {
        RxBatch::new(BATCH_BUFFERS)
    }

    #[inline]
    fn handle(&mut self, now: Nanos, batch: &mut RxBatch, frame: RxFrame) {
        let bytes = batch.bytes_mut(frame);
        match Kind::of(bytes) {
            Ok(Kind::Data | Kind::Close) => {}
            Ok(_) => {
                let from = batch.source(frame);
                return self.handle_handshake(now, batch.bytes(frame), from);
            }
            Err(_) => return self.counters.strays += 1,
        }
        let Ok(channel) = channel_of(bytes) else { return self.counters.strays += 1 };
        let rank = channel & 0xffff;
        let Some(peer) = self.peers.get_mut(rank as usize) else { return self.counters.strays += 1 };
        let Ok((arrival, payload)) = peer.peering.handle_frame(now, channel, bytes) else {
            if peer.peering.link().is_none_or(|l| l.channel() != channel) {
                self.counters.stale += 1;
            }
            return;
        };
        if !peer.announced || peer.peering.has_former() {
            // H-8: the first frame of a new channel.
            self.note_link(now, rank);
        }
        self.mark_dirty(rank);
        let slot = RxFrame {
            buffer: frame.buffer,
            start: frame.start + payload.start as u32,
            len: (payload.end - payload.start) as u32,
        };
        match arrival {
            None | Some(Arrival::Repeat) => {}
            Some(Arrival::Next { released }) => {
                self.deliver(rank, batch, Place::Batch(slot));
                if released > 0 || !self.peers[rank as usize].ahead.is_empty() {
                    self.release(rank, released, batch);
                }
            }
            Some(Arrival::Ahead { distance }) => {
                let slot = match self.place_ahead(rank, batch.bytes(slot)) {
                    Some(placed) => Ahead::Placed(placed),
                    None => Ahead::Bytes(self.copy(batch.bytes(slot))),
                };
                self.keep_ahead(rank, distance, slot);
            }
            Some(Arrival::Fragment { seq, offset, total }) => {
                self.handle_fragment(now, rank, batch, (seq, offset, total), slot);
            }
        }
    }

    /// A slot's turn has come: control records are obeyed at once, everything else waits for the program (N-1).
    #[inline]
    pub(crate) fn deliver(&mut self, rank: Rank, batch: &RxBatch, place: Place) {
        let bytes = match &place {
            Place::Batch(frame) => batch.bytes(*frame),
            Place::Held(bytes) => bytes,
        };
        if bytes.first().is_some_and(|first| is_memory(*first)) {
            let good = self.obey_memory(rank, bytes);
            return self.obeyed(rank, good);
        }
        if Interface::is_control(bytes) {
            let copy = self.copy(bytes);
            self.obey(rank, &copy);
            self.recycle(copy);
            return;
        }
        if matches!(place, Place::Batch(_)) {
            self.in_place += 1;
        }
        let incarnation = self.peers[rank as usize].incarnation;
        self.ready.push_back(Item { peer: rank, incarnation, place });
    }

    /// Something could not be sent now: looks for what would change that, because the watchdog stands back while the program is here (N-5). For oneself only extraction makes room.
    #[cold]
    pub(crate) fn try_on(&mut self, now: Nanos, to: Rank) {
        self.service(now);
        if to != self.rank {
            self.poll(now);
        }
    }

    /// Whether a slot holds control records (W-6).
    #[inline]
    pub(crate) fn is_control(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|first| record::is_control(*first))
    }

    /// Obeys the control records of a slot (W-6) and grants its room again.
    #[cold]
    pub(crate) fn obey(&mut self, rank: Rank, bytes: &[u8]) {
        if is_memory(bytes[0]) {
            let good = self.obey_memory(rank, bytes);
            return self.obeyed(rank, good);
        }
        let mut good = true;
        for record in Records::new(bytes, 0) {
            match record {
                Ok(Record::Window { message, limit }) => {
                    if let Some(window) = self.peers[rank as usize].windows.get_mut(&message) {
                        *window = limit.max(*window);
                    }
                }
                Ok(Record::Handlers { last, data }) => good &= self.learn_handlers(rank, last, data),
                _ => good = false,
            }
        }
        self.obeyed(rank, good);
    }

    /// A slot was obeyed, and its room is granted again; if it was not good, its channel ends.
    #[inline]
    fn obeyed(&mut self, rank: Rank, good: bool) {
        let peer = &mut self.peers[rank as usize];
        if let Some(near) = &mut peer.near {
            near.pending -= 1;
            if !good {
                self.take_down(rank, Down::Died(Death::Violation));
            }
        } else if let Some(link) = peer.peering.link_mut() {
            link.consumed(1);
            if !good {
                link.violation();
            }
        }
    }

    fn keep_ahead(&mut self, rank: Rank, distance: u32, slot: Ahead) {
        let ahead = &mut self.peers[rank as usize].ahead;
        let at = distance as usize - 1;
        if ahead.len() <= at {
            ahead.resize_with(at + 1, || None);
        }
        ahead[at] = Some(slot);
    }

    /// The gap is closed: what had arrived ahead of it is due now.
    fn release(&mut self, rank: Rank, released: u32, batch: &RxBatch) {
        for _ in 0..released {
            match self.peers[rank as usize].ahead.pop_front() {
                Some(Some(Ahead::Bytes(bytes))) => self.deliver(rank, batch, Place::Held(bytes)),
                Some(Some(Ahead::Placed(placed))) => {
                    let good = self.settle_placed(rank, placed);
                    self.obeyed(rank, good);
                }
                _ => break,
            }
        }
        // The place of the slot that is due now.
        self.peers[rank as usize].ahead.pop_front();
    }

    /// L-19: puts a slot together from its parts.
    #[cold]
    fn handle_fragment(
        &mut self,
        now: Nanos,
        rank: Rank,
        batch: &RxBatch,
        (seq, offset, total): (tautline_wire::Seq, u32, u32),
        part: RxFrame,
    ) {
        let limit = tautline_wire::frame::MAX_FRAME;
        let peer = &mut self.peers[rank as usize];
        let Some(due) = peer.peering.link().map(tautline_link::Link::due) else { return };
        // Slots of which parts had come, and which then came whole, are of no more interest.
        peer.parts.retain(|(s, _)| !s.before(due));
        let at = peer.parts.iter().position(|(s, _)| *s == seq).or_else(|| {
            let fresh = Reassembly::new(total, limit).filter(|_| peer.parts.len() < MAX_REASSEMBLIES)?;
            peer.parts.push((seq, fresh));
            Some(peer.parts.len() - 1)
        });
        let Some(at) = at else { return };
        if !peer.parts[at].1.add(offset, total, batch.bytes(part)) {
            return;
        }
        let (_, whole) = peer.parts.swap_remove(at);
        let Some(link) = peer.peering.link_mut() else { return };
        match link.slot_complete(now, seq, total as usize) {
            Arrival::Next { released } => {
                self.deliver(rank, batch, Place::Held(whole.into_bytes()));
                self.release(rank, released, batch);
            }
            Arrival::Ahead { distance } => self.keep_ahead(rank, distance, Ahead::Bytes(whole.into_bytes())),
            Arrival::Repeat | Arrival::Fragment { .. } => {}
        }
    }

    #[cold]
    fn receive_own(&mut self) {
        use tautline_device::Channel;
        while self.own_pending < self.own_room && !self.own.is_empty() {
            let mut bytes = self.buffers.pop().unwrap_or_default();
            bytes.resize(self.own.max_frame(), 0);
            let Some(len) = self.own.pop(&mut bytes) else { return self.buffers.push(bytes) };
            bytes.truncate(len);
            // There is room for another.
            self.activity += 1;
            let me = self.rank;
            let first = Records::new(&bytes, 0).next();
            if matches!(first, Some(Ok(Record::Window { .. } | Record::Memory { .. }))) {
                self.obey(me, &bytes);
                self.buffers.push(bytes);
                continue;
            }
            self.own_pending += 1;
            self.ready.push_back(Item { peer: me, incarnation: 1, place: Place::Held(bytes) });
        }
    }

    /// Slots that lie in the batch move out of it, because the batch is about to be used again.
    #[inline]
    pub(crate) fn hold_in_place(&mut self) {
        if self.in_place > 0 {
            self.hold_slowly();
        }
    }

    #[cold]
    fn hold_slowly(&mut self) {
        let batch = self.batch.take();
        for i in 0..self.ready.len() {
            if let (Place::Batch(frame), Some(batch)) = (&self.ready[i].place, &batch) {
                let copy = self.copy(batch.bytes(*frame));
                self.ready[i].place = Place::Held(copy);
                self.counters.frames_held += 1;
            }
        }
        self.in_place = 0;
        self.batch = batch;
    }

    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < 4 * self.config.link.credit_slots as usize {
            self.buffers.push(buffer);
        }
    }

    /// Moves ready slots of up to `limit` bytes (at least one slot, if there is any) into an empty delivery.
    #[inline]
    pub(crate) fn take_ready(&mut self, limit: usize, delivery: &mut Delivery) {
        let mut bytes = 0_usize;
        let lends = !self.near_up.is_empty() || !self.formers.is_empty();
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
        if self.in_place > 0 {
            // The rest stays here, and so must be copied; the batch goes along with what was taken.
            self.hold_slowly();
        }
        delivery.batch = self.batch.take();
    }

    /// Bytes that a slot lends: they count as if they were there (M-8).
    fn lent_by(&self, item: &Item) -> usize {
        let slot = match &item.place {
            Place::Batch(frame) => self.batch.as_ref().map_or(&[][..], |batch| batch.bytes(*frame)),
            Place::Held(held) => held,
        };
        record::lent_len(slot) as usize
    }

    /// Takes a delivery back; its first `consumed` slots are done with, their room is granted again. The rest goes back
    /// to the front of the queue.
    #[inline]
    pub(crate) fn give_back(&mut self, delivery: &mut Delivery, consumed: usize) {
        while delivery.items.len() > consumed {
            let item = delivery.items.pop().expect("longer than consumed");
            let place = match item.place {
                Place::Held(bytes) => Place::Held(bytes),
                Place::Batch(frame) => {
                    let batch = delivery.batch.as_ref().expect("frames in place have their batch");
                    Place::Held(self.copy(batch.bytes(frame)))
                }
            };
            self.ready.push_front(Item { place, ..item });
        }
        while let Some(item) = delivery.items.pop() {
            if let Place::Held(bytes) = item.place {
                self.recycle(bytes);
            }
            self.grant(item.peer, item.incarnation);
        }
        if let Some(batch) = delivery.batch.take()
            && self.batch.is_none()
        {
            self.batch = Some(batch);
        }
    }

    #[inline]
    fn grant(&mut self, rank: Rank, incarnation: u32) {
        if rank == self.rank {
            self.own_pending -= 1;
            self.activity += 1;
            return;
        }
        let peer = &mut self.peers[rank as usize];
        if let Some(near) = &mut peer.near {
            near.pending -= usize::from(peer.incarnation == incarnation);
            return;
        }
        if peer.incarnation == incarnation
            && !matches!(peer.state, PeerState::Down(_))
            && let Some(link) = peer.peering.link_mut()
            && link.consumed(1)
        {
            self.urgent = true;
            self.mark_dirty(rank);
        }
    }
}
