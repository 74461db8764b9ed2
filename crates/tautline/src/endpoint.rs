//! What a program holds. The verbs that send are in [`crate::messages`], those of memory in
//! [`crate::memory`].

use std::ffi::OsStr;
use std::future::Future;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tautline_node::Address;

use crate::core::{Core, Wakes};
use crate::error::{HandlerFailure, Result};
use crate::handle::Handle;
use crate::handler_name::Handler;
use crate::{Counters, Event, PeerState, Rank, blocking};

/// A process's access to its job. Clones share it. Neither `Send` nor `Sync`: it belongs to the thread that
/// made it.
///
/// Dropping the last clone closes it in good order, as [`Endpoint::close`] does; an error is only logged
/// (`tracing::error`).
///
/// Its calls that wait stop the thread. Handlers, and tasks of an executor, use an [`crate::AsyncEndpoint`],
/// whose calls suspend the caller instead: [`crate::Message::endpoint`], [`crate::Endpoint::to_async`].
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

/// Opens further lanes of a node, from any thread: `Send`, `Sync` and `Clone`. It does not keep the node
/// open.
///
/// A lane is what one thread drives: an [`Endpoint`] with handlers, apertures, events, channels and a socket
/// of its own, at the number [`Endpoint::address`]. The lane that joins is lane 0; peers reach it by the rank
/// alone. Another lane is reached by its [`Address`], and messages from it come from that address.
///
/// ```no_run
/// use tautline::{Address, Endpoint, Short};
///
/// fn main() -> tautline::Result<()> {
///     let ep = Endpoint::builder().on_short("done", |_: Short<'_>| ()).join()?;
///     let (me, lanes) = (ep.rank(), ep.lanes());
///     let worker = std::thread::spawn(move || -> tautline::Result<()> {
///         let lane = lanes.open(Endpoint::builder().on_short("work", |work: Short<'_>| {
///             let _ = work.endpoint().try_send(work.from(), "done", work.data());
///         }))?;
///         lane.serve(1)?;
///         lane.close()
///     });
///     ep.send(Address::new(me, 1).into(), "work", b"something")?;
///     ep.serve(1)?;
///     worker.join().expect("the worker does not panic")?;
///     ep.close()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Lanes(pub(crate) tautline_node::Lanes);

impl Endpoint {
    /// An endpoint that stays open until its last clone is dropped.
    pub(crate) fn new(core: Rc<Core>) -> Endpoint {
        let keep_open = Some(Rc::new(KeepOpen(core.clone())));
        Endpoint { core, _keep_open: keep_open }
    }

    /// An endpoint that does not keep itself open.
    #[inline]
    pub(crate) fn view(core: Rc<Core>) -> Endpoint {
        Endpoint { core, _keep_open: None }
    }

    /// This process's rank in the job.
    pub fn rank(&self) -> Rank {
        self.core.node.rank()
    }

    /// Where this endpoint is reached: its rank, and its lane.
    pub fn address(&self) -> Address {
        Address::from(self.core.node.number())
    }

    /// The number of the lane that this endpoint drives; zero for the one that joined.
    pub fn lane(&self) -> u16 {
        self.core.node.lane()
    }

    /// Opens further lanes of this process, for other threads.
    pub fn lanes(&self) -> Lanes {
        Lanes(self.core.node.lanes())
    }

    /// Has `tautline run` start `count` more processes in this job, and returns their ranks, which follow the
    /// existing ones. Members that watch ([`crate::Builder::watch_members`]) are told by
    /// [`crate::Event::MemberJoined`] and can then exchange messages with them; this process must be one.
    /// [`Endpoint::size`], and what is made of it, [`Endpoint::world`] and [`Endpoint::barrier`], stay as
    /// they were here; for the new processes it is the number of all ranks at their start.
    ///
    /// They get the directory of this process, and its environment if the job is on one host, or else that of
    /// the job. In a job on several hosts each goes where the fewest ranks run. Their output goes where the
    /// job's goes. When one fails, the job is ended, unless it was started with `--keep-going`; it is not
    /// started again, even with `--restart`. Groups have only ranks that there were when this process joined.
    pub fn spawn(
        &self,
        count: u32,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Range<Rank>> {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        crate::spawn::spawn(&self.core, count, program.as_ref(), arguments)
    }

    /// For whoever watches the members of the job.
    pub(crate) fn members(&self) -> tautline_node::Members {
        self.core.node.members()
    }

    /// Returns a handle that sends, calls and puts from any thread.
    pub fn handle(&self) -> Handle {
        Handle(self.core.shared.clone())
    }

    /// Messages that receives take by source and tag, of a context, from any thread.
    pub fn tags(&self, context: u32) -> crate::tags::Tags {
        crate::tags::Tags::new(&self.core.shared, context)
    }

    /// The group of all ranks of the job, for collectives. All calls return the same group.
    pub fn world(&self) -> Result<crate::group::Group> {
        crate::group::Group::world(&self.tags(0))
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
    /// that come back. A rank that was never connected counts as reachable, because it may still connect and
    /// send, as the clients of a server do: the wait goes on, even if that rank was never started. A program
    /// that is told of the members ([`crate::Builder::watch_members`]) learns of the ends of such ranks, too,
    /// and they count as down. `done` is asked first, so
    /// `ep.run_until(|| matches!(ep.peer_state(1), Some(PeerState::Down(_))))` waits for the end of rank 1.
    ///
    /// If a handler has failed, and nobody has read that ([`Endpoint::poll_failure`]), returns
    /// [`crate::Error::HandlerFailed`] instead of going to sleep: `done` may never become true because of it.
    /// Each failure is returned once. [`crate::Builder::on_failure`] is for programs that go on. Failures of
    /// handlers that answer their senders, such as services of [`crate::rpc`], end no wait.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        let core = &self.core;
        loop {
            let taken = self.extract(usize::MAX)?;
            if done() {
                // The next wait returns for events that were not read in here.
                core.events.set_unseen(self.has_events()?);
                return Ok(());
            }
            if taken == 0 {
                core.check_wait()?;
            } else if core.failures.end_waits() || core.peer_loss.unreported().is_some() {
                // What was taken was the last that could end the wait: looks again before it sleeps.
                continue;
            }
            if !core.events.take_unseen() {
                core.sleep(None)?;
            }
        }
    }

    /// Extracts and waits until `messages` more messages have been handled, successfully or not. Ends early
    /// as [`Endpoint::run_until`] does.
    pub fn serve(&self, messages: u64) -> Result<()> {
        let until = self.handled() + messages;
        self.run_until(|| self.handled() >= until)
    }

    /// Polls a future until it is ready, and extracts and waits meanwhile: handlers run, and what they or
    /// other threads wake is polled again. For one thing at a time that a plain loop wants of the `async`
    /// verbs. Not in handlers.
    ///
    /// As [`Endpoint::run_until`], it returns [`crate::Error::HandlerFailed`] if it would sleep while a
    /// failure of a handler is unread. To go on with the future, pass `future.as_mut()` of a pinned one. A
    /// future learns of lost peers itself.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        blocking::block_on(&self.core, future)
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

    /// Returns the next handler that panicked or returned an error. A failure that is still unread when the
    /// program is about to sleep inside the library, or closes the endpoint, is logged
    /// (`tracing::error`), and [`Endpoint::run_until`] returns it as an error.
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
    /// first. After each wake-up: [`Endpoint::extract`], then arm again. For tokio, the feature `tokio` has a
    /// driver that does this.
    ///
    /// # What may be called between `arm` and waiting
    /// Everything: no wake-up is lost. Any call on the endpoint, on a clone or on something that was made of
    /// it may end the armed state. Then the descriptor becomes readable, and the program looks again. So
    /// other tasks of the thread may send, call, put and wake handlers while one task sleeps on the
    /// descriptor.
    ///
    /// Only [`Endpoint::extract`] makes handlers, and tasks that wait for an answer or for room, continue: a
    /// program that was woken extracts before it arms again.
    pub fn arm(&self) -> Result<bool> {
        if self.core.events.take_unseen() || self.core.has_work() {
            return Ok(false);
        }
        self.core.failures.log_unread();
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

    /// Closes in good order: delivers what was sent first. Not in handlers. Calls on clones then fail, and so
    /// do futures that wait for something. Waits for at most [`crate::Builder::close_timeout`], 2 s unless
    /// set.
    ///
    /// What peers have not acknowledged in time is an error, [`crate::Error::Undelivered`], which says how
    /// much, and to whom; so is what a peer that died meanwhile had not acknowledged. The endpoint is closed
    /// all the same. A peer that has acknowledged a message has it, and its handler runs when the peer
    /// extracts. What a peer that closes does not take is no error, and neither are messages to oneself that
    /// were not extracted.
    ///
    /// Only if sends are under way that were started and have found no room ([`Endpoint::start_send`],
    /// answers of calls), it extracts meanwhile, and so runs handlers.
    ///
    /// Drops the program's handlers, also suspended ones, with all they hold. The socket and its address are
    /// free again when everything that was made of the endpoint is dropped, too: clones, apertures, remotes,
    /// queues, streams.
    pub fn close(self) -> Result<()> {
        let time = self.core.close_timeout();
        self.close_within(time)
    }

    /// As [`Endpoint::close`], but waits for at most `time`. With zero it returns at once; [`Duration::MAX`]
    /// is for ever, or until the peers have taken everything or are gone.
    pub fn close_within(self, time: Duration) -> Result<()> {
        self.core.check_not_in_handler()?;
        self.core.close(time)
    }
}

impl AsFd for Endpoint {
    /// The descriptor that becomes readable when something may have happened; see [`Endpoint::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.node.as_fd()
    }
}
