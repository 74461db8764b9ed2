//! A message on its way out.

use std::rc::Rc;

use zerocopy::{Immutable, IntoBytes};

use tautline_node::MessageId;

use crate::core::Core;
use crate::endpoint::{blocking, retry};
use crate::{Error, Result, SendError};

/// A message that has been begun. Add pieces until the announced size is reached, then [`Outgoing::end`] it.
///
/// Dropped before its end, the message is given up: the receiver's handler gets [`Error::Aborted`] when it asks for the bytes
/// that never came (M-6). Other messages are not affected.
#[derive(Debug)]
#[must_use = "a message that is dropped before its end is given up"]
pub struct Outgoing {
    core: Rc<Core>,
    to: MessageId,
    total: u64,
    sent: u64,
    over: bool,
}

impl Outgoing {
    pub(crate) fn new(core: Rc<Core>, to: MessageId, total: u64) -> Outgoing {
        Outgoing { core, to, total, sent: 0, over: false }
    }

    /// Bytes that are still to be added.
    pub fn remaining(&self) -> u64 {
        self.total - self.sent
    }

    fn check(&self, len: usize) -> Result<()> {
        let (room, piece) = (self.remaining(), len as u64);
        if piece > room { Err(Error::PieceTooLong { room, piece }) } else { Ok(()) }
    }

    /// Adds a piece; waits for room if there is none. Longer than announced: an error, and nothing is sent of it.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        self.check(bytes.len())?;
        let mut done = 0;
        while done < bytes.len() {
            let core = self.core.clone();
            done += blocking(&core, self.to.peer.rank, || self.try_piece(&bytes[done..]))?;
        }
        Ok(())
    }

    /// Adds a value: any plain type with a fixed layout.
    pub fn value<T: IntoBytes + Immutable + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.piece(value.as_bytes())
    }

    /// Adds `len` bytes that `fill` writes straight into the slots they are sent from; it is called for one part after the
    /// other, with the offset within the piece and the room to fill.
    ///
    /// `fill` runs under the node's lock: it must be quick, because nobody is served meanwhile, not even by the watchdog, so that peers may take this node for dead; and whatever it asks of the
    /// endpoint panics.
    pub fn fill(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        self.check(len)?;
        let core = self.core.clone();
        let mut done = 0;
        while done < len {
            done += blocking(&core, self.to.peer.rank, || {
                self.try_fill(len - done, |at, room| fill(done + at, room))
            })?;
        }
        Ok(())
    }

    /// Adds as much of a piece as there is room for, and returns how much; [`SendError::WouldBlock`] if there is none.
    pub fn try_piece(&mut self, bytes: &[u8]) -> Result<usize> {
        self.check(bytes.len())?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let added = self.core.node.try_piece(self.to, self.sent, bytes).inspect_err(|_| self.over = true)?;
        self.sent += added as u64;
        if added == 0 { Err(SendError::WouldBlock.into()) } else { Ok(added) }
    }

    fn try_fill(&mut self, len: usize, fill: impl FnMut(usize, &mut [u8])) -> Result<usize> {
        self.check(len)?;
        if len == 0 {
            return Ok(0);
        }
        let added =
            self.core.node.try_add(self.to, self.sent, len, fill).inspect_err(|_| self.over = true)?;
        self.sent += added as u64;
        if added == 0 { Err(SendError::WouldBlock.into()) } else { Ok(added) }
    }

    /// Adds a piece, and lets other handlers go on while there is no room. For use in handlers.
    pub async fn piece_async(&mut self, bytes: &[u8]) -> Result<()> {
        self.check(bytes.len())?;
        let core = self.core.clone();
        let mut done = 0;
        while done < bytes.len() {
            done += retry(&core, || self.try_piece(&bytes[done..])).await?;
        }
        Ok(())
    }

    /// Ends the message: it leaves at once, or with its batch. Fewer bytes than announced: an error, and it is given up.
    pub fn end(mut self) -> Result<()> {
        let missing = self.remaining();
        if missing > 0 {
            return Err(Error::MessageTooShort { missing });
        }
        self.over = true;
        Ok(self.core.node.end(self.to)?)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.over {
            // A peer that is gone needs no telling.
            let _ = self.core.node.abort(self.to);
        }
    }
}
