//! Numbers that were never used before and cannot be guessed, and who must prove its address first (H-7).

use tautline_link::HandshakeLimiter;

/// A keyed sequence, and the limiter of handshakes that shares its key.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) limiter: HandshakeLimiter,
    next: u64,
}

impl Secrets {
    /// `entropy` must be fresh and unpredictable. Up to `hellos` hellos per tenth of a second need no proof
    /// of address.
    pub(crate) fn new(entropy: [u8; 32], hellos: u32) -> Secrets {
        let mut seed = [0; 8];
        seed.copy_from_slice(&entropy[..8]);
        Secrets { limiter: HandshakeLimiter::new(entropy, hellos), next: u64::from_le_bytes(seed) }
    }

    /// Bytes that were never used before and cannot be guessed.
    pub(crate) fn bytes(&mut self) -> [u8; 16] {
        self.next = self.next.wrapping_add(1);
        self.limiter.cookie(b"fresh", self.next)
    }

    /// A number, not zero, that was never used before and cannot be guessed.
    pub(crate) fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes()[..8].try_into().expect("eight bytes")).max(1)
    }
}
