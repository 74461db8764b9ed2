//! A queue between two nodes, of entries of any size: the distributed queue of the CLAN paper.
//!
//! The receiver's memory holds the ring, each side its own counter and a copy of the other's that is brought up to date lazily; nothing is ever read
//! over the network. Whoever makes the queue gives the cookie to the one who shall fill it:
//!
//! ```no_run
//! # fn example(ep: &tautline::Endpoint) -> tautline::Result<()> {
//! use tautline::queue;
//! let (mut jobs, cookie) = queue::make(ep, 1 << 16)?;
//! ep.send(1, "here is a queue", &cookie.to_bytes())?;
//! while let Some(job) = jobs.pop()? {
//!     println!("{} bytes", job.len());
//! }
//! # Ok(())
//! # }
//! # fn other(ep: &tautline::Endpoint, cookie: &tautline::Cookie) -> tautline::Result<()> {
//! use tautline::queue::Sender;
//! let mut jobs = Sender::new(ep, cookie)?;
//! jobs.push(b"first")?;
//! jobs.push_pieces(&[b"head", b"body"])?;
//! jobs.end()?;
//! # Ok(())
//! # }
//! ```

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::memory::ring::{RingReader, RingWriter};
use crate::{Cookie, Endpoint, Error, Result};

/// Bytes of an entry's length, in front of it. Entries start at multiples of eight.
const HEAD: u64 = 8;

/// Makes a queue that holds up to `capacity` bytes, lengths included, and the cookie for whoever shall fill it.
pub fn make(ep: &Endpoint, capacity: usize) -> Result<(Receiver, Cookie)> {
    let (ring, cookie) = RingReader::new(ep, capacity)?;
    Ok((Receiver { ring }, cookie))
}

/// The end of a queue that takes entries out. Dropped, it makes the sender's calls fail.
#[derive(Debug)]
pub struct Receiver {
    ring: RingReader,
}

/// The end of a queue that puts entries in. Dropped, it ends the queue.
#[derive(Debug)]
pub struct Sender {
    ring: RingWriter,
}

fn taken(len: u64) -> u64 {
    HEAD + len.next_multiple_of(8)
}

impl Receiver {
    /// Bytes of the next entry, if it is there. An error if it is not, and the sender, in the life in which it began, is gone without having ended the queue; so it is with all that take entries.
    ///
    /// An entry wakes nobody who waits for messages ([`crate::Endpoint::run_until`], [`crate::Endpoint::wait`]): wait for it with [`Receiver::pop`] or [`Receiver::next`].
    pub fn peek(&self) -> Result<Option<u64>> {
        let available = self.ring.look(HEAD)?;
        if available < HEAD {
            return Ok(None);
        }
        let mut head = [0; 8];
        self.ring.peek(0, &mut head)?;
        let len = u64::from_le_bytes(head);
        // The sender's word is not to be trusted.
        if len > self.ring.capacity() || taken(len) > available {
            return Err(Error::Nonsense("an entry longer than what was written"));
        }
        Ok(Some(len))
    }

    /// Takes the next entry, if it is there.
    pub fn try_pop(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(len) = self.peek()? else { return Ok(None) };
        let mut entry = vec![0; len as usize];
        self.ring.peek(HEAD, &mut entry)?;
        self.ring.take(taken(len))?;
        Ok(Some(entry))
    }

    /// Takes the next entry into `out`, which is cleared; false if there is none. Nothing is allocated once `out` is large enough.
    pub fn try_pop_into(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let Some(len) = self.peek()? else { return Ok(false) };
        out.resize(len as usize, 0);
        self.ring.peek(HEAD, out)?;
        self.ring.take(taken(len))?;
        Ok(true)
    }

    /// Takes the next entry; extracts and waits for it. Nothing at the queue's end. Not in handlers: there, [`Receiver::next`].
    pub fn pop(&mut self) -> Result<Option<Vec<u8>>> {
        self.ring.wait(HEAD)?;
        self.try_pop()
    }

    /// Takes the next entry, when it is there. Nothing at the queue's end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        poll_fn(|context| self.poll_next_entry(context)).await
    }

    fn poll_next_entry(&mut self, context: &Context<'_>) -> Poll<Result<Option<Vec<u8>>>> {
        match self.ring.poll_wait(context, HEAD) {
            Poll::Ready(Ok(())) => Poll::Ready(self.try_pop()),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether the sender has ended the queue, and everything was taken.
    pub fn is_over(&self) -> Result<bool> {
        self.ring.is_over()
    }
}

impl Sender {
    /// Fills the queue that a cookie opens. Extracts and waits until that is known to be good; in handlers it does not, and the first push tells. A queue has one sender, once: for a second one,
    /// also for the first one's next life, that is [`Error::TooMany`].
    pub fn new(ep: &Endpoint, cookie: &Cookie) -> Result<Sender> {
        Ok(Sender { ring: RingWriter::new(ep, cookie)? })
    }

    /// Bytes of the longest entry.
    pub fn longest(&self) -> u64 {
        self.ring.capacity() - HEAD
    }

    /// Puts an entry in; extracts and waits for room.
    pub fn push(&mut self, entry: &[u8]) -> Result<()> {
        self.push_pieces(&[entry])
    }

    /// Puts an entry of several pieces in; extracts and waits for room.
    pub fn push_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let need = self.need(pieces)?;
        self.ring.wait(need)?;
        with_frame(pieces, |all| self.ring.write(all, true))
    }

    /// Puts an entry in if there is room in the queue; false if not. In handlers it never waits.
    pub fn try_push(&mut self, entry: &[u8]) -> Result<bool> {
        let need = self.need(&[entry])?;
        if self.ring.room()?.is_none_or(|room| room < need) {
            return Ok(false);
        }
        match with_frame(&[entry], |all| self.ring.write_now(all)) {
            Err(error) if error.is_would_block() => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Puts an entry in when there is room. For use in handlers. Dropped before it is done, nothing is put in.
    pub async fn push_async(&mut self, entry: &[u8]) -> Result<()> {
        self.push_pieces_async(&[entry]).await
    }

    /// As [`Sender::push_async`], of several pieces.
    pub async fn push_pieces_async(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let need = self.need(pieces)?;
        poll_fn(|context| match self.ring.poll_wait(context, need) {
            Poll::Ready(Ok(())) => with_frame(pieces, |all| self.ring.poll_write(context, all)),
            other => other,
        })
        .await
    }

    /// Says that no more entries will come.
    pub fn end(&mut self) -> Result<()> {
        self.ring.end()
    }

    fn need(&self, pieces: &[&[u8]]) -> Result<u64> {
        let entry = pieces.iter().map(|piece| piece.len() as u64).sum();
        if taken(entry) > self.ring.capacity() {
            return Err(Error::EntryTooLong { entry, longest: self.longest() });
        }
        Ok(taken(entry))
    }
}

/// An entry's pieces, with its length in front and what fills it up behind.
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
