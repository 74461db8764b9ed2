//! The retransmission timer (L-10, L-25).

use crate::Nanos;

/// The timer's interval stops growing after this many expirations.
const MAX_BACKOFF: u32 = 6;

/// Lengthens an interval that began at `start` by up to a part of it, as the seed decides (L-39).
pub(crate) fn spread(interval: Nanos, part: u64, seed: u32, start: Nanos) -> Nanos {
    let drawn = (u64::from(seed) ^ start).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    interval + interval / part / 1024 * drawn
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
            expirations => spread(3 * (timeout << (expirations - 1)), 2, self.seed, self.started),
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
