//! Requests of others, which are served as soon as their frame is due, and the answers to them.

use tautline_wire::memory::{
    Atomic, COMPLETION_REQUESTED, DATA_HEAD, MAX_HEAD, MemoryRecord as Message, Refusal, Target,
};
use tautline_wire::record::{Record, Records};

use super::Memory;
use super::answers::{Answer, Answers, DataAnswer};
use super::apertures::Handle;
use super::cookie::{CookieKey, Rights, whole_words};
use super::events::{MemoryEvent, OutOfBand};
use super::puts::WordCache;
use super::slab::Name;
use super::tripwires::{Access, Touch};
use super::writer::{LentParts, RecordWriter};
use crate::{PeerId, Rank};

/// What one peer asks of this node's memory.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// The cookies that the peer has shown, by its numbers for them.
    pub(super) handles: Vec<Handle>,
    pub(super) word: WordCache,
    pub(super) order: RequestOrder,
    pub(super) answers: Answers,
}

/// The numbers of a peer's requests, which have no gaps.
#[derive(Debug, Default)]
pub(crate) struct RequestOrder {
    last: u32,
    /// A put that has begun and not ended, if it is allowed.
    pub(super) current_put: Option<u32>,
    /// A put that has begun and was refused.
    pub(super) refused_put: Option<u32>,
}

impl RequestOrder {
    /// Counts a request. False if its number is wrong.
    #[inline]
    pub(super) fn count(&mut self, id: u32) -> bool {
        let next = self.last.wrapping_add(1) == id;
        self.last = id;
        // A put that has not ended by now never ends.
        (self.current_put, self.refused_put) = (None, None);
        next
    }
}

impl Served {
    fn cookie_of(&self, handle: u32) -> Option<Name> {
        match self.handles.get(handle as usize)? {
            Handle::Cookie(name) => Some(*name),
            Handle::Refused(_) => None,
        }
    }
}

impl Memory {
    /// Handles the records of a memory frame; `lent` has the parts that the peer lends. False if no correct
    /// peer sends it.
    #[inline]
    pub(crate) fn handle_records(&mut self, from: PeerId, lent: &mut impl LentParts, bytes: &[u8]) -> bool {
        self.served += 1;
        for record in Records::new(bytes, 0) {
            let Ok(record) = record else { return false };
            let Record::Memory { flags, .. } = record else { return false };
            let good = match Message::parse(&record) {
                Ok(Message::Put(target, data)) => self.serve_put(from, target, data, flags),
                Ok(Message::LoanedPart(target, rest, extent)) => {
                    self.serve_lent(from, lent, (target, rest), extent, flags)
                }
                Ok(message) => self.handle_other(from, message, flags),
                Err(_) => false,
            };
            if !good {
                return false;
            }
        }
        true
    }

    fn handle_other(&mut self, from: PeerId, message: Message<'_>, flags: u8) -> bool {
        let rank = from.rank;
        match message {
            Message::Put(..) | Message::LoanedPart(..) => unreachable!("handled by the caller"),
            Message::Part(target, rest, data) => self.serve_part(from, (target, rest), data, flags),
            Message::Open { handle, cookie, incarnation: epoch, secret } => {
                let Memory { peers, apertures, .. } = self;
                let Some(peer) = peers.get_mut(rank) else { return false };
                apertures.admit(&mut peer.served.handles, handle, CookieKey { id: cookie, epoch, secret })
            }
            Message::Get(target, len) => self.serve_get(from, target, len, flags),
            Message::Atomic(target, atomic) => self.serve_atomic(from, target, atomic, flags),
            Message::Notice { target, len, value } => self.serve_notice(from, target, (len, value), flags),
            Message::Flush { id } => self.count(rank, id) && self.done(rank, id, flags),
            Message::OutOfBand(bytes) => {
                if let Some(out_of_band) = OutOfBand::new(bytes) {
                    self.events.push_unasked(MemoryEvent::OutOfBand { peer: rank, out_of_band });
                }
                true
            }
            Message::Done { id } => self.handle_done(rank, id),
            Message::Failed { id, why } => self.handle_failed(rank, id, why),
            Message::Value { id, value } => self.handle_value(rank, id, value),
            Message::Data { id, at, data } => self.handle_data(rank, id, at, data),
        }
    }

    fn count(&mut self, rank: Rank, id: u32) -> bool {
        self.peers.get_mut(rank).is_some_and(|peer| peer.served.order.count(id))
    }

    /// Reports that a request is done, if the peer asked for that. False if too many answers wait.
    #[inline]
    pub(super) fn done(&mut self, rank: Rank, id: u32, flags: u8) -> bool {
        if flags & COMPLETION_REQUESTED != 0 { self.queue_answer(rank, Answer::Done { id }) } else { true }
    }

    /// Refuses a request; nothing was touched. False if too many answers wait.
    #[cold]
    pub(super) fn refuse(&mut self, rank: Rank, id: u32, why: Refusal) -> bool {
        self.counters.refused += 1;
        self.counters.forged += u64::from(matches!(why, Refusal::Forged | Refusal::Stale));
        self.queue_answer(rank, Answer::Failed { id, why })
    }

    /// Queues an answer. False if the peer has more requests unanswered than it may.
    fn queue_answer(&mut self, rank: Rank, answer: Answer) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        let queued = peer.served.answers.push(answer);
        if queued {
            self.mark_busy(rank);
        }
        queued
    }

    fn serve_get(&mut self, from: PeerId, target: Target, len: u64, flags: u8) -> bool {
        let Memory { peers, apertures, counters, .. } = self;
        let Some(peer) = peers.get_mut(from.rank) else { return false };
        let served = &mut peer.served;
        if !served.order.count(target.id) {
            return false;
        }
        let place = (target.handle, target.at);
        let good = match apertures.access(&served.handles, place, len, Rights::READ) {
            Ok((granted, at)) => {
                let (memory, aperture) = (granted.memory.clone(), granted.aperture);
                counters.gets += 1;
                let (id, cookie) = (target.id, served.cookie_of(target.handle));
                let answer = DataAnswer { id, cookie, memory, aperture, at, len, sent: 0 };
                self.queue_answer(from.rank, Answer::Data(answer))
            }
            Err(why) => self.refuse(from.rank, target.id, why),
        };
        good && self.done(from.rank, target.id, flags)
    }

    fn serve_atomic(&mut self, from: PeerId, target: Target, atomic: Atomic, flags: u8) -> bool {
        let Memory { peers, apertures, counters, .. } = self;
        let Some(peer) = peers.get_mut(from.rank) else { return false };
        let served = &mut peer.served;
        if !served.order.count(target.id) {
            return false;
        }
        let access = apertures.access(&served.handles, (target.handle, target.at), 8, Rights::ATOMIC);
        let result = access.and_then(|(granted, at)| {
            let place = at as usize;
            let old = match atomic {
                Atomic::Swap(value) => granted.memory.swap(place, value),
                Atomic::Add(value) => granted.memory.fetch_add(place, value),
                Atomic::CompareSwap(expected, new) => granted.memory.compare_exchange(place, expected, new),
            };
            Ok((granted.aperture, at, old.map_err(|_| Refusal::Misaligned)?))
        });
        let good = match result {
            Ok((aperture, start, value)) => {
                counters.atomics += 1;
                let (on, end) = (Access::WRITE.or(Access::READ), start + 8);
                self.touch(Touch { by: from, aperture, on, start, end, whole: end });
                self.queue_answer(from.rank, Answer::Value { id: target.id, value })
            }
            Err(why) => self.refuse(from.rank, target.id, why),
        };
        good && self.done(from.rank, target.id, flags)
    }

    fn serve_notice(&mut self, from: PeerId, target: Target, (len, value): (u64, u64), flags: u8) -> bool {
        let Memory { peers, apertures, events, .. } = self;
        let Some(peer) = peers.get_mut(from.rank) else { return false };
        let served = &mut peer.served;
        if !served.order.count(target.id) {
            return false;
        }
        let good = match apertures.access(&served.handles, (target.handle, target.at), len, Rights::WRITE) {
            Ok((granted, at)) => {
                let (peer, aperture) = (from.rank, granted.aperture);
                events.push_unasked(MemoryEvent::Notice { peer, aperture, at, len, value });
                true
            }
            Err(why) => self.refuse(from.rank, target.id, why),
        };
        good && self.done(from.rank, target.id, flags)
    }

    /// Sends answers to one peer. False if there is no room for the next one.
    pub(super) fn pump_answers(
        &mut self,
        rank: Rank,
        budget: &mut usize,
        writer: &mut impl RecordWriter,
    ) -> bool {
        while *budget > 0 {
            let Some(peer) = self.peers.get_mut(rank) else { return true };
            let Some(answer) = peer.served.answers.pop() else { return true };
            let message = match answer {
                Answer::Done { id } => Message::Done { id },
                Answer::Failed { id, why } => Message::Failed { id, why },
                Answer::Value { id, value } => Message::Value { id, value },
                Answer::Data(data) => {
                    let by = peer.id;
                    if !self.send_data(by, data, budget, writer) {
                        return false;
                    }
                    continue;
                }
            };
            if !writer.write(&message, 0, &[]) {
                peer.served.answers.put_back(answer);
                return false;
            }
            *budget = budget.saturating_sub(MAX_HEAD);
        }
        true
    }

    /// Sends bytes that a peer gets, until its turn is over. False if there is no room.
    fn send_data(
        &mut self,
        to: PeerId,
        mut answer: DataAnswer,
        budget: &mut usize,
        writer: &mut impl RecordWriter,
    ) -> bool {
        loop {
            // nothing more is read once the cookie is revoked or expired.
            let why = match answer.cookie.and_then(|cookie| self.apertures.cookie(cookie)) {
                None => Some(Refusal::Revoked),
                Some(granted) => (granted.expires <= self.apertures.now()).then_some(Refusal::Expired),
            };
            if let Some(why) = why {
                self.counters.refused += 1;
                self.put_back(to.rank, Answer::Failed { id: answer.id, why });
                return true;
            }
            let start = answer.at + answer.sent;
            let len = whole_words(start, writer.data_limit(DATA_HEAD), answer.len - answer.sent);
            let message = Message::Data { id: answer.id, at: answer.sent, data: &[] };
            let written = writer.write_with(&message, 0, len, |out| {
                // A cookie never extends beyond its aperture.
                let _ = answer.memory.read(start as usize, out);
            });
            if !written {
                self.put_back(to.rank, Answer::Data(answer));
                return false;
            }
            answer.sent += len as u64;
            let (aperture, on) = (answer.aperture, Access::READ);
            let (end, whole) = (start + len as u64, answer.at + answer.len);
            self.touch(Touch { by: to, aperture, on, start, end, whole });
            *budget = budget.saturating_sub(MAX_HEAD + len);
            if answer.sent == answer.len {
                return true;
            }
            if *budget == 0 {
                self.put_back(to.rank, Answer::Data(answer));
                return true;
            }
        }
    }

    fn put_back(&mut self, rank: Rank, answer: Answer) {
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.served.answers.put_back(answer);
        }
    }
}
