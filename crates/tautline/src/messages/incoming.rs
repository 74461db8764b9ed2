//! What a handler holds: the message it deals with.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use zerocopy::{FromBytes, IntoBytes};

use super::loan::Lent;
use super::stream::Stream;
use crate::core::Core;
use crate::{Endpoint, Error, Rank, Result};

/// A message, as its handler sees it: a stream of bytes that arrives while the handler runs.
///
/// Reads take pieces of any size, whatever the pieces were that the sender added. A read that is not satisfied suspends the
/// handler. Dropping the future of [`Message::read`] or [`Message::read_with`] takes nothing; the longer reads take what is
/// there as it arrives, and when dropped have taken as much as [`Message::remaining`] says.
#[derive(Debug)]
pub struct Message {
    stream: Rc<RefCell<Stream>>,
    core: Weak<Core>,
    generation: u64,
    from: Rank,
    total: u64,
}

/// Larger values may not fit a message's window, and so cannot wait until all of them is there.
const LARGE_VALUE: usize = 4096;

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl Message {
    pub(crate) fn new(stream: &Rc<RefCell<Stream>>, core: &Rc<Core>) -> Message {
        let state = stream.borrow();
        Message {
            stream: stream.clone(),
            core: Rc::downgrade(core),
            generation: state.generation,
            from: state.from,
            total: state.total,
        }
    }

    /// Who sent it.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// Bytes of the whole message.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether the message has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Bytes not yet taken.
    pub fn remaining(&self) -> u64 {
        self.with(|s| s.left()).unwrap_or(0)
    }

    /// Bytes that have arrived and can be taken without waiting.
    pub fn available(&self) -> usize {
        self.with(|s| s.available()).unwrap_or(0)
    }

    /// The endpoint that the message came to, to send from.
    ///
    /// # Panics
    /// If the endpoint is gone, which only a message kept beyond its handler can see.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::inner(self.core.upgrade().expect("the endpoint outlives its handlers"))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Stream) -> T) -> Result<T> {
        let mut stream = self.stream.borrow_mut();
        if stream.generation == self.generation { Ok(look(&mut stream)) } else { Err(Error::Stale) }
    }

    /// Fills `out`: bytes go straight from where they were received to their final place.
    pub async fn read_into(&mut self, out: &mut [u8]) -> Result<()> {
        // Long reads take what is there as it arrives, so that the sender's window opens under way.
        if out.len() as u64 > self.remaining() {
            return self.with(|s| s.left()).and_then(|left| Err(Error::EndOfMessage { left }));
        }
        let mut done = 0;
        poll_fn(|_| {
            let step = self.with(|s| {
                done += s.take_into(&mut out[done..]);
                if done == out.len() { Poll::Ready(Ok(())) } else { s.ready((out.len() - done) as u64) }
            });
            step.unwrap_or_else(|error| Poll::Ready(Err(error)))
        })
        .await
    }

    /// Takes a value: any plain type with a fixed layout. One of up to 4 KiB is taken whole or not at all.
    pub async fn read<T: FromBytes + IntoBytes>(&mut self) -> Result<T> {
        let mut value = T::new_zeroed();
        if size_of::<T>() > LARGE_VALUE {
            self.read_into(value.as_mut_bytes()).await?;
            return Ok(value);
        }
        let size = size_of::<T>() as u64;
        poll_fn(|_| {
            let step = self.with(|s| {
                let ready = s.ready(size);
                if let Poll::Ready(Ok(())) = ready
                    && s.take_into(value.as_mut_bytes()) < size as usize
                {
                    return s.ready(size);
                }
                ready
            });
            step.unwrap_or_else(|error| Poll::Ready(Err(error)))
        })
        .await?;
        Ok(value)
    }

    /// Shows up to `max` bytes in place, as soon as there are any, in one or more parts; returns how many there were. Zero
    /// only at the end of the message.
    pub async fn read_with(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> Result<usize> {
        poll_fn(|_| {
            let step = self.with(|s| {
                let most = s.left().min(max as u64) as usize;
                match s.ready(u64::from(most > 0)) {
                    Poll::Ready(Ok(())) => match s.take(most, &mut part) {
                        // It was there, and is no more.
                        0 if most > 0 => s.ready(1).map_ok(|()| 0),
                        took => Poll::Ready(Ok(took)),
                    },
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Pending => Poll::Pending,
                }
            });
            step.unwrap_or_else(|error| Poll::Ready(Err(error)))
        })
        .await
    }

    /// Takes everything that is left. More than memory has room for is an error.
    pub async fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let left = self.with(|s| s.left())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(left).unwrap_or(usize::MAX)).map_err(Error::other)?;
        while self.read_with(usize::MAX, |part| bytes.extend_from_slice(part)).await? > 0 {}
        Ok(bytes)
    }

    /// The whole message as it was lent, to be read where its sender wrote it. Nothing if it was not lent, or part of it has been taken.
    pub fn lent(&mut self) -> Option<Lent> {
        self.with(Stream::take_lent).ok().flatten().map(Lent::shared)
    }

    /// The whole message: as it was lent, or collected.
    pub(crate) async fn collect(&mut self) -> Result<Lent> {
        if let Some(lent) = self.lent() {
            return Ok(lent);
        }
        let bytes = self.read_to_end().await?;
        let core = self.core.upgrade().ok_or(Error::Stale)?;
        Ok(Lent::own(&core, self.from, bytes))
    }

    /// Passes over `bytes` bytes.
    pub async fn skip(&mut self, bytes: u64) -> Result<()> {
        let mut left = bytes;
        if left > self.remaining() {
            return self.with(|s| s.left()).and_then(|left| Err(Error::EndOfMessage { left }));
        }
        while left > 0 {
            left -= self.read_with(left.min(1 << 30) as usize, |_| {}).await? as u64;
        }
        Ok(())
    }
}

/// A whole message that came in one frame, read in place.
#[derive(Debug)]
pub struct Short<'a> {
    pub(crate) core: &'a Rc<Core>,
    pub(crate) from: Rank,
    pub(crate) data: &'a [u8],
}

impl Short<'_> {
    /// Who sent it.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// All of the message.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.data
    }

    /// The endpoint that the message came to, to send from.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::inner(self.core.clone())
    }
}
