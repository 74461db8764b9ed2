//! A message on its way out.

use std::rc::Rc;

use tautline_node::MessageId;
use zerocopy::{Immutable, IntoBytes};

use crate::SendError;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::waiting::block_until_room;

/// A message that was begun. Add pieces until the announced size is reached, then [`Outgoing::end`] it.
///
/// Dropped before its end, the message is aborted: the receiver's handler gets [`Error::Aborted`] when it
/// reads the missing bytes (M-6). Other messages are not affected.
#[derive(Debug)]
#[must_use = "a message that is dropped before its end is aborted"]
pub struct Outgoing {
    core: Rc<Core>,
    id: MessageId,
    total: u64,
    sent: u64,
    over: bool,
}

impl Outgoing {
    pub(super) fn new(core: Rc<Core>, id: MessageId, total: u64) -> Outgoing {
        Outgoing { core, id, total, sent: 0, over: false }
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// The incarnation of the peer that this message goes to, as in [`Event::PeerUp`](crate::Event::PeerUp).
    ///
    /// A peer that was started again can be up before the program has read the event that reports its end:
    /// this tells which of the two a message was begun for. All of a message goes to one incarnation.
    pub fn incarnation(&self) -> u32 {
        self.id.peer.incarnation
    }

    /// Bytes that are still to be added.
    pub fn remaining(&self) -> u64 {
        self.total - self.sent
    }

    pub(super) fn check(&self, len: usize) -> Result<()> {
        let (room, piece) = (self.remaining(), len as u64);
        if piece > room { Err(Error::PieceTooLong { room, piece }) } else { Ok(()) }
    }

    /// Adds a piece; waits for room if there is none. If the piece exceeds the announced size, returns an
    /// error and sends nothing of it.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        self.check(bytes.len())?;
        let mut done = 0;
        while done < bytes.len() {
            let core = self.core.clone();
            done += block_until_room(&core, self.id.peer.rank, || self.try_piece(&bytes[done..]))?;
        }
        Ok(())
    }

    /// Adds a value: any plain type with a fixed layout.
    pub fn value<T: IntoBytes + Immutable + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.piece(value.as_bytes())
    }

    /// Adds `len` bytes that `fill` writes straight into the slots they are sent from. It is called for one
    /// part after the other, with the offset within the piece and the buffer to fill.
    ///
    /// `fill` runs under the node's lock. It must be quick: nothing else is served meanwhile, not even by the
    /// watchdog, so that peers may take this node for dead. If it calls the endpoint, that panics.
    pub fn fill(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        self.check(len)?;
        let core = self.core.clone();
        let mut done = 0;
        while done < len {
            done += block_until_room(&core, self.id.peer.rank, || {
                self.try_fill(len - done, |at, room| fill(done + at, room))
            })?;
        }
        Ok(())
    }

    /// Adds as much of a piece as there is room for, and returns how much; [`SendError::WouldBlock`] if there
    /// is none.
    pub fn try_piece(&mut self, bytes: &[u8]) -> Result<usize> {
        self.check(bytes.len())?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let added = self.core.node.try_piece(self.id, self.sent, bytes).inspect_err(|_| self.over = true)?;
        self.sent += added as u64;
        if added == 0 { Err(SendError::WouldBlock.into()) } else { Ok(added) }
    }

    pub(super) fn try_fill(&mut self, len: usize, fill: impl FnMut(usize, &mut [u8])) -> Result<usize> {
        self.check(len)?;
        if len == 0 {
            return Ok(0);
        }
        let added =
            self.core.node.try_add(self.id, self.sent, len, fill).inspect_err(|_| self.over = true)?;
        self.sent += added as u64;
        if added == 0 { Err(SendError::WouldBlock.into()) } else { Ok(added) }
    }

    /// Ends the message: it leaves at once, or with its batch. If bytes are missing, returns an error and
    /// aborts it.
    pub fn end(mut self) -> Result<()> {
        let missing = self.remaining();
        if missing > 0 {
            return Err(Error::MessageTooShort { missing });
        }
        self.over = true;
        Ok(self.core.node.end(self.id)?)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.over {
            // A lost peer need not be told.
            let _ = self.core.node.abort(self.id);
        }
    }
}
