//! What a handler gets: the message.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use zerocopy::{FromBytes, IntoBytes};

use super::borrowed::Borrowed;
use super::incoming_bytes::IncomingBytes;
use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::core::{Charge, Core};
use crate::error::{Error, Result};

/// A message, as its handler sees it: a stream of bytes that arrives while the handler runs.
///
/// Reads take pieces of any size, whatever pieces the sender added. A read that lacks bytes suspends the
/// handler. Dropping the future of [`Message::read`] or [`Message::read_with`] takes nothing. The longer
/// reads take bytes as they arrive; after they were dropped, [`Message::remaining`] tells how much is left.
#[derive(Debug)]
pub struct Message {
    bytes: Rc<RefCell<IncomingBytes>>,
    core: Weak<Core>,
    generation: u64,
    from: Rank,
    total: u64,
}

/// Longer values may exceed a message's window, so that they never are there as a whole.
const LARGE_VALUE: usize = 4096;

impl Message {
    pub(super) fn new(bytes: &Rc<RefCell<IncomingBytes>>, core: &Rc<Core>) -> Message {
        let state = bytes.borrow();
        Message {
            bytes: bytes.clone(),
            core: Rc::downgrade(core),
            generation: state.generation,
            from: state.from,
            total: state.total,
        }
    }

    /// The sender's number, to answer to. It is the rank if the sender is lane 0 of its process, as the
    /// endpoint that joined is; in general it is an address: [`crate::Address::from`] takes it apart into
    /// rank and lane.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// The length of the whole message in bytes.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Bytes that were not taken yet.
    pub fn remaining(&self) -> u64 {
        self.with(|bytes| bytes.left()).unwrap_or(0)
    }

    /// Bytes that have arrived and can be taken without waiting.
    pub fn available(&self) -> usize {
        self.with(|bytes| bytes.available()).unwrap_or(0)
    }

    /// The endpoint that received the message, to send from.
    ///
    /// # Panics
    /// If the endpoint was dropped, which can happen only to a message that is kept beyond its handler.
    pub fn endpoint(&self) -> AsyncEndpoint {
        AsyncEndpoint::new(self.core.upgrade().expect("the endpoint lives as long as its handlers"))
    }

    fn with<T>(&self, work: impl FnOnce(&mut IncomingBytes) -> T) -> Result<T> {
        let mut bytes = self.bytes.borrow_mut();
        if bytes.generation == self.generation { Ok(work(&mut bytes)) } else { Err(Error::Stale) }
    }

    /// Fills `out`: bytes go straight from where they were received to their final place.
    pub async fn read_into(&mut self, out: &mut [u8]) -> Result<()> {
        // Long reads take bytes as they arrive, so that the sender's window opens meanwhile.
        if out.len() as u64 > self.remaining() {
            return self.with(|bytes| bytes.left()).and_then(|left| Err(Error::EndOfMessage { left }));
        }
        let mut done = 0;
        poll_fn(|_| {
            let step = self.with(|bytes| {
                done += bytes.take_into(&mut out[done..]);
                if done == out.len() { Poll::Ready(Ok(())) } else { bytes.ready((out.len() - done) as u64) }
            });
            step.unwrap_or_else(|error| Poll::Ready(Err(error)))
        })
        .await
    }

    /// Reads a value: any plain type with a fixed layout. One of up to 4 KiB is taken whole or not at all.
    pub async fn read<T: FromBytes + IntoBytes>(&mut self) -> Result<T> {
        let mut value = T::new_zeroed();
        if size_of::<T>() > LARGE_VALUE {
            self.read_into(value.as_mut_bytes()).await?;
            return Ok(value);
        }
        let size = size_of::<T>() as u64;
        poll_fn(|_| {
            let step = self.with(|bytes| {
                let ready = bytes.ready(size);
                if let Poll::Ready(Ok(())) = ready
                    && bytes.take_into(value.as_mut_bytes()) < size as usize
                {
                    return bytes.ready(size);
                }
                ready
            });
            step.unwrap_or_else(|error| Poll::Ready(Err(error)))
        })
        .await?;
        Ok(value)
    }

    /// Shows and takes up to `max` bytes in place, as soon as there are any, in one or more parts. Returns
    /// the number of bytes; zero only at the end of the message.
    pub async fn read_with(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> Result<usize> {
        poll_fn(|_| {
            let step = self.with(|bytes| {
                let most = bytes.left().min(max as u64) as usize;
                match bytes.ready(u64::from(most > 0)) {
                    Poll::Ready(Ok(())) => match bytes.take(most, &mut part) {
                        // They were there, and can no longer be read.
                        0 if most > 0 => bytes.ready(1).map_ok(|()| 0),
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

    /// Takes everything that is left. An error if it does not fit memory, is longer than
    /// [`crate::Builder::max_whole`], or its sender has more than [`crate::Builder::max_held`] bytes here.
    /// Memory is allocated as bytes arrive, not as the sender announces them (M-18).
    pub async fn read_to_end(&mut self) -> Result<Vec<u8>> {
        self.read_charged(&mut Charge::default()).await
    }

    /// As [`Message::read_to_end`]; the bytes count as kept until the charge is dropped (M-19).
    pub(crate) async fn read_whole(&mut self) -> Result<(Vec<u8>, Charge)> {
        let mut charge = Charge::default();
        let bytes = self.read_charged(&mut charge).await?;
        self.core()?.budgets.charge(&mut charge, self.from, &bytes)?;
        Ok((bytes, charge))
    }

    async fn read_charged(&mut self, charge: &mut Charge) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.core()?.budgets.check_whole(self.with(|incoming| incoming.left())?)?;
        poll_fn(|_| self.read_arrived(&mut bytes, charge).unwrap_or_else(|error| Poll::Ready(Err(error))))
            .await?;
        Ok(bytes)
    }

    /// Takes what has arrived; ready when that is all.
    fn read_arrived(&self, bytes: &mut Vec<u8>, charge: &mut Charge) -> Result<Poll<Result<()>>> {
        loop {
            let step = |incoming: &mut IncomingBytes| -> Result<_> {
                let here = incoming.available();
                grow(bytes, here, incoming.left())?;
                incoming.take(here, |part| bytes.extend_from_slice(part));
                incoming.release_taken();
                Ok((incoming.left(), incoming.ready(incoming.left().min(1))))
            };
            match self.with(step)?? {
                (0, ready) => return Ok(ready),
                (_, Poll::Ready(Ok(()))) => {}
                (_, ready) => {
                    self.core()?.budgets.charge(charge, self.from, bytes)?;
                    return Ok(ready);
                }
            }
        }
    }

    fn core(&self) -> Result<Rc<Core>> {
        self.core.upgrade().ok_or(Error::Stale)
    }

    /// Takes the whole message as a loan, to be read where its sender wrote it. Nothing if it was not lent,
    /// or part of it was taken.
    pub fn borrowed(&mut self) -> Option<Borrowed> {
        self.with(IncomingBytes::take_borrowed).ok().flatten().map(Borrowed::shared)
    }

    /// Takes the whole message: as a loan, or collected.
    pub(super) async fn collect(&mut self) -> Result<Borrowed> {
        // Whether it was lent or not, so that the host of the sender makes no difference.
        self.core()?.budgets.check_whole(self.len())?;
        if let Some(borrowed) = self.borrowed() {
            return Ok(borrowed);
        }
        let bytes = self.read_to_end().await?;
        let core = self.core.upgrade().ok_or(Error::Stale)?;
        Ok(Borrowed::private(&core, self.from, bytes))
    }

    /// Skips `bytes` bytes.
    pub async fn skip(&mut self, bytes: u64) -> Result<()> {
        let mut left = bytes;
        if left > self.remaining() {
            return self.with(|bytes| bytes.left()).and_then(|left| Err(Error::EndOfMessage { left }));
        }
        while left > 0 {
            left -= self.read_with(left.min(1 << 30) as usize, |_| {}).await? as u64;
        }
        Ok(())
    }
}

/// Reserves memory for `here` further bytes of a message of which `left` are left: as much as has arrived so
/// far, so that no byte is moved often, and no memory waits for bytes that were only announced (M-18).
fn grow(bytes: &mut Vec<u8>, here: usize, left: u64) -> Result<()> {
    if bytes.capacity() - bytes.len() < here {
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(here.max(bytes.len()).min(most)).map_err(Error::other)?;
    }
    Ok(())
}

/// A whole message that arrived in one frame, read in place.
#[derive(Debug)]
pub struct Short<'a> {
    pub(super) core: &'a Rc<Core>,
    pub(super) from: Rank,
    pub(super) data: &'a [u8],
}

impl Short<'_> {
    /// The sender's number, to answer to. It is the rank if the sender is lane 0 of its process, as the
    /// endpoint that joined is; in general it is an address: [`crate::Address::from`] takes it apart into
    /// rank and lane.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// The message's bytes.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.data
    }

    /// The endpoint that received the message, to send from.
    pub fn endpoint(&self) -> AsyncEndpoint {
        AsyncEndpoint::new(self.core.clone())
    }
}
