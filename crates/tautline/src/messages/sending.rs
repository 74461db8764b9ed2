//! The verbs of an endpoint that send.

use crate::core::Core;
use crate::endpoint::{Endpoint, Handler, Name};
use crate::error::Result;
use crate::messages::loan::Loan;
use crate::messages::outgoing::Outgoing;
use crate::waiting::{block_until_room, until_room};
use crate::{Rank, SendError};

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Endpoint {
    /// Sends a whole message; waits for the connection and for room if necessary. It runs no handlers
    /// meanwhile: two programs that send to each other and never extract block each other once both are out
    /// of room. In handlers, use [`Endpoint::send_async`]. A message to oneself never waits: without room it
    /// fails with [`SendError::WouldBlock`], because only extraction makes room for it.
    #[inline]
    pub fn send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(self)?;
        match self.core.node.try_send(peer, handler.0, bytes) {
            Ok(true) => Ok(()),
            sent => self.send_slowly(sent, peer, handler, bytes),
        }
    }

    /// Sends a message that is too long for one frame, or found no room.
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
                let attempt = || Ok(self.core.node.try_send(peer, handler.0, bytes)?);
                if block_until_room(&self.core, peer, attempt)? {
                    return Ok(());
                }
                self.send_long(peer, handler, bytes)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn send_long(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<()> {
        if self.core.node.config().single_copy.is_some_and(|least| bytes.len() >= least)
            && send_single_copy(&self.core, peer, handler, bytes)?
        {
            return Ok(());
        }
        let mut message = self.begin(peer, handler, bytes.len() as u64)?;
        message.piece(bytes)?;
        message.end()
    }

    /// Sends a whole message if that is possible at once; otherwise sends nothing and fails with
    /// [`SendError::WouldBlock`]. A message longer than one frame must be begun instead:
    /// [`SendError::TooLongForHandler`].
    pub fn try_send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(self)?;
        if self.core.node.try_send(peer, handler.0, bytes)? {
            return Ok(());
        }
        Err(SendError::TooLongForHandler(self.core.node.short_limit(peer)).into())
    }

    /// As [`Endpoint::send`], but suspends the handler while there is no room. For use in handlers.
    pub async fn send_async(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(self)?;
        if until_room(&self.core, || Ok(self.core.node.try_send(peer, handler.0, bytes)?)).await? {
            return Ok(());
        }
        let mut message = self.begin_async(peer, handler, bytes.len() as u64).await?;
        message.piece_async(bytes).await?;
        message.end()
    }

    /// Begins a message of `size` bytes; waits for the connection and for room if necessary.
    pub fn begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(self)?;
        block_until_room(&self.core, peer, || self.try_begin(peer, handler, size))
    }

    /// Begins a message if that is possible at once.
    pub fn try_begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(self)?;
        let message = self.core.node.try_begin(peer, handler.0, size)?;
        Ok(Outgoing::new(self.core.clone(), message, size))
    }

    /// As [`Endpoint::begin`], but suspends the handler while there is no room. For use in handlers.
    pub async fn begin_async(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(self)?;
        until_room(&self.core, || self.try_begin(peer, handler, size)).await
    }

    /// Returns a buffer of `len` bytes to fill and send to `peer`. On this host it is memory that the peer
    /// reads in place, so that nothing is copied. Waits for the connection, and until enough of the peer's
    /// earlier loans were returned.
    pub fn loan(&self, peer: Rank, len: usize) -> Result<Loan> {
        block_until_room(&self.core, peer, || self.try_loan(peer, len))
    }

    /// As [`Endpoint::loan`], if that is possible at once.
    pub fn try_loan(&self, peer: Rank, len: usize) -> Result<Loan> {
        Loan::try_new(&self.core, peer, len)
    }

    /// As [`Endpoint::loan`], but suspends the handler meanwhile. For use in handlers.
    pub async fn loan_async(&self, peer: Rank, len: usize) -> Result<Loan> {
        until_room(&self.core, || self.try_loan(peer, len)).await
    }
}

/// Lets a peer on this host copy a message out of this process's memory; false if it cannot.
fn send_single_copy(core: &Core, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<bool> {
    let offer = block_until_room(core, peer, || Ok(core.node.try_offer(peer, handler.0, bytes)?))?;
    match offer {
        Some(offer) => block_until_room(core, peer, || Ok(core.node.poll_offer(&offer)?)),
        None => Ok(false),
    }
}
