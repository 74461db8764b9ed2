//! Bounds the answers to hellos (H-16).

use crate::{MILLI, Nanos};

/// The period over which answers are counted.
const PERIOD: Nanos = 100 * MILLI;
/// Answers to hellos of one attempt in a period.
const ANSWERS: u8 = 8;
/// Attempts are counted by a hash of their epochs.
const BUCKETS: usize = 256;

/// Bounds how often hellos are answered. One that is replayed at any rate gets few answers, and none of those
/// that others are due: they have other epochs, which nobody can choose without the job key.
#[derive(Debug)]
pub struct HandshakeLimiter {
    period_start: Nanos,
    answers: [u8; BUCKETS],
}

impl Default for HandshakeLimiter {
    fn default() -> HandshakeLimiter {
        HandshakeLimiter { period_start: 0, answers: [0; BUCKETS] }
    }
}

impl HandshakeLimiter {
    /// Counts an authentic hello of the attempt with this epoch. Returns whether it may be answered.
    pub fn admits(&mut self, now: Nanos, epoch: u64) -> bool {
        if now.saturating_sub(self.period_start) >= PERIOD {
            *self = HandshakeLimiter { period_start: now, ..HandshakeLimiter::default() };
        }
        // Two epochs that share a bucket have different ones in the next period.
        let hash = (epoch ^ self.period_start).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let answers = &mut self.answers[(hash >> 56) as usize];
        let admitted = *answers < ANSWERS;
        *answers += u8::from(admitted);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H-16: a hello that comes too often is not answered, and others are.
    #[test]
    fn answers_are_bounded() {
        let mut limiter = HandshakeLimiter::default();
        let mut admitted = |now, epoch| (0..1000).filter(|_| limiter.admits(now, epoch)).count();
        assert_eq!(admitted(PERIOD, 1 << 40), usize::from(ANSWERS));
        let others = (1..=200u64).filter(|n| admitted(PERIOD, (n + 9) << 40) > 0).count();
        assert!(others >= 100, "{others} of 200 others are answered");
        assert_eq!(admitted(2 * PERIOD, 1 << 40), usize::from(ANSWERS), "in the next period");
    }

    /// H-16: two attempts that share a count in one period do not share it for good.
    #[test]
    fn attempts_share_a_count_for_one_period_only() {
        let mut limiter = HandshakeLimiter::default();
        let others: Vec<u64> = (1..=1000u64).map(|n| n.wrapping_mul(0xdead_beef_1234_5677)).collect();
        let mut starved: Vec<u64> = others.clone();
        for period in 1..20 {
            let now = period * (PERIOD + 1_234_567);
            while limiter.admits(now, 7) {}
            starved.retain(|epoch| !limiter.admits(now, *epoch));
        }
        assert!(starved.is_empty(), "{} of 1000 are never answered", starved.len());
    }
}
