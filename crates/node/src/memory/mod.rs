//! Remote memory: apertures that peers write and read, and tripwires that report it.
//!
//! `Memory` is all of it: the apertures and cookies of this node (`apertures`, `cookie`), its tripwires and
//! tripsets (`tripwires`, over `index`), the requests of others (`serve`, `answers`), the requests to others
//! (`operations`, `requests`, `replies`), both halves of a put (`puts`), and what the program is told
//! (`events`). It is given a channel to write to (`writer`) and the records that arrive; it knows no device,
//! no link and no clock. The lane calls it under its owner word, in every poll, the watchdog's included
//!

mod answers;
mod apertures;
mod cookie;
mod events;
mod failure;
mod ids;
mod index;
mod operations;
mod peers;
mod puts;
mod replies;
mod requests;
mod serve;
mod shown;
mod slab;
#[cfg(test)]
mod tests;
mod tripwires;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use tautline_link::{Death, Nanos};
use tautline_mem::ApertureMemory;

pub use cookie::{Cookie, Rights};
pub use events::{MemoryEvent, OutOfBand, Wakeup};
pub use failure::Failure;
pub use ids::{ApertureId, SetId, Ticket, WireId};
pub use operations::{Local, Operation};
pub use puts::Progress;
pub use shown::Hint;
pub use slab::Name;
pub use tautline_wire::memory::{Atomic, MAX_OUT_OF_BAND, Refusal};
pub use tripwires::{Access, Condition, Report, Test, Trip, WireCell};

pub(crate) use operations::Completion;
pub(crate) use puts::{PlacedPart, PutStatus};
pub(crate) use slab::Slab;
pub(crate) use writer::{LentParts, RecordWriter};

use crate::{Down, PeerId, Rank};
use apertures::Apertures;
use events::EventQueue;
use operations::Operations;
use peers::Peers;
use tripwires::{Touch, Tripwires};

/// The memory of one node, and its operations on the memory of others.
///
/// The lane tells it of channels ([`Memory::peer_up`], [`Memory::peer_down`]) and of the time
/// ([`Memory::set_time`]), gives it what arrives ([`Memory::handle_records`], [`Memory::handle_words`],
/// [`Memory::place_long`]), and gives peers their turns while [`Memory::is_busy`] ([`Memory::start_round`],
/// [`Memory::next_busy`], [`Memory::pump_peer`]).
#[derive(Debug)]
pub(crate) struct Memory {
    /// This node, as its tripwires name it.
    me: PeerId,
    apertures: Apertures,
    tripwires: Tripwires,
    operations: Operations,
    events: EventQueue,
    peers: Peers,
    /// Peers with answers or requests that wait to be sent, in the order of their turns.
    busy: VecDeque<Rank>,
    /// Whether a turn of the last round ended with its budget, not for want of room.
    more: bool,
    counters: MemoryCounters,
    /// Frames of peers that were handled.
    served: u64,
    activity: u64,
}

impl Memory {
    /// Creates the memory of `rank`; `epoch` is fresh for each process.
    pub(crate) fn new(rank: Rank, epoch: u64) -> Memory {
        Memory {
            me: PeerId::new(rank, 1),
            apertures: Apertures::new(epoch),
            tripwires: Tripwires::default(),
            operations: Operations::default(),
            events: EventQueue::default(),
            peers: Peers::default(),
            busy: VecDeque::new(),
            more: false,
            counters: MemoryCounters::default(),
            served: 0,
            activity: 0,
        }
    }

    /// Starts a channel to an incarnation of a peer. Nothing of a former one leaks into it (N-4).
    pub(crate) fn peer_up(&mut self, id: PeerId) {
        if !self.peers.start(id) {
            return;
        }
        // Requests that were made between two channels must not be lost.
        self.end_requests(id.rank, Failure::PeerGone(id.rank, Down::Died(Death::Restarted)));
        if let Some(peer) = self.peers.get_mut(id.rank) {
            (peer.id, peer.ended) = (id, None);
        }
    }

    /// Ends the channel to a peer, and all requests that were made on it. Further requests fail with
    /// the first reason.
    pub(crate) fn peer_down(&mut self, rank: Rank, why: Failure) {
        if self.peers.end(rank, why) {
            self.end_requests(rank, why);
        }
    }

    /// Returns whether peers may access memory of this node, or this node waits for answers: then it must be
    /// served while the program does not poll.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.apertures.len() + self.operations.len() > 0
    }

    /// Returns whether a cookie may still expire, so that the time must be set before requests are handled
    ///
    #[inline]
    pub(crate) fn wants_time(&self) -> bool {
        self.apertures.wants_time()
    }

    /// Advances the clock to `now`.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.apertures.set_time(now);
    }

    /// Returns whether any peer has answers or requests that wait to be sent.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Returns whether a turn of the last round ended with its budget, so that another round should follow at
    /// once.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.more
    }

    /// Returns a number that changes whenever requests that would have blocked should be tried again.
    #[inline]
    pub(crate) fn activity(&self) -> u64 {
        self.activity
    }

    /// Returns a number that changes whenever a frame of a peer was handled.
    #[inline]
    pub(crate) fn served(&self) -> u64 {
        self.served
    }

    #[inline]
    fn mark_busy(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank)
            && !peer.busy
        {
            peer.busy = true;
            self.busy.push_back(rank);
        }
    }

    #[inline]
    fn touch(&mut self, touch: Touch) {
        self.tripwires.touch(&mut self.apertures, &mut self.events, touch);
    }

    /// Makes memory an aperture. None if there are too many.
    pub(crate) fn open_aperture(&mut self, memory: Arc<ApertureMemory>) -> Option<ApertureId> {
        self.apertures.open(memory)
    }

    /// Closes an aperture: revokes its cookies, disarms its tripwires, and releases its memory.
    pub(crate) fn close_aperture(&mut self, id: ApertureId) {
        self.apertures.note_change();
        for peer in self.peers.iter_mut() {
            peer.served.word.clear();
            self.counters.refused += peer.served.answers.refuse(id);
        }
        while let Some(wire) = self.apertures.last_wire(id) {
            self.disarm(WireId(wire));
        }
        self.apertures.close(id);
    }

    /// Grants a cookie for `len` bytes from `start` on, with a fresh `secret`. None if they are not in the
    /// aperture, or there are too many cookies.
    pub(crate) fn grant_cookie(
        &mut self,
        aperture: ApertureId,
        (start, len): (u64, u64),
        (rights, expires): (Rights, Nanos),
        secret: [u8; 16],
    ) -> Option<Cookie> {
        self.apertures.grant(self.me.rank, aperture, (start, len), (rights, expires), secret)
    }

    /// Revokes a cookie: the next request with it is refused. False if it was not granted for this
    /// aperture, or is no longer valid.
    pub(crate) fn revoke_cookie(&mut self, aperture: ApertureId, cookie: &Cookie) -> bool {
        self.apertures.revoke(self.me.rank, aperture, cookie)
    }

    /// Arms a tripwire (T-1). None if the aperture is closed, it lacks the range or the condition's word, or
    /// there are too many tripwires.
    pub(crate) fn arm(&mut self, aperture: ApertureId, trip: Trip) -> Option<(WireId, Arc<WireCell>)> {
        self.tripwires.arm(&mut self.apertures, aperture, trip)
    }

    /// Disarms a tripwire: when this returns it fires no more, and none of its events is left (T-2).
    pub(crate) fn disarm(&mut self, id: WireId) -> bool {
        let disarmed = self.tripwires.disarm(&mut self.apertures, &mut self.events, id);
        self.activity += u64::from(disarmed);
        disarmed
    }

    /// Arms a tripwire again that disarmed itself at its fire.
    pub(crate) fn rearm(&mut self, id: WireId) -> bool {
        self.tripwires.rearm(&mut self.apertures, id)
    }

    /// Requests a wake-up for the next fire of a tripwire.
    pub(crate) fn await_wire(&mut self, id: WireId) {
        self.tripwires.await_fire(id);
    }

    /// Returns the peer that fired a tripwire last.
    pub(crate) fn fired_by(&self, id: WireId) -> Option<PeerId> {
        self.tripwires.fired_by(id)
    }

    /// Groups tripwires: the set is ready when `need` of them have fired. None if there are fewer, if one is
    /// gone or named twice, or there are too many sets.
    pub(crate) fn make_set(
        &mut self,
        wires: &[WireId],
        need: usize,
        report: Report,
        tag: u64,
    ) -> Option<(SetId, Arc<WireCell>)> {
        self.tripwires.make_set(wires, need, report, tag)
    }

    /// Dissolves a set; its tripwires stay.
    pub(crate) fn dissolve_set(&mut self, id: SetId) -> bool {
        self.tripwires.dissolve(&mut self.events, id)
    }

    /// Requests a wake-up when a set is ready.
    pub(crate) fn await_set(&mut self, id: SetId) {
        self.tripwires.await_set(id);
    }

    /// Takes the result of an operation, if it is complete. `wait`: otherwise requests a wake-up when it is.
    pub(crate) fn poll_operation(&mut self, ticket: Ticket, wait: bool) -> Option<Result<u64, Failure>> {
        self.operations.poll(ticket, wait)
    }

    /// Lets the end of an operation be an event, also if it is complete already.
    pub(crate) fn complete_by_event(&mut self, ticket: Ticket, tag: u64) {
        if let Some(result) = self.operations.complete_by_event(ticket, tag) {
            self.events.push(MemoryEvent::Completed { ticket, tag, result });
        }
    }

    /// Drops the result of an operation, which continues.
    pub(crate) fn detach_operation(&mut self, ticket: Ticket) {
        self.operations.detach(ticket);
    }

    /// Removes an operation of which not all requests were begun.
    pub(crate) fn cancel_operation(&mut self, ticket: Ticket) {
        self.operations.cancel(ticket);
    }

    /// Returns whether there are events or wake-ups that the program does not know of.
    #[inline]
    pub(crate) fn has_new_events(&self) -> bool {
        self.events.is_unacknowledged()
    }

    /// Notes that the program knows that there may be events. True if there are any.
    pub(crate) fn acknowledge_events(&mut self) -> bool {
        self.events.acknowledge()
    }

    /// Returns something that a future waited for and that has happened.
    pub(crate) fn take_wakeup(&mut self) -> Option<Wakeup> {
        self.events.take_wakeup()
    }

    /// Returns the next event.
    pub(crate) fn poll_event(&mut self) -> Option<MemoryEvent> {
        loop {
            let event = match self.events.pop()? {
                MemoryEvent::Tripwire { wire, tag, fires } => self
                    .tripwires
                    .read_event(wire, fires)
                    .map(|fires| MemoryEvent::Tripwire { wire, tag, fires }),
                MemoryEvent::Tripset { set, tag, .. } => {
                    self.tripwires.read_set_event(set).map(|times| MemoryEvent::Tripset { set, tag, times })
                }
                event => Some(event),
            };
            if event.is_some() {
                return event;
            }
            self.events.note_stale_read();
        }
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> MemoryCounters {
        MemoryCounters { fires: self.tripwires.fires(), events_lost: self.events.lost(), ..self.counters }
    }
}

/// Counters of memory, which only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Puts of others that took effect here.
    pub puts: u64,
    /// Bytes of them.
    pub bytes_put: u64,
    /// Gets of others that were allowed here.
    pub gets: u64,
    /// Words that others changed here.
    pub atomics: u64,
    /// Parts of puts that were placed before a gap in front of them was repaired.
    pub placed_ahead: u64,
    /// Requests of others that were refused here. They touched nothing.
    pub refused: u64,
    /// Of these, requests with a cookie that does not exist, or of a former process of this rank.
    pub forged: u64,
    /// Fires of tripwires.
    pub fires: u64,
    /// Events that were dropped because the queue was full.
    pub events_lost: u64,
}
