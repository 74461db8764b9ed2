//! What an endpoint shares with handles on other threads.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::waker_thread::{Entry, Job, WakerThread};
use super::wakes::Wakes;
use crate::error::{Error, Result};
use crate::{Down, Rank, SendError, Undelivered};

/// Attempts of one poll of a future, if the network is active after each.
const ATTEMPTS: usize = 4;

/// What a style keeps for handles, beside the endpoint's own thread.
pub(crate) trait SharedStyle: Any + Send + Sync {
    /// A peer went down: nobody waits for it any longer.
    fn peer_down(&self, peer: Rank, why: Down);

    /// The endpoint is closed: nobody waits any longer.
    fn closed(&self);
}

/// The part of an endpoint that may be used from any thread.
pub(crate) struct Shared {
    pub(crate) node: tautline_node::Endpoint,
    /// The endpoint was closed. Set before the styles are told.
    closed: AtomicBool,
    wakes: Arc<Wakes>,
    waker_thread: Arc<WakerThread>,
    styles: Vec<Arc<dyn SharedStyle>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(
        node: tautline_node::Endpoint,
        wakes: Arc<Wakes>,
        styles: Vec<Arc<dyn SharedStyle>>,
    ) -> Arc<Shared> {
        Arc::new(Shared { node, closed: AtomicBool::new(false), wakes, waker_thread: Arc::default(), styles })
    }

    /// The value of a type that a style attached.
    #[inline]
    pub(crate) fn style<T: SharedStyle>(&self) -> Option<&T> {
        self.styles.iter().find_map(|style| (&**style as &dyn Any).downcast_ref())
    }

    /// An error if the endpoint is closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        if self.closed.load(Ordering::SeqCst) { Err(SendError::Closed) } else { Ok(()) }
    }

    /// An error on the endpoint's own thread: nobody would extract while it waits.
    pub(crate) fn check_not_home(&self) -> Result<()> {
        if self.wakes.is_home() {
            return Err(Error::other(
                "the endpoint's own thread must not wait through a handle: it would wait for itself",
            ));
        }
        Ok(())
    }

    /// Whether the calling thread would wait for itself if it waited for room at `peer`.
    pub(crate) fn is_own(&self, peer: Rank) -> bool {
        peer == self.node.number() && self.wakes.is_home()
    }

    /// Something was sent to this node itself: its thread extracts it.
    pub(crate) fn sent(&self, peer: Rank) {
        if peer == self.node.number() {
            self.wakes.ring();
        }
    }

    /// Repeats `attempt` until it does not block; in between, sleeps until the network was active. Whoever
    /// sleeps also makes protocol progress.
    pub(crate) fn block<T>(&self, peer: Rank, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let result = self.block_until(peer, None, attempt)?;
        Ok(result.expect("there is no deadline"))
    }

    /// As [`Shared::block`]; none if the deadline passes first.
    pub(crate) fn block_until<T>(
        &self,
        peer: Rank,
        deadline: Option<Instant>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<Option<T>> {
        loop {
            let seen = self.node.activity()?;
            match attempt() {
                Err(error) if error.is_would_block() => {
                    // Only extraction makes room for messages to oneself, and nothing happens by itself on a
                    // simulated node.
                    if self.node.is_virtual() || self.is_own(peer) {
                        return Err(error);
                    }
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    if left.is_some_and(|left| left.is_zero()) {
                        return Ok(None);
                    }
                    self.node.sleep_until_activity(seen, left)?;
                }
                result => return result.map(Some),
            }
        }
    }

    /// One step of a future: if `attempt` blocks, `context` is woken when the network was active.
    pub(crate) fn poll<T>(
        self: &Arc<Shared>,
        entry: &mut ActivityWaiter,
        context: &Context<'_>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Poll<Result<T>> {
        for _ in 0..ATTEMPTS {
            let seen = match self.node.activity() {
                Ok(seen) => seen,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            match attempt() {
                Err(error) if error.is_would_block() && !self.node.is_virtual() => {
                    let of = entry.0.get_or_insert_with(|| (self.clone(), Entry::default()));
                    if self.waker_thread.register(&mut of.1, seen, context.waker(), &self.node) {
                        return Poll::Pending;
                    }
                }
                result => return Poll::Ready(result),
            }
        }
        // Others get a turn.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Calls `job` now, and whenever the network was active, until it returns true. `sends` is what it sends;
    /// none if nobody misses it.
    pub(crate) fn post(
        &self,
        sends: Option<Undelivered>,
        mut job: impl FnMut(&tautline_node::Endpoint) -> bool + Send + 'static,
    ) {
        let Ok(seen) = self.node.activity() else { return };
        if !job(&self.node) {
            self.waker_thread.post(seen, Job { run: Box::new(job), sends }, &self.node);
        }
    }

    /// Whether other threads have posted something that has not been sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.node.check_fork().is_ok() && self.waker_thread.has_jobs()
    }

    /// The endpoint's thread waits until everything that was posted is sent, or a task does.
    pub(crate) fn set_closing(&self, task: Option<&Waker>) {
        if self.node.check_fork().is_ok() {
            self.waker_thread.set_closing(task);
        }
    }

    /// Calls fail from now on. Returns what other threads have posted, and has not been sent.
    pub(super) fn set_closed(&self) -> Vec<Undelivered> {
        self.closed.store(true, Ordering::SeqCst);
        if self.node.check_fork().is_ok() { self.waker_thread.set_closed() } else { Vec::new() }
    }

    /// The node is closed: ends all that waits.
    pub(super) fn end(&self) {
        if self.node.check_fork().is_ok() {
            self.styles.iter().for_each(|style| style.closed());
            self.waker_thread.end();
        }
    }

    pub(super) fn peer_down(&self, peer: Rank, why: Down) {
        self.styles.iter().for_each(|style| style.peer_down(peer, why));
    }
}

/// A future's place among those who wait for activity; it leaves when this is dropped.
#[derive(Default)]
pub(crate) struct ActivityWaiter(Option<(Arc<Shared>, Entry)>);

impl Drop for ActivityWaiter {
    fn drop(&mut self) {
        if let Some((shared, entry)) = self.0.take()
            && shared.node.check_fork().is_ok()
        {
            shared.waker_thread.remove(&entry);
        }
    }
}
