//! Events that the program has not read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use tautline_node::limits::MAX_EVENTS;

use crate::Event;
use crate::waiters::Waiters;

/// The node's events, kept for the program. Memory events stay in the node, which has a queue of its own for
/// them.
#[derive(Default)]
pub(crate) struct EventQueue {
    queue: RefCell<VecDeque<Event>>,
    /// Events that were dropped for later ones, and not reported.
    lost: Cell<u64>,
    /// There are events of which no wait has returned yet.
    unseen: Cell<bool>,
    /// Futures to be woken when there are events.
    pub(crate) waiters: Waiters,
}

impl EventQueue {
    /// Appends an event. A full queue drops its oldest one, and counts it.
    pub(crate) fn push(&self, event: Event) {
        let mut queue = self.queue.borrow_mut();
        if queue.len() == MAX_EVENTS {
            let lost = match queue.pop_front() {
                Some(Event::Lost { events }) => events,
                _ => 1,
            };
            self.lost.set(self.lost.get() + lost);
        }
        queue.push_back(event);
        self.unseen.set(true);
    }

    /// Takes the oldest event; first of all the number of dropped ones, if any were.
    pub(crate) fn pop(&self) -> Option<Event> {
        match self.lost.take() {
            0 => self.queue.borrow_mut().pop_front(),
            events => Some(Event::Lost { events }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    pub(crate) fn set_unseen(&self, unseen: bool) {
        self.unseen.set(unseen);
    }

    /// Whether there are events that no wait has returned for; from now on there are none.
    #[inline]
    pub(crate) fn take_unseen(&self) -> bool {
        self.unseen.replace(false)
    }

    /// Wakes the futures that wait for events, if there are unseen ones.
    pub(super) fn wake_waiters(&self) {
        if self.unseen.get() && !self.waiters.is_empty() {
            self.waiters.wake();
        }
    }
}
