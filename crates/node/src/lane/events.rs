//! What happened and waits to be read by the program (N-8).

use std::collections::VecDeque;

use crate::limits::MAX_EVENTS;
use crate::{Event, Rank};

/// Events in order; the oldest give way when too many wait, and the program is told how many.
#[derive(Debug)]
pub(crate) struct EventQueue {
    rank: Rank,
    events: VecDeque<Event>,
    /// Events dropped that the program has not been told of.
    untold: u64,
    /// Events dropped in all.
    pub(crate) lost: u64,
}

impl EventQueue {
    /// The queue of the node of `rank`, which is named in traces.
    pub(crate) fn new(rank: Rank) -> EventQueue {
        EventQueue { rank, events: VecDeque::new(), untold: 0, lost: 0 }
    }

    pub(crate) fn push(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
            self.untold += 1;
            self.lost += 1;
        }
        tracing::debug!(rank = self.rank, ?event, "event");
        self.events.push_back(event);
    }

    /// The next event; first of all, how many of the oldest were dropped.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        match std::mem::take(&mut self.untold) {
            0 => self.events.pop_front(),
            events => Some(Event::Lost { events }),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-10: the oldest events give way, and that is the first thing the program reads.
    #[test]
    fn oldest_events_are_dropped_first() {
        let mut queue = EventQueue::new(0);
        for peer in 0..MAX_EVENTS as Rank + 3 {
            queue.push(Event::PeerUp { peer, incarnation: 1 });
        }
        assert_eq!(queue.pop(), Some(Event::Lost { events: 3 }));
        assert_eq!(queue.pop(), Some(Event::PeerUp { peer: 3, incarnation: 1 }));
        assert_eq!(queue.lost, 3);
    }
}
