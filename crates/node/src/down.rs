//! Why a peer is no longer reachable.

use tautline_link::Death;
use tautline_wire::handshake::RefuseReason;

/// Why a peer is no longer reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Down {
    /// It died: silence, restart, or a broken protocol.
    Died(Death),
    /// Its process, on this host, has ended or closed the channel's socket.
    Exited,
    /// It closed in good order.
    Closed,
    /// It was never reached in time.
    Unreachable,
    /// The launcher, or another member, reported its end, and there was no channel to it.
    Reported,
    /// It refused this node.
    Refused(RefuseReason),
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Down::Died(death) => write!(f, "{death}"),
            Down::Exited => f.write_str("its process has ended"),
            Down::Closed => f.write_str("it closed"),
            Down::Unreachable => f.write_str("it could not be reached"),
            Down::Reported => f.write_str("its end was reported"),
            Down::Refused(refusal) => write!(f, "it refused: {refusal}"),
        }
    }
}
