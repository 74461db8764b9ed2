//! Detects that the peer is dead, and schedules heartbeats (L-15 … L-17).

use crate::retransmit::spread;
use crate::{Config, Nanos};

/// Absences of our own that are no silence of the peer, from one of its frames to the next (L-36).
const MAX_ABSENCES: u8 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    /// When a frame was last accepted, moved on by the time that this side has been absent since.
    received: Nanos,
    /// Absences since then.
    absences: u8,
    /// When an acknowledgement was last requested without data.
    requested: Nanos,
    /// A frame has been accepted on this link.
    confirmed: bool,
    /// Whether our rank is the higher one of the pair.
    higher: bool,
    /// Differs between links, so that they do not send their heartbeats together (L-39).
    seed: u32,
}

impl Liveness {
    pub(crate) fn new(now: Nanos, higher: bool, seed: u32) -> Liveness {
        Liveness { received: now, absences: 0, requested: now, confirmed: false, higher, seed }
    }

    /// Records that an authentic frame arrived.
    #[inline]
    pub(crate) fn on_frame(&mut self, now: Nanos) {
        self.received = now;
        self.absences = 0;
        self.confirmed = true;
    }

    /// Returns when a frame was last accepted.
    pub(crate) fn heard_at(&self) -> Nanos {
        self.received
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
        // L-16: this side should have run by then, to send a heartbeat.
        let late = now.saturating_sub(self.due_after(config, config.heartbeat(self.higher) / 8));
        if late > config.silence / 16 && self.absences < MAX_ABSENCES {
            self.absences += 1;
            // Frames that arrived meanwhile may not have been read yet.
            let rest = if late > config.silence / 4 { config.silence / 2 } else { config.silence / 16 };
            self.received = (self.received + late).max((now + rest).saturating_sub(config.silence));
        }
        now.saturating_sub(self.received) >= config.silence
    }

    /// Returns by how much the heartbeats of this link's group are later than those of the first one.
    fn group_shift(&self, config: &Config) -> Nanos {
        let groups = config.heartbeat_groups.max(1);
        config.heartbeat(false) / 2 / u64::from(groups) * u64::from((self.seed >> 1) % groups)
    }

    /// Returns when the peer counts as dead if nothing arrives.
    pub(crate) fn death_at(&self, config: &Config) -> Nanos {
        self.received + config.silence
    }

    /// Returns when the next heartbeat is due (L-17). Until the peer answers, heartbeats are sent eight times
    /// as often, and 32 times in the second half of the bound: some forty in all, of which one is answered
    /// even if a third of all frames is lost.
    pub(crate) fn heartbeat_at(&self, config: &Config) -> Nanos {
        let silent = self.requested.saturating_sub(self.received);
        let pauses = if silent > config.silence / 2 { 32 } else { 8 };
        self.due_after(config, config.heartbeat(self.higher) / pauses)
    }

    /// Returns when the next heartbeat is due, `pause` being the time between two that are not answered.
    fn due_after(&self, config: &Config, pause: Nanos) -> Nanos {
        let interval = config.heartbeat(self.higher);
        let due = self.received + interval;
        // The lower rank sends heartbeats to its peers at the same time, so that it rarely wakes up; with
        // many peers in groups, so that their answers fit its receive buffer (L-40).
        let due =
            if self.higher { due } else { due - (due - self.group_shift(config)) % (interval / 2).max(1) };
        due.max(self.requested + spread(pause, self.seed, self.requested))
    }
}
