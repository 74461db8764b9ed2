//! The ways to use memory, the styles above it, and messages with tags.

use serde::{Deserialize, Serialize};

use super::Policy;

/// One way to use memory, or a style built on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Style {
    /// Puts that fire a tripwire, from a rewritten buffer; every byte is read.
    Put,
    /// The same, but each put is written where it is sent from.
    PutInPlace,
    /// Puts to one place, of which the receiver reads the last one only.
    PutUnread,
    /// One put at a time, each acknowledged by the reader.
    PutOne,
    /// Puts of which the receiver takes each part as it arrives, by tripwires on every part.
    PutEarly,
    /// Stores through a mapping, polled.
    Mapped,
    /// Entries of the distributed queue.
    Queue,
    /// The byte stream.
    Stream,
    /// Calls of a raw service.
    Rpc,
    /// Calls of a typed service.
    TypedRpc,
    /// Messages with tags.
    Tag,
    /// The same, behind 10,000 receives and 10,000 messages that nothing matches.
    TagQueues,
    /// A server of many endpoints with one event queue, kept busy.
    Server,
    /// The same, asleep when the request comes.
    Sleeper,
    /// Tripwires that do not overlap.
    Disjoint,
    /// Tripwires of which any two neighbours overlap by half.
    Overlapping,
}

impl Style {
    pub fn name(self) -> &'static str {
        match self {
            Style::Put => "put",
            Style::PutInPlace => "put-in-place",
            Style::PutUnread => "put-unread",
            Style::PutOne => "put-one",
            Style::PutEarly => "put-early",
            Style::Mapped => "mapped",
            Style::Queue => "queue",
            Style::Stream => "stream",
            Style::Rpc => "rpc",
            Style::TypedRpc => "rpc-typed",
            Style::Tag => "tag",
            Style::TagQueues => "tag-queues",
            Style::Server => "server",
            Style::Sleeper => "server-asleep",
            Style::Disjoint => "disjoint",
            Style::Overlapping => "overlapping",
        }
    }

    /// The waiting policy of the server. The client spins.
    pub fn waiting(self) -> Policy {
        match self {
            Style::Server | Style::Sleeper => Policy::SpinThenPark,
            _ => Policy::Spin,
        }
    }
}
