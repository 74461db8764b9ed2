//! Operations on the memory of others, until they are complete.

use std::sync::Arc;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::{Atomic, Refusal};

use super::cookie::Cookie;
use super::failure::Failure;
use super::ids::{ApertureId, Ticket};
use super::slab::{Name, Slab};
use crate::limits::MAX_OPERATIONS;

/// A range of this node's own memory.
#[derive(Clone, Debug)]
pub struct Local {
    /// The memory.
    pub memory: Arc<ApertureMemory>,
    /// The aperture that it belongs to, whose tripwires watch for completion.
    pub aperture: Option<ApertureId>,
    /// The first byte.
    pub at: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Local {
    fn is_sound(&self) -> bool {
        self.at.checked_add(self.len).is_some_and(|end| end <= self.memory.len() as u64)
    }
}

/// What can be done with another node's memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Writes bytes there. They must not change until the operation is complete.
    Put(Local),
    /// Reads bytes from there.
    Get(Local),
    /// Changes a word.
    Atomic(Atomic),
    /// Announces in the owner's event queue that something was put.
    Notice {
        /// The number of bytes that were put.
        len: u64,
        /// The value that the event carries.
        value: u64,
    },
    /// Does nothing; complete when everything before it is.
    Flush,
    /// Does nothing; what follows does not begin before everything before it is complete.
    Fence,
}

impl Operation {
    /// Returns whether its local side exists and the places of its bytes do not overflow.
    pub(super) fn is_sound(&self, at: u64) -> bool {
        match self {
            Operation::Put(local) | Operation::Get(local) => {
                local.is_sound() && at.checked_add(local.len).is_some()
            }
            _ => true,
        }
    }

    /// Returns its local side, if it has one.
    pub(super) fn local_range(&self) -> Option<LocalRange> {
        let (local, into) = match self {
            Operation::Put(local) => (local, None),
            Operation::Get(local) => (local, Some(local.memory.clone())),
            _ => return None,
        };
        Some(LocalRange { aperture: local.aperture, into, start: local.at, len: local.len, received: 0 })
    }
}

/// A request that waits in a peer's queue, or for another operation.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(super) cookie: Cookie,
    pub(super) at: u64,
    pub(super) operation: Operation,
    pub(super) op: Option<Name>,
    /// Its index among the operation's requests.
    pub(super) index: u32,
    /// Its number on the channel, once it has begun.
    pub(super) id: Option<u32>,
    /// Bytes of a put that have been sent.
    pub(super) sent: u64,
}

impl Request {
    /// Returns the operation that it belongs to, and its index among the operation's requests.
    pub(super) fn part_of(&self) -> Option<(Name, u32)> {
        self.op.map(|op| (op, self.index))
    }
}

/// How the program learns of the end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// It polls with the ticket.
    Polled,
    /// By an event with this tag.
    Event(u64),
    /// Not at all.
    Ignored,
}

/// The local side of a request.
#[derive(Debug)]
pub(crate) struct LocalRange {
    /// The aperture whose tripwires watch for completion.
    pub(super) aperture: Option<ApertureId>,
    /// The destination of a get.
    into: Option<Arc<ApertureMemory>>,
    pub(super) start: u64,
    pub(super) len: u64,
    /// Bytes of a get that have arrived.
    received: u64,
}

/// An operation whose result nobody has taken.
#[derive(Debug)]
pub(crate) struct Pending {
    completion: Completion,
    pub(super) result: Option<Result<u64, Failure>>,
    /// Whether a future waits for the result.
    awaited: bool,
    /// The local side of each of its requests that has one.
    pub(super) ranges: Vec<LocalRange>,
    /// Its requests that have not ended.
    left: usize,
    /// Why the first of them was refused.
    refused: Option<Refusal>,
    /// Whether the owner is asked to report the end of its next request: only of the last one.
    asks: bool,
    /// The requests that follow it.
    pub(super) then: Vec<Request>,
}

/// What is to be done at the end of an operation.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(super) result: Result<u64, Failure>,
    pub(super) completion: Completion,
    pub(super) awaited: bool,
    pub(super) ranges: Vec<LocalRange>,
    pub(super) then: Vec<Request>,
}

/// The operations of this node.
#[derive(Debug)]
pub(crate) struct Operations {
    pending: Slab<Pending>,
}

impl Default for Operations {
    fn default() -> Operations {
        Operations { pending: Slab::new(MAX_OPERATIONS) }
    }
}

impl Operations {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn get_mut(&mut self, op: Name) -> Option<&mut Pending> {
        self.pending.get_mut(op)
    }

    /// Starts an operation of `requests` requests. None if there are too many operations.
    pub(super) fn start(&mut self, requests: usize, completion: Completion) -> Option<Name> {
        self.pending.insert(Pending {
            completion,
            result: None,
            awaited: false,
            ranges: Vec::new(),
            left: requests,
            refused: None,
            asks: requests == 1,
            then: Vec::new(),
        })
    }

    /// Removes an operation of which not all requests were begun.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.pending.remove(ticket.0);
    }

    /// Ends an operation at its next request, whatever their number.
    pub(super) fn end_at_next(&mut self, op: Name) {
        if let Some(op) = self.pending.get_mut(op) {
            op.left = 1;
        }
    }

    /// Sets whether the owner is asked to report the end of the operation's next request.
    pub(super) fn set_asks(&mut self, op: Name, asks: bool) {
        if let Some(op) = self.pending.get_mut(op) {
            op.asks = asks;
        }
    }

    /// Returns whether the owner is asked to report the end of the next request.
    #[inline]
    pub(super) fn asks(&self, op: Option<Name>) -> bool {
        op.is_some_and(|op| self.pending.get(op).is_none_or(|op| op.asks))
    }

    /// Notes the end of one of the requests of an operation. The operation fails if any of them does;
    /// it ends with the last one, or at once if the peer is gone.
    pub(super) fn finish_request(&mut self, name: Name, result: Result<u64, Failure>) -> Option<Finished> {
        let op = self.pending.get_mut(name).filter(|op| op.result.is_none())?;
        if let Err(Failure::Refused(why)) = result {
            op.refused.get_or_insert(why);
        }
        op.left -= 1;
        if op.left > 0 && matches!(result, Ok(_) | Err(Failure::Refused(_))) {
            return None;
        }
        let result = op.refused.map_or(result, |why| Err(Failure::Refused(why)));
        op.result = Some(result);
        let finished = Finished {
            result,
            completion: op.completion,
            awaited: std::mem::take(&mut op.awaited),
            // The destination of a get is the program's from now on.
            ranges: std::mem::take(&mut op.ranges),
            then: std::mem::take(&mut op.then),
        };
        if op.completion != Completion::Polled {
            self.pending.remove(name);
        }
        Some(finished)
    }

    /// Takes the result of an operation, if it is complete. `wait`: otherwise requests a wake-up when it is.
    pub(super) fn poll(&mut self, ticket: Ticket, wait: bool) -> Option<Result<u64, Failure>> {
        let Some(op) = self.pending.get_mut(ticket.0) else { return Some(Err(Failure::Closed)) };
        op.awaited |= wait && op.result.is_none();
        let result = op.result?;
        self.pending.remove(ticket.0);
        Some(result)
    }

    /// Lets the end of an operation be an event. Returns the result if the operation is complete already.
    pub(super) fn complete_by_event(&mut self, ticket: Ticket, tag: u64) -> Option<Result<u64, Failure>> {
        let op = self.pending.get_mut(ticket.0)?;
        op.completion = Completion::Event(tag);
        let result = op.result?;
        self.pending.remove(ticket.0);
        Some(result)
    }

    /// Drops the result of an operation, which continues.
    pub(super) fn detach(&mut self, ticket: Ticket) {
        match self.pending.get_mut(ticket.0) {
            Some(op) if op.result.is_some() => drop(self.pending.remove(ticket.0)),
            Some(op) => (op.completion, op.awaited) = (Completion::Ignored, false),
            None => {}
        }
    }

    /// Writes bytes of a get, which start `at` bytes into it, to their destination. Returns whether they were
    /// the last; None if no correct peer sends them.
    pub(super) fn receive(&mut self, (op, index): (Name, u32), at: u64, data: &[u8]) -> Option<bool> {
        let range = self.pending.get_mut(op)?.ranges.get_mut(index as usize)?;
        let into = range.into.as_ref()?;
        if at != range.received || data.len() as u64 > range.len - range.received {
            return None;
        }
        // The range was checked when the operation was submitted.
        let _ = into.write((range.start + at) as usize, data);
        range.received += data.len() as u64;
        Some(range.received == range.len)
    }
}
