//! The state that everything made of one endpoint shares, grouped by purpose. It knows neither messages nor
//! handlers nor styles: those are above it, and reached through [`Extract`].

mod absorb;
mod budget;
mod events;
mod extraction;
mod failures;
mod outbox;
mod peer_loss;
mod shared;
mod waits;
mod waker_thread;
mod wakes;

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use tautline_node::{PeerId, WaitFor};

use crate::error::{Error, Result};
use crate::waiters::Waiter;
use crate::{PeerState, Rank, SendError, Undelivered};
pub(crate) use budget::{Budgets, Charge};
use events::EventQueue;
use extraction::Extraction;
pub(crate) use failures::{Failures, OnFailure};
use outbox::Outbox;
pub(crate) use outbox::{WindowGrant, is_settled};
use peer_loss::PeerLoss;
pub(crate) use shared::{ActivityWaiter, Shared, SharedStyle};
use waits::Waits;
pub(crate) use wakes::{SlotWaker, Wakes};

pub(crate) struct Core {
    pub(crate) node: tautline_node::Endpoint,
    /// The endpoint was closed, by any of its clones.
    closed: Cell<bool>,
    pub(crate) extraction: Extraction,
    pub(crate) waits: Waits,
    pub(crate) outbox: Outbox,
    pub(crate) events: EventQueue,
    pub(crate) failures: Failures,
    pub(crate) peer_loss: PeerLoss,
    pub(crate) budgets: Budgets,
    pub(crate) wakes: Arc<Wakes>,
    /// What handles on other threads hold.
    pub(crate) shared: Arc<Shared>,
    /// Values that styles attached to the builder.
    attachments: Vec<Box<dyn Any>>,
    inbox: Box<dyn Extract>,
}

/// Takes messages that have arrived and runs their handlers.
pub(crate) trait Extract {
    /// As [`crate::Endpoint::extract`].
    fn extract(&self, core: &Rc<Core>, bytes: usize) -> Result<usize>;

    /// Drops the program's handlers and suspended futures. Not called while one of them runs.
    fn drop_handlers(&self, core: &Core);
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        node: tautline_node::Endpoint,
        inbox: Box<dyn Extract>,
        attachments: Vec<Box<dyn Any>>,
        (failures, styles): (Failures, Vec<Arc<dyn SharedStyle>>),
    ) -> Rc<Core> {
        let wakes = Wakes::new(node.waker());
        let shared = Shared::new(node.clone(), wakes.clone(), styles);
        let budgets = Budgets::new(node.config().max_whole, node.config().max_held);
        Rc::new(Core {
            node,
            closed: Cell::new(false),
            extraction: Extraction::default(),
            waits: Waits::default(),
            outbox: Outbox::default(),
            events: EventQueue::default(),
            failures,
            peer_loss: PeerLoss::default(),
            budgets,
            wakes,
            shared,
            attachments,
            inbox,
        })
    }

    /// Takes up to `bytes` bytes that have arrived and runs their handlers.
    #[inline]
    pub(crate) fn extract(self: &Rc<Core>, bytes: usize) -> Result<usize> {
        self.inbox.extract(self, bytes)
    }

    /// Begins an extraction, which ends when the guard is dropped. An error if one is running, or the
    /// endpoint is closed.
    #[inline]
    pub(crate) fn begin_extraction(&self) -> Result<ExtractionGuard<'_>> {
        if !self.extraction.begin() {
            return Err(Error::Reentrant);
        }
        let guard = ExtractionGuard(self);
        if let Err(closed) = self.check_open() {
            drop(guard);
            self.drop_handlers();
            return Err(closed.into());
        }
        Ok(guard)
    }

    /// An error if handlers are running: the caller is one of them, and must not extract.
    pub(crate) fn check_not_in_handler(&self) -> Result<()> {
        if self.extraction.is_running() { Err(Error::Reentrant) } else { Ok(()) }
    }

    /// Opens a batch that is closed when the running extraction ends.
    pub(crate) fn batch_extraction(&self) {
        if self.extraction.begin_batch() {
            let _ = self.node.open_batch();
        }
    }

    #[cold]
    fn finish_extraction(&self) {
        if self.extraction.take_batch() {
            let _ = self.node.close_batch();
        }
        self.extraction.wake();
        let progress = self.extraction.take_progress();
        if !self.waits.turns.is_empty() {
            if progress {
                self.waits.turns.wake();
            } else {
                self.extraction.watch_end();
            }
        }
    }

    /// Wakes `context` at the end of the next extraction that takes or runs something, or when the endpoint
    /// is closed.
    pub(crate) fn register_turn(&self, waiter: &Waiter, context: &Context<'_>) {
        self.waits.turns.register(waiter, context);
        self.extraction.watch_end();
    }

    pub(crate) fn remove_turn(&self, waiter: &Waiter) {
        self.waits.turns.remove(waiter);
    }

    /// Waits until there may be something to extract or to do for handlers; false if `timeout` passed first.
    /// Unread events do not end the wait.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Result<bool> {
        // A wake-up after this ends the wait; one before it has left work behind.
        self.node.clear_signal();
        if self.has_work() {
            return Ok(true);
        }
        self.failures.log_unread();
        Ok(self.node.wait(timeout, WaitFor { activity: self.blocked_since(), memory: None })?)
    }

    /// Returns what may keep a wait from ever ending as an error: the loss of the last reachable peer, or a
    /// handler's failure that nobody has read.
    #[inline]
    pub(crate) fn check_wait(&self) -> Result<()> {
        // Messages that have not been taken, and unfinished handlers, may still do what is waited for.
        if self.extraction.unfinished() == 0
            && self.peer_loss.unreported().is_some()
            && !self.node.has_slots()?
            && let Some(lost) = self.peer_loss.take_unreported()
        {
            return Err(lost.into());
        }
        if self.failures.end_waits() { self.check_failures() } else { Ok(()) }
    }

    /// Returns an unread failure of a handler as an error, unless there is something to extract or to do.
    #[cold]
    pub(crate) fn check_failures(&self) -> Result<()> {
        if self.has_work() || self.node.has_slots()? {
            return Ok(());
        }
        self.failures.take_ending().map_or(Ok(()), |failure| Err(Error::HandlerFailed(Box::new(failure))))
    }

    /// If something waits for room: the node's activity when it was tried. Any later activity may have made
    /// room.
    pub(crate) fn blocked_since(&self) -> Option<u64> {
        let waits = !self.waits.room.is_empty() || !self.outbox.is_empty();
        waits.then(|| self.waits.tried_at())
    }

    /// Whether handlers or the program have something to do, whatever the network does.
    pub(crate) fn has_work(&self) -> bool {
        self.wakes.any() || self.wakes.is_program_woken() || self.peer_loss.has_unfinished()
    }

    /// The value of a type that a style attached to the builder.
    #[inline]
    pub(crate) fn attachment<T: 'static>(&self) -> Option<&T> {
        self.attachments.iter().find_map(|value| value.downcast_ref())
    }

    /// The incarnation of a peer that can be reached now, if any.
    #[inline]
    pub(crate) fn peer_id(&self, rank: Rank) -> Option<PeerId> {
        self.node.incarnation(rank).map(|incarnation| PeerId::new(rank, incarnation))
    }

    /// Why nothing more will arrive from a peer, if so. `known` is the incarnation in question; without one
    /// it is whichever is reachable.
    pub(crate) fn peer_error(&self, rank: Rank, known: Option<PeerId>) -> Option<Error> {
        if let Err(closed) = self.check_open() {
            return Some(closed.into());
        }
        match (known, self.node.peer_state(rank)) {
            (Some(_), _) if rank == self.node.number() => None,
            (Some(peer), _) => match self.node.check(peer) {
                Err(SendError::PeerGone(peer, why)) => Some(Error::PeerGone(peer, why)),
                _ => None,
            },
            (None, Some(PeerState::Down(why))) => Some(Error::PeerGone(rank, why)),
            _ => None,
        }
    }

    /// An error if the endpoint is closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        if self.closed.get() { Err(SendError::Closed) } else { Ok(()) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The time to close that was configured.
    pub(crate) fn close_timeout(&self) -> Duration {
        self.node.config().close_timeout
    }

    /// Closes the node in good order, then drops the handlers and wakes everybody who waits. Does nothing if
    /// that was done before.
    pub(crate) fn close(self: &Rc<Core>, time: Duration) -> Result<()> {
        if self.closed.get() {
            return Ok(());
        }
        let until = self.node.now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.empty_outbox(until);
        let unsent = self.begin_close();
        let left = Duration::from_nanos(until.saturating_sub(self.node.now()));
        self.end_close(unsent, self.node.close_within(left))
    }

    /// No call succeeds from now on. Returns what was started and has not been sent.
    pub(crate) fn begin_close(&self) -> Vec<Undelivered> {
        let mut unsent = self.outbox.unsent();
        self.closed.set(true);
        self.shared.set_closed().into_iter().for_each(|entry| entry.merge_into(&mut unsent));
        unsent
    }

    /// The node is closed. An error if something was not delivered (N-9).
    pub(crate) fn end_close(
        &self,
        mut unsent: Vec<Undelivered>,
        closed: Result<Vec<Undelivered>, SendError>,
    ) -> Result<()> {
        self.drop_handlers();
        self.wake_all();
        closed?.into_iter().for_each(|entry| entry.merge_into(&mut unsent));
        // A simulated node has only begun to close.
        if unsent.is_empty() || self.node.is_virtual() { Ok(()) } else { Err(Error::Undelivered(unsent)) }
    }

    /// The last clone of the endpoint is dropped: closes it, if that has not been done.
    pub(crate) fn close_on_drop(self: &Rc<Core>) {
        if self.closed.get() {
            return;
        }
        let time = self.close_timeout();
        // A program that panics runs no more handlers.
        let closed = if std::thread::panicking() {
            let unsent = self.begin_close();
            self.end_close(unsent, self.node.close_within(time))
        } else {
            self.close(time)
        };
        if let Err(error) = closed {
            tracing::error!(rank = self.node.rank(), %error, "an endpoint was dropped");
        }
    }

    /// Whether something was started that has not been sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbox.has_no_jobs() || self.shared.has_unsent()
    }

    /// Extracts until everything that was started is sent, or it is `until`: a peer that does the same takes
    /// nothing unless this node takes what the peer has sent.
    fn empty_outbox(self: &Rc<Core>, until: u64) {
        if self.node.is_virtual() {
            return;
        }
        self.shared.set_closing(None);
        while self.has_unsent() && self.extract(usize::MAX).is_ok() && self.has_unsent() {
            let left = until.saturating_sub(self.node.now());
            if left == 0 || self.sleep(Some(Duration::from_nanos(left))).is_err() {
                break;
            }
        }
    }

    /// Drops the program's handlers with all they hold. If one of them is running, the next extraction does
    /// it.
    fn drop_handlers(&self) {
        if !self.extraction.is_running() {
            self.inbox.drop_handlers(self);
            self.extraction.no_handlers();
            self.failures.log_unread();
            self.failures.drop_taker();
        }
    }

    fn wake_all(&self) {
        self.outbox.clear();
        self.shared.end();
        self.waits.wake_all();
        self.events.waiters.wake();
    }

    #[cfg(test)]
    pub(crate) fn memory_waiters(&self) -> usize {
        self.waits.memory_len()
    }
}

/// An extraction is running until this is dropped, also by unwinding.
pub(crate) struct ExtractionGuard<'a>(&'a Core);

impl Drop for ExtractionGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.extraction.end() {
            self.0.finish_extraction();
        }
    }
}
