//! The contexts of groups, and what an endpoint keeps for all of its groups (G-1, G-2).

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_node::TagRequest;

use super::Inner;
use super::choice::{Algorithm, Kind};
use crate::core::SharedStyle;
use crate::error::{Error, Result};
use crate::tags::{Receive, Request, Tags};
use crate::{Down, Rank};

/// Contexts from here on belong to groups.
pub const FIRST_CONTEXT: u32 = 1 << 31;

/// Ids that a program chooses for its groups are below this.
pub const CHOSEN_IDS: u32 = 1 << 28;

/// The most algorithms that a program is told of: other events have to find room, too (T-10).
const MAX_TOLD: usize = 256;

/// The most groups of an endpoint that share memory.
const MAX_SHARING: usize = 256;

/// Set in the ids of groups that a program has chosen.
const CHOSEN: u32 = CHOSEN_IDS;

/// What a context of a group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    PointToPoint = 0,
    Collective = 1,
    /// Members tell each other of failures.
    Notices = 2,
    /// The ids of groups that are created through this one, or through none, if it is that of all ranks.
    Creation = 3,
}

/// The number of a group: the same at all of its members, and different from those of other groups that one
/// of them is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u32);

impl Id {
    /// The group of all ranks.
    pub(super) const WORLD: Id = Id(0);

    /// An id that the program has chosen.
    pub(super) fn chosen(number: u32) -> Result<Id> {
        if number < CHOSEN_IDS {
            return Ok(Id(number | CHOSEN));
        }
        Err(Error::other(format!("the id {number} of a group is not below {CHOSEN_IDS}")))
    }

    pub(super) fn context(self, purpose: Purpose) -> u32 {
        FIRST_CONTEXT | self.0 << 2 | purpose as u32
    }

    pub(super) fn to_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }

    /// The id that a rank, one of `size`, has sent.
    pub(super) fn from_bytes(bytes: &[u8], rank: Rank, size: u32) -> Result<Id> {
        let number = bytes.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX);
        if ids_of(rank, size).contains(&number) {
            return Ok(Id(number));
        }
        Err(Error::Violation("the id of a group that is not its creator's"))
    }
}

/// The ids that a rank, one of `size`, gives to groups whose first member it is. Zero is that of all ranks.
fn ids_of(rank: Rank, size: u32) -> std::ops::Range<u32> {
    let (rank, each) = (crate::Address::from(rank).rank, CHOSEN_IDS / size.max(1));
    (rank * each).max(1)..(rank + 1) * each
}

/// A collective that was started.
pub(super) trait Started: std::fmt::Debug + Send + Sync {
    /// Does what can be done now. Appends what it waits for. True if it has ended.
    fn advance_started(&self, waits: &mut Vec<TagRequest>) -> bool;
}

/// What an endpoint keeps for all of its groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    world: Mutex<Option<Arc<Inner>>>,
    ids: Mutex<Ids>,
    /// Collectives that were started, and that nobody waits for now.
    active: Mutex<Vec<Arc<dyn Started>>>,
    active_count: AtomicUsize,
    /// Counts collectives that were started and did not end at once.
    started: AtomicU64,
    /// Groups whose members share memory.
    sharing: AtomicUsize,
    /// The algorithms that the program was told of, with the numbers of members.
    told: Mutex<HashSet<(Kind, Algorithm, usize)>>,
}

#[derive(Debug, Default)]
struct Ids {
    /// Ids given so far.
    given: u32,
    /// Ids of groups that were freed.
    free: VecDeque<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Groups {
    /// Whether the program is to be told that so many members use an algorithm. Once, and of at most
    /// [`MAX_TOLD`].
    pub(super) fn is_news(&self, kind: Kind, algorithm: Algorithm, members: usize) -> bool {
        let mut told = lock(&self.told);
        told.len() < MAX_TOLD && told.insert((kind, algorithm, members))
    }

    /// Whether another group may share memory.
    pub(super) fn may_share(&self) -> bool {
        self.sharing.load(Ordering::Relaxed) < MAX_SHARING
    }

    /// Counts the groups that share memory.
    pub(super) fn count_sharing(&self, shares: bool) {
        if shares {
            self.sharing.fetch_add(1, Ordering::Relaxed);
        } else {
            self.sharing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The group of all ranks, made once.
    pub(super) fn world(&self, make: impl FnOnce() -> Result<Inner>) -> Result<Arc<Inner>> {
        let mut world = lock(&self.world);
        if let Some(made) = &*world {
            return Ok(made.clone());
        }
        let made = Arc::new(make()?);
        *world = Some(made.clone());
        Ok(made)
    }

    /// An id for a group whose first member is `rank`, this one.
    pub(super) fn give_id(&self, rank: Rank, size: u32) -> Result<Id> {
        let range = ids_of(rank, size);
        let mut ids = lock(&self.ids);
        if ids.given < range.len() as u32 {
            ids.given += 1;
            return Ok(Id(range.start + ids.given - 1));
        }
        // The one that was freed first: messages of its group are the least likely to be on their way.
        ids.free.pop_front().map(Id).ok_or(Error::TooMany("groups that this rank created"))
    }

    /// The group of an id that [`Groups::give_id`] gave is no more, or was never made.
    pub(super) fn return_id(&self, Id(id): Id) {
        lock(&self.ids).free.push_back(id);
    }

    pub(super) fn add(&self, started: Arc<dyn Started>) {
        lock(&self.active).push(started);
        self.active_count.fetch_add(1, Ordering::Relaxed);
        // After the list has it: whoever sees the old number is told.
        self.started.fetch_add(1, Ordering::Release);
    }

    /// Counts collectives that were started and did not end at once.
    pub(super) fn started(&self) -> u64 {
        self.started.load(Ordering::Acquire)
    }

    pub(super) fn remove(&self, started: &dyn Started) {
        let mut active = lock(&self.active);
        if let Some(at) = active.iter().position(|it| std::ptr::addr_eq(Arc::as_ptr(it), started)) {
            active.swap_remove(at);
            self.active_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Does what can be done now of all collectives that were started, except one, and appends what they
    /// wait for.
    #[inline]
    pub(super) fn advance_all(&self, except: Option<&dyn Started>, waits: &mut Vec<TagRequest>) {
        if self.active_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let active = lock(&self.active).clone();
        for started in active {
            if except.is_some_and(|it| std::ptr::addr_eq(Arc::as_ptr(&started), it)) {
                continue;
            }
            if started.advance_started(waits) {
                self.remove(&*started);
            }
        }
    }
}

impl Groups {
    /// Waits for a receive. Meanwhile the collectives go on that were started (G-21).
    pub(super) fn wait_for(&self, tags: &Tags, receive: &Receive) -> Result<()> {
        while !receive.test()? && !tags.node().is_virtual() {
            let (started, mut unless) = (self.started(), Vec::new());
            self.advance_all(None, &mut unless);
            let stop = || self.started() != started;
            tags.node().tagged().wait_tagged_unless(&[receive.id()], &unless, None, stop)?;
        }
        Ok(())
    }
}

impl SharedStyle for Groups {
    fn peer_down(&self, _peer: Rank, _why: Down) {}

    fn closed(&self) {
        // They hold what holds this.
        let (world, active) = (lock(&self.world).take(), std::mem::take(&mut *lock(&self.active)));
        drop((world, active));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G-1: the ids of different ranks, those that programs choose and that of all ranks differ, also in jobs
    /// of the largest size, and so do all contexts.
    #[test]
    fn ids_do_not_collide() {
        for size in [1, 2, 3, 17, 10_000, 65_536] {
            let mut end = 1;
            for rank in 0..size {
                let ids = ids_of(rank, size);
                assert!(ids.start >= end && ids.len() >= 4095 && ids.end <= CHOSEN_IDS);
                end = ids.end;
            }
        }
        let last = Id::chosen(CHOSEN_IDS - 1).unwrap();
        assert_eq!(last.context(Purpose::Creation), u32::MAX);
        assert!(Id::chosen(CHOSEN_IDS).is_err());
        assert_eq!(Id::WORLD.context(Purpose::PointToPoint), FIRST_CONTEXT);
        assert!(Id::from_bytes(&7_u32.to_le_bytes(), 0, 2).is_ok());
        assert!(Id::from_bytes(&7_u32.to_le_bytes(), 1, 2).is_err());
    }

    /// G-2: freed ids are given again when all others are in use, the oldest first.
    #[test]
    fn ids_are_given_again() {
        let groups = Groups::default();
        let all: Vec<Id> = (0..4096).map(|_| groups.give_id(9, 65_536).unwrap()).collect();
        assert!(matches!(groups.give_id(9, 65_536), Err(Error::TooMany(_))));
        groups.return_id(all[5]);
        groups.return_id(all[1]);
        assert_eq!(groups.give_id(9, 65_536).unwrap(), all[5]);
        assert_eq!(groups.give_id(9, 65_536).unwrap(), all[1]);
    }
}
