//! The retransmission timer (L-10, L-25).

use crate::Nanos;

/// The timer's interval stops growing after this many expirations.
const MAX_BACKOFF: u32 = 6;

/// Lengthens an interval that began at `start` by up to a half, as the seed decides (L-39); not if that is
/// zero.
pub(crate) fn spread(interval: Nanos, seed: u32, start: Nanos) -> Nanos {
    if seed == 0 {
        return interval;
    }
    let drawn = (u64::from(seed) ^ start).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    interval + interval / 2048 * drawn
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitTimer {
    /// When the current interval began.
    started: Nanos,
    backoff: u32,
    /// Slots that may be sent beyond the congestion window, as probes.
    probes: u32,
    /// Differs between links, so that their timers do not expire together (L-39).
    seed: u32,
}

impl RetransmitTimer {
    pub(crate) fn new(now: Nanos, seed: u32) -> RetransmitTimer {
        RetransmitTimer { started: now, backoff: 0, probes: 0, seed }
    }

    /// Restarts the interval.
    #[inline]
    pub(crate) fn restart(&mut self, now: Nanos) {
        self.started = now;
    }

    /// Restarts the timer after an acknowledgement, without backoff.
    #[inline]
    pub(crate) fn on_progress(&mut self, now: Nanos) {
        self.started = now;
        self.backoff = 0;
    }

    /// Lengthens the interval and restarts it. Returns the expirations in a row, at most [`MAX_BACKOFF`].
    pub(crate) fn on_expiry(&mut self, now: Nanos) -> u32 {
        self.started = now;
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.backoff
    }

    /// Returns when the timer expires.
    pub(crate) fn deadline(&self, timeout: Nanos, longest: Nanos) -> Nanos {
        let interval = match self.backoff {
            0 => timeout,
            expirations => spread(3 * (timeout << (expirations - 1)), self.seed, self.started),
        };
        self.started + interval.min(longest.max(timeout))
    }

    #[inline]
    pub(crate) fn has_probes(&self) -> bool {
        self.probes > 0
    }

    /// Sets the number of probes that may be sent.
    pub(crate) fn set_probes(&mut self, probes: u32) {
        self.probes = probes;
    }

    /// Counts a probe that was sent.
    #[inline]
    pub(crate) fn use_probe(&mut self) {
        self.probes = self.probes.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLI;

    /// L-39: timers of links that lost frames at the same moment expire at different times from the second
    /// time on, up to a half later, and never later than the longest interval.
    #[test]
    fn timers_are_spread() {
        let at = |seed: u32, expirations: u32| {
            let mut timer = RetransmitTimer::new(0, seed);
            (0..expirations).for_each(|_| assert!(timer.on_expiry(0) > 0));
            timer.deadline(3 * MILLI, 200 * MILLI)
        };
        assert_eq!(at(7, 0), 3 * MILLI);
        assert_eq!((at(0, 1), at(0, 2)), (9 * MILLI, 18 * MILLI));
        let mut drawn: Vec<Nanos> = (1..200).map(|seed| at(seed, 2)).collect();
        assert!(drawn.iter().all(|at| (18 * MILLI..27 * MILLI).contains(at)));
        drawn.sort_unstable();
        drawn.dedup();
        assert!(drawn.len() > 150, "{} different times", drawn.len());
        assert_eq!(at(9, 20), 200 * MILLI);
    }
}
