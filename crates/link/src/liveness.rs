//! Detects that the peer is dead, and schedules heartbeats (L-15 … L-17).

use crate::{Config, Nanos};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    /// When a frame was last accepted.
    received: Nanos,
    /// When the clock was last advanced.
    tick: Nanos,
    /// When an acknowledgement was last requested without data.
    requested: Nanos,
    /// A frame has been accepted on this link.
    confirmed: bool,
    /// Whether our rank is the higher one of the pair.
    higher: bool,
}

impl Liveness {
    pub(crate) fn new(now: Nanos, higher: bool) -> Liveness {
        Liveness { received: now, tick: now, requested: now, confirmed: false, higher }
    }

    /// Records that an authentic frame arrived.
    #[inline]
    pub(crate) fn on_frame(&mut self, now: Nanos) {
        self.received = now;
        self.tick = now;
        self.confirmed = true;
    }

    /// Records that a frame without data requests an acknowledgement.
    pub(crate) fn on_request(&mut self, now: Nanos) {
        self.requested = now;
    }

    #[inline]
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Advances the clock to `now`. Returns whether the peer has been silent for too long.
    pub(crate) fn advance(&mut self, now: Nanos, config: &Config) -> bool {
        let half = config.silence / 2;
        if now.saturating_sub(self.tick) > half {
            // L-16: this process did not run, and frames that arrived meanwhile may not have been read yet.
            self.received = self.received.max(now - half);
        }
        self.tick = now;
        now.saturating_sub(self.received) >= config.silence
    }

    /// Returns when the peer counts as dead if nothing arrives.
    pub(crate) fn death_at(&self, config: &Config) -> Nanos {
        self.received + config.silence
    }

    /// Returns when the next heartbeat is due (L-17). Until the peer answers, heartbeats are sent eight times
    /// as often, so that one gets through even if a third of all frames is lost.
    pub(crate) fn heartbeat_at(&self, config: &Config) -> Nanos {
        let interval = config.heartbeat(self.higher);
        let due = self.received + interval;
        // The lower rank sends heartbeats to all its peers at the same time, so that a node with many peers
        // rarely wakes up.
        let due = if self.higher { due } else { due - due % (interval / 2).max(1) };
        due.max(self.requested + interval / 8)
    }
}
