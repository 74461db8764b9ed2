//! A bounded queue of events. It is plain data: whoever uses it from several threads puts it behind the owner
//! word ([`crate::Owned`]).

use std::collections::VecDeque;

/// Events in order. The oldest give way when too many wait, and the reader is told how many.
#[derive(Debug)]
pub struct EventQueue<E> {
    events: VecDeque<E>,
    limit: usize,
    /// Events dropped that the reader has not been told of.
    untold: u64,
    lost: u64,
}

/// What is read from an [`EventQueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextEvent<E> {
    /// The oldest event.
    Event(E),
    /// So many events were dropped, which were older than those that follow.
    Dropped(u64),
}

impl<E> EventQueue<E> {
    /// A queue in which at most `limit` events wait.
    pub fn new(limit: usize) -> EventQueue<E> {
        EventQueue { events: VecDeque::new(), limit, untold: 0, lost: 0 }
    }

    /// Adds an event.
    pub fn push(&mut self, event: E) {
        if self.events.len() == self.limit {
            self.events.pop_front();
            self.untold += 1;
            self.lost += 1;
        }
        self.events.push_back(event);
    }

    /// Removes the next event; first of all, says how many of the oldest were dropped.
    pub fn pop(&mut self) -> Option<NextEvent<E>> {
        match std::mem::take(&mut self.untold) {
            0 => self.events.pop_front().map(NextEvent::Event),
            dropped => Some(NextEvent::Dropped(dropped)),
        }
    }

    /// Whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many events were dropped in all.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::Owned;
    use crate::sync::{Arc, AtomicBool, Ordering, thread};

    /// Reads everything; returns how many events that accounts for. They are in order.
    fn drain(queue: &Owned<EventQueue<u64>>, mut next: u64) -> u64 {
        while let Some(read) = queue.own(|_, _| ()).pop() {
            next = match read {
                NextEvent::Event(event) => {
                    assert_eq!(event, next);
                    next + 1
                }
                NextEvent::Dropped(dropped) => next + dropped,
            };
        }
        next
    }

    /// N-6, T-6, T-10: what the watchdog queues while the program goes to sleep is read in order, or reported
    /// as dropped, or the bell has rung: it is cleared before the check, and rung after the event is queued.
    #[test]
    fn loom_events_are_not_slept_through() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.max_branches = 20_000;
        model.check(|| {
            const EVENTS: u64 = 3;
            let queue = Arc::new(Owned::new(EventQueue::new(2)));
            let bell = Arc::new(AtomicBool::new(false));
            drop(queue.own(|_, _| ()));
            let dog = {
                let (queue, bell) = (queue.clone(), bell.clone());
                thread::spawn(move || {
                    for event in 0..EVENTS {
                        queue.own_as_guest().push(event);
                        bell.store(true, Ordering::Release);
                    }
                })
            };
            let (mut read, mut asleep) = (0, false);
            for _ in 0..2 {
                bell.swap(false, Ordering::AcqRel);
                read = drain(&queue, read);
                asleep = !bell.load(Ordering::Acquire);
                if asleep {
                    break;
                }
            }
            dog.join().unwrap();
            // A sleeping program with something left to read has been rung for.
            assert!(!asleep || read == EVENTS || bell.load(Ordering::Acquire), "asleep after {read}");
            assert_eq!(drain(&queue, read), EVENTS, "each is read or reported");
        });
    }
}
