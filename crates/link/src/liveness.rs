//! Detects that the peer is dead, and schedules heartbeats (L-15 … L-17).

use crate::retransmit::spread;
use crate::{Config, Nanos};

/// Heartbeats without a slot in between after which a link is quiet (L-45): some ten silence bounds.
const QUIET_AFTER: u8 = 30;
/// Absences of our own that are no silence of the peer, from one of its frames to the next (L-36).
const MAX_ABSENCES: u8 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    /// When a frame was last accepted, moved on by the time that this side has been absent since. On a quiet
    /// link it may be later than now: silence counts from then on (L-45).
    received: Nanos,
    /// Absences since then.
    absences: u8,
    /// When an acknowledgement was last requested without data.
    requested: Nanos,
    /// A frame has been accepted on this link.
    confirmed: bool,
    /// Heartbeats that were received in a row without a slot in between, or their answers.
    beats: u8,
    /// Whether our rank is the higher one of the pair.
    higher: bool,
    /// Differs between links, so that they do not send their heartbeats together (L-39).
    seed: u32,
    /// Slots of both directions together when the last heartbeat was received.
    slots: u32,
    /// How many times as late as on another link the next heartbeat comes, unless there was a slot since.
    pace: u16,
}

impl Liveness {
    pub(crate) fn new(now: Nanos, higher: bool, seed: u32) -> Liveness {
        Liveness {
            received: now,
            absences: 0,
            requested: now,
            confirmed: false,
            beats: 0,
            higher,
            seed,
            slots: 0,
            pace: 1,
        }
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

    /// Returns whether a frame without a slot that arrives now is a heartbeat, or the answer to one (L-17).
    pub(crate) fn is_heartbeat(&self, now: Nanos, config: &Config) -> bool {
        let heard = self.received.saturating_sub(self.delay(config));
        now.saturating_sub(heard) > config.silence / 8
    }

    /// Records a heartbeat, or the answer to one. `slots` counts those of both directions together. Returns
    /// whether the link is quiet (L-45).
    pub(crate) fn on_heartbeat(&mut self, slots: u32) -> bool {
        let traffic = std::mem::replace(&mut self.slots, slots) != slots;
        self.pace = 1;
        self.beats = if traffic { 0 } else { self.beats.saturating_add(1) };
        self.beats >= QUIET_AFTER
    }

    /// The next heartbeat of a quiet link comes `pace` times as late as on another.
    pub(crate) fn postpone(&mut self, now: Nanos, config: &Config, pace: u16) {
        self.pace = pace;
        self.received = now + self.delay(config);
    }

    /// Returns by how much the next heartbeat comes later than on a link that is not quiet.
    fn delay(&self, config: &Config) -> Nanos {
        u64::from(self.pace - 1) * config.heartbeat(self.higher)
    }

    /// The link is quiet no more: silence counts from now on at the latest.
    pub(crate) fn hasten(&mut self, now: Nanos) {
        (self.beats, self.pace) = (0, 1);
        self.received = self.received.min(now);
    }

    /// Records that a frame without data requests an acknowledgement.
    pub(crate) fn on_request(&mut self, now: Nanos) {
        self.requested = now;
    }

    #[inline]
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Advances the clock to `now`. Returns whether the peer has been silent for too long. `slots` is as for
    /// [`Liveness::on_heartbeat`].
    pub(crate) fn advance(&mut self, now: Nanos, config: &Config, slots: u32) -> bool {
        if self.received > now && self.slots != slots {
            self.hasten(now);
        }
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
