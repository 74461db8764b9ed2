//! The table of calls in progress that were made through handles. Callers are on any thread; the endpoint's
//! thread enters the answers.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::calls::{Ended, INDEX_BITS, THROUGH_HANDLE};
use super::protocol::{Status, word};
use super::timer::Timer;
use crate::core::{Charge, SharedStyle};
use crate::error::{Error, Result};
use crate::{Down, Rank, SendError};

/// Entries of the first segment; each further one has twice as many.
const FIRST: usize = 64;
/// Segments; together they have as many entries as a call's number can tell apart.
const SEGMENTS: usize = (INDEX_BITS - 1 - FIRST.ilog2()) as usize;
/// Answers of up to this many bytes are kept in the entry, without an allocation.
const SMALL: usize = 32;
/// Lists of free entries, so that threads seldom contend for one.
const LISTS: usize = 16;

/// Calls in progress. An entry never moves, and has a lock of its own: a caller and the endpoint's thread
/// meet only at the same call.
#[derive(Default)]
pub(super) struct SharedCalls {
    segments: [OnceLock<Box<[Slot]>>; SEGMENTS],
    /// Entries that were ever used.
    used: AtomicUsize,
    free: [FreeList; LISTS],
    /// The first count of every entry: random, so that an answer to a former incarnation of this node is not
    /// taken for one to this.
    first_count: OnceLock<u64>,
    timer: OnceLock<Timer>,
}

#[derive(Default)]
#[repr(align(128))]
struct FreeList(Mutex<Vec<usize>>);

#[derive(Default)]
#[repr(align(128))]
struct Slot(Mutex<Entry>);

#[derive(Default)]
struct Entry {
    /// Zero before the first call.
    number: u64,
    peer: Rank,
    live: bool,
    ended: Option<Ended>,
    answer: Bytes,
    /// For an answer of more than one frame.
    charge: Charge,
    waker: Option<Waker>,
    /// The list of free entries that it belongs to.
    list: usize,
}

/// An answer.
pub(super) enum Bytes {
    Small(u8, [u8; SMALL]),
    Large(Vec<u8>),
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::Small(0, [0; SMALL])
    }
}

impl From<&[u8]> for Bytes {
    #[inline]
    fn from(bytes: &[u8]) -> Bytes {
        if bytes.len() > SMALL {
            return Bytes::Large(bytes.to_vec());
        }
        let mut small = [0; SMALL];
        small[..bytes.len()].copy_from_slice(bytes);
        Bytes::Small(bytes.len() as u8, small)
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Small(len, bytes) => &bytes[..usize::from(*len)],
            Bytes::Large(bytes) => bytes,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The list of free entries of the calling thread.
fn own_list() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LIST: Cell<Option<usize>> = const { Cell::new(None) };
    }
    LIST.get().unwrap_or_else(|| {
        let list = THREADS.fetch_add(1, Ordering::Relaxed) % LISTS;
        LIST.set(Some(list));
        list
    })
}

/// The segment of an entry, and its place there.
fn place(index: usize) -> (usize, usize) {
    let segment = (index / FIRST + 1).ilog2();
    (segment as usize, index + FIRST - (FIRST << segment))
}

fn index(number: u64) -> usize {
    (number & (THROUGH_HANDLE - 1)) as usize
}

impl SharedCalls {
    pub(super) fn timer(&self) -> &Timer {
        self.timer.get_or_init(Timer::start)
    }

    /// The timer, if any deadline was ever awaited.
    pub(super) fn started_timer(&self) -> Option<&Timer> {
        self.timer.get()
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        let (segment, at) = place(index);
        self.segments.get(segment)?.get()?.get(at)
    }

    /// The entry of a call that somebody waits for.
    #[inline]
    fn get(&self, number: u64) -> Option<MutexGuard<'_, Entry>> {
        let entry = lock(&self.slot(index(number))?.0);
        (entry.live && entry.number == number).then_some(entry)
    }

    /// Enters a call; returns its number.
    pub(super) fn begin(&self, node: &tautline_node::Endpoint, peer: Rank) -> Result<u64> {
        let first_count = match self.first_count.get() {
            Some(first) => *first,
            None => {
                let first = word(&node.fresh_secret()?, 0).unwrap_or_default();
                *self.first_count.get_or_init(|| first)
            }
        };
        let list = own_list();
        let free = lock(&self.free[list].0).pop();
        let index = match free {
            Some(index) => index,
            None => self.add(list)?,
        };
        let mut entry = lock(&self.slot(index).expect("it was added").0);
        let count = if entry.number == 0 { first_count } else { (entry.number >> INDEX_BITS) + 1 };
        entry.number = count << INDEX_BITS | THROUGH_HANDLE | index as u64;
        (entry.peer, entry.live, entry.ended) = (peer, true, None);
        Ok(entry.number)
    }

    #[cold]
    fn add(&self, list: usize) -> Result<usize> {
        let most = (THROUGH_HANDLE as usize) - FIRST;
        let next = |used: usize| (used < most).then_some(used + 1);
        let index = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let index = index.map_err(|_| Error::from(SendError::WouldBlock))?;
        let (segment, at) = place(index);
        let segment = self.segments[segment]
            .get_or_init(|| std::iter::repeat_with(Slot::default).take(FIRST << segment).collect());
        lock(&segment[at].0).list = list;
        Ok(index)
    }

    /// Takes the answer of a call that has ended, and removes the call. Otherwise `waker` is woken at its
    /// end.
    pub(super) fn take_ended(&self, number: u64, waker: Option<&Waker>) -> Option<(Ended, Bytes)> {
        let mut entry = self.get(number)?;
        if entry.ended.is_none() {
            match (&mut entry.waker, waker) {
                (Some(known), Some(waker)) => known.clone_from(waker),
                (unknown @ None, Some(waker)) => *unknown = Some(waker.clone()),
                (_, None) => {}
            }
            return None;
        }
        let ended = entry.ended.take()?;
        let answer = std::mem::take(&mut entry.answer);
        self.release(entry);
        Some((ended, answer))
    }

    /// Removes a call; an answer that arrives later is ignored.
    pub(super) fn remove(&self, number: u64) {
        if let Some(mut entry) = self.get(number) {
            (entry.ended, entry.answer) = (None, Bytes::default());
            self.release(entry);
        }
    }

    fn release(&self, mut entry: MutexGuard<'_, Entry>) {
        entry.live = false;
        entry.charge.clear();
        let waker = entry.waker.take();
        let (index, list) = (index(entry.number), entry.list);
        drop(entry);
        drop(waker);
        lock(&self.free[list].0).push(index);
    }

    /// An answer has arrived; returns who waits for it. One that nobody waits for, or from another peer, is
    /// ignored.
    pub(super) fn answered(&self, from: Rank, number: u64, status: Status, bytes: &[u8]) -> Option<Waker> {
        if number & THROUGH_HANDLE == 0 {
            return None;
        }
        let entry = self.get(number).filter(|entry| entry.peer == from)?;
        end(entry, Ended::Answered(status), bytes.into())
    }

    /// As [`SharedCalls::answered`], for an answer of more than one frame.
    pub(super) fn answered_whole(
        &self,
        from: Rank,
        number: u64,
        status: Status,
        (bytes, charge): (Vec<u8>, Charge),
    ) -> Option<Waker> {
        let mut entry = self.get(number).filter(|entry| entry.peer == from && entry.ended.is_none())?;
        entry.charge = charge;
        end(entry, Ended::Answered(status), Bytes::Large(bytes))
    }

    /// Whether somebody waits for an answer of a peer.
    pub(super) fn is_awaited(&self, from: Rank, number: u64) -> bool {
        number & THROUGH_HANDLE != 0
            && self.get(number).is_some_and(|entry| entry.peer == from && entry.ended.is_none())
    }

    /// Ends every call that `chosen` names.
    fn end_all(&self, chosen: impl Fn(Rank) -> Option<Error>) {
        for index in 0..self.used.load(Ordering::Acquire) {
            // An entry that is just being added has no call yet.
            let Some(slot) = self.slot(index) else { continue };
            let entry = lock(&slot.0);
            if entry.live
                && let Some(error) = chosen(entry.peer)
            {
                wake(end(entry, Ended::Unsent(error), Bytes::default()));
            }
        }
    }

    /// Ends a call without an answer.
    pub(super) fn fail(&self, number: u64, error: Error) {
        if let Some(entry) = self.get(number) {
            wake(end(entry, Ended::Unsent(error), Bytes::default()));
        }
    }

    /// Calls that somebody waits for.
    pub(super) fn len(&self) -> usize {
        let used = self.used.load(Ordering::Relaxed);
        (0..used).filter_map(|index| self.slot(index)).filter(|slot| lock(&slot.0).live).count()
    }
}

/// Ends a call, unless it has ended, and returns who waits for it. A waker is the program's code, and must be
/// woken without a lock.
#[inline]
fn end(mut entry: MutexGuard<'_, Entry>, ended: Ended, answer: Bytes) -> Option<Waker> {
    if entry.ended.is_some() {
        return None;
    }
    entry.answer = answer;
    entry.ended = Some(ended);
    entry.waker.take()
}

fn wake(waker: Option<Waker>) {
    waker.into_iter().for_each(Waker::wake);
}

impl SharedStyle for SharedCalls {
    fn peer_down(&self, peer: Rank, why: Down) {
        self.end_all(|to| (to == peer).then_some(Error::PeerGone(peer, why)));
    }

    fn closed(&self) {
        self.end_all(|_| Some(SendError::Closed.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every index has a place of its own, and the segments hold all of them.
    #[test]
    fn places_are_consecutive() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(place(THROUGH_HANDLE as usize - FIRST - 1), (SEGMENTS - 1, (FIRST << (SEGMENTS - 1)) - 1));
    }
}
