//! What a thread can ask its node to do with memory. Never blocks.

use std::sync::Arc;

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::PUT_HEAD;

use super::Endpoint;
use crate::channel::ChannelWriter;
use crate::lane::Lane;
use crate::memory::{
    ApertureId, Completion, Cookie, Failure, Memory, MemoryCounters, MemoryEvent, Operation, OutOfBand,
    Progress, PutStatus, RecordWriter, Report, Rights, SetId, Ticket, Trip, Wakeup, WireCell, WireId,
};
use crate::{PeerId, Rank, SendError};

const TOO_MANY_OPERATIONS: SendError = SendError::TooMany("operations whose ends nobody has taken");

impl Endpoint {
    /// Makes memory an aperture; none if there are too many.
    pub fn open_aperture(&self, memory: Arc<ApertureMemory>) -> Result<Option<ApertureId>, SendError> {
        self.with(|lane| lane.memory.open_aperture(memory))
    }

    /// Closes an aperture: nobody reaches it any more.
    pub fn close_aperture(&self, aperture: ApertureId) -> Result<(), SendError> {
        self.with(|lane| lane.memory.close_aperture(aperture))
    }

    /// Gives a cookie for `len` bytes from `start` on, good for `expires_in` nanoseconds if that is given.
    /// None if they are not in the aperture, or there are too many cookies.
    pub fn grant_cookie(
        &self,
        aperture: ApertureId,
        (start, len): (u64, u64),
        rights: Rights,
        expires_in: Option<u64>,
    ) -> Result<Option<Cookie>, SendError> {
        let expires = expires_in.map_or(Nanos::MAX, |time| self.now().saturating_add(time));
        self.with(|lane| {
            let secret = lane.secrets.bytes();
            lane.memory.grant_cookie(aperture, (start, len), (rights, expires), secret)
        })
    }

    /// Revokes a cookie of an aperture, at once. False if it is not one, or no longer good.
    pub fn revoke_cookie(&self, aperture: ApertureId, cookie: &Cookie) -> Result<bool, SendError> {
        self.with(|lane| lane.memory.revoke_cookie(aperture, cookie))
    }

    /// Arms a tripwire; see [`Trip`].
    pub fn arm_wire(
        &self,
        aperture: ApertureId,
        trip: Trip,
    ) -> Result<Option<(WireId, Arc<WireCell>)>, SendError> {
        self.with(|lane| lane.memory.arm(aperture, trip))
    }

    /// Disarms a tripwire: it fires no more, and no event of it is left.
    pub fn disarm_wire(&self, wire: WireId) -> Result<bool, SendError> {
        self.with(|lane| lane.memory.disarm(wire))
    }

    /// Arms a tripwire again that was to fire once, and did.
    pub fn rearm_wire(&self, wire: WireId) -> Result<bool, SendError> {
        self.with(|lane| lane.memory.rearm(wire))
    }

    /// Groups tripwires: the set is ready when `need` of them have fired.
    pub fn make_set(
        &self,
        members: &[WireId],
        need: usize,
        report: Report,
        tag: u64,
    ) -> Result<Option<(SetId, Arc<WireCell>)>, SendError> {
        self.with(|lane| lane.memory.make_set(members, need, report, tag))
    }

    /// Dissolves a group of tripwires.
    pub fn dissolve_set(&self, set: SetId) -> Result<bool, SendError> {
        self.with(|lane| lane.memory.dissolve_set(set))
    }

    /// The peer that fired a tripwire last; none if it has not fired.
    pub fn fired_by(&self, wire: WireId) -> Option<PeerId> {
        self.with(|lane| lane.memory.fired_by(wire)).ok().flatten()
    }

    /// Requests an operation on another node's memory. With a `tag` its end is an event, otherwise the ticket
    /// is polled.
    pub fn submit(
        &self,
        (cookie, at): (&Cookie, u64),
        operation: Operation,
        tag: Option<u64>,
        after: Option<Ticket>,
    ) -> Result<Ticket, SendError> {
        self.submit_list(cookie, &[(at, operation)], tag, after)
    }

    /// As [`Endpoint::submit`], with several puts and gets, each at its place, or one operation of any kind.
    /// They end together, when all have been tried, and fail if any of them does.
    pub fn submit_list(
        &self,
        cookie: &Cookie,
        operations: &[(u64, Operation)],
        tag: Option<u64>,
        after: Option<Ticket>,
    ) -> Result<Ticket, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.reach(now, cookie.owner())?;
        let completion = tag.map_or(Completion::Polled, Completion::Event);
        let result = lane.memory.submit(cookie, operations, completion, after);
        if matches!(result, Ok(_) | Err(SendError::WouldBlock)) {
            lane.service(now);
        }
        result
    }

    /// Puts a copy of bytes as there is room, behind whatever waits already, without waiting for it. A
    /// refusal is an event.
    pub fn put_later(&self, to: (&Cookie, u64), bytes: Vec<u8>) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        lane.reach(now, to.0.owner())?;
        lane.memory.put_later(to, bytes)?;
        lane.service(now);
        Ok(())
    }

    /// Bytes of the longest put that goes in one record now, and so happens as a whole or not at all.
    pub fn put_limit(&self, peer: Rank) -> usize {
        let limit = self
            .with(|lane| if lane.add_peer(peer) { lane.writer(peer).record_limit() - PUT_HEAD } else { 0 });
        limit.unwrap_or(0)
    }

    /// Whether requests to a peer wait for answers that only extraction lets in: they stand behind as many of
    /// its messages as may be left untaken.
    pub fn is_clogged(&self, peer: Rank) -> bool {
        let clogged = self.with(|lane| {
            let limit = lane.config.link.credit_slots as usize;
            lane.peers.get(peer).is_some_and(|peer| peer.channel.is_clogged(limit))
                && lane.memory.is_held(peer)
        });
        clogged.unwrap_or(false)
    }

    /// Puts bytes, as many as there is room for; true if that is all of them. A put that was begun must be
    /// continued or abandoned.
    #[inline]
    pub fn try_put(
        &self,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        progress: &mut Progress,
    ) -> Result<bool, SendError> {
        if !progress.is_begun() && self.try_put_inline((cookie, at), bytes, progress)? {
            return Ok(true);
        }
        let (mut lane, now) = self.enter()?;
        put_bytes(&mut lane, now, (cookie, at), bytes, None, progress)
    }

    /// Puts bytes to a peer on this host in one frame, if nothing is in the way: what happens to most puts
    /// there. No clock is read.
    #[inline(always)]
    fn try_put_inline(
        &self,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        progress: &Progress,
    ) -> Result<bool, SendError> {
        let mut lane = self.lock()?;
        let Lane { peers, port, memory, .. } = &mut *lane;
        let Some(peer) = peers.get_mut(cookie.owner()) else { return Ok(false) };
        let mut writer = ChannelWriter::new(&mut peer.channel, port);
        if !writer.takes_inline_puts(bytes.len()) {
            return Ok(false);
        }
        let put =
            memory.put_inline((cookie, at), bytes, progress.hint, |head, bytes| writer.push_put(head, bytes));
        if put {
            self.shared.polls.polled();
        }
        Ok(put)
    }

    /// As [`Endpoint::try_put`], with `len` bytes that `fill` writes straight to where they are sent from. It
    /// is given how far the put has come, and room; it runs under the owner word and must not call the
    /// endpoint.
    pub fn try_put_filled(
        &self,
        to: (&Cookie, u64),
        len: usize,
        progress: &mut Progress,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, SendError> {
        let (mut lane, now) = self.enter()?;
        put_with(&mut lane, now, to.0.owner(), progress, |memory, writer, progress| {
            memory.put_filled(writer, to, len, progress, &mut fill)
        })
    }

    /// As [`Endpoint::try_put`]; with the last byte a ticket for its end. The ticket lies in `ticket` between
    /// calls. If it is one of several puts that end as one, `left` says how many of them, this one included,
    /// are still to be put.
    pub fn try_put_with_completion(
        &self,
        to: (&Cookie, u64),
        bytes: &[u8],
        progress: &mut Progress,
        (ticket, left): (&mut Option<Ticket>, usize),
    ) -> Result<bool, SendError> {
        let (mut lane, now) = self.enter()?;
        *ticket = Some(lane.memory.operation_of_puts(*ticket, left).ok_or(TOO_MANY_OPERATIONS)?);
        put_bytes(&mut lane, now, to, bytes, *ticket, progress)
    }

    /// Abandons a put that was begun: what was sent of it may be in place, but no tripwire fires.
    pub fn abandon_put(&self, owner: Rank, progress: &Progress) -> Result<(), SendError> {
        self.with(|lane| lane.memory.abandon_put(owner, progress))
    }

    /// The result of an operation, once it is complete. With `wait`, [`Endpoint::take_woken`] says when to
    /// poll again.
    pub fn poll_operation(
        &self,
        ticket: Ticket,
        wait: bool,
    ) -> Result<Option<Result<u64, Failure>>, SendError> {
        self.with(|lane| lane.memory.poll_operation(ticket, wait))
    }

    /// Cancels an operation whose puts were not all begun.
    pub fn cancel_operation(&self, ticket: Ticket) -> Result<(), SendError> {
        self.with(|lane| lane.memory.cancel_operation(ticket))
    }

    /// Nobody will poll an operation's result; the operation goes on.
    pub fn detach_operation(&self, ticket: Ticket) -> Result<(), SendError> {
        self.with(|lane| lane.memory.detach_operation(ticket))
    }

    /// Makes the end of an operation an event, also if it is there already.
    pub fn complete_by_event(&self, ticket: Ticket, tag: u64) -> Result<(), SendError> {
        self.with(|lane| lane.memory.complete_by_event(ticket, tag))
    }

    /// [`Endpoint::take_woken`] returns the wire when it fires next, or when it never will again.
    pub fn await_wire(&self, wire: WireId) -> Result<(), SendError> {
        self.with(|lane| lane.memory.await_wire(wire))
    }

    /// [`Endpoint::take_woken`] returns the set when it is ready, or when it never will be.
    pub fn await_set(&self, set: SetId) -> Result<(), SendError> {
        self.with(|lane| lane.memory.await_set(set))
    }

    /// What a future waited for and has happened.
    pub fn take_woken(&self) -> Result<Option<Wakeup>, SendError> {
        self.with(|lane| lane.memory.take_wakeup())
    }

    /// The program knows that there may be events of memory; true if there are any.
    pub fn acknowledge_memory_events(&self) -> Result<bool, SendError> {
        self.with(|lane| lane.memory.acknowledge_events())
    }

    /// The next thing that happened to memory.
    pub fn poll_memory_event(&self) -> Result<Option<MemoryEvent>, SendError> {
        self.with(|lane| lane.memory.poll_event())
    }

    /// Sends a small message to a peer's event queue.
    pub fn send_out_of_band(&self, peer: Rank, out_of_band: &OutOfBand) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        lane.reach(now, peer)?;
        if !out_of_band.write_to(&mut lane.writer(peer)) {
            lane.service(now);
            return Err(SendError::WouldBlock);
        }
        lane.send_now(now, peer);
        Ok(())
    }

    /// What was counted of memory.
    pub fn memory_counters(&self) -> MemoryCounters {
        self.with(|lane| lane.memory.counters()).unwrap_or_default()
    }
}

#[inline]
fn put_bytes(
    lane: &mut Lane,
    now: Nanos,
    to: (&Cookie, u64),
    bytes: &[u8],
    ticket: Option<Ticket>,
    progress: &mut Progress,
) -> Result<bool, SendError> {
    put_with(lane, now, to.0.owner(), progress, |memory, writer, progress| {
        memory.put_bytes(writer, now, to, bytes, ticket, progress)
    })
}

/// Lets memory write a put to the channel of `rank` until it is written or there is no room.
#[inline]
fn put_with(
    lane: &mut Lane,
    now: Nanos,
    rank: Rank,
    progress: &mut Progress,
    mut put: impl FnMut(&mut Memory, &mut ChannelWriter<'_>, &mut Progress) -> PutStatus,
) -> Result<bool, SendError> {
    lane.reach(now, rank)?;
    loop {
        if let Some(peer) = progress.begun_with(rank) {
            lane.check(peer)?;
        }
        let Lane { peers, port, memory, .. } = &mut *lane;
        let mut writer = ChannelWriter::new(&mut peers.member_mut(rank).channel, port);
        match put(memory, &mut writer, progress) {
            PutStatus::Sent => return Ok(true),
            PutStatus::Written => {
                lane.send_now(now, rank);
                return Ok(true);
            }
            PutStatus::NoRoom => {
                lane.send_now(now, rank);
                return Ok(false);
            }
            PutStatus::Paused => lane.service(now),
            PutStatus::Blocked => {
                lane.service(now);
                return Err(SendError::WouldBlock);
            }
        }
    }
}
