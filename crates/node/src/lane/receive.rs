//! Receiving: from the device's frames to slots that are ready for the program.

use std::ops::Range;

use tautline_device::shm::{LINE_WORDS, PeekedLine, PoppedLine};
use tautline_device::{RxBatch, RxFrame};
use tautline_link::{Arrival, Death, Link, Nanos};
use tautline_mem::ApertureMemory;
use tautline_wire::frame::{Kind, channel_of};
use tautline_wire::record::{Class, Record, Records, is_control, is_served};

use super::Lane;
use super::frames::FrameBatch;
use super::inbox::{Delivery, Place};
use super::train::{Coupling, KnownTags, Train};
use crate::channel::Ahead;
use crate::tags::{Failure, Pattern, Room, Status};
use crate::{Down, PeerId, PeerState, Rank};

/// Memory records of one peer that are served before everything else has its turn.
const MEMORY_AT_ONCE: u32 = 256;

/// What a look at a ring has found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Polled<T> {
    Nothing,
    /// What was looked for.
    Found(T),
    /// Something else.
    Other,
}

impl Lane {
    /// Takes what local peers, the device and this node itself have sent. Slots that are due end up in the
    /// inbox, in place.
    #[inline]
    pub(crate) fn receive(&mut self, now: Nanos) -> usize {
        self.inbox.hold();
        self.memory.set_time(now);
        // N-13: frames in shared memory wait there while the watchdog polls, unless memory or tags are to be
        // served.
        if !self.local.poll.is_empty() && (!self.status.watchdog_polls || self.is_serving_others()) {
            let found = self.receive_local(now);
            let due = self.local.poll.is_device_due(found, self.status.has_links);
            if !due && self.port.loopback_frames == 0 {
                return found;
            }
            self.inbox.hold();
            self.status.has_links = self.peers.iter().any(|peer| peer.channel.link.is_polled());
        }
        self.status.received_at = now;
        let mut batch = self.inbox.take_batch();
        let count = self.port.device.recv(&mut batch).unwrap_or(0);
        if count == 1 {
            self.handle_frame(now, &mut batch, 0, None);
        } else if count > 1 {
            self.handle_frames(now, &mut batch, count);
        }
        self.inbox.return_batch(batch);
        self.port.activity += count as u64;
        if self.port.loopback_frames > 0 {
            self.receive_loopback();
        }
        count
    }

    /// Handles several frames.
    fn handle_frames(&mut self, now: Nanos, batch: &mut RxBatch, count: usize) {
        let (mut at, mut tags) = (0, KnownTags::default());
        while at < count {
            at += 1;
            if let Some(rank) = self.handle_frame(now, batch, at - 1, Some(&mut tags))
                && at < count
            {
                at += self.handle_train(now, batch, at, rank, &mut tags);
            }
        }
    }

    /// Handles the frame `at` of a batch. Returns whose it was if it carried the next slot in order: more may
    /// follow.
    #[inline(always)]
    fn handle_frame(
        &mut self,
        now: Nanos,
        batch: &mut RxBatch,
        at: usize,
        tags: Option<&mut KnownTags>,
    ) -> Option<Rank> {
        let frame = batch.frames()[at];
        let bytes = batch.bytes_mut(frame);
        match Kind::of(bytes) {
            Ok(Kind::Data | Kind::Close) => {}
            Ok(_) => {
                self.handle_handshake(now, batch.bytes(frame), batch.source(frame));
                return None;
            }
            Err(_) => return self.note_stray(),
        }
        let Ok(channel) = channel_of(bytes) else { return self.note_stray() };
        let Some(peer) = self.peers.at_place(channel as usize & 0xffff) else { return self.note_stray() };
        let rank = peer.rank;
        let peering = &mut peer.channel.link.peering;
        let (bytes, known) = match (tags, peering.link()) {
            (Some(tags), Some(link)) if link.tags_trains() => {
                let known = tags.find(link, batch, at);
                (batch.bytes_mut(frame), known)
            }
            _ => (bytes, None),
        };
        let Ok((arrival, payload)) = peering.handle_frame(now, channel, bytes, known) else {
            if peering.link().is_none_or(|link| link.channel() != channel) {
                self.counters.stale += 1;
            }
            return None;
        };
        if !peer.announced || peering.has_superseded() {
            // H-8: the first frame of a new channel.
            self.note_link(now, rank);
        }
        self.peers.member_mut(rank).channel.mark_dirty(&mut self.port);
        let slot = slot_in(frame, &payload);
        match arrival {
            None | Some(Arrival::Duplicate) => {}
            Some(Arrival::Next { released }) => {
                self.deliver(rank, batch, Place::Batch(slot));
                if released > 0 || self.peers.member(rank).channel.link.has_ahead() {
                    self.release(rank, released, batch);
                }
                return Some(rank);
            }
            Some(Arrival::Ahead { distance }) => {
                let from = self.peers.member(rank).id();
                let slot = match self.memory.place_ahead(from, batch.bytes(slot)) {
                    Some(placed) => Ahead::Placed(placed),
                    None => Ahead::Bytes(self.inbox.copy(batch.bytes(slot))),
                };
                self.peers.member_mut(rank).channel.link.keep_ahead(distance, slot);
            }
            Some(Arrival::Fragment { seq, offset, total }) => {
                self.handle_fragment(now, rank, batch, (seq, offset, total), slot);
            }
        }
        None
    }

    #[cold]
    fn note_stray(&mut self) -> Option<Rank> {
        self.counters.strays += 1;
        None
    }

    /// Handles the frames from `first` on that continue what the frame before them, of this peer, began, up
    /// to one that does not. Returns their number.
    fn handle_train(
        &mut self,
        now: Nanos,
        batch: &mut RxBatch,
        first: usize,
        rank: Rank,
        tags: &mut KnownTags,
    ) -> usize {
        let mut at = first;
        while let Some(link) = self.peers.member_mut(rank).channel.link.peering.link_mut() {
            let (train, other) = couple(link, now, batch, &mut at, tags);
            if let Some(train) = train {
                self.inbox.push(self.peers.member(rank).id(), Place::Train(train));
            }
            let Some(slot) = other else { break };
            self.deliver(rank, batch, Place::Batch(slot));
        }
        at - first
    }

    /// Handles a slot whose turn has come: control, memory and tag records at once, everything else waits for
    /// the program (N-1).
    #[inline]
    pub(crate) fn deliver(&mut self, rank: Rank, batch: &RxBatch, place: Place) {
        let bytes = match &place {
            Place::Batch(frame) => batch.bytes(*frame),
            Place::Train(train) => batch.bytes(train.slot(batch, 0)),
            Place::Held(bytes) => bytes,
        };
        match bytes.first() {
            Some(first) if is_served(*first) => {
                let good = self.handle_served(rank, bytes);
                self.end_control(rank, good);
            }
            Some(first) if is_control(*first) => {
                // A copy: what it says may change where the batch lies.
                let copy = self.inbox.copy(bytes);
                self.handle_control(rank, &copy);
                self.inbox.recycle(copy);
            }
            _ => self.inbox.push(self.peers.member(rank).id(), place),
        }
    }

    /// Handles memory or tag records. False if no correct peer sends them.
    #[inline]
    pub(super) fn handle_served(&mut self, rank: Rank, bytes: &[u8]) -> bool {
        // N-25: a node that closes has ended its requests, its memory and its receives. What peers sent
        // before they learn of it is no violation, and must not end the channel before the last messages are
        // acknowledged.
        if self.port.closed {
            return true;
        }
        let peer = self.peers.member_mut(rank);
        let from = peer.id();
        match Class::of(bytes[0]) {
            Class::Tags => self.tags.handle_records(from, &mut peer.channel, bytes),
            Class::Multicast => self.multicast.handle_records(from, bytes),
            _ => self.memory.handle_records(from, &mut peer.channel, bytes),
        }
    }

    /// Handles the memory, tag or control records of a slot (W-6, W-11), and grants its room again.
    #[cold]
    pub(crate) fn handle_control(&mut self, rank: Rank, bytes: &[u8]) {
        if is_served(bytes[0]) {
            let good = self.handle_served(rank, bytes);
            return self.end_control(rank, good);
        }
        let mut good = true;
        for record in Records::new(bytes, 0) {
            match record {
                Ok(Record::Window { message, limit }) => {
                    self.peers.member_mut(rank).channel.messages.widen(message, limit);
                }
                Ok(Record::Handlers { last, data }) => good &= self.learn_handlers(rank, last, data),
                _ => good = false,
            }
        }
        self.end_control(rank, good);
    }

    /// A slot of control, memory or tag records is consumed. If it was not good, its channel ends.
    #[inline]
    fn end_control(&mut self, rank: Rank, good: bool) {
        let channel = &mut self.peers.member_mut(rank).channel;
        channel.consumed(&mut self.port, 1);
        if !good && channel.violation() {
            self.teardown(rank, Down::Died(Death::Violation));
        }
    }

    /// Delivers what had arrived ahead of a gap that is closed now.
    fn release(&mut self, rank: Rank, released: u32, batch: &RxBatch) {
        for _ in 0..released {
            match self.peers.member_mut(rank).channel.link.pop_ahead() {
                Some(Ahead::Bytes(bytes)) => self.deliver(rank, batch, Place::Held(bytes)),
                Some(Ahead::Placed(placed)) => {
                    let from = self.peers.member(rank).id();
                    let good = self.port.closed || self.memory.settle_placed(from, placed);
                    self.end_control(rank, good);
                }
                None => break,
            }
        }
        // The place of the slot that is due now.
        self.peers.member_mut(rank).channel.link.pop_ahead();
    }

    #[cold]
    fn handle_fragment(
        &mut self,
        now: Nanos,
        rank: Rank,
        batch: &RxBatch,
        fragment: (tautline_wire::Seq, u32, u32),
        part: RxFrame,
    ) {
        let link = &mut self.peers.member_mut(rank).channel.link;
        let Some((arrival, bytes)) = link.add_fragment(now, fragment, batch.bytes(part)) else { return };
        match arrival {
            Arrival::Next { released } => {
                self.deliver(rank, batch, Place::Held(bytes));
                self.release(rank, released, batch);
            }
            Arrival::Ahead { distance } => link.keep_ahead(distance, Ahead::Bytes(bytes)),
            Arrival::Duplicate | Arrival::Fragment { .. } => {}
        }
    }

    /// Whether there are frames that this node has sent to itself and that may be taken out. Nobody rings for
    /// them.
    pub(crate) fn has_own_frames(&self) -> bool {
        self.port.loopback_frames > 0 && self.peers.member(self.rank).channel.has_takeable_frames(usize::MAX)
    }

    #[cold]
    fn receive_loopback(&mut self) {
        loop {
            let mut bytes = self.inbox.take_buffer();
            let me = self.peers.member_mut(self.rank);
            if !me.channel.take_loopback(&mut self.port, &mut bytes) {
                return self.inbox.recycle(bytes);
            }
            let from = me.id();
            if bytes.first().is_some_and(|first| is_control(*first)) {
                self.handle_control(self.rank, &bytes);
                self.inbox.recycle(bytes);
            } else {
                self.inbox.push(from, Place::Held(bytes));
            }
        }
    }

    /// Moves slots of up to `limit` bytes (at least one, if there is any) into an empty delivery.
    #[inline]
    pub(crate) fn take_ready(&mut self, limit: usize, delivery: &mut Delivery) {
        self.inbox.take(limit, self.local.may_lend(), delivery);
    }

    /// Takes a delivery back; its first `consumed` slots are done with, and their room is granted again.
    #[inline]
    pub(crate) fn give_back(&mut self, delivery: &mut Delivery, consumed: usize) {
        let Lane { inbox, peers, port, status, .. } = self;
        inbox.give_back(delivery, consumed, |from, slots| {
            let peer = peers.member_mut(from.rank);
            let current = peer.incarnation == from.incarnation && !matches!(peer.state, PeerState::Down(_));
            if current && peer.channel.consumed(port, slots) {
                status.urgent = true;
                peer.channel.mark_dirty(port);
            }
        });
    }

    // Memory and tag records.

    /// Serves memory and tag records of local peers, as far as no message stands before them: for a program
    /// that waits for a tripwire, a send or a receive. The time is set before, if memory wants to know it.
    #[inline]
    pub(crate) fn poll_served(&mut self) {
        self.poll_groups();
        if self.local.poll.asleep {
            return;
        }
        let (mut i, mut found) = (0, false);
        loop {
            while let Some(rank) = self.local.poll.at(i) {
                i += 1;
                match self.peers.member_mut(rank).channel.pop_served_words() {
                    PoppedLine::Empty => {}
                    line => {
                        self.serve_lines(rank, line);
                        found = true;
                    }
                }
            }
            // Those that are new are behind the others.
            if !self.local.poll.find_new_unless(found) {
                break;
            }
        }
    }

    /// Takes the next record of a local peer if it is a message for a receive, which is not posted (E-15).
    /// Only after [`crate::tags::Tags::may_take`].
    #[inline(always)]
    pub(crate) fn receive_line(
        &mut self,
        source: Rank,
        pattern: &Pattern,
        room: &mut impl Room,
    ) -> Polled<Result<Status, Failure>> {
        let Lane { peers, tags, .. } = self;
        let Some(peer) = peers.get_mut(source) else { return Polled::Other };
        let (len, words) = match peer.channel.peek_line() {
            PeekedLine::Empty => return Polled::Nothing,
            PeekedLine::Other => return self.receive_frame(source, pattern, room),
            PeekedLine::Words(len, words) => (len, words),
        };
        match tags.take_line(peer.id(), (pattern, room), len, |at| words.get(at)) {
            Some(ended) => {
                peer.channel.skip_line();
                Polled::Found(ended)
            }
            None => Polled::Other,
        }
    }

    /// As [`Lane::receive_line`], with a record that is longer than a line.
    // A call, so that a message in a line does not pay for its registers.
    #[inline(never)]
    fn receive_frame(
        &mut self,
        source: Rank,
        pattern: &Pattern,
        room: &mut impl Room,
    ) -> Polled<Result<Status, Failure>> {
        let Lane { peers, tags, .. } = self;
        let Some(peer) = peers.get_mut(source) else { return Polled::Other };
        let Some((len, words)) = peer.channel.peek_served() else { return Polled::Other };
        let from = peer.id();
        let take = |rest: &mut [u8]| peer.channel.take_served_rest_into(len, rest);
        match tags.take_frame(from, (pattern, room), (len, &words), take) {
            Some(ended) => Polled::Found(ended),
            None => Polled::Other,
        }
    }

    /// Serves the memory and tag records of a peer of which the first small one has been taken.
    #[inline(never)]
    fn serve_lines(&mut self, rank: Rank, mut line: PoppedLine) {
        let mut frames = 0;
        loop {
            match line {
                PoppedLine::Empty => break,
                PoppedLine::Words(len, words) => self.serve_words(rank, len, &words),
                PoppedLine::Other if self.serve_long(rank) => {}
                PoppedLine::Other => break,
            }
            frames += 1;
            // What is behind a message that was waited for costs less in the ring than in a queue.
            if frames == MEMORY_AT_ONCE || self.tags.take_last_matched() {
                break;
            }
            line = self.peers.member_mut(rank).channel.pop_served_words();
        }
        if frames > 0 {
            self.port.activity += 1;
            if self.memory.is_busy() {
                self.pump_memory();
            }
            if self.tags.is_busy() {
                self.pump_tags();
            }
            if self.multicast.is_busy() {
                self.pump_multicast();
            }
        }
    }

    /// Serves a memory or tag record that came in a line of its own.
    #[inline]
    fn serve_words(&mut self, rank: Rank, len: usize, words: &[u64; LINE_WORDS]) {
        let peer = self.peers.member_mut(rank);
        let from = peer.id();
        let good = match Class::of(words[0] as u8) {
            Class::Tags => self.tags.handle_words(from, &mut peer.channel, len, words),
            Class::Multicast => self.multicast.handle_words(from, len, words),
            _ => self.memory.handle_words(from, &mut peer.channel, len, words),
        };
        if !good {
            self.teardown(rank, Down::Died(Death::Violation));
        }
    }

    /// Serves the next frame, which is longer than a line, if it holds memory or tag records. False if it
    /// does not, or there is none.
    fn serve_long(&mut self, rank: Rank) -> bool {
        let peer = self.peers.member_mut(rank);
        let from = peer.id();
        let Some((len, words)) = peer.channel.peek_served() else { return false };
        let channel = &mut peer.channel;
        let placed = match Class::of(words[0] as u8) {
            // A node that closes drops them (N-25).
            Class::Tags if self.port.closed => None,
            Class::Tags => {
                self.tags.place_long(from, (len, &words), |rest| channel.take_served_rest_into(len, rest))
            }
            Class::Multicast => None,
            _ => {
                let take = |to: &ApertureMemory, at: usize| channel.take_served_rest(len, (to, at));
                self.memory.place_long(from, &words, len, take)
            }
        };
        let good = placed.unwrap_or_else(|| {
            let mut bytes = self.inbox.take_buffer();
            bytes.resize(len, 0);
            self.peers.member_mut(rank).channel.take_served(&mut bytes);
            let good = self.handle_served(rank, &bytes);
            self.inbox.recycle(bytes);
            good
        });
        if !good {
            self.teardown(rank, Down::Died(Death::Violation));
        }
        true
    }

    /// Whether peers may reach for memory of this node, or send messages with tags or multicasts, which are
    /// served while the program does not poll (A-5, E-4, R-3).
    #[inline]
    fn is_serving_others(&self) -> bool {
        self.memory.is_used() || self.tags.is_used() || self.multicast.is_used()
    }

    /// Whether local peers may do so: nobody rings for a program that computes.
    pub(crate) fn serves_local(&self) -> bool {
        self.is_serving_others() && !self.local.poll.is_empty()
    }

    /// Whether records wait to be sent that find room sooner or later.
    pub(crate) fn has_unsent(&self) -> bool {
        self.memory.has_unsent() || self.tags.has_unsent() || self.multicast.has_unsent()
    }

    /// Whether memory, tags or multicasts have something to send.
    #[inline]
    pub(super) fn is_serving(&self) -> bool {
        self.memory.is_busy() || self.tags.is_busy() || self.multicast.is_busy()
    }

    /// Delivers the frames of a batch but for the first `handled` as any other slot, before whatever has been
    /// taken since.
    #[cold]
    pub(crate) fn put_back(&mut self, batch: &FrameBatch, handled: usize) {
        self.port.activity += 1;
        let is_control_frame = |frame: &&[u8]| frame.first().is_some_and(|first| is_control(*first));
        for control in batch.frames().skip(handled).filter(is_control_frame) {
            if self.add_pending(batch.from) {
                self.handle_control(batch.from.rank, control);
            }
        }
        let count = batch.frames().count() - handled;
        for frame in batch.frames().rev().take(count).filter(|frame| !is_control_frame(frame)) {
            // If the peer is gone by now, what it sent whole still counts (S-6).
            self.add_pending(batch.from);
            self.inbox.push_front(batch.from, frame);
        }
    }

    /// A frame that was taken out counts as pending; false if its peer is gone.
    fn add_pending(&mut self, from: PeerId) -> bool {
        let peer = self.peers.member_mut(from.rank);
        peer.incarnation == from.incarnation && peer.channel.add_pending()
    }
}

/// Handles the frames from `at` on, as far as they continue what came before, and couples their slots up to
/// one that is no part of the train. Returns the train, if there is one, and that slot.
#[inline]
fn couple(
    link: &mut Link,
    now: Nanos,
    batch: &mut RxBatch,
    at: &mut usize,
    tags: &mut KnownTags,
) -> (Option<Train>, Option<RxFrame>) {
    let mut coupling: Option<Coupling> = None;
    let mut other = None;
    while let Some(&frame) = batch.frames().get(*at) {
        let known = if link.tags_trains() { tags.find(link, batch, *at) } else { None };
        let bytes = batch.bytes_mut(frame);
        let Some(handled) = link.handle_next(now, bytes, known) else { break };
        *at += 1;
        let Ok(payload) = handled else { continue };
        let (place, slot) = (*at - 1, &bytes[payload.clone()]);
        let coupled = match &mut coupling {
            Some(coupling) => coupling.append(place, payload.start, slot),
            none => {
                *none = Coupling::start(place, payload.start, slot);
                none.is_some()
            }
        };
        if !coupled {
            other = Some(slot_in(frame, &payload));
            break;
        }
    }
    (coupling.map(|coupling| coupling.train()), other)
}

/// The part of a received frame that is its slot.
#[inline]
fn slot_in(frame: RxFrame, payload: &Range<usize>) -> RxFrame {
    RxFrame {
        buffer: frame.buffer,
        start: frame.start + payload.start as u32,
        len: (payload.end - payload.start) as u32,
    }
}
