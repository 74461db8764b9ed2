//! The interface comes back: it was removed, or our address was, and one with our address is there again (D-13).
//!
//! The memory stays, and with it all slots; sockets, rings and the program are had anew. Meanwhile frames go through the UDP socket, which outlives
//! interfaces.

use super::attach::{self, MAIL_NEWS, Place, Unavailable};
use super::retry::RetryLimits;
use super::{Receive, Xdp, describe, drive, dropped, is_told};
use crate::sys;
use crate::{DeviceEvent, RouteId};

/// Pauses between looks, in nanoseconds: doubled after each, for news may be lost; ended by news.
const PAUSE_MIN: u64 = 20_000_000;
const PAUSE_MAX: u64 = 1_000_000_000;
/// Looks in vain before the reason is told, and before fewer queues will do.
const TELL_AFTER: u32 = 3;
const FEWER_AFTER: u32 = 6;

impl Xdp {
    /// Looks for the interface, now and then.
    #[cold]
    pub(super) fn come_back(&mut self) {
        let now = sys::coarse_now();
        if now < self.health.retry_at {
            return;
        }
        self.health.pause = (self.health.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.health.retry_at = now + self.health.pause;
        match self.reopen() {
            Ok(()) => self.tell_back(),
            // It is not there yet.
            Err(Unavailable::Interface(_)) => self.health.in_vain = 0,
            Err(refusal) => self.not_back(refusal.after_giving_up(self.config.drop_privileges)),
        }
    }

    /// It is there, and cannot be had. What a moment's patience mends is not told.
    fn not_back(&mut self, refusal: Unavailable) {
        self.health.in_vain = self.health.in_vain.saturating_add(1);
        if self.health.in_vain == 1 {
            // Seen for the first time, it is looked at again soon.
            (self.health.pause, self.health.retry_at) = (PAUSE_MIN, sys::coarse_now() + PAUSE_MIN);
        }
        if self.health.in_vain < TELL_AFTER || self.health.refusal.as_ref() == Some(&refusal) {
            return;
        }
        self.health.refusal = Some(refusal.clone());
        self.health.unusable = Some(refusal.with_holders().to_string());
        self.choose_all();
    }

    fn reopen(&mut self) -> Result<(), Unavailable> {
        let place = attach::find(&mut self.asks, self.local, self.config.vlan)?;
        if !self.health.lost && self.is_same(&place) {
            // Only the address was gone, or the interface above: program and sockets are where they were.
            self.place = place;
            self.readdress();
            return Ok(());
        }
        if self.health.lost || place.lower.index == self.place.lower.index {
            self.let_go_of_interface();
        }
        let limits = RetryLimits { fewer: self.health.in_vain >= FEWER_AFTER, ..RetryLimits::SHORT };
        let each = self.queues.each() as u32;
        let (attached, queues, numbers) =
            attach::reopen(&self.config, &place, self.local, (&self.umem, self.layout, each), limits)?;
        if let Some(door) = attached.door() {
            attach::watch_socket(&self.mail, MAIL_NEWS, door)?;
        }
        // Refused busy polling makes receiving slower, and nothing else. What was measured there need not be so here.
        let busy = drive(&queues, self.config.receive);
        (self.busy, self.trial) =
            (self.config.receive == Receive::BusyPoll, Xdp::trial_for(self.config.receive));
        self.counters.receive_overflows += self.queues.statistics().overflows;
        let dropped_then = dropped(&self.attached, &self.numbers);
        let before = std::mem::replace(&mut self.queues, queues);
        for chunk in before.close() {
            self.queues.fill(chunk);
        }
        // Closed, the kernel looks at nothing that was in the ring.
        self.let_go_all();
        self.queues.submit_chunks();
        let dropped_now = dropped(&attached, &numbers);
        // What was counted stays counted.
        for kind in 0..dropped_now.len() {
            let counted = dropped_then[kind].saturating_sub(self.dropped_before[kind]);
            self.dropped_before[kind] = dropped_now[kind].wrapping_sub(counted);
        }
        self.told = is_told(&self.config, &place, &self.queues);
        (self.attached, self.numbers, self.place) = (attached, numbers, place);
        self.health.deaf = false;
        self.about = describe(
            &self.config,
            &self.place,
            self.local,
            (&self.queues, &self.numbers, &self.attached),
            &[],
            (&self.umem, self.layout),
            busy,
        );
        Ok(())
    }

    /// Whether a place is where program and sockets are already.
    fn is_same(&self, place: &Place) -> bool {
        (place.lower.index, place.upper.vlan) == (self.place.lower.index, self.place.upper.vlan)
    }

    /// Lets go of the program at once: whoever looks for an interface must not find it taken by himself.
    pub(super) fn let_go_of_interface(&mut self) {
        if self.attached.link.is_some() {
            self.attached.let_go();
            if self.health.lost {
                // The kernel has let go of the ring, and of all that was in it.
                self.let_go_all();
            }
            self.events.push_back(DeviceEvent::Descriptors);
        }
    }

    /// Everybody looks again at what is known.
    fn tell_back(&mut self) {
        self.health = super::routing::Health {
            down: !(self.place.upper.running && self.place.lower.running),
            back: true,
            deaf: self.health.deaf,
            ..super::routing::Health::default()
        };
        self.senders.clear();
        self.events.push_back(DeviceEvent::Descriptors);
        for id in (0..self.routes.len() as u32).map(RouteId) {
            self.look_up(id);
        }
        self.health.back = false;
        self.tell_raw();
    }
}
