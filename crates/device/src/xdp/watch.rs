//! The steering program is detached from outside: it is attached again, or frames go through the socket and the reason is told (D-13).
//!
//! Nothing is lost meanwhile: what the program does not take comes through the socket. But nobody tells us, so we look.

use std::os::fd::AsFd;

use super::Xdp;
use super::attach;
use super::headers::Framing;
use crate::sys::bpf;
use crate::{DeviceEvent, RouteId, Transport, sys};

/// Nanoseconds between looks. Raw frames come by the ring or not at all, and their senders do not wait for ever.
const EVERY: u64 = 1_000_000_000;
const EVERY_RAW: u64 = 200_000_000;
/// The same, when frames come through the socket, perhaps because the program is gone.
const EVERY_MAIL: u64 = 50_000_000;
/// Looks in vain before the reason is told: an interface that goes takes its program along, and that is told by itself.
const TELL_AFTER: u32 = 2;

/// What is known of the program.
#[derive(Debug, Default)]
pub(super) struct Watch {
    looked_at: u64,
    in_vain: u32,
    /// Why it is not attached.
    pub why: Option<String>,
}

impl Xdp {
    /// Looks whether the program is where it was attached, now and then.
    #[cold]
    pub(super) fn look_after_program(&mut self, has_mail: bool) {
        let now = sys::coarse_now();
        let every = match self.config.framing {
            _ if has_mail => EVERY_MAIL,
            Framing::Udp => EVERY,
            Framing::Raw => EVERY_RAW,
        };
        if now.saturating_sub(self.health.watch.looked_at) < every {
            return;
        }
        self.health.watch.looked_at = now;
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
                    let refusal = refusal.after_giving_up(self.config.drop_privileges).with_holders();
                    self.health.watch.why = Some(refusal.to_string());
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
            if route.told && route.transport == Transport::Xdp {
                let why = "somebody had detached the steering program, and it is attached again".to_owned();
                self.tell(DeviceEvent::Transport { route: id, transport: Transport::Xdp, why });
            }
        }
    }

    /// Detaches the program, as somebody else might; for tests.
    pub fn detach_program(&mut self) {
        if let Some(link) = &self.attached.link {
            let _ = bpf::detach(link.as_fd());
        }
    }
}
