//! What a link reports to its caller: events and counters.

use std::collections::VecDeque;

/// Something that happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer closed the channel; everything it sent has been received.
    PeerClosed,
    /// The peer answered our close.
    Closed,
    /// The channel is dead: nothing more is sent or accepted.
    Died(Death),
    /// The path's frame limit is now this many bytes.
    PathChanged(usize),
    /// Whether the peer accepts raw Ethernet frames has changed (D-21).
    PeerAcceptsRaw(bool),
}

/// Why a channel died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Death {
    /// Nothing arrived for the configured time.
    Silence,
    /// The peer opened a channel with a new epoch.
    Restarted,
    /// The peer broke the protocol in an authenticated frame.
    Violation,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Death::Silence => "nothing arrived from it",
            Death::Restarted => "it was restarted",
            Death::Violation => "it broke the protocol",
        })
    }
}

/// Counters of a link. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames sent, of all kinds.
    pub frames_sent: u64,
    /// Frames accepted.
    pub frames_accepted: u64,
    /// Slots sent for the first time.
    pub slots_sent: u64,
    /// Slots resent.
    pub slots_resent: u64,
    /// Slots accepted for the first time.
    pub slots_accepted: u64,
    /// Slots that arrived again.
    pub slots_duplicate: u64,
    /// Slots that arrived ahead of a gap.
    pub slots_ahead: u64,
    /// Slots found lost because later packets arrived.
    pub losses_by_evidence: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Frames dropped because their tag or seal was wrong.
    pub bad_tag: u64,
    /// Frames dropped because their packet number was seen before or is too old.
    pub replayed: u64,
    /// Frames dropped because they were malformed.
    pub malformed: u64,
    /// How often sending stopped for lack of credit.
    pub credit_stalls: u64,
    /// How often the path's limit was lowered because large frames vanished.
    pub black_holes: u64,
}

/// Events for the caller, and the counters.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
}
