//! A queue between two nodes, with entries of any size: the distributed queue of the CLAN paper.
//!
//! The ring is in the receiver's memory. Each side has its own counter and a lazily updated copy of the
//! other's; nothing is ever read over the network. The receiver makes the queue and offers it to a name that
//! the sender has registered:
//!
//! ```no_run
//! use std::{cell::RefCell, rc::Rc};
//! use tautline::{Endpoint, queue};
//!
//! fn main() -> tautline::Result<()> {
//!     let offered = Rc::new(RefCell::new(None));
//!     let slot = offered.clone();
//!     let ep = Endpoint::builder()
//!         .with(queue::on_offer("jobs", move |_from, sender| *slot.borrow_mut() = Some(sender)))
//!         .join()?;
//!     if ep.rank() == 0 {
//!         let mut jobs = queue::offer(&ep, 1, "jobs", 1 << 16)?;
//!         while let Some(job) = jobs.pop()? {
//!             println!("{} bytes", job.len());
//!         }
//!     } else {
//!         ep.run_until(|| offered.borrow().is_some())?;
//!         let mut jobs = offered.take().expect("rank 0 has offered it");
//!         jobs.push(b"first")?;
//!         jobs.push_pieces(&[b"head", b"body"])?;
//!         jobs.end()?;
//!     }
//!     ep.close()
//! }
//! ```
//!
//! Without a name, [`pair`] returns the cookie, which can be sent in any message, and [`Sender::new`] uses
//! it.
//!
//! Handlers and tasks use [`AsyncReceiver`] and [`AsyncSender`], whose calls suspend the caller.

mod async_ends;

pub use async_ends::{AsyncReceiver, AsyncSender};

use tautline_node::memory::Cookie;

use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::builder::Style;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::handler_name::Name;
use crate::memory::ring::{RingReader, RingWriter};
use crate::offers;

/// Bytes of an entry's length, in front of it. Entries start at multiples of eight.
const HEAD: u64 = 8;

/// Makes a queue that holds up to `capacity` bytes, lengths included. Returns its receiving end and the
/// cookie for its sending end.
pub fn pair(ep: &Endpoint, capacity: usize) -> Result<(Receiver, Cookie)> {
    let (ring, cookie) = RingReader::new(ep, capacity)?;
    Ok((Receiver { ring }, cookie))
}

/// Makes a queue and offers its sending end to a name that a peer has registered with [`on_offer`].
pub fn offer(ep: &Endpoint, peer: Rank, name: impl Name, capacity: usize) -> Result<Receiver> {
    let (receiver, cookie) = pair(ep, capacity)?;
    offers::offer(ep, peer, name, &cookie)?;
    Ok(receiver)
}

/// Registers a name to which peers [`offer`] queues; `accept` gets the sending end of each, with the rank of
/// its receiver. For [`crate::Builder::with`].
pub fn on_offer(name: &str, accept: impl FnMut(Rank, Sender) + 'static) -> impl Style {
    offers::on_offer(name, Sender::begin, accept)
}

/// The receiving end of a queue. Once it is dropped, the sender's calls fail.
#[derive(Debug)]
pub struct Receiver {
    ring: RingReader,
}

/// The sending end of a queue. Dropping it ends the queue.
#[derive(Debug)]
pub struct Sender {
    ring: RingWriter,
}

/// Bytes that an entry takes in the ring.
fn footprint(len: u64) -> u64 {
    HEAD + len.next_multiple_of(8)
}

impl Receiver {
    /// The length of the next entry, if there is one. If there is none and the sender is gone (the
    /// incarnation that claimed the queue) without having ended the queue, that is an error. This applies to
    /// all methods that take entries.
    ///
    /// An entry does not end a wait for messages ([`Endpoint::run_until`], [`Endpoint::wait`]): wait for it
    /// with [`Receiver::pop`] or [`AsyncReceiver::pop`].
    pub fn peek(&self) -> Result<Option<u64>> {
        let available = self.ring.poll_available(HEAD)?;
        if available < HEAD {
            return Ok(None);
        }
        let mut head = [0; 8];
        self.ring.peek(0, &mut head)?;
        let len = u64::from_le_bytes(head);
        // The sender is not trusted.
        if len > self.ring.capacity() || footprint(len) > available {
            return Err(Error::Violation("an entry is longer than what was written"));
        }
        Ok(Some(len))
    }

    /// Takes the next entry, if there is one.
    pub fn try_pop(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(len) = self.peek()? else { return Ok(None) };
        let mut entry = vec![0; len as usize];
        self.ring.peek(HEAD, &mut entry)?;
        self.ring.take(footprint(len))?;
        Ok(Some(entry))
    }

    /// Takes the next entry into `out`, which is cleared first; false if there is none. Nothing is allocated
    /// if `out` is large enough.
    pub fn try_pop_into(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let Some(len) = self.peek()? else { return Ok(false) };
        out.resize(len as usize, 0);
        self.ring.peek(HEAD, out)?;
        self.ring.take(footprint(len))?;
        Ok(true)
    }

    /// Takes the next entry; extracts and waits for it. Nothing at the end of the queue. Not in handlers: use
    /// [`AsyncReceiver::pop`] there.
    pub fn pop(&mut self) -> Result<Option<Vec<u8>>> {
        self.ring.wait(HEAD)?;
        self.try_pop()
    }

    /// Whether the sender has ended the queue and every entry was taken.
    pub fn is_over(&self) -> Result<bool> {
        self.ring.is_over()
    }
}

impl Sender {
    /// Opens the queue of a cookie; extracts and waits until it is claimed. A queue has one sender, ever: a
    /// second one, also after a restart of the first, is [`Error::TooMany`]. Not in handlers: use
    /// [`AsyncSender::new`] there.
    pub fn new(ep: &Endpoint, cookie: &Cookie) -> Result<Sender> {
        Ok(Sender { ring: RingWriter::new(ep, cookie)? })
    }

    /// Opens the queue of a cookie without waiting: the first push reports errors.
    fn begin(ep: &AsyncEndpoint, cookie: &Cookie) -> Result<Sender> {
        Ok(Sender { ring: RingWriter::begin(ep.plain(), cookie)? })
    }

    /// The length of the longest possible entry.
    pub fn longest(&self) -> u64 {
        self.ring.capacity() - HEAD
    }

    /// Adds an entry; extracts and waits for room.
    pub fn push(&mut self, entry: &[u8]) -> Result<()> {
        self.push_pieces(&[entry])
    }

    /// Adds an entry that consists of several pieces; extracts and waits for room.
    pub fn push_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let need = self.need(pieces)?;
        self.ring.wait(need)?;
        with_frame(pieces, |all| self.ring.write(all, true))
    }

    /// Adds an entry if there is room in the queue; false if not. In handlers it never waits.
    pub fn try_push(&mut self, entry: &[u8]) -> Result<bool> {
        self.try_push_with(entry, RingWriter::write_now)
    }

    fn try_push_with(
        &mut self,
        entry: &[u8],
        write: fn(&mut RingWriter, &[&[u8]]) -> Result<()>,
    ) -> Result<bool> {
        let need = self.need(&[entry])?;
        if self.ring.room()?.is_none_or(|room| room < need) {
            return Ok(false);
        }
        match with_frame(&[entry], |all| write(&mut self.ring, all)) {
            Err(error) if error.is_would_block() => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Ends the queue behind all entries.
    pub fn end(&mut self) -> Result<()> {
        self.ring.end()
    }

    fn need(&self, pieces: &[&[u8]]) -> Result<u64> {
        let entry = pieces.iter().map(|piece| piece.len() as u64).sum();
        if footprint(entry) > self.ring.capacity() {
            return Err(Error::EntryTooLong { entry, longest: self.longest() });
        }
        Ok(footprint(entry))
    }
}

/// Passes an entry's pieces to `write`, with its length in front and padding behind.
fn with_frame<T>(pieces: &[&[u8]], write: impl FnOnce(&[&[u8]]) -> T) -> T {
    let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let (head, pad) = (len.to_le_bytes(), [0; 8]);
    let pad = &pad[..(len.next_multiple_of(8) - len) as usize];
    match pieces {
        [piece] if pad.is_empty() => write(&[&head, piece]),
        [piece] => write(&[&head, piece, pad]),
        _ => {
            let mut all: Vec<&[u8]> = vec![&head];
            all.extend_from_slice(pieces);
            all.push(pad);
            write(&all)
        }
    }
}
