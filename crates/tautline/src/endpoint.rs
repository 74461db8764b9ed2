//! What a program holds. The verbs that send are in [`crate::messages`], those of memory in
//! [`crate::memory`].

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tautline_node::Key;

use crate::core::{Core, HandlerFailure, Wakes};
use crate::error::Result;
use crate::{Counters, Event, PeerState, Rank};

/// A process's access to its job. Clones share it. Neither `Send` nor `Sync`: it belongs to the thread that
/// made it.
///
/// Dropping the last clone closes it in good order, as [`Endpoint::close`] does, but reports no error.
///
/// Endpoints that handlers get from [`crate::Message::endpoint`] and [`crate::Short::endpoint`] do not keep
/// it open: otherwise a suspended handler would keep alive what it waits for.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) core: Rc<Core>,
    _keep_open: Option<Rc<KeepOpen>>,
}

/// Shared by the program's own clones; dropping the last one closes the endpoint.
#[derive(Debug)]
struct KeepOpen(Rc<Core>);

impl Drop for KeepOpen {
    fn drop(&mut self) {
        self.0.close_on_drop();
    }
}

/// A handler's name, looked up once; see [`Endpoint::handler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handler(pub(crate) Key);

/// The name of a handler: a string, or a [`Handler`] that was looked up beforehand, which is faster.
pub trait Name {
    #[doc(hidden)]
    fn key(&self, endpoint: &Endpoint) -> Result<Handler>;
}

impl Name for Handler {
    #[inline]
    fn key(&self, _: &Endpoint) -> Result<Handler> {
        Ok(*self)
    }
}

impl Name for &str {
    fn key(&self, endpoint: &Endpoint) -> Result<Handler> {
        endpoint.handler(self)
    }
}

/// Wakes an endpoint from any thread.
#[derive(Clone)]
pub struct Waker(Arc<Wakes>);

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

impl Waker {
    /// Makes [`Endpoint::wait`] return, now or the next time, and the endpoint's descriptor readable.
    /// [`Endpoint::run_until`] evaluates its condition again.
    pub fn wake(&self) {
        self.0.wake_program();
    }
}

/// Messages that are sent while this exists leave when a frame is full, or when it is dropped. See
/// [`Endpoint::batch`].
#[derive(Debug)]
#[must_use = "the batch ends when this is dropped"]
pub struct Batch<'a>(&'a Endpoint);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let _ = self.0.core.node.close_batch();
    }
}

impl Endpoint {
    /// An endpoint that stays open until its last clone is dropped.
    pub(crate) fn new(core: Rc<Core>) -> Endpoint {
        let keep_open = Some(Rc::new(KeepOpen(core.clone())));
        Endpoint { core, _keep_open: keep_open }
    }

    /// An endpoint, as handlers get it, that does not keep itself open.
    #[inline]
    pub(crate) fn handle(core: Rc<Core>) -> Endpoint {
        Endpoint { core, _keep_open: None }
    }

    /// This process's rank in the job.
    pub fn rank(&self) -> Rank {
        self.core.node.rank()
    }

    /// The number of processes in the job.
    pub fn size(&self) -> u32 {
        self.core.node.size()
    }

    /// Looks up a handler's name, once for many sends.
    pub fn handler(&self, name: &str) -> Result<Handler> {
        Ok(Handler(self.core.node.key(name)?))
    }

    /// While the returned guard lives, small messages share frames: they leave when a frame is full or the
    /// guard is dropped.
    pub fn batch(&self) -> Batch<'_> {
        let _ = self.core.node.open_batch();
        Batch(self)
    }

    /// Takes up to `bytes` bytes that have arrived (rounded up to whole frames) and runs the handlers of
    /// their messages. Never waits. Returns the number of bytes taken. What is not extracted holds its sender
    /// back: the receiver paces the network (M-8).
    #[inline]
    pub fn extract(&self, bytes: usize) -> Result<usize> {
        self.core.extract(bytes)
    }

    /// Waits, by the configured policy, until there may be something to extract, a new event, or a handler to
    /// resume; false if `timeout` passed first. An unread event ends one wait only.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        self.core.check_not_in_handler()?;
        self.core.check_open()?;
        if self.core.events.take_unseen() {
            return Ok(true);
        }
        let woken = self.core.sleep(timeout)?;
        Ok(self.core.wakes.take_program_woken() || woken)
    }

    /// Extracts and waits until `done` returns true. If the last reachable peer goes down meanwhile, so that
    /// nobody is left to wait for, returns [`crate::Error::PeerGone`], once. A further wait accepts peers
    /// that come back.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        let core = &self.core;
        loop {
            let taken = self.extract(usize::MAX)?;
            if done() {
                // The next wait returns for events that were not read in here.
                core.events.set_unseen(self.has_events()?);
                return Ok(());
            }
            // Messages that have not been taken, and unfinished handlers, may still make `done` true.
            if taken == 0
                && core.extraction.unfinished() == 0
                && core.peer_loss.unreported().is_some()
                && !core.node.has_slots()?
                && let Some(lost) = core.peer_loss.take_unreported()
            {
                return Err(lost.into());
            }
            if !core.events.take_unseen() {
                core.sleep(None)?;
            }
        }
    }

    /// Extracts and waits until `messages` more messages have been handled.
    pub fn serve(&self, messages: u64) -> Result<()> {
        let until = self.handled() + messages;
        self.run_until(|| self.handled() >= until)
    }

    /// The number of messages whose handlers have finished here.
    pub fn handled(&self) -> u64 {
        self.core.extraction.handled()
    }

    /// Makes protocol progress without running any handler. A program that polls need not call it.
    pub fn progress(&self) -> Result<()> {
        self.core.node.progress()?;
        Ok(())
    }

    /// Returns the next event: a peer up or down, a device chosen, a path changed, something that happened to
    /// memory. It does not poll the network: call [`Endpoint::extract`] or [`Endpoint::progress`] first.
    pub fn poll_event(&self) -> Option<Event> {
        if !self.core.extraction.is_running() {
            self.core.absorb_events();
        }
        let memory_event = || self.core.node.poll_memory_event().ok().flatten().map(Event::Memory);
        let event = self.core.events.pop().or_else(memory_event);
        // A program that read one event is to be told of the others.
        self.core.events.set_unseen(self.has_events().unwrap_or(false));
        event
    }

    fn has_events(&self) -> Result<bool> {
        Ok(!self.core.events.is_empty() || self.core.node.acknowledge_memory_events()?)
    }

    /// Returns the next handler that panicked or returned an error.
    pub fn poll_failure(&self) -> Option<HandlerFailure> {
        self.core.failures.pop()
    }

    /// The state of a peer; nothing if there is no such rank.
    pub fn peer_state(&self, peer: Rank) -> Option<PeerState> {
        self.core.node.peer_state(peer)
    }

    /// Starts to open a channel to a peer, without waiting for it.
    pub fn connect(&self, peer: Rank) -> Result<()> {
        Ok(self.core.node.connect(peer)?)
    }

    /// Counters of this process's node.
    pub fn counters(&self) -> Counters {
        self.core.node.counters()
    }

    /// Prepares to sleep on this endpoint's descriptor ([`AsFd`]); false if there is something to extract
    /// first. After each wake-up: [`Endpoint::extract`], then arm again.
    ///
    /// Other tasks of the thread may use the endpoint meanwhile, and wake its handlers: then the descriptor
    /// becomes readable, so that the program looks again.
    pub fn arm(&self) -> Result<bool> {
        if self.core.events.take_unseen() || self.core.has_work() {
            return Ok(false);
        }
        // Arming silences the bell of a wake-up that came meanwhile.
        Ok(self.core.node.arm(self.core.blocked_since())? && !self.core.has_work())
    }

    /// Returns a handle that wakes this endpoint from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.core.wakes.clone())
    }

    /// The node below, for tools and tests.
    pub fn node(&self) -> &tautline_node::Endpoint {
        &self.core.node
    }

    /// Closes in good order: delivers what was sent first, unless its peer is gone or
    /// [`crate::Config::close_timeout`] passes. Not in handlers. Calls on clones then fail, and so do futures
    /// that wait for something.
    ///
    /// Drops the program's handlers, also suspended ones, with all they hold. The socket and its address are
    /// free again when everything that was made of the endpoint is dropped, too: clones, apertures, remotes,
    /// queues, streams.
    pub fn close(self) -> Result<()> {
        self.core.check_not_in_handler()?;
        self.core.close()
    }
}

impl AsFd for Endpoint {
    /// The descriptor that becomes readable when something may have happened; see [`Endpoint::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.node.as_fd()
    }
}
