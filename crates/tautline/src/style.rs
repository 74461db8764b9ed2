//! Hooks for styles of communication: what [`crate::rpc`] needs beyond the ordinary verbs of an endpoint,
//! open to every style. A style registers its handlers through [`Style`] and [`crate::Builder::with`].

use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use tautline_node::MessageId;

use crate::core::{Core, is_settled};
use crate::endpoint::{Endpoint, Handler};
use crate::error::{Error, Result};
use crate::waiters::Waiter;
use crate::{PeerId, Rank, SendError, waiting};

pub use crate::builder::Style;
pub use crate::messages::panics::panic_text;

/// Verbs of an [`Endpoint`] that programs do not need, but styles do.
pub trait Hooks {
    /// Returns a clone that does not keep the endpoint open, as handlers get it. What a style hands to the
    /// program holds this one, so that dropping the program's clones still closes the endpoint.
    fn handle(&self) -> Endpoint;

    /// Whether a handler is running, which is then the caller: it must neither extract nor wait.
    fn in_handler(&self) -> bool;

    /// The value of a type that was attached by [`crate::Builder::attach`].
    fn attachment<T: 'static>(&self) -> Option<&T>;

    /// Sends a message if it fits one frame, and there is room; false, and nothing sent, if it is too long.
    fn try_send_frame(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<bool>;

    /// Sends a message without waiting: now, or by later extractions, behind what was posted to that peer
    /// before.
    fn send_later(&self, message: PendingMessage);

    /// Calls `job` now and in later extractions until it returns true, behind what was posted to that peer
    /// before. The job must not hold a clone of the endpoint: it gets one.
    fn post(&self, peer: Rank, job: impl FnMut(&Endpoint) -> bool + 'static);

    /// Lets all messages that handlers send from now on share frames, until the running extraction ends.
    fn batch_extraction(&self);

    /// The incarnation of a peer that can be reached now, if any.
    fn peer_id(&self, peer: Rank) -> Option<PeerId>;

    /// Why nothing more will arrive from a peer, if so: the endpoint is closed, or the peer is gone. `known`
    /// is the incarnation in question; without one it is whichever is reachable.
    fn peer_error(&self, peer: Rank, known: Option<PeerId>) -> Option<Error>;

    /// Extracts and waits until `done` or `over` returns true, or `timeout` has passed. Not in handlers.
    /// `over` is called less often than `done`: whenever something other than a request to this node's memory
    /// has happened.
    fn wait_until(
        &self,
        timeout: Option<Duration>,
        done: impl Fn() -> bool,
        over: impl Fn() -> bool,
    ) -> Result<()>;
}

impl Hooks for Endpoint {
    #[inline]
    fn handle(&self) -> Endpoint {
        Endpoint::handle(self.core.clone())
    }

    #[inline]
    fn in_handler(&self) -> bool {
        self.core.extraction.is_running()
    }

    #[inline]
    fn attachment<T: 'static>(&self) -> Option<&T> {
        self.core.attachment()
    }

    #[inline]
    fn try_send_frame(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<bool> {
        Ok(self.core.node.try_send(peer, handler.0, bytes)?)
    }

    fn send_later(&self, mut message: PendingMessage) {
        let peer = message.peer;
        self.post(peer, move |ep| is_settled(&message.try_send(ep)));
    }

    #[cold]
    fn post(&self, peer: Rank, mut job: impl FnMut(&Endpoint) -> bool + 'static) {
        self.core.post(peer, move |core| job(&Endpoint::handle(core.clone())));
    }

    fn batch_extraction(&self) {
        self.core.batch_extraction();
    }

    #[inline]
    fn peer_id(&self, peer: Rank) -> Option<PeerId> {
        self.core.peer_id(peer)
    }

    fn peer_error(&self, peer: Rank, known: Option<PeerId>) -> Option<Error> {
        self.core.peer_error(peer, known)
    }

    fn wait_until(
        &self,
        timeout: Option<Duration>,
        done: impl Fn() -> bool,
        over: impl Fn() -> bool,
    ) -> Result<()> {
        waiting::wait_until(&self.core, timeout, done, over)
    }
}

/// A whole message of any length, sent as far as there was room.
#[derive(Debug)]
pub struct PendingMessage {
    peer: Rank,
    handler: Handler,
    bytes: Vec<u8>,
    begun: Option<MessageId>,
    sent: usize,
}

impl PendingMessage {
    /// A message of which nothing was sent.
    pub fn new(peer: Rank, handler: Handler, bytes: Vec<u8>) -> PendingMessage {
        PendingMessage { peer, handler, bytes, begun: None, sent: 0 }
    }

    /// Sends as much as there is room for; [`SendError::WouldBlock`] if that is not all.
    pub fn try_send(&mut self, ep: &Endpoint) -> Result<()> {
        let node = ep.node();
        let id = match self.begun {
            Some(id) => id,
            None if node.try_send(self.peer, self.handler.0, &self.bytes)? => return Ok(()),
            None => {
                let len = self.bytes.len() as u64;
                *self.begun.insert(node.try_begin(self.peer, self.handler.0, len)?)
            }
        };
        while self.sent < self.bytes.len() {
            match node.try_piece(id, self.sent as u64, &self.bytes[self.sent..])? {
                0 => return Err(SendError::WouldBlock.into()),
                added => self.sent += added,
            }
        }
        Ok(node.end(id)?)
    }

    /// Changes the handler of a message of which nothing was sent.
    pub fn redirect(&mut self, handler: Handler) {
        (self.handler, self.begun, self.sent) = (handler, None, 0);
    }

    /// Aborts the message, if part of it was sent.
    pub fn abort(&self, ep: &Endpoint) {
        if let Some(id) = self.begun {
            let _ = ep.node().abort(id);
        }
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
    pub fn new(ep: &Endpoint) -> PeerWaiter {
        PeerWaiter { core: ep.core.clone(), waiter: Waiter::default() }
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
