//! The peers' answers to requests of this node, and the ends of operations.

use tautline_wire::memory::Refusal;

use super::Memory;
use super::events::{MemoryEvent, Wakeup};
use super::failure::Failure;
use super::ids::Ticket;
use super::operations::{Completion, Finished, Request};
use super::requests::{Outstanding, before};
use super::slab::Name;
use super::tripwires::{Access, Touch};
use crate::Rank;

impl Memory {
    /// Notes the end of one of the requests of an operation, and does what follows if the operation ends with
    /// it.
    pub(super) fn complete(&mut self, op: Name, result: Result<u64, Failure>) {
        let Some(finished) = self.operations.finish_request(op, result) else { return };
        let Finished { result, completion, awaited, ranges, then } = finished;
        if awaited {
            self.events.wake(Wakeup::Op(Ticket(op)));
        }
        self.activity += 1;
        for range in ranges {
            if let Some(aperture) = range.aperture.filter(|_| result.is_ok()) {
                let (start, end) = (range.start, range.start + range.len);
                let (by, on) = (self.me, Access::COMPLETE);
                self.touch(Touch { by, aperture, on, start, end, whole: end });
            }
        }
        if let Completion::Event(tag) = completion {
            self.events.push(MemoryEvent::Completed { ticket: Ticket(op), tag, result });
        }
        for request in then {
            match result {
                Ok(_) => self.enqueue(request),
                Err(_) => self.fail_request(&request, Failure::Before),
            }
        }
    }

    pub(super) fn fail_request(&mut self, request: &Request, why: Failure) {
        if let Some(op) = request.op {
            self.complete(op, Err(why));
        }
    }

    /// Handles the report that all requests up to `id` are done. False if no correct peer sends it.
    pub(super) fn handle_done(&mut self, rank: Rank, id: u32) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        if before(id, peer.requests.done) || before(peer.requests.sent, id) {
            return false;
        }
        peer.requests.done = id;
        let mut at = 0;
        while let Some(peer) = self.peers.get_mut(rank)
            && let Some(it) = peer.requests.outstanding.get(at).copied()
            && !before(id, it.id)
        {
            if it.answered {
                at += 1;
                continue;
            }
            peer.requests.outstanding.remove(at);
            self.complete(it.op, Ok(0));
        }
        // Further requests may begin.
        self.activity += 1;
        self.resume(rank);
        true
    }

    /// Handles the refusal of a request. False if no correct peer sends it.
    pub(super) fn handle_failed(&mut self, rank: Rank, id: u32, why: Refusal) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        let requests = &mut peer.requests;
        if before(requests.sent, id) {
            return false;
        }
        match requests.find(id).and_then(|at| requests.outstanding.remove(at)) {
            Some(it) => self.complete(it.op, Err(Failure::Refused(why))),
            None => self.events.push_unasked(MemoryEvent::Refused { peer: rank, why }),
        }
        self.resume(rank);
        true
    }

    /// Handles a word's former value. False if no correct peer sends it.
    pub(super) fn handle_value(&mut self, rank: Rank, id: u32, value: u64) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        let requests = &mut peer.requests;
        let found = requests.find(id).filter(|at| requests.outstanding[*at].answered);
        let Some(it) = found.and_then(|at| requests.outstanding.remove(at)) else { return false };
        self.complete(it.op, Ok(value));
        self.resume(rank);
        true
    }

    /// Writes bytes of a get to their destination. False if no correct peer sends them.
    pub(super) fn handle_data(&mut self, rank: Rank, id: u32, at: u64, data: &[u8]) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        let Some(place) = peer.requests.find(id) else { return false };
        let Outstanding { op, index, .. } = peer.requests.outstanding[place];
        let Some(last) = self.operations.receive((op, index), at, data) else { return false };
        if last {
            peer.requests.outstanding.remove(place);
            self.complete(op, Ok(0));
            self.resume(rank);
        }
        true
    }

    /// Gives a peer a turn if requests to it wait: an answer of the peer may have let them begin.
    fn resume(&mut self, rank: Rank) {
        if self.peers.get(rank).is_some_and(|peer| !peer.requests.queue.is_empty()) {
            self.mark_busy(rank);
        }
    }

    /// Forgets a channel, and ends all requests that were made on it, once.
    pub(super) fn end_requests(&mut self, rank: Rank, why: Failure) {
        let Some(peer) = self.peers.get_mut(rank) else { return };
        let (outstanding, queue) = peer.reset();
        for it in outstanding {
            self.complete(it.op, Err(why));
        }
        for request in queue {
            self.fail_request(&request, why);
        }
    }
}
