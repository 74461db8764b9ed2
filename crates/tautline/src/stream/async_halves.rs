//! The halves of a stream, for handlers and tasks: what waits suspends the caller.

use std::future::poll_fn;

use tautline_node::memory::Cookie;

use super::{Reader, Writer, pair};
use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::error::{Error, Result};
use crate::handler_name::Name;
use crate::memory::ring::RingWriter;
use crate::offers::offer_async;

impl Reader {
    /// Returns the same half for handlers and tasks.
    pub fn into_async(self) -> AsyncReader {
        AsyncReader { reader: self }
    }
}

impl Writer {
    /// Returns the same half for handlers and tasks.
    pub fn into_async(self) -> AsyncWriter {
        AsyncWriter { writer: self }
    }
}

/// The reading half of a stream, for handlers and tasks. Once it is dropped, the writer's calls fail.
///
/// ```no_run
/// # async fn example(ep: &tautline::AsyncEndpoint) -> tautline::Result<()> {
/// use tautline::stream::AsyncReader;
/// let mut log = AsyncReader::offer(ep, 1, "log", 1 << 16).await?;
/// let mut text = [0; 5];
/// log.read_exact(&mut text).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncReader {
    pub(super) reader: Reader,
}

impl AsyncReader {
    /// Makes a stream, as [`super::pair`] does. It never waits.
    pub fn pair(ep: &AsyncEndpoint, capacity: usize) -> Result<(AsyncReader, Cookie)> {
        let (reader, cookie) = pair(ep.plain(), capacity)?;
        Ok((reader.into_async(), cookie))
    }

    /// Makes a stream and offers its writing half to a name of a peer, as [`super::offer`] does.
    pub async fn offer(
        ep: &AsyncEndpoint,
        peer: Rank,
        name: impl Name,
        capacity: usize,
    ) -> Result<AsyncReader> {
        let (reader, cookie) = AsyncReader::pair(ep, capacity)?;
        offer_async(ep, peer, name, &cookie).await?;
        Ok(reader)
    }

    /// As [`Reader::try_read`].
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<usize> {
        self.reader.try_read(out)
    }

    /// Takes bytes, when there are some. Zero at the end, or if `out` is empty. Dropped before it is done, it
    /// takes nothing.
    pub async fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        poll_fn(|context| self.reader.poll_read_some(context, out)).await
    }

    /// Fills `out` as bytes arrive; an error if the stream ends first. Dropped before it is done, it loses
    /// the bytes it has taken.
    pub async fn read_exact(&mut self, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read(&mut out[done..]).await? {
                0 => return Err(Error::EndOfMessage { left: 0 }),
                len => done += len,
            }
        }
        Ok(())
    }

    /// Returns the same half for code that may block.
    pub fn into_blocking(self) -> Reader {
        self.reader
    }
}

/// The writing half of a stream, for handlers and tasks. Dropping it ends the stream.
///
/// ```no_run
/// # async fn example(ep: &tautline::AsyncEndpoint, cookie: &tautline::Cookie) -> tautline::Result<()> {
/// use tautline::stream::AsyncWriter;
/// let mut log = AsyncWriter::new(ep, cookie).await?;
/// log.write_all(b"hello").await?;
/// log.close()
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncWriter {
    pub(super) writer: Writer,
}

impl AsyncWriter {
    /// Opens the stream of a cookie; waits until it is claimed. A stream has one writer, ever: a second one,
    /// also after a restart of the first, is [`Error::TooMany`].
    pub async fn new(ep: &AsyncEndpoint, cookie: &Cookie) -> Result<AsyncWriter> {
        Ok(Writer { ring: RingWriter::open(ep, cookie).await? }.into_async())
    }

    /// Writes as many bytes as there is room for; [`crate::SendError::WouldBlock`] if there is none.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.writer.try_write_with(bytes, RingWriter::write_at_once)
    }

    /// Writes all bytes, as there is room. Dropped before it is done, it may have written a part.
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += poll_fn(|context| self.writer.poll_write_some(context, &bytes[done..])).await?;
        }
        Ok(())
    }

    /// As [`Writer::close`]. It never waits.
    pub fn close(&mut self) -> Result<()> {
        self.writer.close()
    }

    /// Returns the same half for code that may block.
    pub fn into_blocking(self) -> Writer {
        self.writer
    }
}
