//! A stream of bytes between two nodes, either half of which can be closed on its own, and whose reader holds its writer back.
//!
//! A [`Reader`] has the memory, a [`Writer`] fills it with puts ([`crate::memory`]); a [`Stream`] is one of each. With the feature `futures` they are
//! `AsyncRead` and `AsyncWrite` of futures-io, and of everything that adapts those.
//!
//! ```no_run
//! # fn example(ep: &tautline::Endpoint, theirs: &tautline::Cookie) -> tautline::Result<()> {
//! use tautline::stream::{self, Writer};
//! let (mut reader, cookie) = stream::make(ep, 1 << 16)?;
//! ep.send(1, "write here", &cookie.to_bytes())?;
//! let mut writer = Writer::new(ep, theirs)?;
//! writer.write_all(b"hello")?;
//! writer.close()?;
//! let mut text = [0; 5];
//! reader.read_exact(&mut text)?;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "futures")]
mod futures;

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::memory::ring::{RingReader, RingWriter};
use crate::{Cookie, Endpoint, Error, Result};

/// Makes the reading half of a stream, with a buffer of `capacity` bytes, and the cookie for whoever shall write.
pub fn make(ep: &Endpoint, capacity: usize) -> Result<(Reader, Cookie)> {
    let (ring, cookie) = RingReader::new(ep, capacity)?;
    Ok((Reader { ring }, cookie))
}

/// The half of a stream that reads. Dropped, it makes the writer's calls fail.
#[derive(Debug)]
pub struct Reader {
    ring: RingReader,
}

/// The half of a stream that writes. Dropped, it ends the stream.
#[derive(Debug)]
pub struct Writer {
    ring: RingWriter,
}

/// Both halves.
#[derive(Debug)]
pub struct Stream {
    /// What comes.
    pub reader: Reader,
    /// What goes.
    pub writer: Writer,
}

impl Reader {
    /// Takes bytes that are there, up to `out`'s length; [`crate::SendError::WouldBlock`] if there are none. Zero at the end. An error if there are none, and the
    /// writer, in the life in which it began, is gone without having closed its half; so it is with all that read.
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<usize> {
        let least = u64::from(!out.is_empty());
        let len = self.ring.look(least)?.min(out.len() as u64) as usize;
        if len == 0 && !out.is_empty() && !self.ring.is_over()? {
            return Err(crate::SendError::WouldBlock.into());
        }
        self.ring.peek(0, &mut out[..len])?;
        self.ring.take(len as u64)?;
        Ok(len)
    }

    /// Takes bytes; extracts and waits until there are some. Zero at the end, and at once if there is no room for any. Not in handlers: there, [`Reader::read_async`].
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        self.ring.wait(1)?;
        self.try_read(out)
    }

    /// Fills `out`; an error if the stream ends before.
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

    /// Fills `out`, as bytes come; an error if the stream ends before. Dropped before it is done, what was taken is lost.
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

    /// Takes bytes, when there are some. Zero at the end, and at once if there is no room for any.
    pub async fn read_async(&mut self, out: &mut [u8]) -> Result<usize> {
        poll_fn(|context| self.poll_take(context, out)).await
    }

    pub(crate) fn poll_take(&mut self, context: &Context<'_>, out: &mut [u8]) -> Poll<Result<usize>> {
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
    /// Writes to the stream that a cookie opens. Extracts and waits until that is known to be good; in handlers it does not, and the first write tells. A stream has one writer, once: for a
    /// second one, also for the first one's next life, that is [`Error::TooMany`].
    pub fn new(ep: &Endpoint, cookie: &Cookie) -> Result<Writer> {
        Ok(Writer { ring: RingWriter::new(ep, cookie)? })
    }

    /// Adds as many bytes as there is room for; [`crate::SendError::WouldBlock`] if there is none. In handlers it never waits.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        let len = self.ring.room()?.unwrap_or(0).min(bytes.len() as u64) as usize;
        if len == 0 && !bytes.is_empty() {
            return Err(crate::SendError::WouldBlock.into());
        }
        self.ring.write_now(&[&bytes[..len]])?;
        Ok(len)
    }

    /// Adds all bytes; extracts and waits for room. Not in handlers: there, [`Writer::write_async`].
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            self.ring.wait(1)?;
            done += self.try_write(&bytes[done..])?;
        }
        Ok(())
    }

    /// Adds all bytes, as there is room.
    pub async fn write_async(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += poll_fn(|context| self.poll_add(context, &bytes[done..])).await?;
        }
        Ok(())
    }

    pub(crate) fn poll_add(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
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

    /// Closes this half: the reader finds the end behind what was written.
    pub fn close(&mut self) -> Result<()> {
        self.ring.end()
    }
}
