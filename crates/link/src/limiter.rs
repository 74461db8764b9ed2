//! Proof of address when hellos arrive too fast (H-7, H-12).

use crate::{MILLI, Nanos};

/// How long a secret is used. Cookies made with the previous secret are still accepted.
const SECRET_LIFETIME: Nanos = 60_000 * MILLI;
/// The period over which hellos are counted.
const PERIOD: Nanos = 100 * MILLI;

/// Counts hellos and requires proof of address when there are too many. Keeps no state per sender.
#[derive(Debug)]
pub struct HandshakeLimiter {
    secret: [u8; 32],
    previous: [u8; 32],
    rotated_at: Nanos,
    period_start: Nanos,
    seen: u32,
    limit: u32,
}

impl HandshakeLimiter {
    /// Accepts `limit` hellos per 100 ms without proof.
    pub fn new(secret: [u8; 32], limit: u32) -> HandshakeLimiter {
        HandshakeLimiter { secret, previous: secret, rotated_at: 0, period_start: 0, seen: 0, limit }
    }

    /// Counts a hello from `address`. Returns whether it must be sent again with a cookie.
    pub fn requires_proof(&mut self, now: Nanos, address: &[u8], epoch: u64, cookie: &[u8; 16]) -> bool {
        self.rotate_secret(now);
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
            .any(|secret| crate::keys::constant_eq(&make_cookie(secret, address, epoch), cookie));
        !good
    }

    /// Returns the cookie for `address`.
    pub fn cookie(&self, address: &[u8], epoch: u64) -> [u8; 16] {
        make_cookie(&self.secret, address, epoch)
    }

    fn rotate_secret(&mut self, now: Nanos) {
        if now.saturating_sub(self.rotated_at) >= SECRET_LIFETIME {
            self.rotated_at = now;
            self.previous = self.secret;
            self.secret = *blake3::keyed_hash(&self.secret, b"tautline v1 next cookie secret").as_bytes();
        }
    }
}

fn make_cookie(secret: &[u8; 32], address: &[u8], epoch: u64) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"tautline v1 cookie").update(&epoch.to_le_bytes()).update(address);
    hasher.finalize().as_bytes()[..16].try_into().expect("the slice has sixteen bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H-7, H-12: above the limit only hellos with the right cookie pass, and a cookie is valid for one
    /// address only.
    #[test]
    fn proof_is_required_above_the_limit() {
        let mut limiter = HandshakeLimiter::new([1; 32], 3);
        for _ in 0..3 {
            assert!(!limiter.requires_proof(5, b"a", 9, &[0; 16]));
        }
        assert!(limiter.requires_proof(5, b"a", 9, &[0; 16]));
        let cookie = limiter.cookie(b"a", 9);
        assert!(!limiter.requires_proof(5, b"a", 9, &cookie));
        assert!(limiter.requires_proof(5, b"b", 9, &cookie));
        assert!(limiter.requires_proof(5, b"a", 8, &cookie));
        assert!(!limiter.requires_proof(5 + PERIOD, b"a", 9, &[0; 16]));
    }

    /// H-12: a cookie stays valid over one change of the secret, not over two.
    #[test]
    fn cookies_expire_with_their_secret() {
        let mut limiter = HandshakeLimiter::new([1; 32], 0);
        let cookie = limiter.cookie(b"a", 9);
        assert!(!limiter.requires_proof(SECRET_LIFETIME, b"a", 9, &cookie));
        assert!(limiter.requires_proof(2 * SECRET_LIFETIME, b"a", 9, &cookie));
    }
}
