//! Sending from handlers and tasks: what waits suspends the caller.

use std::ops::{Deref, DerefMut};

use zerocopy::{Immutable, IntoBytes};

use super::loan::Loan;
use super::outgoing::Outgoing;
use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::error::{Error, Result};
use crate::handler_name::Name;
use crate::waiting::until_room;

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl AsyncEndpoint {
    /// Sends a whole message; waits for the connection and for room if necessary. Dropped before it is done,
    /// it sends nothing, or aborts a message that was begun.
    ///
    /// ```no_run
    /// # async fn example(msg: tautline::Message) -> tautline::Result<()> {
    /// msg.endpoint().send(msg.from(), "answer", b"yes").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        let node = self.node();
        let handler = handler.key(node)?;
        if until_room(self.core(), || Ok(node.try_send(peer, handler.0, bytes)?)).await? {
            return Ok(());
        }
        let mut message = self.begin(peer, handler, bytes.len() as u64).await?;
        message.piece(bytes).await?;
        message.end()
    }

    /// As [`crate::Endpoint::try_send`].
    #[inline]
    pub fn try_send(&self, peer: Rank, handler: impl Name, bytes: &[u8]) -> Result<()> {
        self.plain().try_send(peer, handler, bytes)
    }

    /// Begins a message of `size` bytes; waits for the connection and for room if necessary.
    pub async fn begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<AsyncOutgoing> {
        let handler = handler.key(self.node())?;
        until_room(self.core(), || self.try_begin(peer, handler, size)).await
    }

    /// Begins a message if that is possible at once.
    pub fn try_begin(&self, peer: Rank, handler: impl Name, size: u64) -> Result<AsyncOutgoing> {
        self.plain().try_begin(peer, handler, size).map(AsyncOutgoing)
    }

    /// Returns a buffer of `len` bytes to fill and send to `peer`, as [`crate::Endpoint::loan`] does. Waits
    /// for the connection, and until enough of the peer's earlier loans were returned.
    pub async fn loan(&self, peer: Rank, len: usize) -> Result<AsyncLoan> {
        until_room(self.core(), || self.try_loan(peer, len)).await
    }

    /// As [`AsyncEndpoint::loan`], if that is possible at once.
    pub fn try_loan(&self, peer: Rank, len: usize) -> Result<AsyncLoan> {
        self.plain().try_loan(peer, len).map(AsyncLoan)
    }
}

/// A message that was begun with [`AsyncEndpoint::begin`]: an [`Outgoing`] whose calls suspend the caller.
///
/// ```no_run
/// # async fn example(msg: tautline::Message) -> tautline::Result<()> {
/// let mut answer = msg.endpoint().begin(msg.from(), "answer", 12).await?;
/// answer.value(&7u64).await?;
/// answer.piece(b"tail").await?;
/// answer.end()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a message that is dropped before its end is aborted"]
pub struct AsyncOutgoing(Outgoing);

impl AsyncOutgoing {
    /// Bytes that are still to be added.
    pub fn remaining(&self) -> u64 {
        self.0.remaining()
    }

    /// Adds a piece; waits for room if there is none. If the piece exceeds the announced size, returns an
    /// error and sends nothing of it. Dropped before it is done, it may have added a part, as
    /// [`AsyncOutgoing::remaining`] shows.
    pub async fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.check(bytes.len())?;
        let core = self.0.core().clone();
        let mut done = 0;
        while done < bytes.len() {
            done += until_room(&core, || self.0.try_piece(&bytes[done..])).await?;
        }
        Ok(())
    }

    /// Adds a value: any plain type with a fixed layout.
    pub async fn value<T: IntoBytes + Immutable + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.piece(value.as_bytes()).await
    }

    /// Adds `len` bytes that `fill` writes straight into the slots they are sent from; see
    /// [`Outgoing::fill`].
    pub async fn fill(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        self.0.check(len)?;
        let core = self.0.core().clone();
        let mut done = 0;
        while done < len {
            let attempt = || self.0.try_fill(len - done, |at, room| fill(done + at, room));
            done += until_room(&core, attempt).await?;
        }
        Ok(())
    }

    /// Adds as much of a piece as there is room for, and returns how much;
    /// [`crate::SendError::WouldBlock`] if there is none.
    pub fn try_piece(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.try_piece(bytes)
    }

    /// As [`Outgoing::end`]. It never waits.
    pub fn end(self) -> Result<()> {
        self.0.end()
    }
}

/// A buffer from [`AsyncEndpoint::loan`]: a [`Loan`] that suspends the caller until it is sent.
///
/// ```no_run
/// # async fn example(msg: tautline::Message) -> tautline::Result<()> {
/// let mut loan = msg.endpoint().loan(msg.from(), 1 << 20).await?;
/// loan.fill(7);
/// loan.send("answer").await
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a loan that is dropped is not sent"]
pub struct AsyncLoan(Loan);

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl AsyncLoan {
    /// The peer that it is for.
    pub fn peer(&self) -> Rank {
        self.0.peer()
    }

    /// Whether the peer will read it in place.
    pub fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// Sends it as a message of its length; waits for room if necessary. Dropped before it is done, it is not
    /// sent, and given back.
    pub async fn send(mut self, handler: impl Name) -> Result<()> {
        let core = self.0.core().clone();
        let handler = handler.key(&core.node)?;
        if until_room(&core, || self.0.try_lend(handler)).await? {
            return Ok(());
        }
        AsyncEndpoint::new(core).send(self.peer(), handler, &self).await
    }

    /// Sends it if that is possible at once.
    ///
    /// # Errors
    /// Returns the loan with the reason, as [`Loan::try_send`] does.
    pub fn try_send(self, handler: impl Name) -> std::result::Result<(), (AsyncLoan, Error)> {
        self.0.try_send(handler).map_err(|(loan, error)| (AsyncLoan(loan), error))
    }
}

impl Deref for AsyncLoan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for AsyncLoan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
