//! What members do when one of them is lost in a collective (G-6 … G-8).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tautline_node::TagRequest;

use super::Inner;
use super::context::Purpose;
use crate::error::{Error, Result};
use crate::tags::{ANY, Receive, Request};
use crate::{Down, Rank, SendError};

/// Groups of up to this many members send notices to all members; larger ones to the neighbours at distances
/// of powers of two, which hand them on.
const TELL_ALL: usize = 64;

/// Bytes of a notice.
const NOTICE: usize = 14;

/// Why collectives fail from a given one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// The number of the first collective that fails.
    first: u64,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Gone(Rank, Down),
    /// A member's call has failed for a reason of its own.
    Failed(Rank),
    /// A member has revoked the group.
    Revoked,
    /// The others go on without this member, as this one says. Never sent.
    Excluded(Rank),
}

impl Cause {
    pub(super) fn error(self) -> Error {
        match self {
            Cause::Gone(rank, why) => Error::PeerGone(rank, why),
            Cause::Failed(rank) => {
                Error::other(format!("the collective failed at {}", crate::Address::from(rank)))
            }
            Cause::Revoked => Error::Revoked,
            Cause::Excluded(by) => Error::Excluded(by),
        }
    }
}

impl Notice {
    fn to_bytes(self) -> [u8; NOTICE] {
        let (kind, rank, why) = match self.cause {
            Cause::Gone(rank, why) => (0, rank, why.to_byte()),
            Cause::Failed(rank) => (1, rank, 0),
            Cause::Revoked => (2, 0, 0),
            Cause::Excluded(by) => (1, by, 0),
        };
        let mut bytes = [0; NOTICE];
        bytes[..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..12].copy_from_slice(&rank.to_le_bytes());
        (bytes[12], bytes[13]) = (kind, why);
        bytes
    }

    fn from_bytes(bytes: &[u8; NOTICE]) -> Option<Notice> {
        let (first, rest) = bytes.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let rank = Rank::from_le_bytes(*rank);
        let cause = match rest[0] {
            0 => Cause::Gone(rank, Down::from_byte(rest[1])),
            1 => Cause::Failed(rank),
            2 => Cause::Revoked,
            _ => return None,
        };
        Some(Notice { first: u64::from_le_bytes(*first), cause })
    }
}

/// What a member knows of failures in its group.
#[derive(Debug)]
pub(super) struct Failures {
    /// The first collective that fails. Read without the lock.
    first: AtomicU64,
    /// Counts what was noted. Changes under the lock, as does the receive of notices.
    changes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cause: Option<Cause>,
    /// Members that this one or another one takes for lost: a process that comes back with the same rank is
    /// no member.
    lost: Vec<(Rank, Down)>,
    /// Takes the next notice.
    receive: Option<Receive>,
}

impl Failures {
    pub(super) fn new() -> Failures {
        Failures { first: AtomicU64::new(u64::MAX), changes: AtomicU64::new(0), state: Mutex::default() }
    }

    /// A number that changes with everything that is noted.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Notes that collectives fail from a given one on. Returns whether that is news.
    fn note(&self, state: &mut State, notice: Notice) -> bool {
        self.changes.fetch_add(1, Ordering::AcqRel);
        if let Cause::Gone(rank, why) = notice.cause
            && state.lost.iter().all(|(lost, _)| *lost != rank)
        {
            state.lost.push((rank, why));
        }
        let news = notice.first < self.first.load(Ordering::Relaxed);
        if news {
            state.cause = Some(notice.cause);
            self.first.store(notice.first, Ordering::Release);
        }
        news
    }

    /// Notes that the others go on without this member. Returns whether that is news.
    fn exclude(&self, state: &mut State, me: Rank, by: Rank) -> bool {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let news = !matches!(state.cause, Some(Cause::Excluded(_)));
        state.cause = Some(Cause::Excluded(by));
        if state.lost.iter().all(|(lost, _)| *lost != me) {
            state.lost.push((me, Down::Exited));
        }
        self.first.store(0, Ordering::Release);
        news
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether collectives fail.
    pub(super) fn any(&self) -> bool {
        self.first.load(Ordering::Acquire) != u64::MAX
    }

    /// Why collectives fail, if they do.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.lock().cause
    }

    /// An error if the collective of this number fails.
    #[inline]
    pub(super) fn check(&self, number: u64) -> Result<()> {
        if number < self.first.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.lock().cause.map_or(Error::Stale, Cause::error))
    }
}

impl Inner {
    /// Begins to listen for notices.
    pub(super) fn listen(&self) -> Result<()> {
        self.failures.lock().receive = Some(self.next_notice()?);
        let context = self.id.context(Purpose::PointToPoint);
        Ok(self.tags.node().tagged().add_group(context, self.members.clone())?)
    }

    fn next_notice(&self) -> Result<Receive> {
        self.notices.start_receive(ANY, ANY, vec![0; NOTICE])
    }

    /// The receive that ends when there is a notice.
    pub(super) fn notice_request(&self) -> Option<TagRequest> {
        self.failures.lock().receive.as_ref().map(Request::id)
    }

    /// Takes the notices that are here. A thread that finds the next receive also finds what was noted before
    /// it: both change under one lock.
    pub(super) fn take_notices(&self) -> Result<()> {
        loop {
            let mut state = self.failures.lock();
            let Some(receive) = state.receive.take() else { return Ok(()) };
            if !receive.test()? {
                state.receive = Some(receive);
                return Ok(());
            }
            let received = receive.wait();
            state.receive = Some(self.next_notice()?);
            // Whatever else a member sends is none.
            let Ok((status, bytes)) = received else { continue };
            match bytes.first_chunk().and_then(Notice::from_bytes) {
                Some(notice @ Notice { cause: Cause::Gone(rank, _), .. })
                    if rank == self.members[self.me] =>
                {
                    let news = self.failures.exclude(&mut state, rank, status.source);
                    drop(state);
                    // Whoever said so may have told nobody else.
                    if news {
                        self.tell(notice);
                    }
                }
                Some(notice) => {
                    let news = self.failures.note(&mut state, notice);
                    drop(state);
                    if news {
                        self.tell(notice);
                    }
                }
                None => {}
            }
        }
    }

    /// Collectives fail from the one of a notice on, here and, if that is news, at the other members (G-7).
    fn note(&self, notice: Notice) {
        let news = self.failures.note(&mut self.failures.lock(), notice);
        if news {
            self.tell(notice);
        }
        // Threads of this member that wait look at what has changed. A closed lane ends their waits.
        let _ = self.tags.node().tagged().note_started();
    }

    /// Sends a notice to the other members. A revocation also ends the tagged messages of the group.
    fn tell(&self, notice: Notice) {
        let (me, members) = (self.me, self.members.len());
        if notice.cause == Cause::Revoked {
            // A closed endpoint exchanges nothing.
            let _ = self.tags.node().tagged().revoke_group(self.id.context(Purpose::PointToPoint));
        }
        let tell = |member: usize| {
            if member != me {
                // One that is gone need not know.
                let _ = self.notices.send_buffered(self.members[member], 0, &notice.to_bytes());
            }
        };
        if members <= TELL_ALL {
            return (0..members).for_each(tell);
        }
        let mut distance = 1;
        while distance < members {
            tell((me + distance) % members);
            tell((me + members - distance) % members);
            distance *= 2;
        }
    }

    /// The others go on without this member: all collectives of the group fail, and nobody else is told.
    pub(super) fn note_excluded(&self, by: Rank) {
        self.failures.exclude(&mut self.failures.lock(), self.members[self.me], by);
        let _ = self.tags.node().tagged().note_started();
    }

    /// Exchanges no more messages of the group with members that are lost by a decision (G-13).
    pub(super) fn fence(&self, lost: &[bool]) {
        let contexts = self.id.context(Purpose::PointToPoint)..=self.id.context(Purpose::Notices);
        for (rank, _) in self.members.iter().zip(lost).filter(|(_, lost)| **lost) {
            self.fenced.store(true, Ordering::Relaxed);
            // A closed endpoint exchanges nothing.
            let _ = self.tags.node().tagged().fence(*rank, contexts.clone());
        }
    }

    /// Which members are known to be lost, by number.
    pub(super) fn known_lost(&self) -> Vec<bool> {
        let state = self.failures.lock();
        self.members.iter().map(|rank| state.lost.iter().any(|(lost, _)| lost == rank)).collect()
    }

    /// Members that notices name as gone.
    pub(super) fn lost_by_notice(&self) -> Vec<(usize, Cause)> {
        if !self.failures.any() {
            return Vec::new();
        }
        let place = |rank: Rank| self.members.iter().position(|member| *member == rank);
        let lost = &self.failures.lock().lost;
        lost.iter().filter_map(|(rank, why)| Some((place(*rank)?, Cause::Gone(*rank, *why)))).collect()
    }

    /// A collective has failed here: tells the others, and returns what its caller is told.
    #[cold]
    pub(super) fn fail(&self, number: u64, error: Error) -> Error {
        let cause = match &error {
            Error::PeerGone(rank, why) => Cause::Gone(*rank, *why),
            Error::Send(SendError::Closed) => return error,
            Error::Revoked => Cause::Revoked,
            Error::Excluded(by) => {
                self.note_excluded(*by);
                return error;
            }
            _ => Cause::Failed(self.members[self.me]),
        };
        self.note(Notice { first: number, cause });
        error
    }
}

/// A notice that a member is excluded.
#[cfg(test)]
pub(super) fn exclusion(rank: Rank) -> [u8; NOTICE] {
    Notice { first: 0, cause: Cause::Gone(rank, Down::Excluded) }.to_bytes()
}

#[cfg(test)]
mod tests {
    use tautline_node::link::Death;

    use super::*;

    #[test]
    fn notices_survive_the_wire() {
        let causes = [
            Cause::Gone(70_000, Down::Exited),
            Cause::Gone(1, Down::Died(Death::Silence)),
            Cause::Gone(2, Down::Closed),
            Cause::Failed(3),
            Cause::Revoked,
        ];
        for (first, cause) in (0..).zip(causes) {
            let notice = Notice { first, cause };
            assert_eq!(Notice::from_bytes(&notice.to_bytes()), Some(notice));
        }
        let mut bytes = Notice { first: 1, cause: Cause::Revoked }.to_bytes();
        bytes[12] = 9;
        assert_eq!(Notice::from_bytes(&bytes), None);
    }
}
