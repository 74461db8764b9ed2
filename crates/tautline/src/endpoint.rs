//! What a program holds.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tautline_node::{Delivery, Key, WaitFor};

use crate::core::{Core, Failure, Wakes};
use crate::messages::dispatch_all;
use crate::waits::Place;
use crate::{Builder, Counters, Error, Event, Loan, Outgoing, PeerState, Rank, Result, SendError};

/// A program's hold on the fabric. Clones share it. Neither `Send` nor `Sync`: it belongs to the thread that made it.
///
/// Dropping the last clone closes in good order, like [`Endpoint::close`], but reports nothing.
///
/// Endpoints that handlers get from [`crate::Message::endpoint`] and [`crate::Short::endpoint`] do not keep it open: a suspended
/// handler cannot keep alive what it waits for.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) core: Rc<Core>,
    _hold: Option<Rc<Hold>>,
}

/// What the program's own clones share; the last one to go shuts the endpoint.
#[derive(Debug)]
struct Hold(Rc<Core>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// A handler's name, looked up once; see [`Endpoint::handler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handler(pub(crate) Key);

/// What names a handler: a string, or a [`Handler`] looked up beforehand, which is faster.
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
    /// Makes the endpoint's [`Endpoint::wait`] return, now or the next time, and its descriptor readable;
    /// [`Endpoint::run_until`] asks again whether it is done.
    pub fn wake(&self) {
        self.0.call();
    }
}

/// Messages sent while this exists leave when a frame is full, or when it is dropped. See [`Endpoint::batch`].
#[derive(Debug)]
#[must_use = "the batch ends when this is dropped"]
pub struct Batch<'a>(&'a Endpoint);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let _ = self.0.core.node.close_batch();
    }
}

// A name is looked at, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Endpoint {
    /// The program's own hold.
    pub(crate) fn new(core: Rc<Core>) -> Endpoint {
        let hold = Some(Rc::new(Hold(core.clone())));
        Endpoint { core, _hold: hold }
    }

    /// A handler's hold.
    pub(crate) fn inner(core: Rc<Core>) -> Endpoint {
        Endpoint { core, _hold: None }
    }

    /// Starts a builder: register handlers, then join.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// This process's rank in the job.
    pub fn rank(&self) -> Rank {
        self.core.node.rank()
    }

    /// How many processes the job has.
    pub fn size(&self) -> u32 {
        self.core.node.size()
    }

    /// Looks a handler's name up, once for many sends.
    pub fn handler(&self, name: &str) -> Result<Handler> {
        Ok(Handler(self.core.node.key(name)?))
    }

    /// Sends a whole message; waits for the connection and for room if it must. Runs no handlers meanwhile: two programs
    /// that only send to each other, and never extract, come to a standstill when both are out of room; in handlers, use
    /// [`Endpoint::send_async`]. A message to oneself for which there is no room is refused ([`SendError::WouldBlock`]): only extraction makes some.
    #[inline]
    pub fn send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(self)?;
        match self.core.node.try_send(peer, handler.0, bytes) {
            Ok(true) => Ok(()),
            sent => self.send_slowly(sent, peer, handler, bytes),
        }
    }

    /// What is too long for one frame, or found no room.
    #[inline(never)]
    fn send_slowly(
        &self,
        sent: std::result::Result<bool, SendError>,
        peer: Rank,
        handler: Handler,
        bytes: &[u8],
    ) -> Result<()> {
        match sent {
            Ok(true) => Ok(()),
            Ok(false) => self.send_long(peer, handler, bytes),
            Err(SendError::WouldBlock) => {
                if blocking(&self.core, peer, || Ok(self.core.node.try_send(peer, handler.0, bytes)?))? {
                    return Ok(());
                }
                self.send_long(peer, handler, bytes)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn send_long(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<()> {
        if self.core.node.config().single_copy.is_some_and(|least| bytes.len() >= least) {
            let offer =
                blocking(&self.core, peer, || Ok(self.core.node.try_offer(peer, handler.0, bytes)?))?;
            // What the peer may not read after all is copied for it.
            if let Some(offer) = offer
                && blocking(&self.core, peer, || Ok(self.core.node.poll_offer(&offer)?))?
            {
                return Ok(());
            }
        }
        let mut message = self.begin(peer, handler, bytes.len() as u64)?;
        message.piece(bytes)?;
        message.end()
    }

    /// Sends a whole message if that is possible at once; [`SendError::WouldBlock`], and nothing sent, if it is not.
    /// Messages longer than one frame must be begun instead: [`SendError::TooLongForHandler`].
    pub fn try_send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(self)?;
        if self.core.node.try_send(peer, handler.0, bytes)? {
            return Ok(());
        }
        Err(SendError::TooLongForHandler(self.core.node.short_limit(peer)).into())
    }

    /// Sends a whole message, and lets other handlers go on while there is no room. For use in handlers.
    pub async fn send_async(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(self)?;
        if retry(&self.core, || Ok(self.core.node.try_send(peer, handler.0, bytes)?)).await? {
            return Ok(());
        }
        let mut message = self.begin_async(peer, handler, bytes.len() as u64).await?;
        message.piece_async(bytes).await?;
        message.end()
    }

    /// Begins a message of `size` bytes; waits for the connection and for room if it must.
    pub fn begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(self)?;
        blocking(&self.core, peer, || self.try_begin(peer, handler, size))
    }

    /// Begins a message if that is possible at once.
    pub fn try_begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(self)?;
        let message = self.core.node.try_begin(peer, handler.0, size)?;
        Ok(Outgoing::new(self.core.clone(), message, size))
    }

    /// Begins a message, and lets other handlers go on while there is no room. For use in handlers.
    pub async fn begin_async(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(self)?;
        retry(&self.core, || self.try_begin(peer, handler, size)).await
    }

    /// A buffer of `len` bytes to fill and send to `peer`: on this host in memory that the peer reads in place, so that nothing is copied. Waits for the
    /// connection, and until enough of what was lent before has come back.
    pub fn loan(&self, peer: Rank, len: usize) -> Result<Loan> {
        blocking(&self.core, peer, || self.try_loan(peer, len))
    }

    /// As [`Endpoint::loan`], if that is possible at once.
    pub fn try_loan(&self, peer: Rank, len: usize) -> Result<Loan> {
        Loan::try_new(&self.core, peer, len)
    }

    /// As [`Endpoint::loan`], and lets other handlers go on meanwhile. For use in handlers.
    pub async fn loan_async(&self, peer: Rank, len: usize) -> Result<Loan> {
        retry(&self.core, || self.try_loan(peer, len)).await
    }

    /// While the returned guard lives, small messages share frames: they leave when a frame is full or the guard is dropped.
    pub fn batch(&self) -> Batch<'_> {
        let _ = self.core.node.open_batch();
        Batch(self)
    }

    /// Takes what has arrived, up to `bytes` bytes (rounded up to whole frames), and runs the handlers it is for. Never waits.
    /// Returns how many bytes were taken. What is not extracted holds its sender back: the receiver paces the network (M-8).
    pub fn extract(&self, bytes: usize) -> Result<usize> {
        let guard = Extracting::enter(&self.core)?;
        if let Err(closed) = self.core.check_open() {
            drop(guard);
            self.core.let_handlers_go();
            return Err(closed.into());
        }
        dispatch_all::run_woken(&self.core);
        if let Some(taken) = dispatch_all::frames(&self.core, bytes)? {
            return Ok(taken);
        }
        let mut delivery: Option<Box<Delivery>> = self.core.delivery.borrow_mut().take();
        let taking = delivery.as_mut().expect("one delivery per endpoint, and no extraction inside another");
        // Whoever takes nothing does not know whether there is more.
        let mut taken = Ok((0, bytes == 0));
        let events = self.core.node.take(bytes, taking);
        if !taking.items().is_empty() {
            let (slots, bytes) = dispatch_all::dispatch(&self.core, &mut delivery);
            let back = delivery.as_mut().expect("handlers give it back");
            taken = self.core.node.give_back(back, slots).map(|more| (bytes, more));
        }
        *self.core.delivery.borrow_mut() = delivery;
        let (events, (bytes, more)) = (events?, taken?);
        dispatch_all::after(&self.core, events, more);
        Ok(bytes)
    }

    /// Waits, by the configured policy, until there may be something to extract, a new event, or a handler to go on; false if
    /// `timeout` passed first. Events that were left unread are no reason to stay awake: they are told of once.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        if self.core.extracting.get() {
            return Err(Error::Reentrant);
        }
        self.core.check_open()?;
        if self.core.news.replace(false) {
            return Ok(true);
        }
        let woken = self.sleep(timeout)?;
        Ok(self.core.wakes.take_call() || woken)
    }

    /// As [`Endpoint::wait`], but events that have been fetched already are no reason to return.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Result<bool> {
        let core = &self.core;
        // Whoever wakes this endpoint after this is seen by the wait; what was said before is work.
        core.node.clear_signal();
        if core.has_work() {
            return Ok(true);
        }
        Ok(core.node.wait(timeout, WaitFor { activity: core.may_retry(), memory: None })?)
    }

    /// Extracts and waits until `done` returns true. If meanwhile the last reachable peer goes, so that nobody is left to wait
    /// for, that is an error, once; peers that come back are let in by waiting again.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        loop {
            let taken = self.extract(usize::MAX)?;
            if done() {
                // Whoever waits next is told of what was not read in here.
                let more =
                    !self.core.events.borrow().is_empty() || self.core.node.acknowledge_memory_events()?;
                self.core.news.set(more);
                return Ok(());
            }
            // Messages that have not been taken, and handlers that are under way, may still bring about what is waited for.
            if taken == 0
                && self.core.live.get() == 0
                && self.core.deserted.get().is_some()
                && !self.core.node.has_slots()?
                && let Some((peer, why)) = self.core.deserted.take()
            {
                return Err(Error::PeerGone(peer, why));
            }
            if !self.core.news.replace(false) {
                self.sleep(None)?;
            }
        }
    }

    /// Extracts and waits until `messages` more messages have been handled.
    pub fn serve(&self, messages: u64) -> Result<()> {
        let until = self.core.handled.get() + messages;
        self.run_until(|| self.core.handled.get() >= until)
    }

    /// How many messages' handlers have finished here.
    pub fn handled(&self) -> u64 {
        self.core.handled.get()
    }

    /// Makes protocol progress without running any handler. A program that polls need not call it.
    pub fn progress(&self) -> Result<()> {
        self.core.node.progress()?;
        Ok(())
    }

    /// The next thing that happened: peers up and down, devices chosen, paths changed.
    pub fn poll_event(&self) -> Option<Event> {
        if !self.core.extracting.get() {
            dispatch_all::absorb(&self.core);
        }
        let event = match self.core.events_lost.take() {
            0 => self.core.events.borrow_mut().pop_front(),
            events => Some(Event::Lost { events }),
        };
        let event = event.or_else(|| self.core.node.poll_memory_event().ok().flatten().map(Event::Memory));
        // Whoever reads one is told of the others.
        let more = !self.core.events.borrow().is_empty()
            || self.core.node.acknowledge_memory_events().unwrap_or(false);
        self.core.news.set(more);
        event
    }

    /// The next handler that panicked or returned an error.
    pub fn poll_failure(&self) -> Option<Failure> {
        self.core.failures.borrow_mut().pop_front()
    }

    /// How things stand with a peer.
    pub fn peer_state(&self, peer: Rank) -> Option<PeerState> {
        self.core.node.peer_state(peer)
    }

    /// Starts to open a channel to a peer, without waiting for it.
    pub fn connect(&self, peer: Rank) -> Result<()> {
        Ok(self.core.node.connect(peer)?)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.core.node.counters()
    }

    /// Prepares to sleep on this endpoint's descriptor ([`AsFd`]); false if there is something to extract first. After each
    /// wake-up: [`Endpoint::extract`], then arm again.
    pub fn arm(&self) -> Result<bool> {
        if self.core.news.replace(false) || self.core.has_work() {
            return Ok(false);
        }
        // Whoever called meanwhile rang a bell that has been silenced since.
        let armed = self.core.node.arm()? && !self.core.has_work();
        match self.core.may_retry().filter(|_| armed) {
            Some(seen) => Ok(self.core.node.activity()? == seen),
            None => Ok(armed),
        }
    }

    /// Something that wakes this endpoint from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.core.wakes.clone())
    }

    /// The node below, for tools and tests.
    pub fn node(&self) -> &tautline_node::Endpoint {
        &self.core.node
    }

    /// Closes in good order: what was sent is delivered first, unless its peer is gone or the configured time is over. Handlers
    /// may not. Calls on clones then say that the node is closed, and so do futures that wait for something.
    ///
    /// The program's handlers, and those of them that are suspended, are dropped with all that they hold. The socket and its address are free again when everything
    /// that was made of the endpoint is dropped, too: clones, apertures, remotes, queues, streams.
    pub fn close(self) -> Result<()> {
        if self.core.extracting.get() {
            return Err(Error::Reentrant);
        }
        self.core.closed.set(true);
        let closed = self.core.node.close();
        self.core.let_handlers_go();
        self.core.wake_everyone();
        closed?;
        Ok(())
    }
}

impl AsFd for Endpoint {
    /// The one descriptor that becomes readable when something may have happened; see [`Endpoint::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.node.as_fd()
    }
}

/// Marks that handlers are running, also when one unwinds.
struct Extracting<'a>(&'a Core);

impl Extracting<'_> {
    fn enter(core: &Core) -> Result<Extracting<'_>> {
        if core.extracting.replace(true) {
            return Err(Error::Reentrant);
        }
        Ok(Extracting(core))
    }
}

impl Drop for Extracting<'_> {
    fn drop(&mut self) {
        self.0.extracting.set(false);
        self.0.let_leave();
    }
}

/// Tries until it does not block; between tries, waits for the network without running handlers. For messages to oneself,
/// which nothing but extraction makes room for, it does not wait.
pub(crate) fn blocking<T>(core: &Core, peer: Rank, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        let seen = core.node.activity()?;
        match attempt() {
            Err(error) if error.is_would_block() => {
                if core.node.is_virtual() || peer == core.node.rank() {
                    return Err(error);
                }
                core.node.wait_for_activity(seen)?;
            }
            result => return result,
        }
    }
}

/// As [`blocking`], for what is asked of a node's memory: of one's own, too, which is served as the node polls. It does not wait for answers that stand behind messages
/// which this program would have to extract first: that is an error.
pub(crate) fn asking<T>(core: &Core, owner: Rank, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        let seen = core.node.activity()?;
        let result = blocking(core, owner, || match attempt() {
            Err(error) if error.is_would_block() && core.node.is_clogged(owner) => {
                Err(SendError::Unextracted(owner).into())
            }
            result => result,
        });
        let own = owner == core.node.rank() && !core.node.is_virtual();
        match result {
            Err(error) if own && error.is_would_block() => {
                core.node.progress()?;
                // Messages to oneself stand before it.
                if core.node.activity()? == seen {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}

/// A handler that waits for room, until it has what it wants, or is dropped.
struct Blocked<'a>(Place, &'a Core);

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.1.blocked.leave(&self.0);
    }
}

/// Tries until it does not block; between tries, the handler is suspended.
pub(crate) async fn retry<T>(core: &Core, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let waits = Blocked(Place::default(), core);
    poll_fn(|context| {
        let seen = match core.node.activity() {
            Ok(seen) => seen,
            Err(error) => return Poll::Ready(Err(error.into())),
        };
        match attempt() {
            Err(error) if error.is_would_block() => {
                core.tried(seen);
                core.blocked.register(&waits.0, context);
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    })
    .await
}
