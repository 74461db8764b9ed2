//! Hooks for styles of communication: what [`crate::rpc`] needs beyond the ordinary verbs of an endpoint,
//! open to every style. A style registers its handlers through [`Style`] and [`crate::Builder::with`].

use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use crate::async_endpoint::AsyncEndpoint;
use crate::core::{Core, is_settled};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::handler_name::Handler;
use crate::transfer::Transfer;
use crate::waiters::Waiter;
use crate::{PeerId, Rank, SendError, waiting};

pub use crate::builder::Style;
pub use crate::messages::panics::panic_text;

/// Verbs of an [`Endpoint`] or an [`AsyncEndpoint`] that programs do not need, but styles do.
pub trait Hooks {
    #[doc(hidden)]
    fn endpoint(&self) -> &Endpoint;

    /// Returns a clone that does not keep the endpoint open. What a style hands to the program holds this
    /// one, so that dropping the program's clones still closes the endpoint.
    #[inline]
    fn view(&self) -> Endpoint {
        Endpoint::view(self.endpoint().core.clone())
    }

    /// Whether a handler is running, which is then the caller: it must neither extract nor wait.
    #[inline]
    fn in_handler(&self) -> bool {
        self.endpoint().core.extraction.is_running()
    }

    /// The value of a type that was attached by [`crate::Builder::attach`].
    #[inline]
    fn attachment<T: 'static>(&self) -> Option<&T> {
        self.endpoint().core.attachment()
    }

    /// Sends a message if it fits one frame, and there is room; false, and nothing sent, if it is too long.
    #[inline]
    fn try_send_frame(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<bool> {
        Ok(self.endpoint().core.node.try_send(peer, handler.0, bytes)?)
    }

    /// Sends a message without waiting: now, or by later extractions, behind what was posted to that peer
    /// before.
    fn send_later(&self, mut message: PendingMessage) {
        let (peer, bytes) = (message.transfer.peer, message.bytes.len());
        self.post(peer, Some(bytes), move |ep| is_settled(&message.try_send(ep)));
    }

    /// Calls `job` now and in later extractions until it returns true, behind what was posted to that peer
    /// before. The job must not hold a clone of the endpoint: it gets one. `bytes` is the length of the
    /// message that it sends; [`crate::Endpoint::close`] reports it if it is never sent. None if nobody would
    /// miss it.
    fn post(&self, peer: Rank, bytes: Option<usize>, mut job: impl FnMut(&AsyncEndpoint) -> bool + 'static) {
        self.endpoint()
            .core
            .post(peer, bytes.map(|bytes| bytes as u64), move |core| job(&AsyncEndpoint::new(core.clone())));
    }

    /// Lets all messages that handlers send from now on share frames, until the running extraction ends.
    fn batch_extraction(&self) {
        self.endpoint().core.batch_extraction();
    }

    /// The incarnation of a peer that can be reached now, if any.
    #[inline]
    fn peer_id(&self, peer: Rank) -> Option<PeerId> {
        self.endpoint().core.peer_id(peer)
    }

    /// Why nothing more will arrive from a peer, if so: the endpoint is closed, or the peer is gone. `known`
    /// is the incarnation in question; without one it is whichever is reachable.
    fn peer_error(&self, peer: Rank, known: Option<PeerId>) -> Option<Error> {
        self.endpoint().core.peer_error(peer, known)
    }

    /// Extracts and waits until `done` or `over` returns true, or `timeout` has passed. Not in handlers.
    /// `over` is called less often than `done`: whenever something other than a request to this node's memory
    /// has happened.
    fn wait_until(
        &self,
        timeout: Option<Duration>,
        done: impl Fn() -> bool,
        over: impl Fn() -> bool,
    ) -> Result<()> {
        waiting::wait_until(&self.endpoint().core, timeout, done, over)
    }
}

impl Hooks for Endpoint {
    #[inline]
    fn endpoint(&self) -> &Endpoint {
        self
    }
}

impl Hooks for AsyncEndpoint {
    #[inline]
    fn endpoint(&self) -> &Endpoint {
        self.plain()
    }
}

/// A whole message of any length, sent as far as there was room.
#[derive(Debug)]
pub struct PendingMessage {
    transfer: Transfer,
    bytes: Vec<u8>,
}

impl PendingMessage {
    /// A message of which nothing was sent.
    pub fn new(peer: Rank, handler: Handler, bytes: Vec<u8>) -> PendingMessage {
        PendingMessage { transfer: Transfer::new(peer, handler), bytes }
    }

    /// Sends as much as there is room for; [`SendError::WouldBlock`] if that is not all.
    pub fn try_send(&mut self, ep: &impl Hooks) -> Result<()> {
        Ok(self.try_send_on(&ep.endpoint().core.node)?)
    }

    /// As [`PendingMessage::try_send`], on any thread.
    pub(crate) fn try_send_on(&mut self, node: &tautline_node::Endpoint) -> Result<(), SendError> {
        self.transfer.try_send(node, &self.bytes)
    }

    /// Changes the handler of a message of which nothing was sent.
    pub fn redirect(&mut self, handler: Handler) {
        self.transfer = Transfer::new(self.transfer.peer, handler);
    }

    /// Aborts the message, if part of it was sent.
    pub fn abort(&self, ep: &impl Hooks) {
        self.transfer.abort(&ep.endpoint().core.node);
    }
}

/// Wakes a future whenever a peer goes down, until it is dropped.
#[derive(Debug)]
pub struct PeerWaiter {
    core: Rc<Core>,
    waiter: Waiter,
}

impl PeerWaiter {
    /// Waits for nothing until it is registered.
    pub fn new(ep: &impl Hooks) -> PeerWaiter {
        PeerWaiter { core: ep.endpoint().core.clone(), waiter: Waiter::default() }
    }

    /// Wakes `context` when the next peer goes down. A further call replaces the waker.
    pub fn register(&self, context: &Context<'_>) {
        self.core.waits.peers.register(&self.waiter, context);
    }
}

impl Drop for PeerWaiter {
    fn drop(&mut self) {
        self.core.waits.peers.remove(&self.waiter);
    }
}
