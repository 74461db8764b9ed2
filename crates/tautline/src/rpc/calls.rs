//! The caller's table of calls in progress.

use std::task::Waker;

use super::protocol::{Status, shrink, word};
use crate::core::Charge;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::{Rank, SendError};

/// Calls in progress. A call's number contains its index here.
#[derive(Default)]
pub(super) struct Calls {
    entries: Vec<Entry>,
    free: Vec<u32>,
    live: usize,
    /// Counts calls, from a random number on, so that an answer to a former incarnation of this node is not
    /// taken for one to this.
    count: Option<u64>,
}

#[derive(Default)]
struct Entry {
    number: u64,
    peer: Rank,
    live: bool,
    ended: Option<Ended>,
    /// The answer.
    bytes: Vec<u8>,
    /// For an answer of more than one frame.
    charge: Charge,
    waker: Option<Waker>,
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Ended {
    Answered(Status),
    /// The request could not be sent.
    Unsent(Error),
}

/// Bits of a call's number that are its index; the others count.
pub(super) const INDEX_BITS: u32 = 24;
/// Set in the index of a call that was made through a handle; those are in a table of their own.
pub(super) const THROUGH_HANDLE: u64 = 1 << (INDEX_BITS - 1);

fn index(number: u64) -> usize {
    (number & ((1 << INDEX_BITS) - 1)) as usize
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Enters a call; returns its number.
    pub(super) fn begin(&mut self, ep: &Endpoint, peer: Rank) -> Result<u64> {
        let count = match self.count {
            Some(count) => count.wrapping_add(1),
            None => word(&ep.node().fresh_secret()?, 0).unwrap_or_default(),
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() as u64 >= THROUGH_HANDLE => return Err(SendError::WouldBlock.into()),
            None => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
        };
        self.count = Some(count);
        let entry = &mut self.entries[index as usize];
        entry.number = count << INDEX_BITS | u64::from(index);
        (entry.peer, entry.live, entry.ended) = (peer, true, None);
        entry.bytes.clear();
        self.live += 1;
        Ok(entry.number)
    }

    #[inline]
    fn get(&mut self, number: u64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(index(number))?;
        (entry.live && entry.number == number).then_some(entry)
    }

    /// Whether somebody still waits for the call.
    pub(super) fn is_live(&mut self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// Whether the call has ended.
    #[inline]
    pub(super) fn has_ended(&mut self, number: u64) -> bool {
        self.get(number).is_some_and(|entry| entry.ended.is_some())
    }

    /// Wakes `waker` when the call has ended.
    pub(super) fn wake_at_end(&mut self, number: u64, waker: &Waker) {
        if let Some(entry) = self.get(number) {
            entry.waker = Some(waker.clone());
        }
    }

    /// Takes the answer of a call that has ended, and removes the call.
    #[inline]
    pub(super) fn take_ended(&mut self, number: u64) -> Option<(Ended, Vec<u8>)> {
        let entry = self.get(number)?;
        let ended = entry.ended.take()?;
        let bytes = std::mem::take(&mut entry.bytes);
        self.remove(number);
        Some((ended, bytes))
    }

    /// Removes a call; an answer that arrives later is ignored.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(entry) = self.get(number) {
            entry.live = false;
            shrink(&mut entry.bytes);
            entry.charge.clear();
            entry.waker = None;
            self.live -= 1;
            self.free.push(index(number) as u32);
        }
    }

    /// Gives the memory of an answer to the next call with the same index.
    #[inline]
    pub(super) fn recycle(&mut self, number: u64, mut bytes: Vec<u8>) {
        bytes.clear();
        shrink(&mut bytes);
        let entry = &mut self.entries[index(number)];
        if entry.bytes.capacity() == 0 {
            entry.bytes = bytes;
        }
    }

    /// The request could not be sent.
    pub(super) fn unsent(&mut self, number: u64, error: Error) {
        if let Some(entry) = self.get(number).filter(|entry| entry.ended.is_none()) {
            entry.end(Ended::Unsent(error));
        }
    }

    /// An answer cannot be kept: ends the call with the error, which is returned if nobody waits here.
    pub(super) fn refused(&mut self, number: u64, error: Error) -> Option<Error> {
        match self.get(number).filter(|entry| entry.ended.is_none()) {
            Some(entry) => entry.end(Ended::Unsent(error)),
            None => return Some(error),
        }
        None
    }

    /// Whether somebody waits here for an answer of a peer.
    pub(super) fn is_awaited(&mut self, from: Rank, number: u64) -> bool {
        self.get(number).is_some_and(|entry| entry.peer == from && entry.ended.is_none())
    }

    /// An answer of more than one frame has arrived; returned if nobody waits for it here.
    pub(super) fn answered_whole(
        &mut self,
        from: Rank,
        number: u64,
        status: Status,
        answer: (Vec<u8>, Charge),
    ) -> Option<(Vec<u8>, Charge)> {
        let entry = self.get(number).filter(|entry| entry.peer == from && entry.ended.is_none());
        let Some(entry) = entry else { return Some(answer) };
        (entry.bytes, entry.charge) = answer;
        entry.end(Ended::Answered(status));
        None
    }

    /// An answer has arrived. False if nobody waits for it here, or it is from another peer.
    #[inline]
    pub(super) fn answered(&mut self, from: Rank, number: u64, status: Status, bytes: &[u8]) -> bool {
        let entry = self.get(number).filter(|entry| entry.peer == from && entry.ended.is_none());
        let Some(entry) = entry else { return false };
        entry.bytes.extend_from_slice(bytes);
        entry.end(Ended::Answered(status));
        true
    }
}

impl Entry {
    #[inline]
    fn end(&mut self, ended: Ended) {
        self.ended = Some(ended);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::KEPT;
    use super::*;

    /// The memory of a long answer is freed when its call is removed; that of a short one is kept for the
    /// next call.
    #[test]
    fn memory_of_long_answers_is_freed() {
        let mut calls = Calls { entries: vec![Entry { live: true, ..Entry::default() }], ..Calls::default() };
        calls.live = 1;
        calls.answered(0, 0, Status::Good, &vec![1; KEPT / 2]);
        assert!(calls.entries[0].bytes.capacity() <= KEPT);
        calls.remove(0);
        assert!(calls.entries[0].bytes.capacity() >= KEPT / 2);
        let entry = &mut calls.entries[0];
        (entry.live, entry.ended, calls.live) = (true, None, 1);
        calls.answered(0, 0, Status::Good, &vec![1; 1 << 20]);
        assert!(calls.entries[0].bytes.len() >= 1 << 20);
        calls.remove(0);
        assert!(calls.entries[0].bytes.capacity() <= KEPT);
    }
}
