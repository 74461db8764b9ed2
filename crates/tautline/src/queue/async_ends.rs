//! The ends of a queue, for handlers and tasks: what waits suspends the caller.

use std::future::poll_fn;
use std::task::Poll;

use tautline_node::memory::Cookie;

use super::{HEAD, Receiver, Sender, pair, with_frame};
use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::error::Result;
use crate::handler_name::Name;
use crate::memory::ring::RingWriter;
use crate::offers::offer_async;

impl Receiver {
    /// Returns the same end for handlers and tasks.
    pub fn into_async(self) -> AsyncReceiver {
        AsyncReceiver { receiver: self }
    }
}

impl Sender {
    /// Returns the same end for handlers and tasks.
    pub fn into_async(self) -> AsyncSender {
        AsyncSender { sender: self }
    }
}

/// The receiving end of a queue, for handlers and tasks. Once it is dropped, the sender's calls fail.
///
/// ```no_run
/// # async fn example(ep: &tautline::AsyncEndpoint) -> tautline::Result<()> {
/// use tautline::queue::AsyncReceiver;
/// let mut jobs = AsyncReceiver::offer(ep, 1, "jobs", 1 << 16).await?;
/// while let Some(job) = jobs.pop().await? {
///     println!("{} bytes", job.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncReceiver {
    receiver: Receiver,
}

impl AsyncReceiver {
    /// Makes a queue, as [`super::pair`] does. It never waits.
    pub fn pair(ep: &AsyncEndpoint, capacity: usize) -> Result<(AsyncReceiver, Cookie)> {
        let (receiver, cookie) = pair(ep.plain(), capacity)?;
        Ok((receiver.into_async(), cookie))
    }

    /// Makes a queue and offers its sending end to a name of a peer, as [`super::offer`] does.
    pub async fn offer(
        ep: &AsyncEndpoint,
        peer: Rank,
        name: impl Name,
        capacity: usize,
    ) -> Result<AsyncReceiver> {
        let (receiver, cookie) = AsyncReceiver::pair(ep, capacity)?;
        offer_async(ep, peer, name, &cookie).await?;
        Ok(receiver)
    }

    /// As [`Receiver::peek`].
    pub fn peek(&self) -> Result<Option<u64>> {
        self.receiver.peek()
    }

    /// As [`Receiver::try_pop`].
    pub fn try_pop(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.try_pop()
    }

    /// As [`Receiver::try_pop_into`].
    pub fn try_pop_into(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        self.receiver.try_pop_into(out)
    }

    /// Takes the next entry, when there is one. Nothing at the end of the queue. Dropped before it is done,
    /// it takes nothing.
    pub async fn pop(&mut self) -> Result<Option<Vec<u8>>> {
        poll_fn(|context| self.receiver.ring.poll_wait(context, HEAD)).await?;
        self.try_pop()
    }

    /// As [`Receiver::is_over`].
    pub fn is_over(&self) -> Result<bool> {
        self.receiver.is_over()
    }

    /// Returns the same end for code that may block.
    pub fn into_blocking(self) -> Receiver {
        self.receiver
    }
}

/// The sending end of a queue, for handlers and tasks. Dropping it ends the queue.
///
/// ```no_run
/// # async fn example(ep: &tautline::AsyncEndpoint, cookie: &tautline::Cookie) -> tautline::Result<()> {
/// use tautline::queue::AsyncSender;
/// let mut jobs = AsyncSender::new(ep, cookie).await?;
/// jobs.push(b"first").await?;
/// jobs.end()
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncSender {
    sender: Sender,
}

impl AsyncSender {
    /// Opens the queue of a cookie; waits until it is claimed. A queue has one sender, ever: a second one,
    /// also after a restart of the first, is [`crate::Error::TooMany`].
    pub async fn new(ep: &AsyncEndpoint, cookie: &Cookie) -> Result<AsyncSender> {
        Ok(Sender { ring: RingWriter::open(ep, cookie).await? }.into_async())
    }

    /// The length of the longest possible entry.
    pub fn longest(&self) -> u64 {
        self.sender.longest()
    }

    /// Adds an entry when there is room. Dropped before it is done, it adds nothing.
    pub async fn push(&mut self, entry: &[u8]) -> Result<()> {
        self.push_pieces(&[entry]).await
    }

    /// As [`AsyncSender::push`], for an entry that consists of several pieces.
    pub async fn push_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let need = self.sender.need(pieces)?;
        let ring = &mut self.sender.ring;
        poll_fn(|context| match ring.poll_wait(context, need) {
            Poll::Ready(Ok(())) => with_frame(pieces, |all| ring.poll_write(context, all)),
            other => other,
        })
        .await
    }

    /// Adds an entry if there is room in the queue and in the network; false if not.
    pub fn try_push(&mut self, entry: &[u8]) -> Result<bool> {
        self.sender.try_push_with(entry, RingWriter::write_at_once)
    }

    /// As [`Sender::end`]. It never waits.
    pub fn end(&mut self) -> Result<()> {
        self.sender.end()
    }

    /// Returns the same end for code that may block.
    pub fn into_blocking(self) -> Sender {
        self.sender
    }
}
