//! Messages that are lent instead of copied: the sender fills them where the receiver reads them (M-9).

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use crate::Rank;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::handler_name::{Handler, Name};
use crate::waiting::block_until_room;

/// A buffer to fill and send to one peer; see [`Endpoint::loan`].
///
/// If the peer is on this host, the buffer is in memory that both processes have mapped: sending it copies
/// nothing, whatever its size. Otherwise it is private memory, and sending it is like [`Endpoint::send`]. Its
/// content is undefined at first. Dropped unsent, it is given back. A peer can be lent
/// [`crate::Config::loan_pool`] bytes at a time, in at most 240 loans; unsent ones count. A forked child must
/// not touch it.
#[derive(Debug)]
#[must_use = "a loan that is dropped is not sent"]
pub struct Loan {
    core: Rc<Core>,
    peer: Rank,
    buffer: Buffer,
}

#[derive(Debug)]
enum Buffer {
    /// Nothing once it is sent.
    Shared(Option<tautline_node::Loan>),
    Private(Vec<u8>),
}

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Loan {
    pub(super) fn try_new(core: &Rc<Core>, peer: Rank, len: usize) -> Result<Loan> {
        let shared = if peer == core.node.number() { None } else { core.node.try_loan(peer, len)? };
        let buffer = match shared {
            Some(loan) => Buffer::Shared(Some(loan)),
            None => {
                let mut private = Vec::new();
                private.try_reserve_exact(len).map_err(Error::other)?;
                private.resize(len, 0);
                Buffer::Private(private)
            }
        };
        Ok(Loan { core: core.clone(), peer, buffer })
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// The peer that it is for.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Whether the peer will read it in place.
    pub fn is_shared(&self) -> bool {
        matches!(self.buffer, Buffer::Shared(_))
    }

    /// Sends it as a message of its length; waits for room if necessary. See [`Endpoint::send`].
    #[inline]
    pub fn send(mut self, handler: impl Name) -> Result<()> {
        let handler = handler.key(&self.core.node)?;
        let core = self.core.clone();
        if block_until_room(&core, self.peer, || self.try_lend(handler))? {
            return Ok(());
        }
        Endpoint::view(core).send(self.peer, handler, &self)
    }

    /// Sends it if that is possible at once.
    ///
    /// # Errors
    /// Returns the loan with the reason. A loan that is not shared must fit one frame, as in
    /// [`Endpoint::try_send`].
    #[inline]
    pub fn try_send(mut self, handler: impl Name) -> std::result::Result<(), (Loan, Error)> {
        let endpoint = Endpoint::view(self.core.clone());
        let sent = handler.key(&self.core.node).and_then(|handler| {
            if self.try_lend(handler)? {
                return Ok(());
            }
            endpoint.try_send(self.peer, handler, &self)
        });
        sent.map_err(|error| (self, error))
    }

    /// Sends it without a copy; false if it is not shared.
    #[inline]
    pub(super) fn try_lend(&mut self, handler: Handler) -> Result<bool> {
        match &mut self.buffer {
            Buffer::Shared(loan) => Ok(self.core.node.try_lend(handler.0, loan)?),
            Buffer::Private(_) => Ok(false),
        }
    }
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.buffer {
            Buffer::Shared(Some(loan)) => loan,
            Buffer::Private(bytes) => bytes,
            Buffer::Shared(None) => &[],
        }
    }
}

impl DerefMut for Loan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Buffer::Shared(Some(loan)) => loan,
            Buffer::Private(bytes) => bytes,
            Buffer::Shared(None) => &mut [],
        }
    }
}

impl Drop for Loan {
    #[inline]
    fn drop(&mut self) {
        if let Buffer::Shared(loan) = &mut self.buffer
            && let Some(loan) = loan.take()
        {
            self.core.node.cancel_loan(loan);
        }
    }
}
