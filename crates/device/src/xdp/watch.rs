//! The steering program is detached from outside: it is attached again, or frames go through the socket and the reason is told (D-13).
//!
//! Nothing is lost meanwhile: what the program does not take comes through the socket. But nobody tells us, so we look.

use std::os::fd::AsFd;

use super::Xdp;
use super::attach;
use crate::sys::bpf;
use crate::{DeviceEvent, RouteId, Way, sys};

/// Nanoseconds between looks.
const EVERY: u64 = 100_000_000;
/// Looks in vain before the reason is told: an interface that goes takes its program along, and that is told by itself.
const TELL_AFTER: u32 = 2;

/// What is known of the program.
#[derive(Debug, Default)]
pub(super) struct Watch {
    look_at: u64,
    in_vain: u32,
    /// Why it is not attached.
    pub why: Option<String>,
}

impl Xdp {
    /// Looks whether the program is where it was attached, now and then.
    #[cold]
    pub(super) fn look_after_program(&mut self, now: u64) {
        if now < self.health.watch.look_at {
            return;
        }
        self.health.watch.look_at = now + EVERY;
        let Some(link) = &self.attached.link else { return };
        if self.health.gone || bpf::is_attached(link.as_fd()) {
            return;
        }
        match attach::again((&self.config, &self.place, self.local), &self.attached) {
            Ok(link) => {
                self.attached.link = Some(link);
                self.health.watch.in_vain = 0;
                self.tell_attached();
            }
            Err(refusal) => {
                self.health.watch.in_vain = self.health.watch.in_vain.saturating_add(1);
                if self.health.watch.in_vain == TELL_AFTER {
                    self.health.watch.why = Some(refusal.with_holders().to_string());
                    self.choose_all();
                }
            }
        }
    }

    fn tell_attached(&mut self) {
        if self.health.watch.why.take().is_some() {
            return self.choose_all();
        }
        for id in (0..self.routes.len() as u32).map(RouteId) {
            let route = &self.routes[id.0 as usize];
            if route.told && route.way == Way::Xdp {
                let why = "somebody had detached the steering program, and it is attached again".to_owned();
                self.tell(DeviceEvent::Way { route: id, way: Way::Xdp, why });
            }
        }
    }

    /// The same, by the clock.
    #[cold]
    pub(super) fn look_after_all(&mut self) {
        self.look_after_program(sys::coarse_now());
    }

    /// Detaches the program, as somebody else might; for tests.
    pub fn detach_program(&mut self) {
        if let Some(link) = &self.attached.link {
            let _ = bpf::detach(link.as_fd());
        }
    }
}
