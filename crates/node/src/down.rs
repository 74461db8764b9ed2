//! Why a peer is no longer reachable.

use tautline_link::Death;
use tautline_wire::handshake::RefuseReason;

use crate::Shortage;

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
    /// The other members of a group agreed to go on without it.
    Excluded,
    /// It refused this node.
    Refused(RefuseReason),
    /// It is on this host and was never reached in time, because no memory could be shared with it.
    Shortage(Shortage),
}

impl Down {
    /// The reason as a byte of messages among ranks.
    pub fn to_byte(self) -> u8 {
        match self {
            Down::Closed => 1,
            Down::Unreachable | Down::Shortage(_) => 2,
            Down::Died(Death::Silence) => 3,
            Down::Died(Death::Restarted) => 4,
            Down::Died(Death::Violation) => 5,
            Down::Reported => 6,
            Down::Excluded => 7,
            _ => 0,
        }
    }

    /// The reason that [`Down::to_byte`] made a byte of. One that has no byte, or is not known here, is
    /// that of a process that has exited.
    pub fn from_byte(byte: u8) -> Down {
        match byte {
            1 => Down::Closed,
            2 => Down::Unreachable,
            3 => Down::Died(Death::Silence),
            4 => Down::Died(Death::Restarted),
            5 => Down::Died(Death::Violation),
            6 => Down::Reported,
            7 => Down::Excluded,
            _ => Down::Exited,
        }
    }
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Down::Died(death) => write!(f, "{death}"),
            Down::Exited => f.write_str("its process has ended"),
            Down::Closed => f.write_str("it closed"),
            Down::Unreachable => f.write_str("it could not be reached"),
            Down::Reported => f.write_str("its end was reported"),
            Down::Excluded => f.write_str("the members of a group go on without it"),
            Down::Refused(refusal) => write!(f, "it refused: {refusal}"),
            Down::Shortage(shortage) => write!(f, "no memory could be shared with it: {shortage}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for byte in 0..=7 {
            assert_eq!(Down::from_byte(byte).to_byte(), byte);
        }
        assert_eq!(Down::from_byte(200), Down::Exited);
    }
}
