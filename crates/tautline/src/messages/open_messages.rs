//! Messages of which more is to arrive.

use std::collections::HashMap;

use tautline_node::limits::MAX_BEGUN;
use tautline_node::{MessageId, PeerId, PeerTable};

use super::incoming_bytes::IncomingBytes;
use crate::core::Charge;
use crate::hash::Seeded;

/// What happens to the rest of a message.
#[derive(Debug)]
pub(super) enum OpenMessage {
    /// A handler reads it.
    Task(TaskId),
    /// Nobody reads it; its sender is only granted the window to send it.
    Discard(Box<IncomingBytes>),
    /// It is collected for a handler of short messages.
    Collect {
        /// Index of the handler.
        handler: usize,
        bytes: Vec<u8>,
        total: u64,
        charge: Charge,
    },
}

/// A slot of an `async` handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskId {
    /// Index of the handler.
    pub(super) handler: usize,
    pub(super) slot: usize,
}

/// All open messages, and how many each peer has (M-10).
#[derive(Debug, Default)]
pub(super) struct OpenMessages {
    messages: HashMap<MessageId, OpenMessage, Seeded>,
    /// By rank.
    counts: PeerTable<OpenCount>,
}

/// How many messages an incarnation of a peer has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpenCount {
    incarnation: u32,
    open: u32,
}

impl OpenMessages {
    #[inline]
    pub(super) fn get(&self, id: MessageId) -> Option<&OpenMessage> {
        self.messages.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: MessageId) -> Option<&mut OpenMessage> {
        self.messages.get_mut(&id)
    }

    /// Adds a message or replaces its state. False if its sender has more open messages than are allowed.
    pub(super) fn insert(&mut self, id: MessageId, state: OpenMessage) -> bool {
        if self.messages.insert(id, state).is_some() {
            return true;
        }
        let PeerId { rank, incarnation } = id.peer;
        let count = self.counts.get_or_insert_with(rank, OpenCount::default);
        if count.incarnation != incarnation {
            *count = OpenCount { incarnation, open: 0 };
        }
        count.open += 1;
        count.open <= MAX_BEGUN
    }

    pub(super) fn remove(&mut self, id: MessageId) -> Option<OpenMessage> {
        let state = self.messages.remove(&id)?;
        let count = self.counts.get_mut(id.peer.rank);
        if let Some(count) = count.filter(|count| count.incarnation == id.peer.incarnation) {
            count.open -= 1;
        }
        Some(state)
    }

    /// The open messages of a peer's incarnations up to this one, in order.
    pub(super) fn of(&self, last: PeerId) -> Vec<MessageId> {
        let from_it = |id: &&MessageId| id.peer.rank == last.rank && id.peer.incarnation <= last.incarnation;
        let mut all: Vec<MessageId> = self.messages.keys().filter(from_it).copied().collect();
        // A hash map has no order; handlers are to run in one.
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;

    fn id(rank: Rank, incarnation: u32, number: u32) -> MessageId {
        PeerId::new(rank, incarnation).message(number)
    }

    fn collect() -> OpenMessage {
        OpenMessage::Collect { handler: 0, bytes: Vec::new(), total: 1, charge: Charge::default() }
    }

    /// M-10: the limit counts messages per incarnation of a peer.
    #[test]
    fn open_messages_are_limited_per_peer() {
        let mut open = OpenMessages::default();
        assert!((0..MAX_BEGUN).all(|message| open.insert(id(3, 1, message), collect())));
        assert!(open.insert(id(3, 1, 0), collect()), "it is there already");
        assert!(open.insert(id(2, 1, 0), collect()), "another peer");
        assert!(open.insert(id(3, 2, 0), collect()), "a new incarnation");
        assert!(open.remove(id(3, 2, 0)).is_some());
        assert!(open.insert(id(3, 2, 1), collect()));
    }

    #[test]
    fn ended_messages_make_room() {
        let mut open = OpenMessages::default();
        assert!((0..MAX_BEGUN).all(|message| open.insert(id(3, 1, message), collect())));
        assert!(open.remove(id(3, 1, 7)).is_some() && open.remove(id(3, 1, 7)).is_none());
        assert!(open.insert(id(3, 1, MAX_BEGUN), collect()));
        assert!(!open.insert(id(3, 1, MAX_BEGUN + 1), collect()));
    }

    #[test]
    fn former_incarnations_do_not_count() {
        let mut open = OpenMessages::default();
        assert!(open.insert(id(0, 1, 5), collect()) && open.insert(id(0, 2, 5), collect()));
        assert!(open.remove(id(0, 1, 5)).is_some());
        assert_eq!(open.counts.get(0), Some(&OpenCount { incarnation: 2, open: 1 }));
        assert_eq!(open.of(PeerId::new(0, 1)), []);
        assert_eq!(open.of(PeerId::new(0, 2)), [id(0, 2, 5)]);
    }
}
