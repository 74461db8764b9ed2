//! Answers that are owed, and wait for room.

use std::sync::Arc;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::{DATA_HEAD, MAX_HEAD, Memory as Message, Refusal};

use super::PeerMemory;
use super::slab::Name;
use super::tables::{ApertureId, Handle, whole_words};
use super::wires::Access;
use crate::Rank;
use crate::lane::Lane;
use crate::limits::MAX_UNANSWERED;

#[derive(Debug)]
pub(crate) enum Answer {
    Done {
        id: u32,
    },
    Failed {
        id: u32,
        why: Refusal,
    },
    Value {
        id: u32,
        value: u64,
    },
    /// Bytes are read when they are sent.
    Data {
        id: u32,
        cookie: Option<Name>,
        memory: Arc<ApertureMemory>,
        aperture: ApertureId,
        at: u64,
        len: u64,
        sent: u64,
    },
}

impl PeerMemory {
    /// An aperture is closed: what is still to be read of it is refused, and its memory let go of. How many answers that were.
    pub(crate) fn refuse_answers(&mut self, closed: ApertureId) -> u64 {
        let mut refused = 0;
        for answer in &mut self.answers {
            if let Answer::Data { id, aperture, .. } = answer
                && *aperture == closed
            {
                *answer = Answer::Failed { id: *id, why: Refusal::Revoked };
                refused += 1;
            }
        }
        refused
    }
}

impl Lane {
    /// An answer is owed. False if the peer asked for more at once than it may.
    pub(crate) fn owe(&mut self, rank: Rank, answer: Answer) -> bool {
        let answers = &mut self.peers.member_mut(rank).memory.answers;
        if let (Some(Answer::Done { id }), Answer::Done { id: later }) = (answers.back_mut(), &answer) {
            *id = *later;
            return true;
        }
        // A request has at most an answer of its own and one that tells that it is done.
        if answers.len() >= 2 * MAX_UNANSWERED as usize {
            return false;
        }
        answers.push_back(answer);
        self.mark_busy(rank);
        true
    }

    /// The cookie that a peer's number stands for.
    pub(crate) fn cookie_of(&self, rank: Rank, handle: u32) -> Option<Name> {
        match self.peers.member(rank).memory.handles.get(handle as usize)? {
            Handle::Cookie(name) => Some(*name),
            Handle::Refused(_) => None,
        }
    }

    /// Sends answers to one peer; false if there is no room for the next one.
    pub(crate) fn pump_answers(&mut self, rank: Rank, room: &mut usize) -> bool {
        while *room > 0 {
            let Some(answer) = self.peers.member_mut(rank).memory.answers.pop_front() else { return true };
            let message = match &answer {
                Answer::Done { id } => Message::Done { id: *id },
                Answer::Failed { id, why } => Message::Failed { id: *id, why: *why },
                Answer::Value { id, value } => Message::Value { id: *id, value: *value },
                Answer::Data { .. } => {
                    let blocked = !self.answer_data(rank, answer, room);
                    if blocked {
                        return false;
                    }
                    continue;
                }
            };
            if !self.writer(rank).write(&message, 0, &[]) {
                self.peers.member_mut(rank).memory.answers.push_front(answer);
                return false;
            }
            *room = room.saturating_sub(MAX_HEAD);
        }
        true
    }

    /// Sends bytes that were wanted, until the turn is over; false if there is no room.
    fn answer_data(&mut self, rank: Rank, mut answer: Answer, room: &mut usize) -> bool {
        loop {
            let Answer::Data { id, cookie, memory, aperture, at, len, sent } = &mut answer else {
                return true;
            };
            // what is revoked, or has expired, is not read any further.
            let why = match cookie.and_then(|cookie| self.memory.cookies.get(cookie)) {
                None => Some(Refusal::Revoked),
                Some(granted) => (granted.expires <= self.memory.now).then_some(Refusal::Expired),
            };
            if let Some(why) = why {
                self.memory.counters.refused += 1;
                let failed = Answer::Failed { id: *id, why };
                self.peers.member_mut(rank).memory.answers.push_front(failed);
                return true;
            }
            let most = self.writer(rank).fresh_part_limit(DATA_HEAD);
            let part = whole_words(*at + *sent, most, *len - *sent);
            let message = Message::Data { id: *id, at: *sent, data: &[] };
            let (from, memory) = ((*at + *sent) as usize, memory.clone());
            let fill = |out: &mut [u8]| {
                // A cookie never reaches beyond its aperture.
                let _ = memory.read(from, out);
            };
            let (aperture, start, sent_before) = (*aperture, *at, *sent);
            let whole = start + *len;
            if !self.writer(rank).write_with(&message, 0, part, fill) {
                self.peers.member_mut(rank).memory.answers.push_front(answer);
                return false;
            }
            *sent += part as u64;
            let over = *sent == *len;
            let read = (start + sent_before, start + sent_before + part as u64);
            self.trip((rank, aperture), Access::READ, read, whole);
            *room = room.saturating_sub(MAX_HEAD + part);
            if over {
                return true;
            }
            if *room == 0 {
                self.peers.member_mut(rank).memory.answers.push_front(answer);
                return true;
            }
        }
    }
}
