//! Another node's memory, in handlers: what has to wait suspends the handler, and nothing else.
//!
//! Nothing is left half sent between two polls: bytes that do not go in one record are copied, and the node sends them as there is room. So whoever else asks something of the same node
//! never waits for a handler that is suspended.

use std::future::Future;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use tautline_node::ApertureMemory;
use tautline_node::memory::{Atomic, Local, Operation};

use super::remote::{Placed, Putting, gathered, local, out_of_band, scattered};
use super::{Aperture, Completion, Fetch, Remote};
use crate::endpoint::retry;
use crate::{Endpoint, Error, Rank, Result};

/// A put of a copy of bytes.
pub(crate) fn copied(bytes: Vec<u8>) -> Result<Operation> {
    let len = bytes.len() as u64;
    let memory = ApertureMemory::adopt(bytes).map_err(|_| Error::OutOfRange)?;
    Ok(Operation::Put(Local { memory: Arc::new(memory), aperture: None, at: 0, len }))
}

impl Remote {
    /// Asks for operations, as soon as that is possible.
    async fn ask(&self, operations: &[Placed]) -> Result<Completion> {
        let ticket =
            retry(&self.core, || Ok(self.core.node.submit_list(&self.cookie, operations, None, None)?));
        Ok(Completion::new(self.core.clone(), ticket.await?))
    }

    /// As [`Remote::put`]. More than goes in one record is copied, and waited for until it is in place.
    pub async fn put_async(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.core.node.put_limit(self.owner()) {
            return self.put_list_async(&[(at, bytes)]).await;
        }
        let mut putting = Putting::new(self, None);
        let whole = retry(&self.core, || match putting.go_on(at, bytes) {
            // The frames have become shorter since.
            Err(error) if error.is_would_block() && putting.is_half() => Ok(false),
            result => result.map(|()| true),
        });
        if whole.await? {
            return Ok(());
        }
        drop(putting);
        self.put_list_async(&[(at, bytes)]).await
    }

    /// As [`Remote::fill`]; `fill` is called once, for all of the bytes, which are then waited for until they are in place.
    pub async fn fill_async(&self, at: u64, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        self.ask(&[(at, copied(bytes)?)]).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_list`], of copies; until all are in place.
    pub async fn put_list_async(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let one = |(at, bytes): &(u64, &[u8])| Ok((*at, copied(bytes.to_vec())?));
        let operations = pieces.iter().map(one).collect::<Result<Vec<_>>>()?;
        if operations.is_empty() {
            return self.flush_async().await;
        }
        self.ask(&operations).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_pieces`], of copies; until all are in place.
    pub async fn put_pieces_async(&self, at: u64, pieces: &[&[u8]]) -> Result<()> {
        self.ask(&[(at, copied(pieces.concat())?)]).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_notice`]; until the owner's event queue has been told.
    pub async fn put_notice_async(&self, at: u64, bytes: &[u8], value: u64) -> Result<()> {
        self.put_async(at, bytes).await?;
        self.ask(&[(at, Operation::Notice { len: bytes.len() as u64, value })]).await?.await?;
        Ok(())
    }

    /// As [`Remote::put_from`]; until the bytes are in place.
    pub async fn put_from_async(&self, at: u64, from: &Aperture, range: impl RangeBounds<u64>) -> Result<()> {
        self.ask(&[(at, Operation::Put(local(from, &range)?))]).await?.await?;
        Ok(())
    }

    /// As [`Remote::get_into`]; until the bytes are here.
    pub async fn get_into_async(&self, at: u64, into: &Aperture, range: impl RangeBounds<u64>) -> Result<()> {
        self.ask(&[(at, Operation::Get(local(into, &range)?))]).await?.await?;
        Ok(())
    }

    /// As [`Remote::get`]; until the bytes are here.
    pub async fn get_async(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        self.get_list_async(&[(at, len)]).await
    }

    /// As [`Remote::get_list`]; until the bytes are here.
    pub async fn get_list_async(&self, pieces: &[(u64, usize)]) -> Result<Vec<u8>> {
        let (memory, operations) = gathered(pieces)?;
        let asked = self.ask(&operations).await?;
        // It must be the only one to hold the memory.
        drop(operations);
        Fetch::new(asked, memory).await
    }

    /// As [`Remote::get_list_into`]; until the bytes are here.
    pub async fn get_list_into_async(&self, into: &Aperture, pieces: &[(u64, Range<u64>)]) -> Result<()> {
        self.ask(&scattered(into, pieces)?).await?.await?;
        Ok(())
    }

    /// As [`Remote::compare_swap`]; what the word held.
    pub fn compare_swap_async(
        &self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic_async(at, Atomic::CompareSwap(expected, new))
    }

    /// As [`Remote::fetch_add`]; what the word held.
    pub fn fetch_add_async(&self, at: u64, value: u64) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic_async(at, Atomic::Add(value))
    }

    /// As [`Remote::swap`]; what the word held.
    pub fn swap_async(&self, at: u64, value: u64) -> impl Future<Output = Result<u64>> + '_ {
        self.atomic_async(at, Atomic::Swap(value))
    }

    async fn atomic_async(&self, at: u64, atomic: Atomic) -> Result<u64> {
        self.ask(&[(at, Operation::Atomic(atomic))]).await?.await
    }

    /// As [`Remote::flush`]; until everything that was asked of this node before is in place.
    pub async fn flush_async(&self) -> Result<()> {
        self.ask(&[(0, Operation::Flush)]).await?.await?;
        Ok(())
    }

    /// As [`Remote::fence`]; until everything that was asked of this node before is complete.
    pub async fn fence_async(&self) -> Result<()> {
        self.ask(&[(0, Operation::Fence)]).await?.await?;
        Ok(())
    }
}

impl Endpoint {
    /// As [`Endpoint::send_out_of_band`], in handlers: others go on while there is no room.
    pub async fn send_out_of_band_async(&self, peer: Rank, bytes: &[u8]) -> Result<()> {
        let out_of_band = out_of_band(bytes)?;
        retry(&self.core, || Ok(self.core.node.send_out_of_band(peer, &out_of_band)?)).await
    }
}
