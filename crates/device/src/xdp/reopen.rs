//! Reopening: the interface, or our address, was removed, and an interface with our address is there again
//! (D-13, D-26).
//!
//! The memory stays, and with it all slots; sockets, rings and the program are created anew. Meanwhile frames
//! go through the UDP socket, which does not depend on an interface.

use super::attach_point::{self, AttachPoint};
use super::retry::RetryLimits;
use super::routing::Health;
use super::trial::{self, Polling};
use super::unavailable::Unavailable;
use super::{Xdp, attach, dropped, is_by_completion};
use crate::{Datagram, DeviceEvent, sys};

/// Pauses between attempts, in nanoseconds. They double, because a notification may be lost; a notification
/// ends them.
const PAUSE_MIN: u64 = 20_000_000;
const PAUSE_MAX: u64 = 1_000_000_000;
/// Failures before the reason is reported, and before fewer queues are accepted.
const REPORT_AFTER: u32 = 3;
const FEWER_AFTER: u32 = 6;

impl Xdp {
    /// Tries to reopen the interface if an attempt is due.
    #[cold]
    pub(super) fn try_reopen(&mut self) {
        let now = sys::coarse_now();
        let reopen = &mut self.routing.health.reopen;
        if now < reopen.retry_at {
            return;
        }
        reopen.pause = (reopen.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        reopen.retry_at = now + reopen.pause;
        match self.reopen() {
            Ok(()) => self.reopened(),
            // It is not there yet.
            Err(Unavailable::Interface(_)) => self.routing.health.reopen.failures = 0,
            Err(why) => self.reopen_failed(why.after_dropping_privileges(self.config.drop_privileges)),
        }
    }

    /// Notes that the interface is there and cannot be opened. A problem that passes quickly is not reported.
    fn reopen_failed(&mut self, why: Unavailable) {
        let reopen = &mut self.routing.health.reopen;
        reopen.failures = reopen.failures.saturating_add(1);
        if reopen.failures == 1 {
            // The interface has just appeared, so the next attempt follows soon.
            (reopen.pause, reopen.retry_at) = (PAUSE_MIN, sys::coarse_now() + PAUSE_MIN);
        }
        if reopen.failures < REPORT_AFTER || reopen.error.as_ref() == Some(&why) {
            return;
        }
        reopen.error = Some(why.clone());
        reopen.problem = Some(why.with_holders().to_string());
        self.choose_all();
    }

    fn reopen(&mut self) -> Result<(), Unavailable> {
        let point = attach_point::find(&mut self.routing.queries, self.local, self.config.vlan)?;
        let health = &self.routing.health;
        if !health.lost && self.is_same(&point) {
            // Only the address or the upper interface was gone: program and sockets are still there.
            self.point = point;
            self.update_addressee();
            return Ok(());
        }
        let accept_fewer = health.reopen.failures >= FEWER_AFTER;
        if health.lost || point.lower.index == self.point.lower.index {
            self.release_interface();
        }
        let limits = RetryLimits { accept_fewer, ..RetryLimits::REOPEN };
        let chunks = self.rings.queues.chunks_per_queue() as u32;
        let memory = (&self.rings.umem, self.rings.layout, chunks);
        let how = (limits, &mut self.routing.health.requests);
        let (attached, queues, numbers) = attach::reopen(&self.config, &point, self.local, memory, how)?;
        if let Some(requests) = attached.requests_fd() {
            self.arrivals.add_event_source(requests)?;
        }
        // Without busy polling receiving is slower, and nothing else. What was measured before need not hold
        // here.
        let busy = trial::configure(&queues, self.config.receive);
        self.polling = Polling::new(self.config.receive);
        self.statistics.counters.receive_overflows += self.rings.queues.statistics().overflows;
        let dropped_then = dropped(&self.attached, &self.rings.numbers);
        let by_completion = is_by_completion(&self.config, &point, &queues);
        self.rings.replace(self.udp.arena(), queues, numbers, by_completion);
        // What was counted stays counted.
        let dropped_now = dropped(&attached, &self.rings.numbers);
        let dropped_before = &mut self.statistics.dropped_before;
        for cause in 0..dropped_now.len() {
            let counted = dropped_then[cause].saturating_sub(dropped_before[cause]);
            dropped_before[cause] = dropped_now[cause].wrapping_sub(counted);
        }
        (self.attached, self.point) = (attached, point);
        self.routing.health.stale_address = false;
        self.description = self.describe_setup(&[], busy);
        Ok(())
    }

    /// Whether program and sockets are at this place already.
    fn is_same(&self, point: &AttachPoint) -> bool {
        (point.lower.index, point.upper.vlan) == (self.point.lower.index, self.point.upper.vlan)
    }

    /// Detaches the program at once: an attempt to reopen must not find the interface occupied by ourselves.
    pub(super) fn release_interface(&mut self) {
        if self.attached.link.is_some() {
            self.attached.detach();
            if self.routing.health.lost {
                // The kernel has released the ring and everything in it.
                self.rings.release_all(self.udp.arena());
            }
            self.routing.report(DeviceEvent::Descriptors);
        }
    }

    fn reopened(&mut self) {
        self.routing.health = Health {
            down: !(self.point.upper.running && self.point.lower.running),
            back: true,
            stale_address: self.routing.health.stale_address,
            ..Health::default()
        };
        self.routing.senders.clear();
        self.routing.report(DeviceEvent::Descriptors);
        self.resolve_all();
        self.routing.health.back = false;
        self.report_raw();
    }
}
