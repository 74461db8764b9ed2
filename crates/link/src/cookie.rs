//! Proof of address for hellos that come too fast (H-7).

use crate::{MILLI, Nanos};

/// How long a secret is used; cookies made under the one before are still taken.
const SECRET_LIFE: Nanos = 60_000 * MILLI;
/// The period over which hellos are counted.
const PERIOD: Nanos = 100 * MILLI;

/// Counts hellos and, when there are too many, asks for proof of address. Keeps no state per asker.
#[derive(Debug)]
pub struct Doorkeeper {
    secret: [u8; 32],
    previous: [u8; 32],
    changed_at: Nanos,
    period_start: Nanos,
    seen: u32,
    limit: u32,
}

impl Doorkeeper {
    /// `limit` hellos in a tenth of a second are let in without proof.
    pub fn new(secret: [u8; 32], limit: u32) -> Doorkeeper {
        Doorkeeper { secret, previous: secret, changed_at: 0, period_start: 0, seen: 0, limit }
    }

    /// Whether a hello from `address` must first show a cookie; counts it.
    pub fn wants_proof(&mut self, now: Nanos, address: &[u8], epoch: u64, cookie: &[u8; 16]) -> bool {
        self.turn(now);
        if now.saturating_sub(self.period_start) >= PERIOD {
            self.period_start = now;
            self.seen = 0;
        }
        self.seen = self.seen.saturating_add(1);
        if self.seen <= self.limit {
            return false;
        }
        let good = [&self.secret, &self.previous]
            .into_iter()
            .any(|secret| crate::keys::constant_eq(&make(secret, address, epoch), cookie));
        !good
    }

    /// The cookie for `address`.
    pub fn cookie(&self, address: &[u8], epoch: u64) -> [u8; 16] {
        make(&self.secret, address, epoch)
    }

    fn turn(&mut self, now: Nanos) {
        if now.saturating_sub(self.changed_at) >= SECRET_LIFE {
            self.changed_at = now;
            self.previous = self.secret;
            self.secret = *blake3::keyed_hash(&self.secret, b"tautline v1 next cookie secret").as_bytes();
        }
    }
}

fn make(secret: &[u8; 32], address: &[u8], epoch: u64) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"tautline v1 cookie").update(&epoch.to_le_bytes()).update(address);
    hasher.finalize().as_bytes()[..16].try_into().expect("sixteen bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H-7: under load only hellos with the right cookie pass, and a cookie is good for one address only.
    #[test]
    fn proof_only_under_load() {
        let mut keeper = Doorkeeper::new([1; 32], 3);
        for _ in 0..3 {
            assert!(!keeper.wants_proof(5, b"a", 9, &[0; 16]));
        }
        assert!(keeper.wants_proof(5, b"a", 9, &[0; 16]));
        let cookie = keeper.cookie(b"a", 9);
        assert!(!keeper.wants_proof(5, b"a", 9, &cookie));
        assert!(keeper.wants_proof(5, b"b", 9, &cookie));
        assert!(keeper.wants_proof(5, b"a", 8, &cookie));
        assert!(!keeper.wants_proof(5 + PERIOD, b"a", 9, &[0; 16]));
    }

    /// H-7: a cookie outlives one change of the secret, not two.
    #[test]
    fn secrets_rotate() {
        let mut keeper = Doorkeeper::new([1; 32], 0);
        let cookie = keeper.cookie(b"a", 9);
        assert!(!keeper.wants_proof(SECRET_LIFE, b"a", 9, &cookie));
        assert!(keeper.wants_proof(2 * SECRET_LIFE, b"a", 9, &cookie));
    }
}
