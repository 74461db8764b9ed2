//! Why a peer is gone, as a byte of messages among ranks.

use tautline_node::link::Death;

use crate::Down;

pub(crate) fn to_byte(why: Down) -> u8 {
    match why {
        Down::Closed => 1,
        Down::Unreachable => 2,
        Down::Died(Death::Silence) => 3,
        Down::Died(Death::Restarted) => 4,
        Down::Died(Death::Violation) => 5,
        Down::Reported => 6,
        _ => 0,
    }
}

/// A reason that has no byte, or one that is not known here, is that of a process that has exited.
pub(crate) fn from_byte(byte: u8) -> Down {
    match byte {
        1 => Down::Closed,
        2 => Down::Unreachable,
        3 => Down::Died(Death::Silence),
        4 => Down::Died(Death::Restarted),
        5 => Down::Died(Death::Violation),
        6 => Down::Reported,
        _ => Down::Exited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for byte in 0..=6 {
            assert_eq!(to_byte(from_byte(byte)), byte);
        }
        assert_eq!(from_byte(200), Down::Exited);
    }
}
