//! What can happen to a node. Failures are events, never a crash of the process (N-8).

use tautline_link::Death;
use tautline_wire::handshake::Refusal;

use crate::memory::MemoryEvent;
use crate::{Choice, Rank};

/// Why a peer is no longer reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Down {
    /// It died: silence, restart, or a broken protocol.
    Died(Death),
    /// Its process, on this host, has ended or let go of the channel.
    Exited,
    /// It closed in good order.
    Closed,
    /// It was never reached in time.
    Unreachable,
    /// It refused us.
    Refused(Refusal),
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Down::Died(death) => write!(f, "{death}"),
            Down::Exited => f.write_str("its process has ended"),
            Down::Closed => f.write_str("it closed"),
            Down::Unreachable => f.write_str("it could not be reached"),
            Down::Refused(refusal) => write!(f, "it refused: {refusal}"),
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device was opened, with the reason for the choice.
    Device(Choice),
    /// Which way a channel to a peer goes, and why; told before it is up, and whenever it changes. A change loses nothing and
    /// reorders nothing.
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
    /// A peer can no longer be reached. What was sent to it and not acknowledged may or may not have arrived. What it sent before, and has not been extracted,
    /// still can be.
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
    /// So many events were dropped here, the oldest, because the program did not read them.
    Lost {
        /// How many.
        events: u64,
    },
    /// A tripwire, an operation's end, a notice: something that happened to memory.
    Memory(MemoryEvent),
}
