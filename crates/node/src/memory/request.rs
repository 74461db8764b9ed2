//! Operations that this node asked others for, until they are complete.

use std::sync::Arc;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::Refusal;

use super::news::{MemoryEvent, Wakeup};
use super::queue::Request;
use super::slab::Name;
use super::tables::ApertureId;
use super::wires::Access;
use super::{Memory, PeerMemory};
use crate::lane::Lane;
use crate::{Down, Rank};

/// An operation that is under way, or complete and not yet looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) Name);

/// Why an operation did not happen, or may not have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The owner of the memory refused it; nothing was touched, unless a long put was refused on its way.
    Refused(Refusal),
    /// The owner of the memory is gone; whether it happened is not known.
    PeerGone(Rank, Down),
    /// This node was closed.
    Closed,
    /// What it was to follow failed, so it was not tried.
    Before,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(why) => write!(f, "refused: {why}"),
            Failure::PeerGone(rank, why) => write!(f, "rank {rank} is gone: {why}"),
            Failure::Closed => f.write_str("the node was closed"),
            Failure::Before => f.write_str("not tried, because what it was to follow failed"),
        }
    }
}

impl std::error::Error for Failure {}

/// Who wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// Whoever asks with the ticket.
    Holder,
    /// The event queue.
    Event(u64),
    /// Nobody any more.
    Nobody,
}

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) tell: Tell,
    pub(crate) result: Option<Result<u64, Failure>>,
    pub(crate) awaited: bool,
    /// The local side of each of its requests, where they have one.
    pub(crate) pieces: Vec<Piece>,
    /// Requests that it consists of and that have not ended, and why one of them was refused.
    pub(crate) left: usize,
    pub(crate) refused: Option<Refusal>,
    /// The peer is asked to tell of the end: of its last request.
    pub(crate) asks: bool,
    /// What is to follow.
    pub(crate) then: Vec<Request>,
}

/// The local side of a request.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Whose tripwires on completion shall know.
    pub(crate) aperture: Option<ApertureId>,
    /// Where what is got goes.
    pub(crate) into: Option<Arc<ApertureMemory>>,
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// How much has come.
    pub(crate) come: u64,
}

/// A request on its way whose end somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) id: u32,
    pub(crate) op: Name,
    /// Which of the operation's requests it is.
    pub(crate) piece: u32,
    /// It has an answer of its own.
    pub(crate) answered: bool,
}

/// Whether `a` comes before `b`, both being numbers that wrap around.
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl PeerMemory {
    fn find(&self, id: u32) -> Option<usize> {
        let at = self.outstanding.partition_point(|it| before(it.id, id));
        self.outstanding.get(at).filter(|it| it.id == id).map(|_| at)
    }
}

impl Lane {
    /// A new operation of so many requests, for whoever wants to know of its end.
    pub(crate) fn new_op_of(&mut self, left: usize, tell: Tell) -> Option<Name> {
        self.memory.ops.insert(Op {
            tell,
            result: None,
            awaited: false,
            pieces: Vec::new(),
            left,
            refused: None,
            asks: left == 1,
            then: Vec::new(),
        })
    }

    /// Whether the peer shall tell of the end of the request that is begun for this operation.
    #[inline]
    pub(crate) fn asks(&self, op: Option<Name>) -> bool {
        op.is_some_and(|op| self.memory.ops.get(op).is_none_or(|op| op.asks))
    }

    /// An operation has come to its end, the one and only; or one of the requests that it consists of has. It fails if any of them does.
    pub(crate) fn complete(&mut self, name: Name, result: Result<u64, Failure>) {
        let Some(op) = self.memory.ops.get_mut(name).filter(|op| op.result.is_none()) else { return };
        if let Err(Failure::Refused(why)) = result {
            op.refused.get_or_insert(why);
        }
        op.left -= 1;
        if op.left > 0 && matches!(result, Ok(_) | Err(Failure::Refused(_))) {
            return;
        }
        let result = op.refused.map_or(result, |why| Err(Failure::Refused(why)));
        op.result = Some(result);
        // What is got belongs to whoever asked for it, from now on.
        let pieces = std::mem::take(&mut op.pieces);
        let (tell, then) = (op.tell, std::mem::take(&mut op.then));
        if std::mem::take(&mut op.awaited) {
            self.memory.news.wake(Wakeup::Op(Ticket(name)));
        }
        self.port.activity += 1;
        for Piece { aperture, start, len, .. } in pieces {
            if let Some(aperture) = aperture.filter(|_| result.is_ok()) {
                self.trip((self.rank, aperture), Access::COMPLETE, (start, start + len), start + len);
            }
        }
        match tell {
            Tell::Holder => {}
            Tell::Nobody => drop(self.memory.ops.remove(name)),
            Tell::Event(tag) => {
                self.memory.ops.remove(name);
                self.memory.news.push(MemoryEvent::Completed { ticket: Ticket(name), tag, result });
            }
        }
        for request in then {
            match result {
                Ok(_) => self.enqueue(request),
                Err(_) => self.fail_request(&request, Failure::Before),
            }
        }
    }

    pub(crate) fn fail_request(&mut self, request: &Request, why: Failure) {
        if let Some(op) = request.op {
            self.complete(op, Err(why));
        }
    }

    /// The result of an operation, if it is complete; it can be looked at once. `wait`: otherwise, wake whoever waits when it is.
    pub(crate) fn poll_operation(&mut self, ticket: Ticket, wait: bool) -> Option<Result<u64, Failure>> {
        let Some(op) = self.memory.ops.get_mut(ticket.0) else { return Some(Err(Failure::Closed)) };
        op.awaited |= wait && op.result.is_none();
        let result = op.result?;
        self.memory.ops.remove(ticket.0);
        Some(result)
    }

    /// The end of an operation becomes an event, also if it is there already.
    pub(crate) fn complete_by_event(&mut self, ticket: Ticket, tag: u64) {
        let Some(op) = self.memory.ops.get_mut(ticket.0) else { return };
        op.tell = Tell::Event(tag);
        if let Some(result) = op.result {
            self.memory.ops.remove(ticket.0);
            self.memory.news.push(MemoryEvent::Completed { ticket, tag, result });
        }
    }

    /// Nobody will look at an operation's result; it goes on.
    pub(crate) fn let_go(&mut self, ticket: Ticket) {
        match self.memory.ops.get_mut(ticket.0) {
            Some(op) if op.result.is_some() => drop(self.memory.ops.remove(ticket.0)),
            Some(op) => (op.tell, op.awaited) = (Tell::Nobody, false),
            None => {}
        }
    }

    /// An operation whose requests were not all begun is given up.
    pub(crate) fn cancel_operation(&mut self, ticket: Ticket) {
        self.memory.ops.remove(ticket.0);
    }

    /// The peer says that all requests up to one are done. False if no correct peer would.
    pub(crate) fn heard_done(&mut self, rank: Rank, id: u32) -> bool {
        let memory = &mut self.peers.member_mut(rank).memory;
        if before(id, memory.done) || before(memory.sent, id) {
            return false;
        }
        memory.done = id;
        let mut at = 0;
        while let Some(it) = self.peers.member_mut(rank).memory.outstanding.get(at).copied()
            && !before(id, it.id)
        {
            if it.answered {
                at += 1;
                continue;
            }
            self.peers.member_mut(rank).memory.outstanding.remove(at);
            self.complete(it.op, Ok(0));
        }
        // There is room for further requests.
        self.port.activity += 1;
        self.resume(rank);
        true
    }

    /// The peer refused a request.
    pub(crate) fn heard_failed(&mut self, rank: Rank, id: u32, why: Refusal) -> bool {
        let memory = &mut self.peers.member_mut(rank).memory;
        if before(memory.sent, id) {
            return false;
        }
        match memory.find(id).and_then(|at| memory.outstanding.remove(at)) {
            Some(it) => self.complete(it.op, Err(Failure::Refused(why))),
            None => self.memory.news.unasked(MemoryEvent::Refused { peer: rank, why }),
        }
        self.resume(rank);
        true
    }

    /// The peer tells a word's former value.
    pub(crate) fn heard_value(&mut self, rank: Rank, id: u32, value: u64) -> bool {
        let memory = &mut self.peers.member_mut(rank).memory;
        let Some(at) = memory.find(id).filter(|at| memory.outstanding[*at].answered) else { return false };
        let Some(it) = memory.outstanding.remove(at) else { return false };
        self.complete(it.op, Ok(value));
        self.resume(rank);
        true
    }

    /// The peer sends bytes that were wanted: straight to their place.
    pub(crate) fn heard_data(&mut self, rank: Rank, id: u32, at: u64, data: &[u8]) -> bool {
        let Memory { ops, .. } = &mut *self.memory;
        let memory = &mut self.peers.member_mut(rank).memory;
        let Some(place) = memory.find(id) else { return false };
        let Outstanding { op: name, piece, .. } = memory.outstanding[place];
        let Some(piece) = ops.get_mut(name).and_then(|op| op.pieces.get_mut(piece as usize)) else {
            return false;
        };
        let Some(into) = &piece.into else { return false };
        if at != piece.come || data.len() as u64 > piece.len - piece.come {
            return false;
        }
        // The range was checked when the operation was asked for.
        let _ = into.write((piece.start + at) as usize, data);
        piece.come += data.len() as u64;
        if piece.come == piece.len {
            memory.outstanding.remove(place);
            self.complete(name, Ok(0));
            self.resume(rank);
        }
        true
    }

    /// Whatever waited for an answer of this peer may go on.
    fn resume(&mut self, rank: Rank) {
        if !self.peers.member_mut(rank).memory.queue.is_empty() {
            self.mark_busy(rank);
        }
    }

    /// The channel to a peer is over: everything that was asked of it ends, once.
    pub(crate) fn end_memory(&mut self, rank: Rank, why: Failure) {
        let memory = &mut self.peers.member_mut(rank).memory;
        let outstanding = std::mem::take(&mut memory.outstanding);
        let queue = std::mem::take(&mut memory.queue);
        memory.reset();
        for it in outstanding {
            self.complete(it.op, Err(why));
        }
        for request in queue {
            self.fail_request(&request, why);
        }
    }
}
