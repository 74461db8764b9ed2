//! Messages: the Fast Messages 2.x interface.
//!
//! Sending: [`crate::Endpoint::begin`] with the size, then pieces of any number and size, then [`Outgoing::end`]; or in one go
//! with [`crate::Endpoint::send`]. Receiving: handlers, run by [`crate::Endpoint::extract`] and by nothing else.

pub(crate) mod begun;
mod dispatch;
mod fate;
pub(crate) mod handlers;
mod incoming;
mod loan;
mod outgoing;
pub(crate) mod stream;
mod tasks;
mod whole;

pub use crate::core::Failure;
pub use incoming::{Message, Short};
pub use loan::{Lent, Loan};
pub use outgoing::Outgoing;
pub(crate) use tasks::panic_text;

/// What [`crate::Endpoint`] drives.
pub(crate) mod dispatch_all {
    pub(crate) use super::dispatch::dispatch;
    pub(crate) use super::fate::absorb_events as absorb;
    use super::fate::end_peers;
    use super::tasks::{poll_task, retry_grants};
    pub(crate) use super::whole::frames;
    use crate::core::Core;
    use std::rc::Rc;

    /// Runs handlers that were woken, and those that wait for room to send.
    pub(crate) fn run_woken(core: &Rc<Core>) {
        core.tried_at.set(u64::MAX);
        core.wakes.take_call();
        if !core.blocked.is_empty() {
            core.blocked.wake();
        }
        if !core.outbox.is_empty() {
            core.outbox.run(core);
        }
        if core.wakes.any() {
            for woken in core.wakes.take() {
                woken.polled();
                poll_task(core, woken.handler, woken.slot);
            }
        }
    }

    /// What remains to be done when a delivery is dealt with.
    #[inline]
    pub(crate) fn after(core: &Rc<Core>, events: bool, more: bool) {
        retry_grants(core);
        if events {
            absorb(core);
        }
        // What a peer sent before it went may complete a message; only then does it count as left half sent.
        // The watchdog may have taken that out since, and noticed the end.
        let left = || core.node.has_slots().unwrap_or(false);
        if !more && !core.gone.borrow().is_empty() && !left() {
            end_peers(core);
        }
    }
}
