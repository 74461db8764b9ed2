//! An attempt to open a channel: when its hellos are sent, and what they bring.

use crate::keys::{ChannelIds, constant_eq};
use crate::{MILLI, Nanos};

/// The interval between hellos stops doubling here.
const HELLO_MAX: Nanos = 320 * MILLI;

/// Hellos of one attempt that are sent at once because a retry asked for them (H-15).
const PROMPTS: u8 = 8;

#[derive(Debug)]
pub(super) struct ConnectAttempt {
    pub(super) ids: ChannelIds,
    /// When the next hello is sent.
    pub(super) next: Nanos,
    interval: Nanos,
    cookie: [u8; 16],
    prompts: u8,
    /// Hellos since the last answer (J-28).
    pub(super) unanswered: u8,
}

impl ConnectAttempt {
    /// An attempt whose first hello is sent at `next`, and the next one after about `interval`.
    pub(super) fn new(ids: ChannelIds, next: Nanos, interval: Nanos) -> ConnectAttempt {
        ConnectAttempt { ids, next, interval, cookie: [0; 16], prompts: PROMPTS, unanswered: 0 }
    }

    /// Begins anew with these numbers; the time between hellos goes on to grow.
    pub(super) fn restart(&mut self, ids: ChannelIds) {
        *self = ConnectAttempt::new(ids, self.next, self.interval);
    }

    /// Returns what the next hello carries, if it is due.
    pub(super) fn poll(&mut self, now: Nanos) -> Option<(ChannelIds, [u8; 16])> {
        if self.next > now {
            return None;
        }
        self.next = now + self.spread_interval();
        self.interval = (self.interval * 2).min(HELLO_MAX);
        self.unanswered = self.unanswered.saturating_add(1);
        Some((self.ids, self.cookie))
    }

    /// Returns the time until the next hello: half to one and a half of the interval, drawn from the epoch,
    /// so that nodes that began to connect at the same time do not go on at the same time (H-18).
    fn spread_interval(&self) -> Nanos {
        let drawn = (self.ids.epoch ^ self.interval).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        self.interval / 2 + self.interval / 1024 * drawn
    }

    /// Takes the cookie and the port of a retry, the answer to a hello of this attempt. Returns the port, if
    /// hellos go to another one from now on.
    pub(super) fn take_retry(&mut self, now: Nanos, cookie: [u8; 16], port: u16) -> Option<u16> {
        self.unanswered = 0;
        if port == 0 && constant_eq(&cookie, &self.cookie) {
            return None;
        }
        // H-15: however many retries arrive, few of them are answered at once.
        if self.next > now
            && let Some(left) = self.prompts.checked_sub(1)
        {
            (self.prompts, self.next) = (left, now);
        }
        if port != 0 {
            return Some(port);
        }
        self.cookie = cookie;
        None
    }
}
