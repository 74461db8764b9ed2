//! The message that two processes exchange before they share memory (S-15).

/// Bytes of a greeting.
pub const GREETING_LEN: usize = 64;
/// Bytes of a greeting that the proof covers.
const PROVEN: usize = 48;

const MAGIC: u32 = u32::from_le_bytes(*b"TSH3");
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
        let proof = prove(&bytes[..PROVEN]);
        bytes[PROVEN..].copy_from_slice(&proof);
        bytes
    }

    /// Parses a greeting; `None` if it is malformed, or its proof is wrong.
    pub fn parse(bytes: &[u8], prove: impl FnOnce(&[u8]) -> [u8; 16]) -> Option<Greeting> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let proof = prove(&bytes[..PROVEN]);
        let differs = proof.iter().zip(&bytes[PROVEN..]).fold(0, |all, (a, b)| all | (a ^ b));
        if word(0) != MAGIC || std::hint::black_box(differs) != 0 {
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
            asymmetric: word(4) & ASYMMETRIC != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            asymmetric: true,
        };
        let bytes = greeting.to_bytes(prove);
        assert_eq!(Greeting::parse(&bytes, prove), Some(greeting));
        for i in 0..GREETING_LEN {
            let mut other = bytes;
            other[i] ^= 4;
            assert_eq!(Greeting::parse(&other, prove), None, "byte {i}");
        }
        assert_eq!(Greeting::parse(&bytes[..63], prove), None);
    }
}
