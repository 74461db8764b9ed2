//! Checks that the steering program is still attached. One that was detached is attached again; if
//! that fails, frames go through the UDP socket and the reason is reported (D-27).
//!
//! No frame is lost meanwhile: what the program does not take arrives through the socket. The kernel does not
//! notify us, so we poll.

use std::os::fd::AsFd;

use super::Xdp;
use super::attach;
use super::headers::Framing;
use crate::sys::{self, bpf};

/// Nanoseconds between checks. Raw frames arrive by the rings or not at all, and their senders time out.
const INTERVAL: u64 = 1_000_000_000;
const INTERVAL_RAW: u64 = 200_000_000;
/// The interval while frames arrive through the socket, perhaps because the program is gone.
const INTERVAL_SOCKET: u64 = 50_000_000;
/// Failures before the reason is reported. An interface that is removed takes its program along, and its
/// removal is reported anyway.
const REPORT_AFTER: u32 = 2;

/// The state of the check.
#[derive(Debug, Default)]
pub(super) struct ProgramWatch {
    checked_at: u64,
    failures: u32,
    /// Why the program cannot be attached again.
    pub problem: Option<String>,
}

impl Xdp {
    /// Checks the program if it is time to; `by_socket` says that frames arrive through the socket.
    #[cold]
    pub(super) fn check_program(&mut self, by_socket: bool) {
        let now = sys::coarse_now();
        let interval = match self.config.framing {
            _ if by_socket => INTERVAL_SOCKET,
            Framing::Udp => INTERVAL,
            Framing::Raw => INTERVAL_RAW,
        };
        let watch = &mut self.routing.health.watch;
        if now.saturating_sub(watch.checked_at) < interval {
            return;
        }
        watch.checked_at = now;
        let Some(link) = &self.attached.link else { return };
        if self.routing.health.gone || bpf::is_attached(link.as_fd()) {
            return;
        }
        let (what, requests) = ((&self.config, &self.point, self.local), &mut self.routing.health.requests);
        match attach::reattach(what, &self.attached, requests) {
            Ok(link) => {
                self.attached.link = Some(link);
                self.program_reattached();
            }
            Err(why) => {
                let watch = &mut self.routing.health.watch;
                watch.failures = watch.failures.saturating_add(1);
                if watch.failures == REPORT_AFTER {
                    let why = why.after_dropping_privileges(self.config.drop_privileges).with_holders();
                    watch.problem = Some(why.to_string());
                    self.choose_all();
                }
            }
        }
    }

    fn program_reattached(&mut self) {
        self.routing.health.watch.failures = 0;
        if self.routing.health.watch.problem.take().is_some() {
            return self.choose_all();
        }
        self.routing.report_direct_routes(
            "another process had detached the steering program, and it is attached again",
        );
    }

    /// Detaches the program as another process could; for tests.
    #[doc(hidden)]
    pub fn detach_program(&mut self) {
        if let Some(link) = &self.attached.link {
            let _ = bpf::detach(link.as_fd());
        }
    }
}
