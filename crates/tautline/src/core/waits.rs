//! Who waits for what.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::task::{Context, Waker};

use tautline_node::memory::Wakeup;

use crate::waiters::Waiters;

/// Futures that wait for something other than bytes of their own message.
pub(crate) struct Waits {
    /// Wait for room to send.
    pub(crate) room: Waiters,
    /// Wait for something that a lost peer will never do.
    pub(crate) peers: Waiters,
    /// Wait for an extraction that takes or runs something; see [`super::Core::register_turn`].
    pub(super) turns: Waiters,
    /// Drive the endpoint, and end when it is closed.
    #[cfg(feature = "tokio")]
    pub(crate) drivers: Waiters,
    /// Wait for a tripwire, a tripset or an operation. Each of those has one holder, hence at most one
    /// waiter.
    memory: RefCell<HashMap<Wakeup, Waker>>,
    /// The node's activity count when the oldest of the attempts that found no room was made.
    tried_at: Cell<u64>,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            room: Waiters::default(),
            peers: Waiters::default(),
            turns: Waiters::default(),
            #[cfg(feature = "tokio")]
            drivers: Waiters::default(),
            memory: RefCell::default(),
            tried_at: Cell::new(u64::MAX),
        }
    }
}

impl Waits {
    /// Wakes `context` when `what` has happened. A further call for the same thing replaces the waker.
    pub(crate) fn register_memory(&self, what: Wakeup, context: &Context<'_>) {
        self.memory.borrow_mut().insert(what, context.waker().clone());
    }

    pub(crate) fn remove_memory(&self, what: Wakeup) {
        self.memory.borrow_mut().remove(&what);
    }

    pub(super) fn wake_memory(&self, what: Wakeup) {
        let waker = self.memory.borrow_mut().remove(&what);
        waker.into_iter().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(super) fn memory_len(&self) -> usize {
        self.memory.borrow().len()
    }

    /// An attempt found no room when the node's activity was `activity`; any later activity is reason to try
    /// again.
    pub(crate) fn tried(&self, activity: u64) {
        self.tried_at.set(self.tried_at.get().min(activity));
    }

    pub(super) fn tried_at(&self) -> u64 {
        self.tried_at.get()
    }

    /// Everything that found no room is about to be tried again.
    #[inline]
    pub(crate) fn forget_attempts(&self) {
        self.tried_at.set(u64::MAX);
    }

    /// Wakes everybody: the endpoint is closed, and nobody will extract any more.
    pub(super) fn wake_all(&self) {
        self.peers.wake();
        self.turns.wake();
        self.memory.take().into_values().for_each(Waker::wake);
        self.room.wake();
        #[cfg(feature = "tokio")]
        self.drivers.wake();
    }
}
