//! A stream of bytes between two nodes. Each half can be closed separately, and a slow reader holds its
//! writer back.
//!
//! The [`Reader`] has the memory, and the [`Writer`] fills it with puts ([`crate::memory`]); a [`Stream`] is
//! one of each. With the feature `futures` all halves implement `AsyncRead` or `AsyncWrite` of futures-io.
//! The reader makes its half and offers the other one to a name that the writer has registered:
//!
//! ```no_run
//! use std::{cell::RefCell, rc::Rc};
//! use tautline::{Endpoint, stream};
//!
//! fn main() -> tautline::Result<()> {
//!     let offered = Rc::new(RefCell::new(None));
//!     let slot = offered.clone();
//!     let ep = Endpoint::builder()
//!         .with(stream::on_offer("log", move |_from, writer| *slot.borrow_mut() = Some(writer)))
//!         .join()?;
//!     if ep.rank() == 0 {
//!         let mut reader = stream::offer(&ep, 1, "log", 1 << 16)?;
//!         let mut text = [0; 5];
//!         reader.read_exact(&mut text)?;
//!         println!("{}", String::from_utf8_lossy(&text));
//!     } else {
//!         ep.run_until(|| offered.borrow().is_some())?;
//!         let mut writer = offered.take().expect("rank 0 has offered it");
//!         writer.write_all(b"hello")?;
//!         writer.close()?;
//!     }
//!     ep.close()
//! }
//! ```
//!
//! Without a name, [`pair`] returns the cookie, which can be sent in any message, and [`Writer::new`] uses
//! it.
//!
//! Handlers and tasks use [`AsyncReader`] and [`AsyncWriter`], whose calls suspend the caller.

mod async_halves;
#[cfg(feature = "futures")]
mod futures;

pub use async_halves::{AsyncReader, AsyncWriter};

use std::task::{Context, Poll};

use tautline_node::memory::Cookie;

use crate::async_endpoint::AsyncEndpoint;
use crate::builder::Style;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::handler_name::Name;
use crate::memory::ring::{RingReader, RingWriter};
use crate::{Rank, SendError, offers};

/// Makes a stream with a buffer of `capacity` bytes. Returns its reading half and the cookie for its writing
/// half.
pub fn pair(ep: &Endpoint, capacity: usize) -> Result<(Reader, Cookie)> {
    let (ring, cookie) = RingReader::new(ep, capacity)?;
    Ok((Reader { ring }, cookie))
}

/// Makes a stream and offers its writing half to a name that a peer has registered with [`on_offer`].
pub fn offer(ep: &Endpoint, peer: Rank, name: impl Name, capacity: usize) -> Result<Reader> {
    let (reader, cookie) = pair(ep, capacity)?;
    offers::offer(ep, peer, name, &cookie)?;
    Ok(reader)
}

/// Registers a name to which peers [`offer`] streams; `accept` gets the writing half of each, with the rank
/// of its reader. For [`crate::Builder::with`].
pub fn on_offer(name: &str, accept: impl FnMut(Rank, Writer) + 'static) -> impl Style {
    offers::on_offer(name, Writer::begin, accept)
}

/// The reading half of a stream. Once it is dropped, the writer's calls fail.
#[derive(Debug)]
pub struct Reader {
    ring: RingReader,
}

/// The writing half of a stream. Dropping it ends the stream.
#[derive(Debug)]
pub struct Writer {
    ring: RingWriter,
}

/// Both directions between two nodes.
#[derive(Debug)]
pub struct Stream {
    /// For incoming bytes.
    pub reader: Reader,
    /// For outgoing bytes.
    pub writer: Writer,
}

impl Stream {
    /// Combines two halves.
    pub fn new(reader: Reader, writer: Writer) -> Stream {
        Stream { reader, writer }
    }
}

impl Reader {
    /// Takes available bytes, up to the length of `out`; [`SendError::WouldBlock`] if there are none. Zero at
    /// the end. If there are none and the writer is gone (the incarnation that claimed the stream) without
    /// having closed its half, that is an error. This applies to all methods that read.
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<usize> {
        let least = u64::from(!out.is_empty());
        let len = self.ring.poll_available(least)?.min(out.len() as u64) as usize;
        if len == 0 && !out.is_empty() && !self.ring.is_over()? {
            return Err(SendError::WouldBlock.into());
        }
        self.ring.peek(0, &mut out[..len])?;
        self.ring.take(len as u64)?;
        Ok(len)
    }

    /// Takes bytes; extracts and waits until there are some. Zero at the end, or if `out` is empty. Not in
    /// handlers: use [`AsyncReader::read`] there.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        self.ring.wait(1)?;
        self.try_read(out)
    }

    /// Fills `out`; an error if the stream ends first.
    pub fn read_exact(&mut self, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read(&mut out[done..])? {
                0 => return Err(Error::EndOfMessage { left: 0 }),
                len => done += len,
            }
        }
        Ok(())
    }

    pub(crate) fn poll_read_some(&mut self, context: &Context<'_>, out: &mut [u8]) -> Poll<Result<usize>> {
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        match self.ring.poll_wait(context, 1) {
            Poll::Ready(Ok(())) => Poll::Ready(self.try_read(out)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Writer {
    /// Opens the stream of a cookie; extracts and waits until it is claimed. A stream has one writer, ever: a
    /// second one, also after a restart of the first, is [`Error::TooMany`]. Not in handlers: use
    /// [`AsyncWriter::new`] there.
    pub fn new(ep: &Endpoint, cookie: &Cookie) -> Result<Writer> {
        Ok(Writer { ring: RingWriter::new(ep, cookie)? })
    }

    /// Opens the stream of a cookie without waiting: the first write reports errors.
    fn begin(ep: &AsyncEndpoint, cookie: &Cookie) -> Result<Writer> {
        Ok(Writer { ring: RingWriter::begin(ep.plain(), cookie)? })
    }

    /// Writes as many bytes as there is room for; [`SendError::WouldBlock`] if there is none. In handlers it
    /// never waits.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.try_write_with(bytes, RingWriter::write_now)
    }

    fn try_write_with(
        &mut self,
        bytes: &[u8],
        write: fn(&mut RingWriter, &[&[u8]]) -> Result<()>,
    ) -> Result<usize> {
        let len = self.ring.room()?.unwrap_or(0).min(bytes.len() as u64) as usize;
        if len == 0 && !bytes.is_empty() {
            return Err(SendError::WouldBlock.into());
        }
        write(&mut self.ring, &[&bytes[..len]])?;
        Ok(len)
    }

    /// Writes all bytes; extracts and waits for room. Not in handlers: use
    /// [`AsyncWriter::write_all`] there.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            self.ring.wait(1)?;
            done += self.try_write(&bytes[done..])?;
        }
        Ok(())
    }

    pub(crate) fn poll_write_some(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        match self.ring.poll_wait(context, 1) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let room = match self.ring.room() {
            Ok(room) => room.unwrap_or(0),
            Err(error) => return Poll::Ready(Err(error)),
        };
        let len = room.min(bytes.len() as u64) as usize;
        self.ring.poll_write(context, &[&bytes[..len]]).map_ok(|()| len)
    }

    /// Closes this half: the reader finds the end behind all bytes.
    pub fn close(&mut self) -> Result<()> {
        self.ring.end()
    }
}
