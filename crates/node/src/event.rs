//! What can happen to a node. Failures are events, never a crash of the process (N-8).

use crate::memory::MemoryEvent;
use crate::{Choice, Down, Rank};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A device was opened, with the reason for the choice.
    Device(Choice),
    /// Which transport a channel to a peer uses, and why. Reported before the peer is up, and whenever it
    /// changes; a change loses nothing and reorders nothing.
    Transport {
        /// The peer.
        peer: Rank,
        /// The device's name.
        device: &'static str,
        /// Why this one.
        reason: String,
    },
    /// A peer can be reached; `incarnation` counts how often this has happened.
    PeerUp {
        /// The peer.
        peer: Rank,
        /// Starts at one.
        incarnation: u32,
    },
    /// A peer can no longer be reached. What was sent to it and not acknowledged may or may not have arrived.
    /// What it sent before can still be extracted.
    PeerDown {
        /// The peer.
        peer: Rank,
        /// Which of its incarnations; zero if it was never up.
        incarnation: u32,
        /// Why.
        why: Down,
    },
    /// Frames to this peer may now have at most this many bytes.
    PathChanged {
        /// The peer.
        peer: Rank,
        /// Bytes of a frame.
        max_frame: usize,
    },
    /// The oldest events were dropped because the program did not read them.
    Lost {
        /// How many.
        events: u64,
    },
    /// A tripwire, an operation's end, a notice: something that happened to memory.
    Memory(MemoryEvent),
}
