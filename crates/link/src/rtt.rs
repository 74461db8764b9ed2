//! The round-trip estimate (L-8). Each transmission has its own packet number, so every echo is an
//! unambiguous sample. The caller subtracts the time that the echoed frame spent in the peer's host.

use crate::{Config, Nanos};

/// The shortest round trip is that of the last 4,096 to 8,192 samples.
const MIN_FILTER_SAMPLES: u32 = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Nanos,
    variation: Nanos,
    shortest: Nanos,
    next_shortest: Nanos,
    samples: u32,
}

impl Rtt {
    /// Adds a sample.
    pub(crate) fn sample(&mut self, rtt: Nanos) {
        if self.samples == 0 {
            self.smoothed = rtt;
            self.variation = rtt / 2;
            self.shortest = rtt;
            self.next_shortest = rtt;
        } else {
            let error = self.smoothed.abs_diff(rtt);
            self.variation = self.variation - self.variation / 4 + error / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + rtt / 8;
            self.shortest = self.shortest.min(rtt);
            self.next_shortest = self.next_shortest.min(rtt);
        }
        self.samples = self.samples.saturating_add(1);
        if self.samples.is_multiple_of(MIN_FILTER_SAMPLES) {
            self.shortest = self.next_shortest;
            self.next_shortest = rtt;
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Nanos> {
        (self.samples > 0).then_some(self.smoothed)
    }

    pub(crate) fn shortest(&self) -> Nanos {
        self.shortest
    }

    /// Returns the retransmission timeout, given how long the peer may delay an acknowledgement (L-25).
    pub(crate) fn timeout(&self, config: &Config, peer_ack_delay: Nanos) -> Nanos {
        if self.samples == 0 {
            return config.rto_initial;
        }
        (self.smoothed + 4 * self.variation + peer_ack_delay).clamp(config.rto_min, config.rto_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-8: the estimate converges on a steady path, and an old minimum expires.
    #[test]
    fn estimate_converges() {
        let mut rtt = Rtt::default();
        for _ in 0..100 {
            rtt.sample(10_000);
        }
        assert_eq!(rtt.smoothed(), Some(10_000));
        assert!(rtt.variation < 100);
        for _ in 0..2 * MIN_FILTER_SAMPLES {
            rtt.sample(50_000);
        }
        assert_eq!(rtt.shortest(), 50_000);
    }
}
