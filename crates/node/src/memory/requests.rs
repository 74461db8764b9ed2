//! Requests to the memory of others: they are numbered, wait in a queue per peer, and are sent in fair turns
//!

use std::collections::VecDeque;
use std::sync::Arc;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::{COMPLETION_REQUESTED, MAX_HEAD, MemoryRecord as Message, Refusal, Target};

use super::Memory;
use super::cookie::Cookie;
use super::failure::Failure;
use super::ids::Ticket;
use super::operations::{Completion, Local, Operation, Request};
use super::puts::{Part, write_part};
use super::shown::{Hint, ShownCookies};
use super::slab::Name;
use super::writer::RecordWriter;
use crate::limits::{ASK_EVERY, MAX_QUEUED, MAX_UNANSWERED};
use crate::{Down, Rank, SendError};

/// Bytes that one peer is sent before the next peer's turn.
const QUANTUM: usize = 60_000;

/// A request that was sent and whose end an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(super) id: u32,
    pub(super) op: Name,
    /// Its index among the operation's requests.
    pub(super) index: u32,
    /// Whether it has an answer of its own.
    pub(super) answered: bool,
}

/// What this node asks of one peer's memory.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(super) cookies: ShownCookies,
    /// The number of the last request.
    pub(super) sent: u32,
    /// The number of the last request that the peer has reported as done.
    pub(super) done: u32,
    /// The last request that asked for a report.
    pub(super) asked: u32,
    /// A put that is being sent in parts. Nothing else may be sent before its end.
    pub(super) unfinished_put: Option<u32>,
    pub(super) outstanding: VecDeque<Outstanding>,
    pub(super) queue: VecDeque<Request>,
}

/// Returns whether `a` comes before `b`, which are numbers that wrap around.
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Requests {
    /// Returns whether the queue waits for reports of the peer.
    pub(super) fn is_held(&self) -> bool {
        let fenced = self.queue.front().is_some_and(|it| matches!(it.operation, Operation::Fence));
        fenced || self.sent.wrapping_sub(self.done) >= MAX_UNANSWERED
    }

    /// Returns whether other requests must be sent first.
    #[inline]
    pub(super) fn must_wait(&self) -> bool {
        self.unfinished_put.is_some() || !self.queue.is_empty()
    }

    /// Returns the index of an outstanding request.
    pub(super) fn find(&self, id: u32) -> Option<usize> {
        let at = self.outstanding.partition_point(|it| before(it.id, id));
        self.outstanding.get(at).filter(|it| it.id == id).map(|_| at)
    }

    /// Returns the number and the flags of the next request, if another one may begin. `ask`: an operation
    /// waits for its end.
    #[inline]
    pub(super) fn next(&self, ask: bool) -> Option<(u32, u8)> {
        if self.sent.wrapping_sub(self.done) >= MAX_UNANSWERED {
            return None;
        }
        let id = self.sent.wrapping_add(1);
        let ask = ask || id.wrapping_sub(self.asked) >= ASK_EVERY;
        Some((id, if ask { COMPLETION_REQUESTED } else { 0 }))
    }

    /// Returns the number of the next request if it needs no flags and nothing must be sent first.
    #[inline]
    pub(super) fn next_plain(&self) -> Option<u32> {
        let id = self.sent.wrapping_add(1);
        if self.must_wait()
            || id.wrapping_sub(self.asked) >= ASK_EVERY
            || self.sent.wrapping_sub(self.done) >= MAX_UNANSWERED
        {
            return None;
        }
        Some(id)
    }

    /// Returns the flags of a request that has begun.
    pub(super) fn flags_of(&self, id: u32) -> u8 {
        if self.asked == id { COMPLETION_REQUESTED } else { 0 }
    }

    /// Notes that a request has begun.
    #[inline]
    pub(super) fn note_begun(&mut self, (id, flags): (u32, u8), op: Option<(Name, u32)>, answered: bool) {
        self.sent = id;
        if flags & COMPLETION_REQUESTED != 0 {
            self.asked = id;
        }
        if let Some((op, index)) = op {
            self.outstanding.push_back(Outstanding { id, op, index, answered });
        }
    }

    /// Begins or continues a request. True if all of it is sent; a fence is when nothing is outstanding.
    fn send(
        &mut self,
        incarnation: u32,
        request: &mut Request,
        budget: &mut usize,
        writer: &mut impl RecordWriter,
    ) -> bool {
        let (at, unknown) = (request.at, Target { handle: 0, id: 0, at: 0 });
        let (message, answered) = match &request.operation {
            Operation::Put(local) => {
                let local = local.clone();
                return self.send_put(incarnation, request, &local, budget, writer);
            }
            Operation::Fence => return self.pass_fence(writer),
            Operation::Flush => {
                let Some((id, _)) = self.next(true) else { return false };
                if !writer.write(&Message::Flush { id }, COMPLETION_REQUESTED, &[]) {
                    return false;
                }
                self.note_begun((id, COMPLETION_REQUESTED), request.part_of(), false);
                *budget = budget.saturating_sub(MAX_HEAD);
                return true;
            }
            Operation::Get(local) => (Message::Get(unknown, local.len), true),
            Operation::Atomic(atomic) => (Message::Atomic(unknown, *atomic), true),
            Operation::Notice { len, value } => {
                (Message::Notice { target: unknown, len: *len, value: *value }, false)
            }
        };
        let Some((id, flags)) = self.next(!answered) else { return false };
        let shown = self.cookies.show(incarnation, &request.cookie, Hint::default(), writer);
        let Some(handle) = shown else { return false };
        let target = Target { handle, id, at };
        let message = match message {
            Message::Get(_, len) => Message::Get(target, len),
            Message::Atomic(_, atomic) => Message::Atomic(target, atomic),
            Message::Notice { len, value, .. } => Message::Notice { target, len, value },
            other => other,
        };
        if !writer.write(&message, flags, &[]) {
            return false;
        }
        self.note_begun((id, flags), request.part_of(), answered);
        *budget = budget.saturating_sub(MAX_HEAD);
        true
    }

    /// Returns whether everything before a fence is complete. Otherwise asks the peer for a report, once.
    fn pass_fence(&mut self, writer: &mut impl RecordWriter) -> bool {
        if self.outstanding.is_empty() && self.done == self.sent {
            return true;
        }
        if self.asked != self.sent
            && let Some((id, _)) = self.next(true)
            && writer.write(&Message::Flush { id }, COMPLETION_REQUESTED, &[])
        {
            self.note_begun((id, COMPLETION_REQUESTED), None, false);
            writer.flush();
        }
        false
    }

    /// Sends as much of a put as there is room and budget for. True if all of it is sent.
    fn send_put(
        &mut self,
        incarnation: u32,
        request: &mut Request,
        local: &Local,
        budget: &mut usize,
        writer: &mut impl RecordWriter,
    ) -> bool {
        loop {
            let first = request.id.is_none();
            let (id, flags) = match request.id {
                Some(id) => (id, self.flags_of(id)),
                None => match self.next(request.op.is_some()) {
                    Some(next) => next,
                    None => return false,
                },
            };
            let shown = self.cookies.show(incarnation, &request.cookie, Hint::default(), writer);
            let Some(handle) = shown else { return false };
            let part = Part {
                first,
                target: Target { handle, id, at: request.at + request.sent },
                flags,
                whole: local.len,
                left: local.len - request.sent,
            };
            let from = (local.at + request.sent) as usize;
            let written = write_part(writer, &request.cookie, part, |out| {
                // The range was checked when the operation was submitted.
                let _ = local.memory.read(from, out);
            });
            let Some(len) = written else { return false };
            if first {
                self.note_begun((id, flags), request.part_of(), false);
                request.id = Some(id);
            }
            request.sent += len as u64;
            *budget = budget.saturating_sub(MAX_HEAD + len);
            if request.sent == local.len {
                return true;
            }
            if *budget == 0 {
                return false;
            }
        }
    }
}

/// What a peer's turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pumped {
    /// Whether anything was written.
    pub(crate) sent_anything: bool,
    /// Whether the turn ended with its budget, so that the peer can be served again at once.
    pub(crate) more: bool,
}

impl Memory {
    /// Submits an operation of one or several requests, each at its place, which ends when all of them have.
    /// The lane has checked that the owner can be reached, and serves memory afterwards.
    /// [`SendError::WouldBlock`] if too many requests wait.
    pub(crate) fn submit(
        &mut self,
        cookie: &Cookie,
        operations: &[(u64, Operation)],
        completion: Completion,
        after: Option<Ticket>,
    ) -> Result<Ticket, SendError> {
        self.check_queue(cookie.owner)?;
        let op = self.operations.start(operations.len(), completion);
        let op = op.ok_or(SendError::TooMany("operations whose ends nobody has taken"))?;
        if !operations.iter().all(|(at, operation)| operation.is_sound(*at)) {
            // None of it is tried.
            self.operations.end_at_next(op);
            self.complete(op, Err(Failure::Refused(Refusal::OutOfRange)));
            return Ok(Ticket(op));
        }
        let ranges = operations.iter().filter_map(|(_, operation)| operation.local_range());
        self.operations.get_mut(op).expect("started above").ranges.extend(ranges);
        for (index, (at, operation)) in operations.iter().enumerate() {
            let request = Request {
                cookie: *cookie,
                at: *at,
                operation: operation.clone(),
                op: Some(op),
                index: index as u32,
                id: None,
                sent: 0,
            };
            match after.and_then(|ticket| self.operations.get_mut(ticket.0)) {
                None => self.enqueue(request),
                Some(first) => match first.result {
                    None => first.then.push(request),
                    Some(Ok(_)) => self.enqueue(request),
                    Some(Err(_)) => self.fail_request(&request, Failure::Before),
                },
            }
        }
        Ok(Ticket(op))
    }

    /// Queues a put of a copy of bytes. The program learns of its end only by an event if it is refused. The
    /// lane has checked that the owner can be reached, and serves memory afterwards.
    pub(crate) fn put_later(
        &mut self,
        (cookie, at): (&Cookie, u64),
        bytes: Vec<u8>,
    ) -> Result<(), SendError> {
        self.check_queue(cookie.owner)?;
        let len = bytes.len() as u64;
        // A place that overflows does not exist; the owner refuses it.
        let at = if at.checked_add(len).is_some() { at } else { u64::MAX - len };
        let Ok(memory) = ApertureMemory::adopt(bytes) else {
            return Err(SendError::TooMany("bytes at odd places"));
        };
        let local = Local { memory: Arc::new(memory), aperture: None, at: 0, len };
        let operation = Operation::Put(local);
        self.enqueue(Request { cookie: *cookie, at, operation, op: None, index: 0, id: None, sent: 0 });
        Ok(())
    }

    /// Returns how many requests to a peer have not been sent, or not whole, and how many bytes of their
    /// puts.
    pub(crate) fn unsent(&self, rank: Rank) -> (u64, u64) {
        let left = |request: &Request| match &request.operation {
            Operation::Put(local) => (1, local.len - request.sent),
            Operation::Atomic(_) | Operation::Notice { .. } => (1, 0),
            Operation::Get(_) | Operation::Flush | Operation::Fence => (0, 0),
        };
        let queue = self.peers.get(rank).map(|peer| &peer.requests.queue);
        let all = queue.into_iter().flatten().map(left);
        all.fold((0, 0), |(requests, bytes), (more, len)| (requests + more, bytes + len))
    }

    /// Returns whether requests wait to be sent to a peer that can be reached.
    pub(crate) fn has_unsent(&self) -> bool {
        let waits = |rank: &Rank| self.peers.get(*rank).is_some_and(|it| !it.requests.queue.is_empty());
        self.busy.iter().any(waits)
    }

    fn check_queue(&self, rank: Rank) -> Result<(), SendError> {
        let has_room = match self.peers.get(rank) {
            Some(peer) => peer.requests.queue.len() < MAX_QUEUED,
            None => self.peers.contains(rank),
        };
        if has_room { Ok(()) } else { Err(SendError::WouldBlock) }
    }

    /// Adds a request to its peer's queue.
    pub(super) fn enqueue(&mut self, request: Request) {
        let rank = request.cookie.owner;
        let Some(peer) = self.peers.get_mut(rank) else {
            return self.fail_request(&request, Failure::PeerGone(rank, Down::Unreachable));
        };
        if let Some(why) = peer.ended {
            return self.fail_request(&request, why);
        }
        peer.requests.queue.push_back(request);
        self.mark_busy(rank);
    }

    /// Returns whether requests to a peer wait for its reports. If the peer's channel is full of messages
    /// that the program has not extracted, only extraction lets those reports in.
    pub(crate) fn is_held(&self, rank: Rank) -> bool {
        self.peers.get(rank).is_some_and(|peer| peer.requests.is_held())
    }

    /// Starts a round of service, in which every peer with answers or requests that wait has one turn: as
    /// many calls of [`Memory::next_busy`] and [`Memory::pump_peer`] as this returns.
    pub(crate) fn start_round(&mut self) -> usize {
        self.more = false;
        self.busy.len()
    }

    /// Returns the peer whose turn it is.
    pub(crate) fn next_busy(&mut self) -> Option<Rank> {
        let rank = self.busy.pop_front()?;
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.busy = false;
        }
        Some(rank)
    }

    /// Sends a peer's answers and requests as far as its turn and the room go.
    pub(crate) fn pump_peer(&mut self, rank: Rank, writer: &mut impl RecordWriter) -> Pumped {
        let mut budget = QUANTUM;
        let blocked =
            !self.pump_answers(rank, &mut budget, writer) || !self.pump_requests(rank, &mut budget, writer);
        let sent_anything = budget < QUANTUM;
        if sent_anything {
            // It leaves, whatever batch the program has open.
            writer.flush();
            // Threads whose requests had to wait for these try again.
            self.activity += 1;
        }
        let waits = self.peers.has_waiting(rank);
        if waits {
            self.more |= !blocked;
            self.mark_busy(rank);
        }
        Pumped { sent_anything, more: waits && !blocked }
    }

    /// Sends requests of a peer's queue. False if anything but the end of the turn stops them.
    fn pump_requests(&mut self, rank: Rank, budget: &mut usize, writer: &mut impl RecordWriter) -> bool {
        while *budget > 0 {
            let Some(peer) = self.peers.get_mut(rank) else { return true };
            if peer.requests.unfinished_put.is_some() {
                return false;
            }
            let Some(mut request) = peer.requests.queue.pop_front() else { return true };
            if !peer.requests.send(peer.id.incarnation, &mut request, budget, writer) {
                let blocked = *budget > 0;
                peer.requests.queue.push_front(request);
                return !blocked;
            }
            if let (Operation::Fence, Some(op)) = (&request.operation, request.op) {
                self.complete(op, Ok(0));
            }
        }
        true
    }
}
