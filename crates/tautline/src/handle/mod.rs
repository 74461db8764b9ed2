//! An endpoint's verbs for other threads: [`Handle`], and [`AsyncHandle`] for tasks.
//!
//! The endpoint and its handlers stay on their thread. What lives here: sending. Calls through a handle are
//! in [`crate::rpc`], and other nodes' memory is in [`crate::memory`].

mod sending;

use std::future::poll_fn;
use std::sync::Arc;

pub(crate) use sending::HandleMessage;

use crate::core::{ActivityWaiter, Shared};
use crate::error::{Error, Result};
use crate::handler_name::{Handler, Name};
use crate::{PeerState, Rank, SendError};

/// Sends, calls and puts from any thread, through an endpoint that belongs to another. `Send`, `Sync` and
/// cheap to clone. Made by [`crate::Endpoint::handle`].
///
/// Its methods block the calling thread; those of [`Handle::to_async`] are futures. Whoever waits for room
/// makes protocol progress, and does not depend on the endpoint's thread. Answers of calls do: they arrive
/// when that thread extracts.
///
/// Messages that one thread sends to a peer arrive in order. Between threads there is no order.
///
/// A handle does not keep the endpoint open. When the endpoint is closed, all calls through its handles
/// return [`SendError::Closed`], also those that wait. The socket and its address are free again when the
/// handles are dropped, too. In a forked child every call returns [`SendError::Forked`].
///
/// ```no_run
/// use tautline::{Endpoint, Short};
///
/// fn main() -> tautline::Result<()> {
///     // In any order.
///     let ep = Endpoint::builder().on_short("number", |m: Short<'_>| assert!(m.data()[0] < 4)).join()?;
///     if ep.rank() == 0 {
///         return ep.serve(4);
///     }
///     let handle = ep.handle();
///     std::thread::scope(|scope| {
///         for number in 0..4u8 {
///             let handle = handle.clone();
///             scope.spawn(move || handle.send(0, "number", &[number]));
///         }
///     });
///     ep.close()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) Arc<Shared>);

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Handle {
    /// This process's rank in the job.
    pub fn rank(&self) -> Rank {
        self.0.node.rank()
    }

    /// The number of processes in the job.
    pub fn size(&self) -> u32 {
        self.0.node.size()
    }

    /// The state of a peer; nothing if there is no such rank.
    pub fn peer_state(&self, peer: Rank) -> Option<PeerState> {
        self.0.node.peer_state(peer)
    }

    /// Looks up a handler's name, once for many sends.
    pub fn handler(&self, name: &str) -> Result<Handler> {
        Ok(Handler(self.0.node.key(name)?))
    }

    /// Sends a whole message of any length; sleeps until there is a connection and room, if necessary.
    ///
    /// On the endpoint's own thread it acts as [`crate::Endpoint::send`], but a long message to this node
    /// itself is an error there. On other threads such a message waits, too, until the endpoint's thread has
    /// extracted earlier ones.
    pub fn send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(&self.0.node)?;
        let mut message = HandleMessage::new(&self.0, peer, handler, bytes);
        match message.attempt() {
            Err(error) if error.is_would_block() && message.is_begun() && self.0.is_own(peer) => {
                Err(Error::other(format!(
                    "{} bytes to oneself find no room before this thread extracts; use Endpoint::send, or \
                     another thread",
                    bytes.len()
                )))
            }
            Err(error) if error.is_would_block() => self.0.block(peer, || message.attempt()),
            result => result,
        }
    }

    /// Sends a whole message if that is possible at once; otherwise sends nothing and fails with
    /// [`SendError::WouldBlock`]. A message longer than one frame is refused:
    /// [`SendError::TooLongForHandler`].
    pub fn try_send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(&self.0.node)?;
        if self.0.node.try_send(peer, handler.0, bytes)? {
            self.0.sent(peer);
            return Ok(());
        }
        Err(SendError::TooLongForHandler(self.0.node.short_limit(peer)).into())
    }

    /// Messages that receives take by source and tag, of a context.
    pub fn tags(&self, context: u32) -> crate::tags::Tags {
        crate::tags::Tags::new(&self.0, context)
    }

    /// The group of all ranks of the job, for collectives. All calls return the same group.
    pub fn world(&self) -> Result<crate::group::Group> {
        crate::group::Group::world(&self.tags(0))
    }

    /// The same verbs as futures, for tasks of a runtime.
    pub fn to_async(&self) -> AsyncHandle {
        AsyncHandle(self.clone())
    }
}

/// The verbs of a [`Handle`] as futures. They are `Send`, and run on any runtime: a waiting one is woken by
/// whoever makes room, the endpoint's thread, its watchdog or another sender.
///
/// ```no_run
/// # async fn run(handle: tautline::Handle) -> tautline::Result<()> {
/// handle.to_async().send(1, "greet", b"hello").await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncHandle(pub(crate) Handle);

#[allow(clippy::needless_pass_by_value)]
impl AsyncHandle {
    /// The handle whose methods block.
    pub fn to_blocking(&self) -> Handle {
        self.0.clone()
    }

    /// As [`Handle::send`]. Dropping the future aborts a message of which part was sent.
    pub async fn send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let shared = &self.0.0;
        let handler = handler.key(&shared.node)?;
        let mut message = HandleMessage::new(shared, peer, handler, bytes);
        let mut waiting = ActivityWaiter::default();
        poll_fn(|context| shared.poll(&mut waiting, context, || message.attempt())).await
    }
}
