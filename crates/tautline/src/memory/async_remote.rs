//! Another node's memory, for handlers and tasks: these verbs suspend the caller instead of blocking.
//!
//! Between two polls nothing is half sent: bytes that exceed one record are copied, and the node sends them
//! as there is room. So no other request to the same node waits for a suspended caller.

use std::ops::{Range, RangeBounds};
use std::rc::Rc;

use tautline_node::memory::{Atomic, Cookie, Failure, MemoryCounters, Operation, Ticket};

use super::aperture::Aperture;
use super::completion::{Completion, Fetch};
use super::mapped::{MapCookie, Mapped};
use super::operations::{Placed, gather, local, out_of_band, put_copied, scatter};
use super::remote::{PendingPut, Remote};
use super::tripset::Tripset;
use super::tripwire::Tripwire;
use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::core::Core;
use crate::error::Result;
use crate::waiting::until_room;

impl AsyncEndpoint {
    /// As [`crate::Endpoint::aperture`].
    pub fn aperture(&self, len: usize) -> Result<Aperture> {
        self.plain().aperture(len)
    }

    /// As [`crate::Endpoint::adopt`].
    pub fn adopt(&self, bytes: Vec<u8>) -> Result<Aperture> {
        self.plain().adopt(bytes)
    }

    /// Returns the memory that a cookie gives access to.
    pub fn remote(&self, cookie: &Cookie) -> AsyncRemote {
        self.plain().remote(cookie).to_async()
    }

    /// As [`crate::Endpoint::map`].
    pub fn map(&self, cookie: &MapCookie) -> Result<Mapped> {
        self.plain().map(cookie)
    }

    /// As [`crate::Endpoint::tripset`].
    pub fn tripset(&self, wires: &[&Tripwire], need: usize, tag: Option<u64>) -> Result<Tripset> {
        self.plain().tripset(wires, need, tag)
    }

    /// As [`crate::Endpoint::send_out_of_band`], but suspends the caller while there is no room.
    pub async fn send_out_of_band(&self, peer: Rank, bytes: &[u8]) -> Result<()> {
        let message = out_of_band(bytes)?;
        until_room(self.core(), || Ok(self.node().send_out_of_band(peer, &message)?)).await
    }

    /// As [`crate::Endpoint::memory_counters`].
    pub fn memory_counters(&self) -> MemoryCounters {
        self.plain().memory_counters()
    }
}

impl Remote {
    /// Returns the same memory for handlers and tasks.
    ///
    /// ```no_run
    /// # async fn example(ep: &tautline::Endpoint, cookie: &tautline::Cookie) -> tautline::Result<()> {
    /// ep.remote(cookie).to_async().put(0, b"hello").await
    /// # }
    /// ```
    pub fn to_async(&self) -> AsyncRemote {
        AsyncRemote { remote: self.clone() }
    }
}

/// A [`Remote`] for handlers and tasks of an executor: its calls suspend the caller.
///
/// Each call returns when its operation is complete, except [`AsyncRemote::put`], which returns as soon as
/// the bytes were sent if they fit one record. Dropped before it is done, an operation that was requested
/// continues, and its result is discarded.
///
/// ```no_run
/// # async fn example(ep: &tautline::AsyncEndpoint, cookie: &tautline::Cookie) -> tautline::Result<()> {
/// let remote = ep.remote(cookie);
/// remote.put(8, b"hello").await?;
/// let before = remote.fetch_add(0, 1).await?;
/// assert_eq!(remote.get(8, 5).await?, b"hello");
/// # drop(before);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncRemote {
    remote: Remote,
}

impl AsyncRemote {
    fn core(&self) -> &Rc<Core> {
        &self.remote.core
    }

    /// The cookie.
    pub fn cookie(&self) -> &Cookie {
        self.remote.cookie()
    }

    /// The rank whose memory it is.
    pub fn owner(&self) -> Rank {
        self.remote.owner()
    }

    /// Requests operations, as soon as there is room.
    async fn request(&self, operations: &[Placed], after: Option<Ticket>) -> Result<Completion> {
        let core = self.core();
        let ticket =
            until_room(core, || Ok(core.node.submit_list(self.cookie(), operations, None, after)?)).await?;
        Ok(Completion::new(core.clone(), ticket))
    }

    /// Requests one operation, and waits until it is complete.
    async fn complete(&self, at: u64, operation: Operation) -> Result<u64> {
        self.request(&[(at, operation)], None).await?.await
    }

    /// As [`Remote::put`]. Bytes that exceed one record are copied, and the future then also waits until they
    /// are in place.
    pub async fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.core().node.put_limit(self.owner()) {
            return self.put_list(&[(at, bytes)]).await;
        }
        let mut put = PendingPut::new(&self.remote, None);
        let whole = until_room(self.core(), || match put.try_send(at, bytes) {
            // Frames have become shorter since the limit was read.
            Err(error) if error.is_would_block() && put.is_partly_sent() => Ok(false),
            result => result.map(|()| true),
        });
        if whole.await? {
            return Ok(());
        }
        drop(put);
        self.put_list(&[(at, bytes)]).await
    }

    /// As [`Remote::try_put`].
    #[inline]
    pub fn try_put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.remote.try_put(at, bytes)
    }

    /// As [`Remote::put_with_completion`], of a copy: waits for room only, and the completion tells when the
    /// bytes are in place. Other operations can follow it: [`AsyncRemote::after`].
    pub async fn put_with_completion(&self, at: u64, bytes: &[u8]) -> Result<Completion> {
        self.request(&[(at, put_copied(bytes.to_vec())?)], None).await
    }

    /// As [`Remote::fill`], until the bytes are in place. `fill` is called once, for all bytes.
    pub async fn fill(&self, at: u64, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        self.complete(at, put_copied(bytes)?).await?;
        Ok(())
    }

    /// As [`Remote::put_list`], of copies, until all are in place.
    pub async fn put_list(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let one = |(at, bytes): &(u64, &[u8])| Ok((*at, put_copied(bytes.to_vec())?));
        let operations = pieces.iter().map(one).collect::<Result<Vec<_>>>()?;
        if operations.is_empty() {
            return self.flush().await;
        }
        self.request(&operations, None).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_pieces`], of copies, until all are in place.
    pub async fn put_pieces(&self, at: u64, pieces: &[&[u8]]) -> Result<()> {
        self.complete(at, put_copied(pieces.concat())?).await?;
        Ok(())
    }

    /// As [`Remote::put_notice`], until the event is in the owner's queue.
    pub async fn put_notice(&self, at: u64, bytes: &[u8], value: u64) -> Result<()> {
        self.put(at, bytes).await?;
        self.complete(at, Operation::Notice { len: bytes.len() as u64, value }).await?;
        Ok(())
    }

    /// As [`Remote::put_from`], until the bytes are in place.
    pub async fn put_from(&self, at: u64, from: &Aperture, range: impl RangeBounds<u64>) -> Result<()> {
        self.complete(at, Operation::Put(local(from, &range)?)).await?;
        Ok(())
    }

    /// As [`Remote::get_into`], until the bytes are here.
    pub async fn get_into(&self, at: u64, into: &Aperture, range: impl RangeBounds<u64>) -> Result<()> {
        self.complete(at, Operation::Get(local(into, &range)?)).await?;
        Ok(())
    }

    /// As [`Remote::get`], until the bytes are here.
    pub async fn get(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        self.get_list(&[(at, len)]).await
    }

    /// As [`Remote::get_list`], until the bytes are here.
    pub async fn get_list(&self, pieces: &[(u64, usize)]) -> Result<Vec<u8>> {
        self.fetch(pieces, None).await?.await
    }

    /// Requests gets of pieces, as soon as there is room.
    async fn fetch(&self, pieces: &[(u64, usize)], after: Option<Ticket>) -> Result<Fetch> {
        let (memory, operations) = gather(pieces)?;
        let requested = self.request(&operations, after).await?;
        // The fetch must be the only holder of the memory.
        drop(operations);
        Ok(Fetch::new(requested, memory))
    }

    /// As [`Remote::get_list_into`], until the bytes are here.
    pub async fn get_list_into(&self, into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<()> {
        self.request(&scatter(into, pieces)?, None).await?.await?;
        Ok(())
    }

    /// As [`Remote::compare_swap`]; returns the word's former value.
    pub async fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.complete(at, Operation::Atomic(Atomic::CompareSwap(expected, new))).await
    }

    /// As [`Remote::fetch_add`]; returns the word's former value.
    pub async fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.complete(at, Operation::Atomic(Atomic::Add(value))).await
    }

    /// As [`Remote::swap`]; returns the word's former value.
    pub async fn swap(&self, at: u64, value: u64) -> Result<u64> {
        self.complete(at, Operation::Atomic(Atomic::Swap(value))).await
    }

    /// As [`Remote::flush`], until all earlier requests to this node are in place.
    pub async fn flush(&self) -> Result<()> {
        self.complete(0, Operation::Flush).await?;
        Ok(())
    }

    /// As [`Remote::fence`], until all earlier requests to this node are complete.
    pub async fn fence(&self) -> Result<()> {
        self.complete(0, Operation::Fence).await?;
        Ok(())
    }

    /// As [`Remote::after`]: requests through the returned value begin when `first` is complete.
    pub fn after<'a>(&'a self, first: &Completion) -> AsyncAfter<'a> {
        AsyncAfter { remote: self, first: first.predecessor() }
    }
}

/// Requests that follow another one; see [`AsyncRemote::after`]. They wait for room only: what they return
/// tells when they are complete.
///
/// ```no_run
/// # async fn example(remote: &tautline::AsyncRemote) -> tautline::Result<()> {
/// let bytes = remote.put_with_completion(64, b"the bytes").await?;
/// // The counter changes when the bytes are in place.
/// remote.after(&bytes).fetch_add(0, 1).await?.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AsyncAfter<'a> {
    remote: &'a AsyncRemote,
    first: std::result::Result<Option<Ticket>, Failure>,
}

impl AsyncAfter<'_> {
    async fn request(&self, at: u64, operation: Operation) -> Result<Completion> {
        self.remote.request(&[(at, operation)], self.first?).await
    }

    /// As [`super::After::put`].
    pub async fn put(&self, at: u64, bytes: &[u8]) -> Result<Completion> {
        self.request(at, put_copied(bytes.to_vec())?).await
    }

    /// As [`super::After::put_from`].
    pub async fn put_from(
        &self,
        at: u64,
        from: &Aperture,
        range: impl RangeBounds<u64>,
    ) -> Result<Completion> {
        self.request(at, Operation::Put(local(from, &range)?)).await
    }

    /// As [`super::After::get_into`].
    pub async fn get_into(
        &self,
        at: u64,
        into: &Aperture,
        range: impl RangeBounds<u64>,
    ) -> Result<Completion> {
        self.request(at, Operation::Get(local(into, &range)?)).await
    }

    /// As [`super::After::get`].
    pub async fn get(&self, at: u64, len: usize) -> Result<Fetch> {
        self.remote.fetch(&[(at, len)], self.first?).await
    }

    /// As [`super::After::fetch_add`].
    pub async fn fetch_add(&self, at: u64, value: u64) -> Result<Completion> {
        self.request(at, Operation::Atomic(Atomic::Add(value))).await
    }

    /// As [`super::After::compare_swap`].
    pub async fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<Completion> {
        self.request(at, Operation::Atomic(Atomic::CompareSwap(expected, new))).await
    }

    /// As [`super::After::swap`].
    pub async fn swap(&self, at: u64, value: u64) -> Result<Completion> {
        self.request(at, Operation::Atomic(Atomic::Swap(value))).await
    }

    /// As [`super::After::flush`].
    pub async fn flush(&self) -> Result<Completion> {
        self.request(0, Operation::Flush).await
    }

    /// As [`super::After::notice`].
    pub async fn notice(&self, at: u64, len: u64, value: u64) -> Result<Completion> {
        self.request(at, Operation::Notice { len, value }).await
    }
}
