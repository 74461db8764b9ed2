//! Another node's memory, through a cookie.

use std::cell::Cell;
use std::ops::{Range, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;

use tautline_node::ApertureMemory;
use tautline_node::memory::{Atomic, Hint, Local, Operation, Progress, Ticket};

use super::aperture::span;
use super::awaited::copied;
use super::{Aperture, Completion, Cookie, Failure, Fetch};
use crate::core::Core;
use crate::endpoint::asking;
use crate::{Endpoint, Error, Rank, Result, SendError};

/// More bytes than this are got only if the system has room for them.
const MUCH: usize = 1 << 20;

/// Part of another node's memory. Operations of one pair of nodes take effect in the order in which they were asked for; a get reads when its turn has
/// come, and a long one while later puts already take effect, unless there is a [`Remote::fence`] between.
///
/// Offsets count from the start of what the cookie opens.
///
/// Methods that return a [`Completion`] or a [`Fetch`] wait for the connection, and for room in the queue of requests, as [`Remote::put`] does; those that end in `_async` never do, and so are for handlers.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Remote {
    pub(super) core: Rc<Core>,
    pub(super) cookie: Cookie,
    /// By which number the owner knew the cookie last time.
    hint: Cell<Hint>,
}

/// Bytes on their way, given up if nobody goes on with them.
pub(super) struct Putting<'a> {
    remote: &'a Remote,
    progress: Progress,
    ticket: Option<Ticket>,
    /// How many puts of one operation are left, this one included, if somebody shall be told of its end.
    told: Option<usize>,
    over: bool,
}

impl<'a> Putting<'a> {
    pub(super) fn new(remote: &'a Remote, told: Option<usize>) -> Putting<'a> {
        let progress = Progress::with_hint(remote.hint.get());
        Putting { remote, progress, ticket: None, told, over: false }
    }

    /// Puts what there is room for; would block unless that is all.
    pub(super) fn go_on(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let (node, cookie) = (&self.remote.core.node, &self.remote.cookie);
        let all = if let Some(left) = self.told {
            node.try_put_with_completion((cookie, at), bytes, &mut self.progress, (&mut self.ticket, left))?
        } else {
            node.try_put((cookie, at), bytes, &mut self.progress)?
        };
        if !all {
            return Err(SendError::WouldBlock.into());
        }
        self.over = true;
        self.remote.hint.set(self.progress.hint);
        Ok(())
    }

    /// Whether it has been begun and not ended: nothing else may be asked of the same node meanwhile.
    pub(super) fn is_half(&self) -> bool {
        !self.over && self.progress.is_begun()
    }
}

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.remote.core.node.abandon_put(self.remote.owner(), &self.progress);
        }
        if let Some(ticket) = self.ticket {
            let _ = self.remote.core.node.cancel_operation(ticket);
        }
    }
}

impl Remote {
    pub(crate) fn new(core: Rc<Core>, cookie: Cookie) -> Remote {
        Remote { core, cookie, hint: Cell::default() }
    }

    /// The cookie.
    pub fn cookie(&self) -> &Cookie {
        &self.cookie
    }

    /// Whose memory it is.
    pub fn owner(&self) -> Rank {
        self.cookie.owner()
    }

    /// Puts bytes; waits for the connection and for room if it must, and for nothing else: nobody is told when they are in place, but an event
    /// ([`super::MemoryEvent::Refused`]) if they are refused. [`Remote::flush`] tells of all at once.
    ///
    /// A program that only puts, and never extracts, goes on for as long as its owner's answers find a way: if as many of the owner's messages are left untaken as may be, and answers stand
    /// behind them, that is [`SendError::Unextracted`], and part of the bytes may be in place. So it is with all that is asked for here.
    #[inline]
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut putting = Putting::new(self, None);
        match putting.go_on(at, bytes) {
            Err(error) if error.is_would_block() => {
                asking(&self.core, self.owner(), || putting.go_on(at, bytes))
            }
            result => result,
        }
    }

    /// As [`Remote::put`], with `len` bytes that `fill` writes straight to where they are sent from: it is called for one part after the other, with the offset within
    /// the put and the room to fill, and now and then again for a part that found no room.
    ///
    /// `fill` runs under the node's lock: it must be quick, because nobody is served meanwhile, not even by the watchdog, so that peers may take this node for dead; and whatever it asks of the
    /// endpoint panics.
    pub fn fill(&self, at: u64, len: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        let mut putting = Putting::new(self, None);
        asking(&self.core, self.owner(), || {
            let node = &self.core.node;
            if !node.try_put_filled((&self.cookie, at), len, &mut putting.progress, &mut fill)? {
                return Err(SendError::WouldBlock.into());
            }
            putting.over = true;
            self.hint.set(putting.progress.hint);
            Ok(())
        })
    }

    /// Puts bytes of up to one frame if that is possible at once; [`SendError::WouldBlock`], and nothing done, if it is not.
    pub fn try_put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        // Any bytes make a cookie: its owner may be nobody.
        if self.owner() >= self.core.node.size() {
            return Err(SendError::NoSuchPeer(self.owner()).into());
        }
        if bytes.len() > self.core.node.short_limit(self.owner()) {
            let (len, limit) = (bytes.len(), self.core.node.short_limit(self.owner()));
            let why = format!(
                "a put that is tried goes in one frame, of at most {limit} bytes; this one has {len}"
            );
            return Err(Error::other(why));
        }
        Putting::new(self, None).go_on(at, bytes)
    }

    /// As [`Remote::put`]; the completion tells when the bytes are in place.
    pub fn put_with_completion(&self, at: u64, bytes: &[u8]) -> Result<Completion> {
        self.put_list(&[(at, bytes)])
    }

    /// Scatters: each piece to its place, in order. One completion for all: when they are in place, or, if any was refused, when all have been tried.
    pub fn put_list(&self, pieces: &[(u64, &[u8])]) -> Result<Completion> {
        let mut ticket = None;
        for (i, (at, bytes)) in pieces.iter().enumerate() {
            let mut putting = Putting::new(self, Some(pieces.len() - i));
            putting.ticket = ticket;
            asking(&self.core, self.owner(), || putting.go_on(*at, bytes))?;
            ticket = putting.ticket.take();
        }
        ticket.map_or_else(|| self.flush(), |ticket| Ok(Completion::new(self.core.clone(), ticket)))
    }

    /// Gathers: pieces one behind the other, from `at` on. One completion for all.
    pub fn put_pieces(&self, at: u64, pieces: &[&[u8]]) -> Result<Completion> {
        let mut list = Vec::with_capacity(pieces.len());
        let mut place = at;
        for piece in pieces {
            list.push((place, *piece));
            place = place.checked_add(piece.len() as u64).ok_or(Error::OutOfRange)?;
        }
        self.put_list(&list)
    }

    /// Puts bytes and then tells the owner's event queue so ([`super::MemoryEvent::Notice`]): for owners that have no tripwire there.
    pub fn put_notice(&self, at: u64, bytes: &[u8], value: u64) -> Result<Completion> {
        self.put(at, bytes)?;
        self.submit(at, &Operation::Notice { len: bytes.len() as u64, value }, None)
    }

    /// Puts bytes of an aperture of this node's own, without waiting: they are read as there is room, and must stay as they are until it is complete.
    pub fn put_from(&self, at: u64, from: &Aperture, range: impl RangeBounds<u64>) -> Result<Completion> {
        self.submit(at, &Operation::Put(local(from, &range)?), None)
    }

    /// Gets bytes straight into an aperture of this node's own.
    pub fn get_into(&self, at: u64, into: &Aperture, range: impl RangeBounds<u64>) -> Result<Completion> {
        self.submit(at, &Operation::Get(local(into, &range)?), None)
    }

    /// Gets bytes.
    pub fn get(&self, at: u64, len: usize) -> Result<Fetch> {
        self.get_list(&[(at, len)])
    }

    /// Gathers: pieces of so many bytes, each from its place, which come one behind the other. One end for all: when they are here, or, if any was refused, when all have been tried.
    pub fn get_list(&self, pieces: &[(u64, usize)]) -> Result<Fetch> {
        let (memory, operations) = gathered(pieces)?;
        Ok(Fetch::new(self.submit_list(&operations, None)?, memory))
    }

    /// Scatters what is got: the bytes from each place go to a range of an aperture of this node's own. One completion for all.
    pub fn get_list_into(&self, into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<Completion> {
        self.submit_list(&scattered(into, pieces)?, None)
    }

    /// Puts `new` into an aligned word of eight bytes if it holds `expected`; the completion's value is what it held.
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<Completion> {
        self.submit(at, &Operation::Atomic(Atomic::CompareSwap(expected, new)), None)
    }

    /// Adds to an aligned word of eight bytes, wrapping around; the completion's value is what it held.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<Completion> {
        self.submit(at, &Operation::Atomic(Atomic::Add(value)), None)
    }

    /// Puts a value into an aligned word of eight bytes; the completion's value is what it held.
    pub fn swap(&self, at: u64, value: u64) -> Result<Completion> {
        self.submit(at, &Operation::Atomic(Atomic::Swap(value)), None)
    }

    /// Complete when everything that was asked of this node before is in place.
    pub fn flush(&self) -> Result<Completion> {
        self.submit(0, &Operation::Flush, None)
    }

    /// What is asked of this node later is not begun before all that was asked before is complete, gets included.
    pub fn fence(&self) -> Result<Completion> {
        self.submit(0, &Operation::Fence, None)
    }

    /// What is asked for through this is not begun before `first`, on whatever node's memory, is complete; if that fails, it is not tried.
    pub fn after<'a>(&'a self, first: &Completion) -> After<'a> {
        After { remote: self, first: first.first() }
    }

    fn submit_list(&self, operations: &[Placed], after: Option<Ticket>) -> Result<Completion> {
        let ticket = asking(&self.core, self.owner(), || {
            Ok(self.core.node.submit_list(&self.cookie, operations, None, after)?)
        })?;
        Ok(Completion::new(self.core.clone(), ticket))
    }

    fn submit(&self, at: u64, operation: &Operation, after: Option<Ticket>) -> Result<Completion> {
        let ticket = asking(&self.core, self.owner(), || {
            Ok(self.core.node.submit((&self.cookie, at), operation.clone(), None, after)?)
        })?;
        Ok(Completion::new(self.core.clone(), ticket))
    }
}

/// An operation and its place.
pub(super) type Placed = (u64, Operation);

/// Memory for pieces that come one behind the other, and what is to be asked for. Of no pieces at all, only the end.
pub(super) fn gathered(pieces: &[(u64, usize)]) -> Result<(Arc<ApertureMemory>, Vec<Placed>)> {
    let whole = pieces.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len));
    let whole = whole.ok_or(Error::OutOfRange)?;
    if whole > MUCH {
        // There is no saying no to `vec`; a few bytes more, to make whole words.
        let room = whole.checked_add(8).ok_or(Error::OutOfRange)?;
        Vec::<u8>::new().try_reserve_exact(room).map_err(Error::other)?;
    }
    let memory = Arc::new(ApertureMemory::adopt(vec![0; whole]).map_err(|_| Error::OutOfRange)?);
    let mut place = 0;
    let mut operations = Vec::with_capacity(pieces.len().max(1));
    for (at, len) in pieces {
        let local = Local { memory: memory.clone(), aperture: None, at: place, len: *len as u64 };
        operations.push((*at, Operation::Get(local)));
        place += *len as u64;
    }
    if pieces.is_empty() {
        operations.push((0, Operation::Flush));
    }
    Ok((memory, operations))
}

/// What is to be asked for, if bytes shall go to ranges of an aperture.
pub(super) fn scattered(into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<Vec<Placed>> {
    let one = |(at, range): &(u64, Range<u64>)| Ok((*at, Operation::Get(local(into, range)?)));
    let mut operations = pieces.iter().map(one).collect::<Result<Vec<_>>>()?;
    if pieces.is_empty() {
        operations.push((0, Operation::Flush));
    }
    Ok(operations)
}

pub(super) fn local(aperture: &Aperture, range: &impl RangeBounds<u64>) -> Result<Local> {
    let (at, len) = span(range, aperture.len())?;
    Ok(Local { memory: aperture.memory().clone(), aperture: Some(aperture.id()), at, len })
}

/// A link of a chain: see [`Remote::after`].
#[derive(Clone, Copy, Debug)]
pub struct After<'a> {
    remote: &'a Remote,
    first: std::result::Result<Option<Ticket>, Failure>,
}

impl After<'_> {
    /// As [`Remote::put_with_completion`], of a copy.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<Completion> {
        self.remote.submit(at, &copied(bytes.to_vec())?, self.first?)
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
        let (memory, operations) = gathered(&[(at, len)])?;
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

    /// A notice to the owner's event queue.
    pub fn notice(&self, at: u64, len: u64, value: u64) -> Result<Completion> {
        self.remote.submit(at, &Operation::Notice { len, value }, self.first?)
    }
}

pub(super) fn out_of_band(bytes: &[u8]) -> Result<super::OutOfBand> {
    super::OutOfBand::new(bytes).ok_or_else(|| {
        let (len, limit) = (bytes.len(), super::MAX_OUT_OF_BAND);
        Error::other(format!("an out-of-band message has at most {limit} bytes; this one has {len}"))
    })
}

impl Endpoint {
    /// Sends up to [`super::MAX_OUT_OF_BAND`] bytes to a peer's event queue ([`super::MemoryEvent::OutOfBand`]), beside all handlers: for set-up, tear-down and
    /// exceptional conditions.
    pub fn send_out_of_band(&self, peer: Rank, bytes: &[u8]) -> Result<()> {
        let out_of_band = out_of_band(bytes)?;
        asking(&self.core, peer, || Ok(self.core.node.send_out_of_band(peer, &out_of_band)?))
    }

    /// What was counted of memory.
    pub fn memory_counters(&self) -> super::MemoryCounters {
        self.core.node.memory_counters()
    }
}
