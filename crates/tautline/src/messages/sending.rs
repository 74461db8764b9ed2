//! The verbs of an endpoint that send.

use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::handler_name::{Handler, Name};
use crate::messages::loan::Loan;
use crate::messages::outgoing::Outgoing;
use crate::messages::started::{Sending, wait_all, wait_any};
use crate::transfer::Transfer;
use crate::waiting::{STALL, block_or_warn, block_until_room};
use crate::{Rank, SendError};

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Endpoint {
    /// Sends a whole message; waits for the connection and for room if necessary.
    ///
    /// It returns when all bytes are with the network, so that the buffer may be reused; the peer's handler
    /// may not have run. A message that fits one frame seldom waits. A longer one waits until the peer has
    /// extracted all but a window of it.
    ///
    /// It runs no handlers while it waits. Two programs that send long messages to each other, and extract
    /// only afterwards, wait for ever. A send that has made no progress for three seconds logs a warning
    /// (`tracing::warn`). [`Endpoint::start_send`] returns at once, and [`Endpoint::exchange`] sends and
    /// receives at the same time.
    ///
    /// In a handler it fails with [`crate::Error::Reentrant`] if it would have to wait: use
    /// [`crate::AsyncEndpoint::send`] there. A message to oneself never waits, because only extraction makes
    /// room for it. A long one is begun, and its rest is copied and sent by later extractions. If there is no
    /// room to begin it, it fails with [`SendError::WouldBlock`]: extract, and try again.
    #[inline]
    pub fn send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(&self.core.node)?;
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
                let warn = || warn_of_stalled_send(&self.core, peer, handler, bytes.len());
                if block_or_warn(&self.core, peer, attempt, warn)? {
                    return Ok(());
                }
                self.send_long(peer, handler, bytes)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a long message to oneself, and leaves its rest to later extractions.
    fn send_to_oneself(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<()> {
        let mut transfer = Transfer::new(peer, handler);
        let sent = transfer.try_send(&self.core.node, bytes);
        if matches!(sent, Err(SendError::WouldBlock)) && transfer.is_begun() {
            let bytes = bytes.to_vec();
            self.core.post(peer, None, move |core| {
                !matches!(transfer.try_send(&core.node, &bytes), Err(SendError::WouldBlock))
            });
            return Ok(());
        }
        Ok(sent?)
    }

    fn send_long(&self, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<()> {
        if peer == self.core.node.number() {
            return self.send_to_oneself(peer, handler, bytes);
        }
        if self.core.node.config().single_copy.is_some_and(|least| bytes.len() >= least)
            && send_single_copy(&self.core, peer, handler, bytes)?
        {
            return Ok(());
        }
        let mut message = self.begin(peer, handler, bytes.len() as u64)?;
        let (mut done, mut warned) = (0, false);
        while done < bytes.len() {
            let warn = || {
                if !std::mem::replace(&mut warned, true) {
                    warn_of_stalled_send(&self.core, peer, handler, bytes.len() - done);
                }
            };
            done += block_or_warn(&self.core, peer, || message.try_piece(&bytes[done..]), warn)?;
        }
        message.end()
    }

    /// Starts to send a whole message of any length, and returns at once. The message is sent as there is
    /// room, by every call that extracts ([`Endpoint::extract`], [`Endpoint::run_until`], the waits of this
    /// crate); [`Sending`] tells when it is complete. A `Vec` is not copied. [`Endpoint::close`] delivers
    /// what was started.
    ///
    /// Messages that are started to one peer begin in that order. A message that finds room begins at once.
    /// Otherwise it begins in a later extraction, and messages that are sent to the peer before that by other
    /// verbs overtake it.
    pub fn start_send(&self, peer: Rank, handler: impl Name, bytes: impl Into<Vec<u8>>) -> Result<Sending> {
        let handler = handler.key(&self.core.node)?;
        Sending::start(&self.core, peer, handler, bytes.into())
    }

    /// Extracts and waits until one of the sends has ended whose result was not taken; returns its place.
    /// [`Sending::wait`] then takes the result. [`crate::Error::Stale`] if all results were taken. Not in
    /// handlers.
    pub fn wait_any(&self, sendings: &mut [Sending]) -> Result<usize> {
        wait_any(&self.core, sendings)
    }

    /// Extracts and waits until all sends have ended; takes their results, and returns the first error. Not
    /// in handlers.
    pub fn wait_all(&self, sendings: &mut [Sending]) -> Result<()> {
        wait_all(&self.core, sendings)
    }

    /// Sends a whole message if that is possible at once; otherwise sends nothing and fails with
    /// [`SendError::WouldBlock`]. A message longer than one frame must be begun instead:
    /// [`SendError::TooLongForHandler`].
    pub fn try_send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let handler = handler.key(&self.core.node)?;
        if self.core.node.try_send(peer, handler.0, bytes)? {
            return Ok(());
        }
        Err(SendError::TooLongForHandler(self.core.node.short_limit(peer)).into())
    }

    /// Bytes of the longest message that goes to a peer in one frame now; zero if there is no such rank. It
    /// depends on the path, and changes with it ([`crate::Event::PathChanged`]).
    pub fn short_limit(&self, peer: Rank) -> usize {
        self.core.node.short_limit(peer)
    }

    /// Begins a message of `size` bytes; waits for the connection and for room if necessary.
    pub fn begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(&self.core.node)?;
        block_until_room(&self.core, peer, || self.try_begin(peer, handler, size))
    }

    /// Begins a message if that is possible at once.
    pub fn try_begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<Outgoing> {
        let handler = handler.key(&self.core.node)?;
        let message = self.core.node.try_begin(peer, handler.0, size)?;
        Ok(Outgoing::new(self.core.clone(), message, size))
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
}

/// Lets a peer on this host copy a message out of this process's memory; false if it cannot.
fn send_single_copy(core: &Core, peer: Rank, handler: Handler, bytes: &[u8]) -> Result<bool> {
    let offer = block_until_room(core, peer, || Ok(core.node.try_offer(peer, handler.0, bytes)?))?;
    match offer {
        Some(offer) => block_until_room(core, peer, || Ok(core.node.poll_offer(&offer)?)),
        None => Ok(false),
    }
}

/// Says that a send stands still, and what to do.
#[cold]
fn warn_of_stalled_send(core: &Core, peer: Rank, handler: Handler, left: usize) {
    let name = core.node.key_name(handler.0).unwrap_or_default();
    tracing::warn!(
        rank = core.node.rank(),
        peer,
        handler = %name,
        bytes = left,
        "a blocking send to \"{name}\" of rank {peer} has made no progress for {STALL:?}; {left} bytes are left. \
         It runs no handlers: if rank {peer} sends to this rank meanwhile, both wait for ever. Use start_send \
         or exchange, which extract while they wait"
    );
}
