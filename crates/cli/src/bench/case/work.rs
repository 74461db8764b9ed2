//! What the two sides of a measurement do.

use serde::{Deserialize, Serialize};

use super::Experiment;

/// What the users at both ends do with the bytes of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Touch {
    /// The sender rewrites its buffer, and the receiver reads every byte.
    #[default]
    Both,
    /// The sender writes each message where it is sent from, without a buffer of its own; the receiver reads
    /// every byte.
    InPlace,
    /// The sender rewrites its buffer; the receiver looks at both ends of a message only.
    Unread,
    /// The sender rewrites its buffer; the receiver takes a header and several pieces of the rest, each into
    /// a place of its own, and reads every byte.
    Scattered,
}

/// The work to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Work {
    /// Back and forth.
    PingPong { bytes: usize, count: u64, warm: bool },
    /// One message per period, echoed.
    Paced { bytes: usize, count: u64, period_us: u64 },
    /// One way; with a window, that many messages and then an answer.
    Stream { bytes: usize, count: u64, window: Option<u64>, batch: bool, touch: Touch },
    /// Finds the best plan for streams of such messages; both sides remember it.
    Tune { bytes: usize, count: u64, trial_bytes: u64, parts: bool },
    /// Connected, with nothing to do.
    Idle { milliseconds: u64 },
    /// Requests that are answered, `window` of them at a time.
    Calls { bytes: usize, count: u64, window: u64 },
    /// Words put to a server's endpoints and answered: one by one with a pause before each, or of all
    /// endpoints together.
    Requests { endpoints: u64, count: u64, together: bool, pause_us: u64 },
    /// Puts to memory with `wires` tripwires.
    Matching { wires: u64, count: u64 },
    /// Polls that find a message each, or nothing.
    Polls { count: u64, hit: bool },
    /// Buffers moved by one process.
    Copies { bytes: usize, count: u64 },
    /// One way, over a network that loses this many frames of a thousand.
    Lossy { bytes: usize, count: u64, per_mille: u64 },
    /// Windows of messages, among this many foreign datagrams for each message.
    Flood { bytes: usize, count: u64, junk: u64 },
    /// What the ranks of a job do together.
    Many { experiment: Experiment, ranks: u64, bytes: usize, count: u64 },
}

impl Work {
    /// Bytes of the longest message.
    pub fn bytes(self) -> usize {
        match self {
            Work::PingPong { bytes, .. }
            | Work::Paced { bytes, .. }
            | Work::Stream { bytes, .. }
            | Work::Calls { bytes, .. }
            | Work::Copies { bytes, .. }
            | Work::Lossy { bytes, .. }
            | Work::Flood { bytes, .. }
            | Work::Many { bytes, .. } => bytes,
            Work::Tune { .. }
            | Work::Idle { .. }
            | Work::Requests { .. }
            | Work::Matching { .. }
            | Work::Polls { .. } => 8,
        }
    }

    /// The number of messages or round trips.
    pub fn count(self) -> u64 {
        match self {
            Work::PingPong { count, .. }
            | Work::Paced { count, .. }
            | Work::Stream { count, .. }
            | Work::Tune { count, .. }
            | Work::Calls { count, .. }
            | Work::Requests { count, .. }
            | Work::Matching { count, .. }
            | Work::Polls { count, .. }
            | Work::Copies { count, .. }
            | Work::Lossy { count, .. }
            | Work::Flood { count, .. }
            | Work::Many { count, .. } => count,
            Work::Idle { .. } => 0,
        }
    }
}
