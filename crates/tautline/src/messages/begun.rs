//! Messages of which the rest is still to come.

use std::collections::HashMap;

use tautline_node::limits::MAX_BEGUN;
use tautline_node::{MessageId, PeerId};

use super::stream::Stream;
use crate::Rank;
use crate::hash::Seeded;

/// What becomes of the rest of a message.
#[derive(Debug)]
pub(crate) enum Running {
    /// A handler's slot takes it.
    Task {
        /// Index of the handler.
        handler: usize,
        /// Its slot.
        slot: usize,
    },
    /// Nobody wants it any more; the stream only keeps the sender's window open.
    Discard(Box<Stream>),
    /// It is collected for a handler of short messages.
    Collect {
        /// Index of the handler.
        handler: usize,
        /// What has come.
        bytes: Vec<u8>,
        /// What will have come.
        total: u64,
    },
}

/// All of them, and how many each peer has begun (M-10).
#[derive(Debug, Default)]
pub(crate) struct Begun {
    messages: HashMap<MessageId, Running, Seeded>,
    /// By rank: the incarnation that is counted, and its messages.
    counts: Vec<(u32, u32)>,
}

impl Begun {
    #[inline]
    pub(crate) fn get(&self, incoming: MessageId) -> Option<&Running> {
        self.messages.get(&incoming)
    }

    pub(crate) fn get_mut(&mut self, incoming: MessageId) -> Option<&mut Running> {
        self.messages.get_mut(&incoming)
    }

    /// Adds a message, or tells of one that is there what becomes of it now. False if its sender has begun more than it may.
    pub(crate) fn insert(&mut self, incoming: MessageId, running: Running) -> bool {
        if self.messages.insert(incoming, running).is_some() {
            return true;
        }
        let PeerId { rank, incarnation } = incoming.peer;
        let at = rank as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, (0, 0));
        }
        let (counted, count) = &mut self.counts[at];
        if *counted != incarnation {
            (*counted, *count) = (incarnation, 0);
        }
        *count += 1;
        *count <= MAX_BEGUN
    }

    pub(crate) fn remove(&mut self, incoming: MessageId) -> Option<Running> {
        let running = self.messages.remove(&incoming)?;
        if let Some((_, count)) =
            self.counts.get_mut(incoming.peer.rank as usize).filter(|c| c.0 == incoming.peer.incarnation)
        {
            *count -= 1;
        }
        Some(running)
    }

    /// What a peer has begun up to an incarnation, in order.
    pub(crate) fn of(&self, from: Rank, last: u32) -> Vec<MessageId> {
        let mut all: Vec<MessageId> = self
            .messages
            .keys()
            .filter(|it| it.peer.rank == from && it.peer.incarnation <= last)
            .copied()
            .collect();
        // A hash map knows no order; handlers shall.
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(rank: Rank, incarnation: u32, number: u32) -> MessageId {
        PeerId::new(rank, incarnation).message(number)
    }

    fn collect() -> Running {
        Running::Collect { handler: 0, bytes: Vec::new(), total: 1 }
    }

    #[test]
    fn too_many_are_noticed() {
        let mut begun = Begun::default();
        assert!((0..MAX_BEGUN).all(|message| begun.insert(id(3, 1, message), collect())));
        assert!(begun.insert(id(3, 1, 0), collect()), "it is there already");
        assert!(begun.insert(id(2, 1, 0), collect()), "another peer");
        assert!(begun.insert(id(3, 2, 0), collect()), "a new life");
        assert!(begun.remove(id(3, 2, 0)).is_some());
        assert!(begun.insert(id(3, 2, 1), collect()));
    }

    #[test]
    fn what_has_ended_makes_room() {
        let mut begun = Begun::default();
        assert!((0..MAX_BEGUN).all(|message| begun.insert(id(3, 1, message), collect())));
        assert!(begun.remove(id(3, 1, 7)).is_some() && begun.remove(id(3, 1, 7)).is_none());
        assert!(begun.insert(id(3, 1, MAX_BEGUN), collect()));
        assert!(!begun.insert(id(3, 1, MAX_BEGUN + 1), collect()));
    }

    #[test]
    fn former_lives_do_not_count() {
        let mut begun = Begun::default();
        assert!(begun.insert(id(0, 1, 5), collect()) && begun.insert(id(0, 2, 5), collect()));
        assert!(begun.remove(id(0, 1, 5)).is_some());
        assert_eq!(begun.counts[0], (2, 1));
        assert_eq!(begun.of(0, 1), []);
        assert_eq!(begun.of(0, 2), [id(0, 2, 5)]);
    }
}
