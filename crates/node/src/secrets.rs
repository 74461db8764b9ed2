//! Numbers that were never used before and cannot be guessed, and which hellos are answered (H-16).

use tautline_link::{HandshakeLimiter, RandomSequence};

/// A keyed sequence, and the limiter of handshakes.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) limiter: HandshakeLimiter,
    sequence: RandomSequence,
}

impl Secrets {
    /// `entropy` must be fresh and unpredictable.
    pub(crate) fn new(entropy: [u8; 32]) -> Secrets {
        Secrets { limiter: HandshakeLimiter::default(), sequence: RandomSequence::new(entropy) }
    }

    /// Bytes that were never used before and cannot be guessed.
    pub(crate) fn bytes(&mut self) -> [u8; 16] {
        self.sequence.bytes()
    }

    /// A number, not zero, that was never used before and cannot be guessed.
    pub(crate) fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes()[..8].try_into().expect("eight bytes")).max(1)
    }
}
