//! Requests on their way out, and the fair service of all who have some.

use std::sync::Arc;

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::{ASK, Atomic, MAX_HEAD, Memory as Message, Target};

use super::request::{Failure, Outstanding, Piece, Tell, Ticket};
use super::slab::Name;
use super::tables::{ApertureId, Cookie, Hint};
use crate::lane::Lane;
use crate::limits::{ASK_EVERY, MAX_QUEUED, MAX_UNANSWERED};
use crate::{PeerState, Rank, SendError};

/// Bytes that one peer is served with before the next one's turn.
const QUANTUM: usize = 60_000;
/// Rounds of service in one poll.
const ROUNDS: usize = 16;

/// A range of this node's own memory.
#[derive(Clone, Debug)]
pub struct Local {
    /// The memory.
    pub memory: Arc<ApertureMemory>,
    /// The aperture it belongs to, whose tripwires shall know.
    pub aperture: Option<ApertureId>,
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len: u64,
}

impl Local {
    fn is_sound(&self) -> bool {
        self.at.checked_add(self.len).is_some_and(|end| end <= self.memory.len() as u64)
    }
}

/// What can be asked of another node's memory.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Bytes go there. They must stay as they are until it is complete.
    Put(Local),
    /// Bytes come from there.
    Get(Local),
    /// A word is changed.
    Atomic(Atomic),
    /// The owner's event queue is told that something was put.
    Notice {
        /// How many bytes it is about.
        len: u64,
        /// What it is told.
        value: u64,
    },
    /// Nothing; complete when all before it is.
    Flush,
    /// Nothing; what comes later is not begun before all before it is complete.
    Fence,
}

impl Operation {
    /// Whether its local side is there, and its bytes can be counted at their place.
    fn is_sound(&self, at: u64) -> bool {
        match self {
            Operation::Put(local) | Operation::Get(local) => {
                local.is_sound() && at.checked_add(local.len).is_some()
            }
            _ => true,
        }
    }

    /// Its local side, if it has one.
    fn piece(&self) -> Option<Piece> {
        let (local, into) = match self {
            Operation::Put(local) => (local, None),
            Operation::Get(local) => (local, Some(local.memory.clone())),
            _ => return None,
        };
        Some(Piece { aperture: local.aperture, into, start: local.at, len: local.len, come: 0 })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) cookie: Cookie,
    pub(crate) at: u64,
    pub(crate) operation: Operation,
    pub(crate) op: Option<Name>,
    /// Which of the operation's requests it is.
    pub(crate) piece: u32,
    /// The number it goes by, once it has begun, and how many bytes have been sent.
    pub(crate) id: Option<u32>,
    pub(crate) sent: u64,
}

impl Request {
    /// The operation that it belongs to, and which of its requests it is.
    fn part_of(&self) -> Option<(Name, u32)> {
        self.op.map(|op| (op, self.piece))
    }
}

impl Lane {
    /// Asks for an operation of one or several requests, each at its place, which ends when all have. It is begun at once if nothing is in its way, and otherwise
    /// when its turn has come.
    pub(crate) fn submit(
        &mut self,
        now: Nanos,
        cookie: &Cookie,
        operations: &[(u64, Operation)],
        tell: Tell,
        after: Option<Ticket>,
    ) -> Result<Ticket, SendError> {
        let rank = cookie.owner;
        self.reach(now, rank)?;
        if self.peers.member_mut(rank).memory.queue.len() >= MAX_QUEUED {
            self.service(now);
            return Err(SendError::WouldBlock);
        }
        let op = self.new_op_of(operations.len(), tell);
        let op = op.ok_or(SendError::TooMany("operations whose ends nobody has taken"))?;
        if !operations.iter().all(|(at, operation)| operation.is_sound(*at)) {
            // Nothing of it is tried.
            self.memory.ops.get_mut(op).expect("made just now").left = 1;
            self.complete(op, Err(Failure::Refused(tautline_wire::memory::Refusal::OutOfRange)));
            return Ok(Ticket(op));
        }
        let pieces = operations.iter().filter_map(|(_, operation)| operation.piece());
        self.memory.ops.get_mut(op).expect("made just now").pieces.extend(pieces);
        for (piece, (at, operation)) in operations.iter().enumerate() {
            let operation = operation.clone();
            let piece = piece as u32;
            let request =
                Request { cookie: *cookie, at: *at, operation, op: Some(op), piece, id: None, sent: 0 };
            match after.and_then(|ticket| self.memory.ops.get_mut(ticket.0)) {
                None => self.enqueue(request),
                Some(first) => match first.result {
                    None => first.then.push(request),
                    Some(Ok(_)) => self.enqueue(request),
                    Some(Err(_)) => self.fail_request(&request, Failure::Before),
                },
            }
        }
        self.service(now);
        Ok(Ticket(op))
    }

    /// A request takes its place in its peer's queue.
    pub(crate) fn enqueue(&mut self, request: Request) {
        let rank = request.cookie.owner;
        match self.peers.member(rank).state {
            PeerState::Down(why) => self.fail_request(&request, Failure::PeerGone(rank, why)),
            _ if self.port.closed => self.fail_request(&request, Failure::Closed),
            _ => {
                self.peers.member_mut(rank).memory.queue.push_back(request);
                self.mark_busy(rank);
            }
        }
    }

    /// Whether requests to a peer wait for answers that only extraction lets in: they stand behind as many of its messages as may be left untaken.
    pub fn is_clogged(&self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get(rank) else { return false };
        let memory = &peer.memory;
        let fenced = memory.queue.front().is_some_and(|it| matches!(it.operation, Operation::Fence));
        let held = fenced || memory.sent.wrapping_sub(memory.done) >= MAX_UNANSWERED;
        held && peer.channel.is_clogged(self.config.link.credit_slots as usize)
    }

    /// Takes a copy of bytes to be put as there is room, behind whatever waits already. Nobody is told of the end, but an event if it is refused.
    pub(crate) fn put_later(
        &mut self,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        bytes: Vec<u8>,
    ) -> Result<(), SendError> {
        self.reach(now, cookie.owner)?;
        if self.peers.member_mut(cookie.owner).memory.queue.len() >= MAX_QUEUED {
            return Err(SendError::WouldBlock);
        }
        let len = bytes.len() as u64;
        // A place that cannot be counted is nowhere, and its owner will say so.
        let at = if at.checked_add(len).is_some() { at } else { u64::MAX - len };
        let Ok(memory) = ApertureMemory::adopt(bytes) else {
            return Err(SendError::TooMany("bytes at odd places"));
        };
        let local = Local { memory: Arc::new(memory), aperture: None, at: 0, len };
        let operation = Operation::Put(local);
        self.enqueue(Request { cookie: *cookie, at, operation, op: None, piece: 0, id: None, sent: 0 });
        self.service(now);
        Ok(())
    }

    #[inline]
    pub(crate) fn mark_busy(&mut self, rank: Rank) {
        let memory = &mut self.peers.member_mut(rank).memory;
        if !memory.busy {
            memory.busy = true;
            self.memory.busy.push_back(rank);
            // Frames from peers on this host are taken when everything has had its turn.
            self.local.poll.yield_fast();
        }
    }

    /// Sends answers and requests as far as there is room, and what that made ready to leave.
    #[cold]
    pub(crate) fn serve_memory(&mut self, now: Nanos) {
        for _ in 0..ROUNDS {
            self.pump();
            self.serve_dirty(now);
            if !self.memory.more {
                break;
            }
        }
    }

    /// Gives every peer that has answers or requests waiting its turn.
    pub(crate) fn pump(&mut self) {
        self.memory.more = false;
        for _ in 0..self.memory.busy.len() {
            let Some(rank) = self.memory.busy.pop_front() else { break };
            self.peers.member_mut(rank).memory.busy = false;
            let mut room = QUANTUM;
            let blocked = !self.pump_answers(rank, &mut room) || !self.pump_requests(rank, &mut room);
            // What is here leaves, whatever batch the program has open.
            if room < QUANTUM {
                self.writer(rank).flush();
                // Whoever found requests in front of its own is to try again.
                self.port.activity += 1;
            }
            let memory = &self.peers.member(rank).memory;
            if !memory.answers.is_empty() || !memory.queue.is_empty() {
                self.memory.more |= !blocked;
                self.mark_busy(rank);
            }
        }
    }

    /// Begins or continues requests of one peer's queue; false if something other than its turn's end stops them.
    fn pump_requests(&mut self, rank: Rank, room: &mut usize) -> bool {
        while *room > 0 {
            if self.peers.member_mut(rank).memory.half.is_some() {
                return false;
            }
            let Some(mut request) = self.peers.member_mut(rank).memory.queue.pop_front() else { return true };
            let done = self.begin_request(rank, &mut request, room);
            if !done {
                let blocked = *room > 0;
                self.peers.member_mut(rank).memory.queue.push_front(request);
                return !blocked;
            }
        }
        true
    }

    /// Whether another request may be begun, and its number and flags if so. `ask`: somebody waits for its end.
    #[inline]
    pub(crate) fn next_request(&mut self, rank: Rank, ask: bool) -> Option<(u32, u8)> {
        let memory = &self.peers.member(rank).memory;
        if memory.sent.wrapping_sub(memory.done) >= MAX_UNANSWERED {
            return None;
        }
        let id = memory.sent.wrapping_add(1);
        let ask = ask || id.wrapping_sub(memory.asked) >= ASK_EVERY;
        Some((id, if ask { ASK } else { 0 }))
    }

    /// The flags of a request that has begun.
    pub(crate) fn flags_of(&self, rank: Rank, id: u32) -> u8 {
        if self.peers.member(rank).memory.asked == id { ASK } else { 0 }
    }

    /// A request has begun under its number.
    #[inline]
    pub(crate) fn began(
        &mut self,
        rank: Rank,
        (id, flags): (u32, u8),
        op: Option<(Name, u32)>,
        answered: bool,
    ) {
        let memory = &mut self.peers.member_mut(rank).memory;
        memory.sent = id;
        if flags & ASK != 0 {
            memory.asked = id;
        }
        if let Some((op, piece)) = op {
            memory.outstanding.push_back(Outstanding { id, op, piece, answered });
        }
    }

    /// The number under which the owner knows a cookie; tells it first if it must be. None for want of room.
    #[inline]
    pub(crate) fn show(&mut self, cookie: &Cookie, hint: Hint) -> Option<u32> {
        match self.handle_of(cookie, hint) {
            Some(handle) => Some(handle),
            None => self.show_anew(cookie),
        }
    }

    #[cold]
    fn show_anew(&mut self, cookie: &Cookie) -> Option<u32> {
        if !self.writer(cookie.owner).has_room(MAX_HEAD) {
            return None;
        }
        let handle = self.new_handle(cookie);
        let (id, epoch, secret) = cookie.key();
        let open = Message::Open { handle, cookie: id, epoch, secret };
        // Room was there.
        self.writer(cookie.owner).write(&open, 0, &[]).then_some(handle)
    }

    /// True if the request is wholly on its way.
    fn begin_request(&mut self, rank: Rank, request: &mut Request, room: &mut usize) -> bool {
        let at = request.at;
        let (message, answered) = match &request.operation {
            Operation::Put(_) => return self.continue_put(rank, request, room),
            Operation::Fence => return self.pass_fence(rank, request),
            Operation::Flush => {
                let Some((id, _)) = self.next_request(rank, true) else { return false };
                if !self.writer(rank).write(&Message::Flush { id }, ASK, &[]) {
                    return false;
                }
                self.began(rank, (id, ASK), request.part_of(), false);
                *room = room.saturating_sub(MAX_HEAD);
                return true;
            }
            Operation::Get(local) => (Message::Get(Target { handle: 0, id: 0, at }, local.len), true),
            Operation::Atomic(atomic) => (Message::Atomic(Target { handle: 0, id: 0, at }, *atomic), true),
            Operation::Notice { len, value } => {
                let target = Target { handle: 0, id: 0, at };
                (Message::Notice { target, len: *len, value: *value }, false)
            }
        };
        let Some((id, flags)) = self.next_request(rank, !answered) else { return false };
        let Some(handle) = self.show(&request.cookie, Hint::default()) else { return false };
        let target = Target { handle, id, at };
        let message = match message {
            Message::Get(_, len) => Message::Get(target, len),
            Message::Atomic(_, atomic) => Message::Atomic(target, atomic),
            Message::Notice { len, value, .. } => Message::Notice { target, len, value },
            other => other,
        };
        if !self.writer(rank).write(&message, flags, &[]) {
            return false;
        }
        self.began(rank, (id, flags), request.part_of(), answered);
        *room = room.saturating_sub(MAX_HEAD);
        true
    }

    fn pass_fence(&mut self, rank: Rank, request: &Request) -> bool {
        let memory = &self.peers.member(rank).memory;
        if memory.outstanding.is_empty() && memory.done == memory.sent {
            if let Some(op) = request.op {
                self.complete(op, Ok(0));
            }
            return true;
        }
        if memory.asked != memory.sent
            && let Some((id, _)) = self.next_request(rank, true)
            && self.writer(rank).write(&Message::Flush { id }, ASK, &[])
        {
            self.began(rank, (id, ASK), None, false);
            self.writer(rank).flush();
        }
        false
    }

    /// Sends as much of a put as there is room for.
    fn continue_put(&mut self, rank: Rank, request: &mut Request, room: &mut usize) -> bool {
        let Operation::Put(local) = request.operation.clone() else { return true };
        loop {
            let (id, flags) = match request.id {
                Some(id) => (id, self.flags_of(rank, id)),
                None => match self.next_request(rank, request.op.is_some()) {
                    Some(next) => next,
                    None => return false,
                },
            };
            let Some(handle) = self.show(&request.cookie, Hint::default()) else { return false };
            let left = local.len - request.sent;
            let target = Target { handle, id, at: request.at + request.sent };
            let from = (local.at + request.sent) as usize;
            let memory = local.memory.clone();
            let fill = |out: &mut [u8]| {
                // The range was checked when the operation was asked for.
                let _ = memory.read(from, out);
            };
            let first = request.id.is_none();
            let part = self.emit_part(rank, (first, target, flags), (&request.cookie, local.len, left), fill);
            let Some(len) = part else { return false };
            if request.id.is_none() {
                self.began(rank, (id, flags), request.part_of(), false);
                request.id = Some(id);
            }
            request.sent += len as u64;
            *room = room.saturating_sub(MAX_HEAD + len);
            if request.sent == local.len {
                return true;
            }
            if *room == 0 {
                return false;
            }
        }
    }
}
