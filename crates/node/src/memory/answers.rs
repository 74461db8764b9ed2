//! Answers to a peer's requests that wait for room.

use std::collections::VecDeque;
use std::sync::Arc;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::Refusal;

use super::ids::ApertureId;
use super::slab::Name;
use crate::limits::MAX_UNANSWERED;

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Done { id: u32 },
    Failed { id: u32, why: Refusal },
    Value { id: u32, value: u64 },
    Data(DataAnswer),
}

/// The answer to a get. Its bytes are read when they are sent.
#[derive(Debug)]
pub(crate) struct DataAnswer {
    pub(super) id: u32,
    pub(super) cookie: Option<Name>,
    pub(super) memory: Arc<ApertureMemory>,
    pub(super) aperture: ApertureId,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) sent: u64,
}

/// The answers that one peer is to be sent, in order.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    queue: VecDeque<Answer>,
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues an answer. False if the peer has more requests unanswered than it may.
    pub(super) fn push(&mut self, answer: Answer) -> bool {
        if let (Some(Answer::Done { id }), Answer::Done { id: later }) = (self.queue.back_mut(), &answer) {
            *id = *later;
            return true;
        }
        // A request has at most an answer of its own and one that reports that it is done.
        if self.queue.len() >= 2 * MAX_UNANSWERED as usize {
            return false;
        }
        self.queue.push_back(answer);
        true
    }

    pub(super) fn pop(&mut self) -> Option<Answer> {
        self.queue.pop_front()
    }

    /// Puts an answer back that could not be sent, or that goes on at the next turn.
    pub(super) fn put_back(&mut self, answer: Answer) {
        self.queue.push_front(answer);
    }

    /// Refuses what is still to be read of a closed aperture, and releases its memory. Returns how many
    /// answers that were.
    pub(super) fn refuse(&mut self, closed: ApertureId) -> u64 {
        let mut refused = 0;
        for answer in &mut self.queue {
            if let Answer::Data(DataAnswer { id, aperture, .. }) = answer
                && *aperture == closed
            {
                *answer = Answer::Failed { id: *id, why: Refusal::Revoked };
                refused += 1;
            }
        }
        refused
    }
}
