//! A whole message of any length, sent from any thread.

use std::sync::Arc;

use tautline_node::{Key, MessageId};

use crate::core::Shared;
use crate::error::Result;
use crate::handler_name::Handler;
use crate::{Rank, SendError};

/// A message, sent as far as there was room. Dropped before its end, it is aborted.
pub(crate) struct Sending<'a> {
    shared: &'a Arc<Shared>,
    peer: Rank,
    handler: Handler,
    bytes: &'a [u8],
    begun: Option<MessageId>,
    sent: usize,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, peer: Rank, handler: Handler, bytes: &'a [u8]) -> Sending<'a> {
        Sending { shared, peer, handler, bytes, begun: None, sent: 0 }
    }

    /// Sends as much as there is room for; [`SendError::WouldBlock`] if that is not all.
    pub(crate) fn attempt(&mut self) -> Result<()> {
        let to = (self.peer, self.handler.0);
        let sent = send_on(&self.shared.node, to, self.bytes, (&mut self.begun, &mut self.sent));
        // Also if part of it was sent to this node itself: only extraction makes room for the rest.
        if sent.is_ok() || self.begun.is_some() {
            self.shared.sent(self.peer);
        }
        Ok(sent?)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.begun {
            // A lost peer need not be told.
            let _ = self.shared.node.abort(id);
        }
    }
}

/// As [`Sending`], with bytes of its own, for jobs that go on without their caller.
pub(crate) struct OwnedMessage {
    peer: Rank,
    key: Key,
    bytes: Vec<u8>,
    begun: Option<MessageId>,
    sent: usize,
}

impl OwnedMessage {
    pub(crate) fn new(peer: Rank, key: Key, bytes: Vec<u8>) -> OwnedMessage {
        OwnedMessage { peer, key, bytes, begun: None, sent: 0 }
    }

    /// Changes the handler of a message of which nothing was sent.
    pub(crate) fn redirect(&mut self, key: Key) {
        (self.key, self.begun, self.sent) = (key, None, 0);
    }

    /// Sends as much as there is room for; [`SendError::WouldBlock`] if that is not all.
    pub(crate) fn try_send(&mut self, node: &tautline_node::Endpoint) -> Result<(), SendError> {
        send_on(node, (self.peer, self.key), &self.bytes, (&mut self.begun, &mut self.sent))
    }
}

/// Sends as much of a message as there is room for; [`SendError::WouldBlock`] if that is not all.
fn send_on(
    node: &tautline_node::Endpoint,
    (peer, key): (Rank, Key),
    bytes: &[u8],
    (begun, sent): (&mut Option<MessageId>, &mut usize),
) -> Result<(), SendError> {
    let id = match *begun {
        Some(id) => id,
        None if node.try_send(peer, key, bytes)? => return Ok(()),
        None => *begun.insert(node.try_begin(peer, key, bytes.len() as u64)?),
    };
    while *sent < bytes.len() {
        match node.try_piece(id, *sent as u64, &bytes[*sent..])? {
            0 => return Err(SendError::WouldBlock),
            added => *sent += added,
        }
    }
    *begun = None;
    node.end(id)
}
