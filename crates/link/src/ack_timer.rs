//! Decides when an acknowledgement is sent (L-5).

use crate::{Config, Nanos};

#[derive(Debug)]
pub(crate) struct AckTimer {
    /// Slots and bytes received since the last acknowledgement.
    slots: u32,
    bytes: u32,
    immediate: bool,
    at: Nanos,
}

impl AckTimer {
    pub(crate) fn new() -> AckTimer {
        AckTimer { slots: 0, bytes: 0, immediate: false, at: Nanos::MAX }
    }

    /// Returns whether an acknowledgement is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.immediate || self.at <= now
    }

    /// Returns whether an acknowledgement is due without delay.
    #[inline]
    pub(crate) fn is_immediate(&self) -> bool {
        self.immediate
    }

    /// Returns when an acknowledgement is due, or `Nanos::MAX`.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.immediate { 0 } else { self.at }
    }

    /// Makes an acknowledgement due at once.
    #[inline]
    pub(crate) fn request(&mut self) {
        self.immediate = true;
    }

    /// Counts a slot that was accepted.
    #[inline]
    pub(crate) fn on_slot(&mut self, now: Nanos, len: usize, config: &Config) {
        self.slots += 1;
        self.bytes += len as u32;
        if self.slots >= config.ack_every || self.bytes >= config.receive_buffer / 6 {
            self.immediate = true;
        } else if self.at == Nanos::MAX {
            self.at = now + config.ack_delay;
        }
    }

    /// Returns the mean length of the slots since the last acknowledgement, if there are any.
    pub(crate) fn mean_slot(&self) -> Option<u32> {
        self.bytes.checked_div(self.slots)
    }

    /// Resets the timer, because a frame with an acknowledgement is sent.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.slots = 0;
        self.bytes = 0;
        self.immediate = false;
        self.at = Nanos::MAX;
    }
}
