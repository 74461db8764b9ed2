//! A whole message of any length, sent as far as there is room.

use tautline_node::MessageId;

use crate::handler_name::Handler;
use crate::{Rank, SendError};

/// How far the bytes of a message have been sent. The bytes themselves are kept elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: Rank,
    handler: Handler,
    begun: Option<MessageId>,
    sent: usize,
}

impl Transfer {
    /// A message of which nothing was sent.
    pub(crate) fn new(peer: Rank, handler: Handler) -> Transfer {
        Transfer { peer, handler, begun: None, sent: 0 }
    }

    /// Whether part of the message was sent, and not all of it.
    pub(crate) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Sends as much of `bytes`, which are the same at every call, as there is room for;
    /// [`SendError::WouldBlock`] if that is not all.
    pub(crate) fn try_send(&mut self, node: &tautline_node::Endpoint, bytes: &[u8]) -> Result<(), SendError> {
        let id = match self.begun {
            Some(id) => id,
            None if node.try_send(self.peer, self.handler.0, bytes)? => return Ok(()),
            None => *self.begun.insert(node.try_begin(self.peer, self.handler.0, bytes.len() as u64)?),
        };
        while self.sent < bytes.len() {
            match node.try_piece(id, self.sent as u64, &bytes[self.sent..])? {
                0 => return Err(SendError::WouldBlock),
                added => self.sent += added,
            }
        }
        self.begun = None;
        node.end(id)
    }

    /// Aborts the message, if only part of it was sent.
    pub(crate) fn abort(&self, node: &tautline_node::Endpoint) {
        if let Some(id) = self.begun {
            // A lost peer need not be told.
            let _ = node.abort(id);
        }
    }
}
