//! What happened and waits to be read by the program (N-8).

use tautline_mem::NextEvent;

use crate::limits::MAX_EVENTS;
use crate::{Event, Rank};

/// The events of a lane. The oldest give way when too many wait, and the program is told how many.
#[derive(Debug)]
pub(crate) struct EventQueue {
    rank: Rank,
    events: tautline_mem::EventQueue<Event>,
}

impl EventQueue {
    /// The queue of the node of `rank`, which is named in traces.
    pub(crate) fn new(rank: Rank) -> EventQueue {
        EventQueue { rank, events: tautline_mem::EventQueue::new(MAX_EVENTS) }
    }

    pub(crate) fn push(&mut self, event: Event) {
        tracing::debug!(rank = self.rank, ?event, "event");
        self.events.push(event);
    }

    /// The next event; first of all, how many of the oldest were dropped.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.events.pop().map(|next| match next {
            NextEvent::Event(event) => event,
            NextEvent::Dropped(events) => Event::Lost { events },
        })
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Events dropped in all.
    pub(crate) fn lost(&self) -> u64 {
        self.events.lost()
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
        assert_eq!(queue.lost(), 3);
    }
}
