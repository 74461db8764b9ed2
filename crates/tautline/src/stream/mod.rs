//! A stream of bytes between two nodes. Each half can be closed separately, and a slow reader holds its
//! writer back.
//!
//! The [`Reader`] has the memory, and the [`Writer`] fills it with puts ([`crate::memory`]); a [`Stream`] is
//! one of each. With the feature `futures` they implement `AsyncRead` and `AsyncWrite` of futures-io. The
//! reader makes its half and offers the other one to a name that the writer has registered:
//!
//! ```no_run
//! # use std::{cell::RefCell, rc::Rc};
//! # fn register(slot: Rc<RefCell<Option<tautline::stream::Writer>>>) -> tautline::Result<()> {
//! use tautline::{Endpoint, stream};
//! let ep = Endpoint::builder()
//!     .with(stream::on_offer("log", move |_from, writer| *slot.borrow_mut() = Some(writer)))
//!     .join()?;
//! # Ok(())
//! # }
//! # fn read(ep: &tautline::Endpoint) -> tautline::Result<()> {
//! # use tautline::stream;
//! let mut reader = stream::offer(ep, 1, "log", 1 << 16)?;
//! let mut text = [0; 5];
//! reader.read_exact(&mut text)?;
//! # Ok(())
//! # }
//! # fn write(mut writer: tautline::stream::Writer) -> tautline::Result<()> {
//! writer.write_all(b"hello")?;
//! writer.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Without a name, [`pair`] returns the cookie, which can be sent in any message, and [`Writer::new`] uses
//! it.

#[cfg(feature = "futures")]
mod futures;

use std::future::poll_fn;
use std::task::{Context, Poll};

use tautline_node::memory::Cookie;

use crate::builder::Style;
use crate::endpoint::{Endpoint, Name};
use crate::error::{Error, Result};
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
    offers::on_offer(name, Writer::new, accept)
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
    /// handlers: use [`Reader::read_async`] there.
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

    /// Fills `out` as bytes arrive; an error if the stream ends first. Dropped before it is done, it loses
    /// the bytes it has taken.
    pub async fn read_exact_async(&mut self, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read_async(&mut out[done..]).await? {
                0 => return Err(Error::EndOfMessage { left: 0 }),
                len => done += len,
            }
        }
        Ok(())
    }

    /// Takes bytes, when there are some. Zero at the end, or if `out` is empty.
    pub async fn read_async(&mut self, out: &mut [u8]) -> Result<usize> {
        poll_fn(|context| self.poll_read_some(context, out)).await
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
    /// Opens the stream of a cookie. Extracts and waits until it is claimed; in handlers it does not wait,
    /// and the first write reports errors. A stream has one writer, ever: a second one, also after a restart
    /// of the first, is [`Error::TooMany`].
    pub fn new(ep: &Endpoint, cookie: &Cookie) -> Result<Writer> {
        Ok(Writer { ring: RingWriter::new(ep, cookie)? })
    }

    /// Writes as many bytes as there is room for; [`SendError::WouldBlock`] if there is none. In handlers it
    /// never waits.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        let len = self.ring.room()?.unwrap_or(0).min(bytes.len() as u64) as usize;
        if len == 0 && !bytes.is_empty() {
            return Err(SendError::WouldBlock.into());
        }
        self.ring.write_now(&[&bytes[..len]])?;
        Ok(len)
    }

    /// Writes all bytes; extracts and waits for room. Not in handlers: use [`Writer::write_async`] there.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            self.ring.wait(1)?;
            done += self.try_write(&bytes[done..])?;
        }
        Ok(())
    }

    /// Writes all bytes, as there is room.
    pub async fn write_async(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += poll_fn(|context| self.poll_write_some(context, &bytes[done..])).await?;
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
