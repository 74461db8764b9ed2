//! The interface comes back: it was removed, and one with our address is there again (D-13).
//!
//! The memory stays, and with it all slots; sockets, rings and the program are had anew. Meanwhile frames go through the UDP socket, which outlives
//! interfaces.

use super::attach::{self, MAIL_NEWS, Refusal};
use super::{Xdp, drive, dropped, is_told};
use crate::sys;
use crate::{DeviceEvent, RouteId};

/// Pauses between looks, in nanoseconds: doubled after each, for news may be lost; ended by news.
const PAUSE_MIN: u64 = 20_000_000;
const PAUSE_MAX: u64 = 1_000_000_000;

impl Xdp {
    /// Looks for the interface, now and then.
    #[cold]
    pub(super) fn come_back(&mut self) {
        let now = sys::coarse_now();
        if now < self.health.look_at {
            return;
        }
        self.health.pause = (self.health.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.health.look_at = now + self.health.pause;
        match self.reopen() {
            Ok(()) => self.tell_back(),
            // It is not there yet.
            Err(Refusal::Interface(_)) => {}
            Err(refusal) => {
                let why = Some(refusal.to_string());
                if self.health.unusable != why {
                    self.health.unusable = why;
                    self.choose_all();
                }
            }
        }
    }

    fn reopen(&mut self) -> Result<(), Refusal> {
        let place = attach::find(&mut self.asks, self.local.ip(), self.config.vlan)?;
        let each = self.queues.each() as u32;
        let (attached, queues, numbers) =
            attach::reopen(&self.config, &place, self.local, (&self.umem, self.layout, each))?;
        if let Some(door) = attached.door() {
            attach::watch_socket(&self.mail, MAIL_NEWS, door)?;
        }
        // Refused busy polling makes receiving slower, and nothing else.
        let _ = drive(&queues, self.config.receive);
        self.counters.receive_overflows += self.queues.statistics().overflows;
        let dropped_then = dropped(&self.attached, &self.numbers);
        let before = std::mem::replace(&mut self.queues, queues);
        for chunk in before.close() {
            self.queues.fill(chunk);
        }
        self.queues.submit_chunks();
        let dropped_now = dropped(&attached, &numbers);
        // What was counted stays counted.
        for kind in 0..dropped_now.len() {
            let counted = dropped_then[kind].saturating_sub(self.dropped_before[kind]);
            self.dropped_before[kind] = dropped_now[kind].wrapping_sub(counted);
        }
        self.told = is_told(&self.config, &place, &self.queues);
        (self.attached, self.numbers, self.place) = (attached, numbers, place);
        Ok(())
    }

    /// Everybody looks again at what is known.
    fn tell_back(&mut self) {
        self.health = super::ways::Health {
            down: !(self.place.upper.running && self.place.lower.running),
            back: true,
            ..super::ways::Health::default()
        };
        self.senders.clear();
        self.events.push_back(DeviceEvent::Descriptors);
        for id in (0..self.routes.len() as u32).map(RouteId) {
            self.udp.recheck(id);
            self.look_up(id);
        }
        self.health.back = false;
    }
}
