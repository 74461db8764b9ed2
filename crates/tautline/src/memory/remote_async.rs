//! Another node's memory, in handlers: these verbs suspend the handler instead of blocking.
//!
//! Between two polls nothing is half sent: bytes that exceed one record are copied, and the node sends them
//! as there is room. So no other request to the same node waits for a suspended handler.

use std::future::Future;
use std::ops::{Range, RangeBounds};

use tautline_node::memory::{Atomic, Operation};

use super::aperture::Aperture;
use super::completion::{Completion, Fetch};
use super::operations::{Placed, gather, local, put_copied, scatter};
use super::remote::{PendingPut, Remote};
use crate::error::Result;
use crate::waiting::until_room;

impl Remote {
    /// Requests operations, as soon as there is room.
    async fn request(&self, operations: &[Placed]) -> Result<Completion> {
        let ticket = until_room(&self.core, || {
            Ok(self.core.node.submit_list(&self.cookie, operations, None, None)?)
        });
        Ok(Completion::new(self.core.clone(), ticket.await?))
    }

    /// As [`Remote::put`]. Bytes that exceed one record are copied, and the future then also waits until they
    /// are in place.
    pub async fn put_async(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.core.node.put_limit(self.owner()) {
            return self.put_list_async(&[(at, bytes)]).await;
        }
        let mut put = PendingPut::new(self, None);
        let whole = until_room(&self.core, || match put.try_send(at, bytes) {
            // Frames have become shorter since the limit was read.
            Err(error) if error.is_would_block() && put.is_partly_sent() => Ok(false),
            result => result.map(|()| true),
        });
        if whole.await? {
            return Ok(());
        }
        drop(put);
        self.put_list_async(&[(at, bytes)]).await
    }

    /// As [`Remote::fill`], until the bytes are in place. `fill` is called once, for all bytes.
    pub async fn fill_async(&self, at: u64, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        self.request(&[(at, put_copied(bytes)?)]).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_list`], of copies, until all are in place.
    pub async fn put_list_async(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let one = |(at, bytes): &(u64, &[u8])| Ok((*at, put_copied(bytes.to_vec())?));
        let operations = pieces.iter().map(one).collect::<Result<Vec<_>>>()?;
        if operations.is_empty() {
            return self.flush_async().await;
        }
        self.request(&operations).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_pieces`], of copies, until all are in place.
    pub async fn put_pieces_async(&self, at: u64, pieces: &[&[u8]]) -> Result<()> {
        self.request(&[(at, put_copied(pieces.concat())?)]).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_notice`], until the event is in the owner's queue.
    pub async fn put_notice_async(&self, at: u64, bytes: &[u8], value: u64) -> Result<()> {
        self.put_async(at, bytes).await?;
        self.request(&[(at, Operation::Notice { len: bytes.len() as u64, value })]).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_from`], until the bytes are in place.
    pub async fn put_from_async(&self, at: u64, from: &Aperture, range: impl RangeBounds<u64>) -> Result<()> {
        self.request(&[(at, Operation::Put(local(from, &range)?))]).await?.await?;
        Ok(())
    }

    /// As [`Remote::get_into`], until the bytes are here.
    pub async fn get_into_async(&self, at: u64, into: &Aperture, range: impl RangeBounds<u64>) -> Result<()> {
        self.request(&[(at, Operation::Get(local(into, &range)?))]).await?.await?;
        Ok(())
    }

    /// As [`Remote::get`], until the bytes are here.
    pub async fn get_async(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        self.get_list_async(&[(at, len)]).await
    }

    /// As [`Remote::get_list`], until the bytes are here.
    pub async fn get_list_async(&self, pieces: &[(u64, usize)]) -> Result<Vec<u8>> {
        let (memory, operations) = gather(pieces)?;
        let requested = self.request(&operations).await?;
        // The fetch must be the only holder of the memory.
        drop(operations);
        Fetch::new(requested, memory).await
    }

    /// As [`Remote::get_list_into`], until the bytes are here.
    pub async fn get_list_into_async(&self, into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<()> {
        self.request(&scatter(into, pieces)?).await?.await?;
        Ok(())
    }

    /// As [`Remote::compare_swap`]; returns the word's former value.
    pub fn compare_swap_async(
        &self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic_async(at, Atomic::CompareSwap(expected, new))
    }

    /// As [`Remote::fetch_add`]; returns the word's former value.
    pub fn fetch_add_async(&self, at: u64, value: u64) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic_async(at, Atomic::Add(value))
    }

    /// As [`Remote::swap`]; returns the word's former value.
    pub fn swap_async(&self, at: u64, value: u64) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic_async(at, Atomic::Swap(value))
    }

    async fn atomic_async(&self, at: u64, atomic: Atomic) -> Result<u64> {
        self.request(&[(at, Operation::Atomic(atomic))]).await?.await
    }

    /// As [`Remote::flush`], until all earlier requests to this node are in place.
    pub async fn flush_async(&self) -> Result<()> {
        self.request(&[(0, Operation::Flush)]).await?.await?;
        Ok(())
    }

    /// As [`Remote::fence`], until all earlier requests to this node are complete.
    pub async fn fence_async(&self) -> Result<()> {
        self.request(&[(0, Operation::Fence)]).await?.await?;
        Ok(())
    }
}
