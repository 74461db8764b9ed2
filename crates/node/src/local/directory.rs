//! The lanes of this node: where each receives datagrams, and what its siblings hand over to it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::discovery::Greeted;
use crate::limits::{MAX_INCOMING, MEMBERS_LANE};

/// The lanes of a node. Locked only when lanes open and close and when channels are opened.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    lanes: Mutex<Vec<Option<LaneEntry>>>,
}

#[derive(Clone, Debug)]
struct LaneEntry {
    /// The port of its device.
    port: u16,
    mailbox: Arc<Mailbox>,
}

impl Directory {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<LaneEntry>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the lowest number that no lane has; none if there are too many lanes.
    pub(crate) fn reserve(&self) -> Option<u16> {
        let lanes = self.lock();
        let free = lanes.iter().position(Option::is_none).unwrap_or(lanes.len()) as u16;
        (free < MEMBERS_LANE).then(|| reserve(lanes, free))
    }

    /// Reserves the lane of the protocol among members, unless it is taken (N-29).
    pub(crate) fn reserve_for_members(&self) -> Option<u16> {
        let lanes = self.lock();
        let free = lanes.get(usize::from(MEMBERS_LANE)).is_none_or(Option::is_none);
        free.then(|| reserve(lanes, MEMBERS_LANE))
    }

    /// A lane can be reached from now on, at this port.
    pub(crate) fn open(&self, lane: u16, port: u16, mailbox: Arc<Mailbox>) {
        if let Some(entry) = self.lock().get_mut(usize::from(lane)) {
            *entry = Some(LaneEntry { port, mailbox });
        }
    }

    /// A lane can no longer be reached, and another may have its number.
    pub(crate) fn close(&self, lane: u16) {
        let closed = self.lock().get_mut(usize::from(lane)).and_then(Option::take);
        // Without the lock: connections that nobody took end here.
        drop(closed);
    }

    /// The port of a lane that is open.
    pub(crate) fn port(&self, lane: u16) -> Option<u16> {
        let port = self.lock().get(usize::from(lane))?.as_ref()?.port;
        (port != 0).then_some(port)
    }

    /// Hands a connection to the lane that it is for; without such a lane it is dropped.
    pub(crate) fn hand_over(&self, lane: u16, greeted: Greeted) {
        let entry = self.lock().get(usize::from(lane)).cloned().flatten();
        if let Some(entry) = entry {
            entry.mailbox.put(greeted);
        }
    }
}

fn reserve(mut lanes: MutexGuard<'_, Vec<Option<LaneEntry>>>, lane: u16) -> u16 {
    let at = usize::from(lane);
    if lanes.len() <= at {
        lanes.resize(at + 1, None);
    }
    lanes[at] = Some(LaneEntry { port: 0, mailbox: Arc::default() });
    lane
}

/// Connections for one lane that its siblings have accepted.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    greeted: Mutex<Vec<Greeted>>,
    filled: AtomicBool,
    /// Wakes the lane; none on a virtual clock.
    bell: Option<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn new(bell: Option<OwnedFd>) -> Mailbox {
        Mailbox { bell, ..Mailbox::default() }
    }

    /// Adds a connection. One that finds as many as may wait is closed (S-17).
    fn put(&self, greeted: Greeted) {
        let mut waiting = self.greeted.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_INCOMING {
            return;
        }
        waiting.push(greeted);
        drop(waiting);
        self.filled.store(true, Ordering::Release);
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether there is something to take.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> Vec<Greeted> {
        self.filled.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.greeted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-22: numbers are reused, and a lane is reachable only while it is open.
    #[test]
    fn numbers_are_reused() {
        let directory = Directory::default();
        assert_eq!([(); 3].map(|()| directory.reserve()), [Some(0), Some(1), Some(2)]);
        assert_eq!(directory.port(1), None);
        directory.open(1, 7001, Arc::default());
        assert_eq!((directory.port(1), directory.port(9)), (Some(7001), None));
        directory.close(1);
        assert_eq!(directory.port(1), None);
        assert_eq!([(); 2].map(|()| directory.reserve()), [Some(1), Some(3)]);
        let rest = std::iter::from_fn(|| directory.reserve()).count();
        assert_eq!(rest, usize::from(MEMBERS_LANE) - 4);
        // N-29: the lane of the members is none of them.
        assert_eq!([(); 2].map(|()| directory.reserve_for_members()), [Some(MEMBERS_LANE), None]);
        assert_eq!(directory.reserve(), None);
    }
}
