//! How peers and messages are named.

use crate::Rank;

/// One incarnation of a rank: a process that was restarted is another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    /// The process.
    pub rank: Rank,
    /// Which of its incarnations, counted from one as this node met them.
    pub incarnation: u32,
}

impl PeerId {
    /// The incarnation `incarnation` of `rank`.
    pub const fn new(rank: Rank, incarnation: u32) -> PeerId {
        PeerId { rank, incarnation }
    }

    /// One of this peer's messages.
    pub const fn message(self, number: u32) -> MessageId {
        MessageId { peer: self, number }
    }
}

/// A message to or from a peer. Numbers are counted per channel and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// The peer that it goes to or comes from.
    pub peer: PeerId,
    /// Its number on the channel.
    pub number: u32,
}
