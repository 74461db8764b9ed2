//! The endpoint of handlers and of an executor's tasks: its calls that wait are `async`. Those that send are
//! in [`crate::messages`], those of memory in [`crate::memory`], calls in [`crate::rpc`].

use std::rc::Rc;
use std::time::Duration;

use crate::blocking::Step;
use crate::closing;
use crate::core::Core;
use crate::endpoint::{Batch, Endpoint, Waker};
use crate::error::HandlerFailure;
use crate::error::Result;
#[cfg(feature = "futures")]
use crate::events::Events;
use crate::handler_name::Handler;
use crate::waiting::suspend_until;
use crate::{Counters, Event, PeerState, Rank};

/// An endpoint for handlers and for tasks of an executor. Handlers get it from [`crate::Message::endpoint`],
/// [`crate::Short::endpoint`] and [`crate::Borrowed::endpoint`], tasks from [`Endpoint::to_async`].
///
/// Calls that wait are `async`, and suspend the caller. All others never wait. Clones share the endpoint, and
/// are neither `Send` nor `Sync`. None of them keeps it open: otherwise a suspended handler would keep alive
/// what it waits for. Once it is closed, calls fail, and so do futures that wait.
///
/// Something has to extract meanwhile, otherwise nothing that waits is woken: a loop of the program's own, or
/// the driver of the feature `tokio`. That is why [`Endpoint::extract`] and [`Endpoint::wait`] are not here.
///
/// ```no_run
/// use tautline::{Endpoint, Message};
///
/// fn main() -> tautline::Result<()> {
///     let ep = Endpoint::builder()
///         .on("double", |mut msg: Message| async move {
///             let number: u64 = msg.read().await?;
///             msg.endpoint().send(msg.from(), "doubled", &(2 * number).to_le_bytes()).await
///         })
///         .on_short("doubled", |msg| println!("{:?}", msg.data()))
///         .join()?;
///     ep.send(0, "double", &21u64.to_le_bytes())?;
///     let requests = if ep.rank() == 0 { ep.size() } else { 0 };
///     ep.serve(u64::from(requests) + 1)?;
///     ep.barrier()?;
///     ep.close()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncEndpoint {
    /// It does not keep itself open.
    endpoint: Endpoint,
}

impl Endpoint {
    /// Returns the events as a stream. [`Endpoint::extract`], which somebody has to call, wakes it, and so
    /// does [`Endpoint::close`]: then it yields the events that are left, and ends.
    #[cfg(feature = "futures")]
    pub fn events(&self) -> Events {
        Events::new(self)
    }

    /// Returns this endpoint for tasks of an executor: with calls that suspend the task instead of blocking
    /// the thread.
    ///
    /// ```no_run
    /// # fn example(ep: &tautline::Endpoint) {
    /// let ep = ep.to_async();
    /// let task = async move { ep.send(1, "greet", b"hello").await };
    /// # drop(task);
    /// # }
    /// ```
    pub fn to_async(&self) -> AsyncEndpoint {
        AsyncEndpoint::new(self.core.clone())
    }
}

impl AsyncEndpoint {
    /// As [`Endpoint::events`].
    #[cfg(feature = "futures")]
    pub fn events(&self) -> Events {
        Events::new(&self.endpoint)
    }

    #[inline]
    pub(crate) fn new(core: Rc<Core>) -> AsyncEndpoint {
        AsyncEndpoint { endpoint: Endpoint::view(core) }
    }

    /// The same endpoint with calls that block, for code of this crate that calls only those that do not.
    #[inline]
    pub(crate) fn plain(&self) -> &Endpoint {
        &self.endpoint
    }

    #[inline]
    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.endpoint.core
    }

    /// As [`Endpoint::rank`].
    pub fn rank(&self) -> Rank {
        self.endpoint.rank()
    }

    /// As [`Endpoint::size`].
    pub fn size(&self) -> u32 {
        self.endpoint.size()
    }

    /// As [`Endpoint::handler`].
    pub fn handler(&self, name: &str) -> Result<Handler> {
        self.endpoint.handler(name)
    }

    /// As [`Endpoint::batch`]. A batch that lives across an `await` also holds back what other tasks and
    /// handlers send meanwhile.
    pub fn batch(&self) -> Batch<'_> {
        self.endpoint.batch()
    }

    /// As [`Endpoint::progress`].
    pub fn progress(&self) -> Result<()> {
        self.endpoint.progress()
    }

    /// As [`Endpoint::handled`].
    pub fn handled(&self) -> u64 {
        self.endpoint.handled()
    }

    /// As [`Endpoint::poll_event`].
    pub fn poll_event(&self) -> Option<Event> {
        self.endpoint.poll_event()
    }

    /// As [`Endpoint::poll_failure`].
    pub fn poll_failure(&self) -> Option<HandlerFailure> {
        self.endpoint.poll_failure()
    }

    /// As [`Endpoint::peer_state`].
    pub fn peer_state(&self, peer: Rank) -> Option<PeerState> {
        self.endpoint.peer_state(peer)
    }

    /// As [`Endpoint::connect`].
    pub fn connect(&self, peer: Rank) -> Result<()> {
        self.endpoint.connect(peer)
    }

    /// As [`Endpoint::counters`].
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// As [`Endpoint::close`], for tasks: suspends the task, not the thread. Not in handlers, and not in
    /// [`Endpoint::block_on`], which needs an open endpoint.
    ///
    /// Something has to extract while sends are under way that were started; after that nothing has to.
    /// Dropped before then, the endpoint stays open.
    pub async fn close(&self) -> Result<()> {
        self.close_within(self.core().close_timeout()).await
    }

    /// As [`AsyncEndpoint::close`], but waits for at most `time`; see [`Endpoint::close_within`].
    pub async fn close_within(&self, time: Duration) -> Result<()> {
        closing::close(self.core(), time).await
    }

    /// As [`Endpoint::run_until`], in tasks and handlers: `done` is called after every extraction that took
    /// something or ran a handler.
    pub async fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        let core = self.core();
        let ended = suspend_until(core, |_| {
            if done() {
                return Ok(Step::Done(()));
            }
            core.check_wait().map(|()| Step::Wait)
        });
        ended.await
    }

    /// As [`Endpoint::serve`], in tasks and handlers. A handler that calls it does not count itself.
    pub async fn serve(&self, messages: u64) -> Result<()> {
        let until = self.handled() + messages;
        self.run_until(|| self.handled() >= until).await
    }

    /// As [`Endpoint::waker`].
    pub fn waker(&self) -> Waker {
        self.endpoint.waker()
    }

    /// As [`Endpoint::node`].
    pub fn node(&self) -> &tautline_node::Endpoint {
        self.endpoint.node()
    }
}
