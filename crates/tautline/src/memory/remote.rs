//! Another node's memory, accessed with a cookie.

use std::cell::Cell;
use std::ops::{Range, RangeBounds};
use std::rc::Rc;

use tautline_node::memory::{Atomic, Cookie, Failure, Hint, Operation, Progress, Ticket};

use super::aperture::Aperture;
use super::completion::{Completion, Fetch};
use super::operations::{Placed, gather, local, put_copied, scatter};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::waiting::block_until_served;
use crate::{Rank, SendError};

/// Part of another node's memory. Operations of one pair of nodes take effect in the order in which they were
/// requested. A get reads when its turn has come; a long one reads while later puts already take effect,
/// unless there is a [`Remote::fence`] between them.
///
/// Offsets count from the start of the cookie's range.
///
/// Methods that return a [`Completion`] or a [`Fetch`] wait for the connection, and for room in the queue of
/// requests, as [`Remote::put`] does. Handlers and tasks use an [`super::AsyncRemote`].
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Remote {
    pub(super) core: Rc<Core>,
    pub(super) cookie: Cookie,
    /// The number that stands for the cookie on the wire, as of the last put.
    hint: Cell<Hint>,
}

/// A put of which part was sent. Dropped before its end, it is abandoned.
pub(super) struct PendingPut<'a> {
    remote: &'a Remote,
    progress: Progress,
    ticket: Option<Ticket>,
    /// For a put with completion: the number of puts of the operation that are left, with this one.
    left: Option<usize>,
    over: bool,
}

impl<'a> PendingPut<'a> {
    pub(super) fn new(remote: &'a Remote, left: Option<usize>) -> PendingPut<'a> {
        let progress = Progress::with_hint(remote.hint.get());
        PendingPut { remote, progress, ticket: None, left, over: false }
    }

    /// Sends as much as there is room for; [`SendError::WouldBlock`] if that is not all.
    pub(super) fn try_send(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let (node, cookie) = (&self.remote.core.node, &self.remote.cookie);
        let complete = if let Some(left) = self.left {
            node.try_put_with_completion((cookie, at), bytes, &mut self.progress, (&mut self.ticket, left))?
        } else {
            node.try_put((cookie, at), bytes, &mut self.progress)?
        };
        self.sent(complete)
    }

    fn sent(&mut self, complete: bool) -> Result<()> {
        if !complete {
            return Err(SendError::WouldBlock.into());
        }
        self.over = true;
        self.remote.hint.set(self.progress.hint);
        Ok(())
    }

    /// Whether part of it was sent: no other request to the same node is possible meanwhile.
    pub(super) fn is_partly_sent(&self) -> bool {
        !self.over && self.progress.is_begun()
    }
}

impl Drop for PendingPut<'_> {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.remote.core.node.abandon_put(self.remote.owner(), &self.progress);
        }
        if let Some(ticket) = self.ticket {
            let _ = self.remote.core.node.cancel_operation(ticket);
        }
    }
}

/// A put of up to this many bytes fits one frame of any path: none below 512 bytes is supported (L-20).
const FITS_ANY_FRAME: usize = 256;

impl Remote {
    pub(crate) fn new(core: Rc<Core>, cookie: Cookie) -> Remote {
        Remote { core, cookie, hint: Cell::default() }
    }

    /// The cookie.
    pub fn cookie(&self) -> &Cookie {
        &self.cookie
    }

    /// The rank whose memory it is.
    pub fn owner(&self) -> Rank {
        self.cookie.owner()
    }

    /// Puts bytes; waits for the connection and for room if necessary, but not until the bytes are in
    /// place: [`Remote::flush`] completes when all puts are. A refused put is an event
    /// ([`super::MemoryEvent::Refused`]).
    ///
    /// A program may put without ever extracting, as long as the owner's answers can arrive. If the owner's
    /// messages fill the limit of unextracted ones, and answers are queued behind them, the put fails with
    /// [`SendError::Unextracted`], and part of the bytes may be in place. This applies to all
    /// requests.
    #[inline]
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut put = PendingPut::new(self, None);
        match put.try_send(at, bytes) {
            Err(error) if error.is_would_block() => {
                block_until_served(&self.core, self.owner(), || put.try_send(at, bytes))
            }
            result => result,
        }
    }

    /// As [`Remote::put`], with `len` bytes that `fill` writes straight to where they are sent from. It is
    /// called for one part after the other, with the offset within the put and the buffer to fill, and
    /// sometimes again for a part that found no room.
    ///
    /// `fill` runs under the node's lock. It must be quick: nothing else is served meanwhile, not even by the
    /// watchdog, so that peers may take this node for dead. If it calls the endpoint, that panics.
    pub fn fill(&self, at: u64, len: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        let mut put = PendingPut::new(self, None);
        block_until_served(&self.core, self.owner(), || {
            let node = &self.core.node;
            let complete = node.try_put_filled((&self.cookie, at), len, &mut put.progress, &mut fill)?;
            put.sent(complete)
        })
    }

    /// Puts bytes of up to one frame if that is possible at once; otherwise puts nothing and fails with
    /// [`SendError::WouldBlock`].
    #[inline]
    pub fn try_put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        // A cookie made of arbitrary bytes may name an owner that does not exist.
        if self.owner() >= self.core.node.size() {
            return Err(SendError::NoSuchPeer(self.owner()).into());
        }
        if bytes.len() > FITS_ANY_FRAME && bytes.len() > self.core.node.short_limit(self.owner()) {
            let (len, limit) = (bytes.len(), self.core.node.short_limit(self.owner()));
            let why = format!("try_put sends one frame of at most {limit} bytes; this put has {len}");
            return Err(Error::other(why));
        }
        PendingPut::new(self, None).try_send(at, bytes)
    }

    /// As [`Remote::put`]; the completion tells when the bytes are in place.
    pub fn put_with_completion(&self, at: u64, bytes: &[u8]) -> Result<Completion> {
        self.put_list(&[(at, bytes)])
    }

    /// Scatters: puts each piece at its offset, in order. The one completion tells when all are in place or,
    /// if any was refused, when all were tried.
    pub fn put_list(&self, pieces: &[(u64, &[u8])]) -> Result<Completion> {
        let mut ticket = None;
        for (i, (at, bytes)) in pieces.iter().enumerate() {
            let mut put = PendingPut::new(self, Some(pieces.len() - i));
            put.ticket = ticket;
            block_until_served(&self.core, self.owner(), || put.try_send(*at, bytes))?;
            ticket = put.ticket.take();
        }
        ticket.map_or_else(|| self.flush(), |ticket| Ok(Completion::new(self.core.clone(), ticket)))
    }

    /// Gathers: puts pieces one behind the other, from `at` on, with one completion.
    pub fn put_pieces(&self, at: u64, pieces: &[&[u8]]) -> Result<Completion> {
        let mut list = Vec::with_capacity(pieces.len());
        let mut place = at;
        for piece in pieces {
            list.push((place, *piece));
            place = place.checked_add(piece.len() as u64).ok_or(Error::OutOfRange)?;
        }
        self.put_list(&list)
    }

    /// Puts bytes and then an event into the owner's queue ([`super::MemoryEvent::Notice`]): for owners that
    /// have no tripwire there.
    pub fn put_notice(&self, at: u64, bytes: &[u8], value: u64) -> Result<Completion> {
        self.put(at, bytes)?;
        self.submit(at, &Operation::Notice { len: bytes.len() as u64, value }, None)
    }

    /// Puts bytes of an aperture of this node, without waiting: they are read as there is room, and must not
    /// change until the operation is complete.
    pub fn put_from(&self, at: u64, from: &Aperture, range: impl RangeBounds<u64>) -> Result<Completion> {
        self.submit(at, &Operation::Put(local(from, &range)?), None)
    }

    /// Gets bytes straight into an aperture of this node.
    pub fn get_into(&self, at: u64, into: &Aperture, range: impl RangeBounds<u64>) -> Result<Completion> {
        self.submit(at, &Operation::Get(local(into, &range)?), None)
    }

    /// Gets bytes.
    pub fn get(&self, at: u64, len: usize) -> Result<Fetch> {
        self.get_list(&[(at, len)])
    }

    /// Gathers: gets pieces, given by offset and length, one behind the other. They end together: when all
    /// are here or, if any was refused, when all were tried.
    pub fn get_list(&self, pieces: &[(u64, usize)]) -> Result<Fetch> {
        let (memory, operations) = gather(pieces)?;
        Ok(Fetch::new(self.submit_list(&operations, None)?, memory))
    }

    /// Scatters: gets bytes from each offset to a range of an aperture of this node, with one completion.
    pub fn get_list_into(&self, into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<Completion> {
        self.submit_list(&scatter(into, pieces)?, None)
    }

    /// Writes `new` to an aligned word of eight bytes if it is `expected`; the completion's value is its
    /// former value.
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<Completion> {
        self.submit(at, &Operation::Atomic(Atomic::CompareSwap(expected, new)), None)
    }

    /// Adds to an aligned word of eight bytes, wrapping around; the completion's value is its former value.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<Completion> {
        self.submit(at, &Operation::Atomic(Atomic::Add(value)), None)
    }

    /// Writes an aligned word of eight bytes; the completion's value is its former value.
    pub fn swap(&self, at: u64, value: u64) -> Result<Completion> {
        self.submit(at, &Operation::Atomic(Atomic::Swap(value)), None)
    }

    /// Completes when the owner has served all earlier requests to it. It completes without an error although
    /// one of them was refused: only a completion of its own shows that.
    pub fn flush(&self) -> Result<Completion> {
        self.submit(0, &Operation::Flush, None)
    }

    /// Later requests to the owner do not begin before all earlier ones, gets included, are complete. The
    /// returned completion is that of the earlier ones.
    pub fn fence(&self) -> Result<Completion> {
        self.submit(0, &Operation::Fence, None)
    }

    /// Requests through the returned value begin when `first`, on any node's memory, is complete; if it
    /// fails, they are not tried.
    pub fn after<'a>(&'a self, first: &Completion) -> After<'a> {
        After { remote: self, first: first.predecessor() }
    }

    fn submit_list(&self, operations: &[Placed], after: Option<Ticket>) -> Result<Completion> {
        let ticket = block_until_served(&self.core, self.owner(), || {
            Ok(self.core.node.submit_list(&self.cookie, operations, None, after)?)
        })?;
        Ok(Completion::new(self.core.clone(), ticket))
    }

    fn submit(&self, at: u64, operation: &Operation, after: Option<Ticket>) -> Result<Completion> {
        let ticket = block_until_served(&self.core, self.owner(), || {
            Ok(self.core.node.submit((&self.cookie, at), operation.clone(), None, after)?)
        })?;
        Ok(Completion::new(self.core.clone(), ticket))
    }
}

/// Requests that follow another one; see [`Remote::after`].
#[derive(Clone, Copy, Debug)]
pub struct After<'a> {
    remote: &'a Remote,
    first: std::result::Result<Option<Ticket>, Failure>,
}

impl After<'_> {
    /// As [`Remote::put_with_completion`], of a copy.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<Completion> {
        self.remote.submit(at, &put_copied(bytes.to_vec())?, self.first?)
    }

    /// As [`Remote::put_from`].
    pub fn put_from(&self, at: u64, from: &Aperture, range: impl RangeBounds<u64>) -> Result<Completion> {
        self.remote.submit(at, &Operation::Put(local(from, &range)?), self.first?)
    }

    /// As [`Remote::get_into`].
    pub fn get_into(&self, at: u64, into: &Aperture, range: impl RangeBounds<u64>) -> Result<Completion> {
        self.remote.submit(at, &Operation::Get(local(into, &range)?), self.first?)
    }

    /// As [`Remote::get`].
    pub fn get(&self, at: u64, len: usize) -> Result<Fetch> {
        let first = self.first?;
        let (memory, operations) = gather(&[(at, len)])?;
        Ok(Fetch::new(self.remote.submit_list(&operations, first)?, memory))
    }

    /// As [`Remote::fetch_add`].
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<Completion> {
        self.remote.submit(at, &Operation::Atomic(Atomic::Add(value)), self.first?)
    }

    /// As [`Remote::compare_swap`].
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<Completion> {
        self.remote.submit(at, &Operation::Atomic(Atomic::CompareSwap(expected, new)), self.first?)
    }

    /// As [`Remote::swap`].
    pub fn swap(&self, at: u64, value: u64) -> Result<Completion> {
        self.remote.submit(at, &Operation::Atomic(Atomic::Swap(value)), self.first?)
    }

    /// As [`Remote::flush`].
    pub fn flush(&self) -> Result<Completion> {
        self.remote.submit(0, &Operation::Flush, self.first?)
    }

    /// Puts an event into the owner's queue ([`super::MemoryEvent::Notice`]).
    pub fn notice(&self, at: u64, len: u64, value: u64) -> Result<Completion> {
        self.remote.submit(at, &Operation::Notice { len, value }, self.first?)
    }
}
