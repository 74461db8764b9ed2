//! The messages that two processes exchange before they share memory (S-15, S-33).

use std::io;

/// Bytes of a greeting.
pub const GREETING_LEN: usize = 72;
/// Bytes of a greeting that the proof covers.
const PROVEN: usize = 56;

const MAGIC: u32 = u32::from_le_bytes(*b"TSH5");
const REFUSAL_MAGIC: u32 = u32::from_le_bytes(*b"TSHR");
const ASYMMETRIC: u32 = 1;

/// The sender of a greeting, its receiver, and their incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The sender's rank.
    pub from: u32,
    /// The receiver's rank.
    pub to: u32,
    /// The sender's epoch on this channel; unique.
    pub epoch: u64,
    /// The epoch that is answered; zero in the first greeting.
    pub answers: u64,
    /// Bytes of a message that may be sent to the sender of the greeting before it grants more.
    pub window: u32,
    /// The size of the sender's pool, in units of [`tautline_mem::pool::POOL_UNIT`]; zero if it cannot lend.
    pub pool: u32,
    /// The address, in the sender's process, of a word that both know: a peer that can read it may copy
    /// messages out of that process (S-9, S-27).
    pub beacon: u64,
    /// The number by which the receiver of the greeting announces its frames (S-38).
    pub ring: u32,
    /// The sender's kernel supports asymmetric barriers.
    pub asymmetric: bool,
}

impl Greeting {
    /// Returns the greeting's bytes; `prove` computes the proof that the sender knows the job's key, over all
    /// bytes before it.
    pub fn to_bytes(&self, prove: impl FnOnce(&[u8]) -> [u8; 16]) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&(u32::from(self.asymmetric) * ASYMMETRIC).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.to.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.answers.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.window.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.pool.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.beacon.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.ring.to_le_bytes());
        let proof = prove(&bytes[..PROVEN]);
        bytes[PROVEN..].copy_from_slice(&proof);
        bytes
    }

    /// Parses a greeting; `None` if it is malformed, or its proof is wrong.
    pub fn parse(bytes: &[u8], prove: impl FnOnce(&[u8]) -> [u8; 16]) -> Option<Greeting> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(0) != MAGIC || !is_proven(bytes, prove) {
            return None;
        }
        Some(Greeting {
            from: word(8),
            to: word(12),
            epoch: long(16),
            answers: long(24),
            window: word(32),
            pool: word(36),
            beacon: long(40),
            ring: word(48),
            asymmetric: word(4) & ASYMMETRIC != 0,
        })
    }
}

/// Why a process does not share memory with one that dialled it (S-33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no descriptors left.
    Descriptors,
    /// It has no memory, or address space, left.
    Memory,
    /// It was not told of the rank that dialled, which joined the job later.
    UnknownRank,
    /// Anything else.
    Other,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::Descriptors => {
                "the peer has no descriptors left (RLIMIT_NOFILE); raise its limit, for example: ulimit -n 1024"
            }
            Refusal::Memory => {
                "the peer has no memory or address space left; raise its limits (ulimit -v, ulimit -m), or \
                 start fewer processes"
            }
            Refusal::UnknownRank => "the peer does not know this rank",
            Refusal::Other => "the peer could not map what was handed over; its log says why",
        })
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// What to tell a process that cannot be served because of `error`.
    pub fn of(error: &io::Error) -> Refusal {
        match error.raw_os_error() {
            // The last one: as many descriptors of this user are on their way through sockets.
            Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS) => Refusal::Descriptors,
            Some(libc::ENOMEM | libc::ENOBUFS) => Refusal::Memory,
            _ => Refusal::Other,
        }
    }

    /// The refusal of the peer that an error is, if it is one.
    pub fn in_error(error: &io::Error) -> Option<Refusal> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// Returns the bytes of a refusal, as long as a greeting; `prove` as in [`Greeting::to_bytes`].
    pub fn to_bytes(self, prove: impl FnOnce(&[u8]) -> [u8; 16]) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[0..4].copy_from_slice(&REFUSAL_MAGIC.to_le_bytes());
        bytes[4] = match self {
            Refusal::Other => 0,
            Refusal::Descriptors => 1,
            Refusal::Memory => 2,
            Refusal::UnknownRank => 3,
        };
        let proof = prove(&bytes[..PROVEN]);
        bytes[PROVEN..].copy_from_slice(&proof);
        bytes
    }

    /// Parses a refusal; `None` if it is something else, or its proof is wrong.
    pub fn parse(bytes: &[u8], prove: impl FnOnce(&[u8]) -> [u8; 16]) -> Option<Refusal> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().ok()?;
        if bytes[..4] != REFUSAL_MAGIC.to_le_bytes() || !is_proven(bytes, prove) {
            return None;
        }
        Some(match bytes[4] {
            1 => Refusal::Descriptors,
            2 => Refusal::Memory,
            3 => Refusal::UnknownRank,
            _ => Refusal::Other,
        })
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionRefused, refusal)
    }
}

fn is_proven(bytes: &[u8; GREETING_LEN], prove: impl FnOnce(&[u8]) -> [u8; 16]) -> bool {
    let proof = prove(&bytes[..PROVEN]);
    let differs = proof.iter().zip(&bytes[PROVEN..]).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-33: a refusal reads back as written; nothing else is one.
    #[test]
    fn refusals() {
        let prove = |bytes: &[u8]| [bytes.iter().fold(3, |all, byte| all ^ byte.rotate_left(1)); 16];
        for refusal in [Refusal::Descriptors, Refusal::Memory, Refusal::UnknownRank, Refusal::Other] {
            let bytes = refusal.to_bytes(prove);
            assert_eq!(Refusal::in_error(&refusal.into()), Some(refusal));
            for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ConnectionRefused] {
                assert_eq!(Refusal::in_error(&kind.into()), None, "of the system");
            }
            assert_eq!(Refusal::parse(&bytes, prove), Some(refusal));
            assert_eq!(Greeting::parse(&bytes, prove), None);
            for i in 0..GREETING_LEN {
                let mut other = bytes;
                other[i] ^= 4;
                assert_eq!(Refusal::parse(&other, prove), None, "byte {i}");
            }
        }
        for lacking in [libc::EMFILE, libc::ENFILE, libc::ETOOMANYREFS] {
            assert_eq!(Refusal::of(&io::Error::from_raw_os_error(lacking)), Refusal::Descriptors);
        }
        assert_eq!(Refusal::of(&io::ErrorKind::Other.into()), Refusal::Other);
    }

    /// S-15: a greeting reads back as written, and an altered one does not parse.
    #[test]
    fn round_trip() {
        let prove = |bytes: &[u8]| {
            let mut proof = [7; 16];
            bytes.iter().enumerate().for_each(|(i, b)| proof[i % 16] ^= b.rotate_left(i as u32 / 16));
            proof
        };
        let greeting = Greeting {
            from: 3,
            to: 9,
            epoch: 77,
            answers: 0,
            window: 9,
            pool: 77,
            beacon: 1 << 40,
            ring: 1_234,
            asymmetric: true,
        };
        let bytes = greeting.to_bytes(prove);
        assert_eq!(Greeting::parse(&bytes, prove), Some(greeting));
        for i in 0..GREETING_LEN {
            let mut other = bytes;
            other[i] ^= 4;
            assert_eq!(Greeting::parse(&other, prove), None, "byte {i}");
        }
        assert_eq!(Greeting::parse(&bytes[..GREETING_LEN - 1], prove), None);
    }
}
