//! What a thread can ask its node to do with messages that have tags.

use std::sync::Arc;
use std::time::Duration;

use tautline_mem::{Asleep, Awaited, GroupMemory};

use super::Endpoint;
use crate::group_waits::{self, GroupWaitId, GroupWaits};
use crate::lane::{Lane, Polled};
use crate::multicast::{MulticastReceiveId, MulticastSendId};
use crate::tags::{
    Buffer, ClaimId, Ended, Failure, Mode, Pattern, ReceiveId, Region, Room, SendId, Sent, Status,
};
use crate::{Event, Rank, SendError};

/// The verbs of messages with tags. Made by [`Endpoint::tagged`].
#[derive(Clone, Copy, Debug)]
pub struct Tagged<'a>(pub(super) &'a Endpoint);

impl Tagged<'_> {
    /// Sends a short message at once, if nothing is in the way. False, with nothing done, otherwise.
    #[inline(always)]
    pub fn try_send_tagged(&self, to: (Rank, u32, u32), bytes: &[u8]) -> Result<bool, SendError> {
        let mut lane = self.0.lock()?;
        let sent = lane.send_tagged(|| self.0.shared.clock.now(), to, bytes);
        if sent {
            self.0.shared.polls.polled();
            if !lane.port.dirty().is_empty() && lane.port.batch_depth == 0 {
                self.serve(&mut lane);
            }
        }
        Ok(sent)
    }

    /// Why [`Tagged::try_send_tagged`] has not sent a message: an error if the peer is lost, or the context
    /// is fenced. Otherwise opens the channel, if need be, and makes progress.
    pub fn prepare_send(&self, (to, context): (Rank, u32)) -> Result<Result<(), Failure>, SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.set_used();
        lane.reach_tagged(now, to)?;
        lane.tags.enter_peer(to);
        lane.poll(now);
        Ok(lane.tags.why_ended(to, context).map_or(Ok(()), Err))
    }

    /// Tells the program something about its groups.
    pub fn report(&self, event: Event) -> Result<(), SendError> {
        self.0.with(|lane| lane.push_event(event))
    }

    #[inline(never)]
    fn serve(&self, lane: &mut Lane) {
        lane.service(self.0.shared.clock.now());
    }

    /// Begins to send a message to a rank, with a context and a tag. It goes on by itself.
    pub fn start_send_tagged(
        &self,
        to: (Rank, u32, u32),
        mode: Mode,
        data: Buffer,
    ) -> Result<SendId, SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.set_used();
        lane.reach_tagged(now, to.0)?;
        let len = data.len();
        let id = lane.tags.send(to, mode, data, len)?;
        lane.service(now);
        Ok(id)
    }

    /// Sends a message of `len` bytes, which `read` copies from where they are: it is given how many bytes
    /// come before, and room. It runs under the owner word and must not call the endpoint. Returns when the
    /// send has ended.
    pub fn send_tagged(
        &self,
        to: (Rank, u32, u32),
        mode: Mode,
        len: u64,
        mut read: impl FnMut(u64, &mut [u8]),
    ) -> Result<Result<(), Failure>, SendError> {
        let id = {
            let (mut lane, now) = self.0.enter()?;
            lane.tags.set_used();
            lane.reach_tagged(now, to.0)?;
            lane.tags.send(to, mode, Buffer::Absent, len)?
        };
        loop {
            let (mut lane, now) = self.0.enter()?;
            let seen = lane.activity();
            let sent = lane.push_tagged(now, (to.0, id), &mut read);
            if sent == Sent::All {
                let result = lane.tags.take_sent(id).map_or(Err(Failure::Closed), |(result, _)| result);
                return Ok(result);
            }
            drop(lane);
            self.wait_served(None, |lane| lane.activity() != seen)?;
        }
    }

    /// Begins to receive a message. Takes the buffer, and leaves it if there is an error.
    #[inline]
    pub fn start_receive_tagged(
        &self,
        pattern: Pattern,
        buffer: &mut Buffer,
    ) -> Result<ReceiveId, SendError> {
        let mut lane = self.0.lock()?;
        self.post(&mut lane, pattern, buffer)
    }

    #[inline]
    fn post(&self, lane: &mut Lane, pattern: Pattern, buffer: &mut Buffer) -> Result<ReceiveId, SendError> {
        if lane.port.closed {
            return Err(SendError::Closed);
        }
        lane.tags.set_used();
        if let Some(source) = pattern.source
            && !lane.peers.get(source).is_some_and(crate::membership::Peer::is_up)
        {
            let now = self.0.shared.clock.now();
            match lane.reach_tagged(now, source) {
                // What it sent before is still here; if there is nothing, the receive fails.
                Ok(()) => lane.tags.add_peer(source),
                Err(SendError::PeerGone(rank, why)) => {
                    lane.tags.add_gone_peer(source, Failure::PeerGone(rank, why));
                }
                Err(error) => return Err(error),
            }
        }
        let id = lane.tags.receive(pattern, buffer)?;
        self.serve_now(lane);
        Ok(id)
    }

    /// Receives a message into `buffer`, and waits for it for `time`, or without end. If it has not come by
    /// then, the receive goes on, and has the buffer.
    #[inline]
    pub fn receive_tagged(
        &self,
        pattern: Pattern,
        buffer: &mut Buffer,
        time: Option<Duration>,
    ) -> Result<Received, SendError> {
        let id = {
            let mut lane = self.0.lock()?;
            if let Some(ended) = self.receive_at_once(&mut lane, &pattern, buffer) {
                return Ok(Received::Ended(ended));
            }
            self.post(&mut lane, pattern, buffer)?
        };
        self.wait_received_tagged(id, buffer, time)
    }

    /// Waits for the end of a receive for `time`, or without end, and gives its buffer back if it has ended.
    #[inline]
    pub fn wait_received_tagged(
        &self,
        id: ReceiveId,
        buffer: &mut Buffer,
        time: Option<Duration>,
    ) -> Result<Received, SendError> {
        let mut taken = None;
        let waited = self.wait_served(time, |lane| {
            lane.end_if_alone(id);
            taken = lane.tags.take_received(id);
            taken.is_some() || lane.tags.is_received(id)
        });
        if let Err(error) = waited {
            let _ = self.forget_receive(id);
            return Err(error);
        }
        Ok(match taken {
            Some((result, back)) => {
                *buffer = back;
                Received::Ended(result)
            }
            None => Received::Pending(id),
        })
    }

    /// Receives a message of a named local peer, if it is here or comes within a moment, and no receive has
    /// to be posted for it (E-15). None, with nothing done, otherwise; then it must be posted
    /// ([`Tagged::start_receive_tagged`]).
    #[inline(always)]
    pub fn try_receive_tagged(&self, pattern: Pattern, room: &mut Region) -> Option<Result<Status, Failure>> {
        let mut lane = self.0.lock().ok()?;
        self.receive_at_once(&mut lane, &pattern, room)
    }

    /// Looks for a message of a named local peer for a moment, without posting a receive (E-15).
    #[inline(always)]
    fn receive_at_once(
        &self,
        lane: &mut Lane,
        pattern: &Pattern,
        room: &mut impl Room,
    ) -> Option<Result<Status, Failure>> {
        let source = pattern.source?;
        let must_post = lane.port.closed || lane.local.poll.asleep || lane.memory.wants_time();
        if must_post || !lane.tags.may_take(pattern) {
            return None;
        }
        let ended = match lane.receive_line(source, pattern, room) {
            Polled::Found(ended) => ended,
            Polled::Other => return None,
            Polled::Nothing => self.receive_soon(lane, source, pattern, room)?,
        };
        lane.tags.set_used();
        self.serve_now(lane);
        Some(ended)
    }

    // A call, so that a message that is here does not pay for its registers.
    #[inline(never)]
    fn receive_soon(
        &self,
        lane: &mut Lane,
        source: Rank,
        pattern: &Pattern,
        room: &mut impl Room,
    ) -> Option<Result<Status, Failure>> {
        let mut spins = self.0.first_spins(lane);
        loop {
            spins -= 1;
            if spins == 0 || !lane.may_spin() {
                return None;
            }
            std::hint::spin_loop();
            match lane.receive_line(source, pattern, room) {
                Polled::Found(ended) => return Some(ended),
                Polled::Other => return None,
                Polled::Nothing => {}
            }
        }
    }

    /// Sends what a receive has asked for, or other answers, at once.
    #[inline(always)]
    fn serve_now(&self, lane: &mut Lane) {
        if lane.tags.is_busy() {
            self.serve(lane);
        }
    }

    /// Exchanges no more messages of these contexts with a peer, and tells it. Sends to it and receives from
    /// it fail, here and there, and what it sends is dropped (E-13, E-14).
    pub fn fence(&self, peer: Rank, contexts: std::ops::RangeInclusive<u32>) -> Result<(), SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.fence(peer, contexts);
        lane.service(now);
        Ok(())
    }

    /// Names the members of a group that exchanges messages in a context, until it is forgotten: whoever of
    /// them revokes it ends these messages for all (E-17).
    pub fn add_group(&self, context: u32, members: Arc<[Rank]>) -> Result<(), SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.add_group(context, members);
        lane.service(now);
        Ok(())
    }

    /// Forgets a group. Returns whether it was revoked.
    pub fn remove_group(&self, context: u32) -> bool {
        self.0.with(|lane| lane.tags.remove_group(context)).unwrap_or(false)
    }

    /// Ends all messages in the context of a group, here and at the other members (E-17).
    pub fn revoke_group(&self, context: u32) -> Result<(), SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.revoke(context);
        lane.service(now);
        Ok(())
    }

    /// Returns what the next receive of a pattern would take, if it is here.
    pub fn probe_tagged(&self, pattern: &Pattern) -> Result<Option<Status>, SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.set_used();
        lane.poll(now);
        Ok(lane.tags.probe(pattern))
    }

    /// Takes the message that [`Tagged::probe_tagged`] returns out of the queue, for one receive.
    pub fn claim_tagged(&self, pattern: &Pattern) -> Result<Option<(ClaimId, Status)>, SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.tags.set_used();
        lane.poll(now);
        Ok(lane.tags.claim(pattern))
    }

    /// Receives a message that was claimed.
    pub fn receive_claimed(&self, claim: ClaimId, buffer: Buffer) -> Result<ReceiveId, SendError> {
        let mut lane = self.0.lock()?;
        let id = lane.tags.receive_claimed(claim, buffer)?;
        self.serve_now(&mut lane);
        Ok(id)
    }

    /// Drops a message that was claimed.
    pub fn drop_claimed(&self, claim: ClaimId) -> Result<(), SendError> {
        let mut lane = self.0.lock()?;
        lane.tags.drop_claimed(claim);
        self.serve_now(&mut lane);
        Ok(())
    }

    /// Polls and waits until a pattern has a message to probe, or `timeout` has passed. A failure if none can
    /// come, because its source is gone.
    pub fn wait_tagged_message(
        &self,
        pattern: &Pattern,
        timeout: Option<Duration>,
    ) -> Result<Result<(), Failure>, SendError> {
        if let Some(source) = pattern.source {
            let (mut lane, now) = self.0.enter()?;
            match lane.reach_tagged(now, source) {
                Ok(()) => lane.tags.add_peer(source),
                Err(SendError::PeerGone(rank, why)) => {
                    lane.tags.add_gone_peer(source, Failure::PeerGone(rank, why));
                }
                Err(error) => return Err(error),
            }
        }
        let mut ended = None;
        self.wait_served(timeout, |lane| {
            let closed = lane.port.closed.then_some(Failure::Closed);
            ended = closed.or_else(|| match pattern.source {
                Some(source) => lane.tags.why_ended(source, pattern.context),
                None => lane.tags.why_revoked(pattern.context).or_else(|| lane.why_alone()),
            });
            lane.tags.probe(pattern).is_some() || ended.is_some()
        })?;
        self.0.with(|lane| match ended.filter(|_| lane.tags.probe(pattern).is_none()) {
            Some(why) => Err(why),
            None => Ok(()),
        })
    }

    /// Polls and waits until `count` of the sends and receives have ended (true), or `timeout` has passed
    /// (false).
    pub fn wait_tagged(
        &self,
        requests: &[TagRequest],
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<bool, SendError> {
        // Those before `first` have ended; the others are looked at when anything has happened.
        let (mut first, mut seen) = (0, None);
        self.wait_served(timeout, |lane| {
            if seen.replace(lane.wait_activity()) == Some(lane.wait_activity()) {
                return false;
            }
            while first < requests.len() && requests[first].has_ended(lane) {
                first += 1;
            }
            if first + (requests.len() - first).saturating_sub(1) < count {
                return first >= count;
            }
            let rest = requests[first..].iter().filter(|request| request.has_ended(lane));
            first + rest.take(count.saturating_sub(first)).count() >= count
        })
    }

    /// Polls and waits until all of the sends and receives have ended, or any of `unless`, or `stop` returns
    /// true: then it returns true. It is called again when something has happened: whoever changes its result
    /// calls [`Tagged::note_started`]. False if `timeout` has passed.
    pub fn wait_tagged_unless(
        &self,
        requests: &[TagRequest],
        unless: &[TagRequest],
        timeout: Option<Duration>,
        stop: impl Fn() -> bool,
    ) -> Result<bool, SendError> {
        let (mut first, mut seen) = (0, None);
        self.wait_served(timeout, |lane| {
            if seen.replace(lane.wait_activity()) == Some(lane.wait_activity()) {
                return false;
            }
            while first < requests.len() && requests[first].has_ended(lane) {
                first += 1;
            }
            first == requests.len() || stop() || unless.iter().any(|request| request.has_ended(lane))
        })
    }

    /// Polls and waits for the end of a receive, and takes its result.
    #[inline]
    pub fn finish_receive_tagged(&self, id: ReceiveId) -> Result<Option<Ended<Status>>, SendError> {
        let mut taken = None;
        self.wait_served(None, |lane| {
            lane.end_if_alone(id);
            taken = lane.tags.take_received(id);
            taken.is_some() || lane.tags.is_received(id)
        })?;
        Ok(taken)
    }

    /// Makes progress, and returns which of the sends and receives have ended.
    pub fn test_tagged(&self, requests: &[TagRequest]) -> Result<Vec<usize>, SendError> {
        let (mut lane, now) = self.0.enter()?;
        let ended =
            |lane: &Lane| (0..requests.len()).filter(|at| requests[*at].has_ended(lane)).collect::<Vec<_>>();
        let first = ended(&lane);
        if !first.is_empty() {
            return Ok(first);
        }
        lane.poll(now);
        Ok(ended(&lane))
    }

    /// Waits for something in the memory of a group: a request that ends when it is there, until it is
    /// forgotten.
    pub fn await_group(&self, memory: &Arc<GroupMemory>, awaited: Awaited) -> Result<GroupWaitId, SendError> {
        self.0.with(|lane| lane.groups.add(memory.clone(), awaited))
    }

    /// Forgets a wait for the memory of a group.
    pub fn forget_group_wait(&self, id: GroupWaitId) -> Result<(), SendError> {
        self.0.with(|lane| lane.change_group_waits(|waits| waits.remove(id)))
    }

    /// This thread has started a collective: threads that wait look again whether to go on.
    pub fn note_started(&self) -> Result<(), SendError> {
        self.0.with(|lane| lane.change_group_waits(GroupWaits::note_started))
    }

    /// Rings for the members of a group that sleep, as far as memory is shared with their lanes (G-18).
    #[cold]
    pub fn ring_members(&self, memory: &GroupMemory, ranks: &[Rank], why: Asleep) -> Result<(), SendError> {
        let mut lane = self.0.lock()?;
        let asleep = memory.asleep(why) & !(1 << memory.me());
        for (member, rank) in ranks.iter().enumerate().filter(|(member, _)| asleep >> member & 1 != 0) {
            if let Some(peer) = lane.peer(*rank)
                && peer.channel.is_shared()
                && memory.take_asleep(why, member)
            {
                peer.channel.ring();
            }
        }
        Ok(())
    }

    /// Another thread of this member may wait for what this one has done in the memory of a group.
    pub fn poll_groups(&self) -> Result<(), SendError> {
        self.0.with(Lane::poll_groups)
    }

    /// Before a member enters an operation in the memory of a group: an error if the lane is closed. Polls in
    /// some of these calls, so that a program whose members never wait polls, too (G-19).
    #[inline]
    pub fn enter_group(&self) -> Result<(), SendError> {
        let mut lane = self.0.lock()?;
        if lane.port.closed {
            return Err(SendError::Closed);
        }
        if lane.groups.count_entry()
            && self.0.now().saturating_sub(lane.status.received_at) > group_waits::POLL_AFTER
        {
            let now = self.0.shared.arrive(&mut lane);
            lane.poll(now);
        }
        Ok(())
    }

    /// Waits for a short time for something in the memory of a group, without polling. True if it is there.
    #[inline]
    pub fn await_group_shortly(&self, memory: &GroupMemory, awaited: Awaited) -> bool {
        let shared = &self.0.shared;
        let waits = shared.config.waiting != crate::Waiting::Park;
        waits
            && shared.backoff.wait_shortly(
                || shared.clock.now(),
                std::thread::yield_now,
                || memory.is_done(awaited),
            )
    }

    /// Changes whenever a send, a receive or a wait has ended, or may go on.
    pub fn request_activity(&self) -> Result<u64, SendError> {
        self.0.with(|lane| lane.request_activity())
    }

    /// Whether this node shares memory with processes of this host at all.
    pub fn shares_memory(&self) -> bool {
        self.0.with(|lane| lane.local.discovery.is_some()).unwrap_or(false)
    }

    /// Makes progress.
    pub fn poll(&self) -> Result<(), SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.poll(now);
        Ok(())
    }

    /// Returns whether a send or receive has ended.
    #[inline]
    pub fn has_ended(&self, request: TagRequest) -> Result<bool, SendError> {
        self.0.with(|lane| request.has_ended(lane))
    }

    /// Takes the result of a receive that has ended.
    pub fn take_received(&self, id: ReceiveId) -> Result<Option<Ended<Status>>, SendError> {
        self.0.with(|lane| lane.tags.take_received(id))
    }

    /// Takes the result of a send that has ended, and its bytes.
    pub fn take_sent(&self, id: SendId) -> Result<Option<Ended<()>>, SendError> {
        self.0.with(|lane| lane.tags.take_sent(id))
    }

    /// Cancels a receive that no message has matched, and returns its buffer.
    pub fn cancel_receive(&self, id: ReceiveId) -> Result<Option<Buffer>, SendError> {
        self.0.with(|lane| lane.tags.cancel_receive(id))
    }

    /// Forgets a receive: cancels it or, if a message has matched, drops what is still to come of it.
    pub fn forget_receive(&self, id: ReceiveId) -> Result<(), SendError> {
        self.0.with(|lane| lane.tags.forget_receive(id))
    }

    /// Forgets a send, which goes on.
    pub fn forget_send(&self, id: SendId) -> Result<(), SendError> {
        self.0.with(|lane| lane.tags.forget_send(id))
    }

    /// Returns how many receives wait for messages, and how many messages wait for receives.
    pub fn waiting(&self) -> (usize, usize) {
        self.0.with(|lane| lane.tags.waiting()).unwrap_or_default()
    }

    /// Polls and waits until `done`, which is code of this crate, returns true (true) or `timeout` has passed
    /// (false). Memory and tags are served at once.
    #[inline]
    pub(super) fn wait_served(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Lane) -> bool,
    ) -> Result<bool, SendError> {
        self.0.wait_until(timeout, |lane| {
            if lane.memory.wants_time() {
                lane.memory.set_time(self.0.now());
            }
            lane.poll_served();
            let ended = done(lane);
            // This thread may have served what another one sleeps for.
            if ended && lane.status.sleepers > 0 {
                lane.wake_sleepers();
            }
            ended
        })
    }
}

/// What became of a receive.
#[derive(Debug)]
pub enum Received {
    /// It has ended, and the buffer is with the caller.
    Ended(Result<Status, Failure>),
    /// It goes on.
    Pending(ReceiveId),
}

/// A send or a receive, with a tag or of a multicast, or a wait for the memory of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagRequest {
    /// A send.
    Send(SendId),
    /// A receive.
    Receive(ReceiveId),
    /// A send of a multicast.
    MulticastSend(MulticastSendId),
    /// A receive of a multicast.
    MulticastReceive(MulticastReceiveId),
    /// A wait for the memory of a group.
    Group(GroupWaitId),
}

impl TagRequest {
    fn has_ended(&self, lane: &Lane) -> bool {
        match self {
            TagRequest::Send(id) => lane.tags.is_sent(*id),
            TagRequest::Receive(id) => lane.tags.is_received(*id),
            TagRequest::MulticastSend(id) => lane.multicast.is_sent(*id),
            TagRequest::MulticastReceive(id) => lane.multicast.is_received(*id),
            TagRequest::Group(id) => lane.groups.is_done(*id),
        }
    }
}
