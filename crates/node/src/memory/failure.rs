//! Why an operation failed.

use tautline_wire::memory::Refusal;

use crate::{Address, Down, Rank};

/// Why an operation did not happen, or may not have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The owner of the memory refused it. Nothing was touched, unless a long put was refused on its way.
    Refused(Refusal),
    /// The owner of the memory is gone. Whether the operation happened is unknown.
    PeerGone(Rank, Down),
    /// This node was closed.
    Closed,
    /// The operation before it failed, so it was not tried.
    Before,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(why) => write!(f, "refused: {why}"),
            Failure::PeerGone(rank, why) => write!(f, "{} is gone: {why}", Address::from(*rank)),
            Failure::Closed => f.write_str("the node was closed"),
            Failure::Before => f.write_str("not tried, because what it was to follow failed"),
        }
    }
}

impl std::error::Error for Failure {}
