//! The ways to use memory, and the styles above it.

use serde::{Deserialize, Serialize};

use super::Policy;

/// One way to use memory, or a style built on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Style {
    /// Puts that fire a tripwire.
    Put,
    /// Stores through a mapping, polled.
    Mapped,
    /// Entries of the distributed queue.
    Queue,
    /// Calls of a raw service.
    Rpc,
    /// Calls of a typed service.
    TypedRpc,
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
            Style::Mapped => "mapped",
            Style::Queue => "queue",
            Style::Rpc => "rpc",
            Style::TypedRpc => "rpc-typed",
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
