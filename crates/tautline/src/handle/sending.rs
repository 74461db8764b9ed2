//! A whole message of any length, sent from any thread.

use std::sync::Arc;

use crate::Rank;
use crate::core::Shared;
use crate::error::Result;
use crate::handler_name::Handler;
use crate::transfer::Transfer;

/// A message, sent as far as there was room. Dropped before its end, it is aborted.
pub(crate) struct HandleMessage<'a> {
    shared: &'a Arc<Shared>,
    transfer: Transfer,
    bytes: &'a [u8],
}

impl<'a> HandleMessage<'a> {
    pub(crate) fn new(
        shared: &'a Arc<Shared>,
        peer: Rank,
        handler: Handler,
        bytes: &'a [u8],
    ) -> HandleMessage<'a> {
        HandleMessage { shared, transfer: Transfer::new(peer, handler), bytes }
    }

    /// Whether part of the message was sent, and not all of it.
    pub(crate) fn is_begun(&self) -> bool {
        self.transfer.is_begun()
    }

    /// Sends as much as there is room for; [`crate::SendError::WouldBlock`] if that is not all.
    pub(crate) fn attempt(&mut self) -> Result<()> {
        let sent = self.transfer.try_send(&self.shared.node, self.bytes);
        // Also if part of it was sent to this node itself: only extraction makes room for the rest.
        if sent.is_ok() || self.transfer.is_begun() {
            self.shared.sent(self.transfer.peer);
        }
        Ok(sent?)
    }
}

impl Drop for HandleMessage<'_> {
    fn drop(&mut self) {
        self.transfer.abort(&self.shared.node);
    }
}
