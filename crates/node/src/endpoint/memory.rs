//! What a thread can ask its node to do with memory. Never blocks.

use std::sync::Arc;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::Memory as Message;

use super::Endpoint;
use crate::memory::{
    ApertureId, Cookie, Failure, MemoryCounters, MemoryEvent, Operation, OutOfBand, Progress, Report, Rights,
    SetId, Tell, Ticket, Trip, Wakeup, WireCell, WireId,
};
use crate::{PeerId, Rank, SendError};

impl Endpoint {
    /// Makes memory an aperture; none if there are too many.
    pub fn open_aperture(&self, memory: Arc<ApertureMemory>) -> Result<Option<ApertureId>, SendError> {
        self.with(|i| i.open_aperture(memory))
    }

    /// Closes an aperture: nobody reaches it any more.
    pub fn close_aperture(&self, aperture: ApertureId) -> Result<(), SendError> {
        self.with(|i| i.close_aperture(aperture))
    }

    /// Gives a cookie for `len` bytes from `start` on, good for `life` nanoseconds if that is said; none if they are not in the aperture,
    /// or there are too many.
    pub fn grant_cookie(
        &self,
        aperture: ApertureId,
        (start, len): (u64, u64),
        rights: Rights,
        life: Option<u64>,
    ) -> Result<Option<Cookie>, SendError> {
        let expires = life.map_or(u64::MAX, |life| self.now().saturating_add(life));
        self.with(|i| i.grant_cookie(aperture, (start, len), rights, expires))
    }

    /// Takes a cookie of an aperture back, at once; false if it is not one, or not good any more anyway.
    pub fn revoke_cookie(&self, aperture: ApertureId, cookie: &Cookie) -> Result<bool, SendError> {
        self.with(|i| i.revoke_cookie(aperture, cookie))
    }

    /// Arms a tripwire; see [`Trip`].
    pub fn arm_wire(
        &self,
        aperture: ApertureId,
        trip: Trip,
    ) -> Result<Option<(WireId, Arc<WireCell>)>, SendError> {
        self.with(|i| i.arm_wire(aperture, trip))
    }

    /// Disarms a tripwire: nothing of it comes any more.
    pub fn disarm_wire(&self, wire: WireId) -> Result<bool, SendError> {
        self.with(|i| i.disarm(wire))
    }

    /// Arms a tripwire again that was to fire once, and did.
    pub fn rearm_wire(&self, wire: WireId) -> Result<bool, SendError> {
        self.with(|i| i.rearm(wire))
    }

    /// Groups tripwires.
    pub fn make_set(
        &self,
        members: &[WireId],
        need: usize,
        report: Report,
        tag: u64,
    ) -> Result<Option<(SetId, Arc<WireCell>)>, SendError> {
        self.with(|i| i.make_set(members, need, report, tag))
    }

    /// Dissolves a group of tripwires.
    pub fn dissolve_set(&self, set: SetId) -> Result<bool, SendError> {
        self.with(|i| i.dissolve(set))
    }

    /// Asks for an operation on another node's memory; `tag` if its end shall be an event, otherwise the ticket is looked at.
    pub fn submit(
        &self,
        (cookie, at): (&Cookie, u64),
        operation: Operation,
        tag: Option<u64>,
        after: Option<Ticket>,
    ) -> Result<Ticket, SendError> {
        self.submit_list(cookie, &[(at, operation)], tag, after)
    }

    /// As [`Endpoint::submit`], of several puts and gets, each at its place, or of one of whatever kind: they end together, when all have been tried, and fail if any of them does.
    pub fn submit_list(
        &self,
        cookie: &Cookie,
        operations: &[(u64, Operation)],
        tag: Option<u64>,
        after: Option<Ticket>,
    ) -> Result<Ticket, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.submit(now, cookie, operations, tag.map_or(Tell::Holder, Tell::Event), after)
    }

    /// Puts a copy of bytes as there is room, behind whatever waits already, without waiting for it. Nobody is told of the end, but an event if it is refused.
    pub fn put_later(&self, to: (&Cookie, u64), bytes: Vec<u8>) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        lane.put_later(now, to, bytes)
    }

    /// Bytes of the longest put that goes in one record now, and so either is put or not.
    pub fn put_limit(&self, peer: Rank) -> usize {
        self.with(|i| if i.peers.contains(peer) { i.put_limit(peer) } else { 0 }).unwrap_or(0)
    }

    /// Whether requests to a peer wait for answers that only extraction lets in.
    pub fn is_clogged(&self, peer: Rank) -> bool {
        self.with(|i| i.is_clogged(peer)).unwrap_or(false)
    }

    /// Who fired a tripwire last, and in which of its lives; nobody if it has not fired.
    pub fn fired_by(&self, wire: WireId) -> Option<PeerId> {
        self.with(|i| i.fired_by(wire)).ok().flatten()
    }

    /// Puts bytes, as many as there is room for; true if that is all of them. A put that was begun must be gone on with, or given up.
    #[inline]
    pub fn try_put(
        &self,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        progress: &mut Progress,
    ) -> Result<bool, SendError> {
        if progress.id.is_none() && self.try_put_inline((cookie, at), bytes, progress)? {
            return Ok(true);
        }
        let (mut lane, now) = self.enter()?;
        lane.put_bytes(now, (cookie, at), bytes, None, progress)
    }

    /// As [`Endpoint::try_put`], with `len` bytes that `fill` writes straight to where they are sent from: it is given how far the put has come, and room.
    pub fn try_put_filled(
        &self,
        (cookie, at): (&Cookie, u64),
        len: usize,
        progress: &mut Progress,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.put_filled(now, (cookie, at), len, progress, fill)
    }

    /// A put to a peer on this host that nothing is in the way of: no clock is read.
    #[inline]
    fn try_put_inline(
        &self,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        progress: &Progress,
    ) -> Result<bool, SendError> {
        let mut lane = self.lock()?;
        if !lane.put_inline(cookie, at, bytes, progress.hint) {
            return Ok(false);
        }
        self.shared.polls.polled();
        Ok(true)
    }

    /// As [`Endpoint::try_put`]; with the last byte a ticket for its end. The ticket lies in `ticket` between calls. If it is one of several puts that shall end as one,
    /// `left` says how many of them, this one included, are still to be put.
    pub fn try_put_with_completion(
        &self,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        progress: &mut Progress,
        (ticket, left): (&mut Option<Ticket>, usize),
    ) -> Result<bool, SendError> {
        let (mut lane, now) = self.enter()?;
        let op = match ticket {
            Some(ticket) => ticket.0,
            None => lane
                .new_op_of(left, Tell::Holder)
                .ok_or(SendError::TooMany("operations whose ends nobody has taken"))?,
        };
        *ticket = Some(Ticket(op));
        if let Some(op) = lane.memory.ops.get_mut(op) {
            op.asks = left == 1;
        }
        lane.put_bytes(now, (cookie, at), bytes, Some(op), progress)
    }

    /// Gives a put up that was begun: what was sent of it may be in place, but no tripwire is told.
    pub fn abandon_put(&self, owner: Rank, progress: &Progress) -> Result<(), SendError> {
        self.with(|i| i.abandon_put(owner, progress))
    }

    /// The result of an operation, once it is complete. `wait`: [`Endpoint::take_woken`] tells when to look again.
    pub fn poll_operation(
        &self,
        ticket: Ticket,
        wait: bool,
    ) -> Result<Option<Result<u64, Failure>>, SendError> {
        self.with(|i| i.poll_operation(ticket, wait))
    }

    /// An operation whose puts were not all begun is given up.
    pub fn cancel_operation(&self, ticket: Ticket) -> Result<(), SendError> {
        self.with(|i| i.cancel_operation(ticket))
    }

    /// Nobody will look at an operation's result.
    pub fn let_go(&self, ticket: Ticket) -> Result<(), SendError> {
        self.with(|i| i.let_go(ticket))
    }

    /// [`Endpoint::take_woken`] shall tell of the next fire, or that there will be none.
    pub fn await_wire(&self, wire: WireId) -> Result<(), SendError> {
        self.with(|i| i.await_wire(wire))
    }

    /// [`Endpoint::take_woken`] shall tell when the set is ready, or that it never will be.
    pub fn await_set(&self, set: SetId) -> Result<(), SendError> {
        self.with(|i| i.await_set(set))
    }

    /// What a future waited for and has happened.
    pub fn take_woken(&self) -> Result<Option<Wakeup>, SendError> {
        self.with(|i| i.memory.news.take_woken())
    }

    /// The program has been told that there may be events of memory; true if there are any.
    pub fn acknowledge_memory_events(&self) -> Result<bool, SendError> {
        self.with(|i| i.memory.news.told())
    }

    /// The end of an operation shall be an event, instead of being looked at.
    pub fn complete_by_event(&self, ticket: Ticket, tag: u64) -> Result<(), SendError> {
        self.with(|i| i.complete_by_event(ticket, tag))
    }

    /// The next thing that happened to memory.
    pub fn poll_memory_event(&self) -> Result<Option<MemoryEvent>, SendError> {
        self.with(|lane| lane.poll_memory_event())
    }

    /// Sends a small message to a peer's event queue.
    pub fn send_out_of_band(&self, peer: Rank, out_of_band: &OutOfBand) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        lane.reach(now, peer)?;
        if !lane.writer(peer).write(&Message::OutOfBand(&[]), 0, out_of_band.bytes()) {
            lane.service(now);
            return Err(SendError::WouldBlock);
        }
        lane.send_now(now, peer);
        Ok(())
    }

    /// What was counted of memory.
    pub fn memory_counters(&self) -> MemoryCounters {
        self.with(|i| {
            let mut counters = i.memory.counters;
            counters.events_lost = i.memory.news.lost();
            counters
        })
        .unwrap_or_default()
    }
}
