//! Another node's memory, from any thread.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use tautline_node::memory::{Atomic, Cookie, Hint, Operation, Progress, Ticket};

use super::operations::{Placed, gather, put_copied};
use crate::core::{ActivityWaiter, Shared};
use crate::error::{Error, Result};
use crate::handle::{AsyncHandle, Handle};
use crate::{Rank, SendError};

impl Handle {
    /// Returns the memory that a cookie gives access to.
    pub fn remote(&self, cookie: &Cookie) -> RemoteHandle {
        RemoteHandle { handle: self.clone(), cookie: *cookie, hint: Arc::default() }
    }
}

impl AsyncHandle {
    /// Returns the memory that a cookie gives access to.
    pub fn remote(&self, cookie: &Cookie) -> AsyncRemoteHandle {
        AsyncRemoteHandle(self.0.remote(cookie))
    }
}

/// Part of another node's memory, accessed from any thread; as [`super::Remote`], with methods that return
/// when the operation is complete. They complete on the caller's thread, whatever the endpoint's thread does,
/// unless the answers are queued behind messages that it has to extract first.
#[derive(Clone, Debug)]
pub struct RemoteHandle {
    handle: Handle,
    cookie: Cookie,
    /// The number that stands for the cookie on the wire, as of the last put.
    hint: Arc<Mutex<Hint>>,
}

/// An operation in progress. If it is dropped, the operation continues, and its result is discarded.
struct Running<'a> {
    shared: &'a Shared,
    ticket: Option<Ticket>,
}

impl Running<'_> {
    /// The result; [`SendError::WouldBlock`] if there is none yet.
    fn attempt(&mut self) -> Result<u64> {
        let ticket = self.ticket.ok_or(Error::Stale)?;
        match self.shared.node.poll_operation(ticket, false)? {
            None => Err(SendError::WouldBlock.into()),
            Some(result) => {
                self.ticket = None;
                Ok(result?)
            }
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let _ = self.shared.node.detach_operation(ticket);
        }
    }
}

/// A put of which part was sent. Dropped before its end, it is abandoned.
struct Putting<'a> {
    remote: &'a RemoteHandle,
    progress: Progress,
    over: bool,
}

impl Putting<'_> {
    fn attempt(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let (node, cookie) = (&self.remote.handle.0.node, &self.remote.cookie);
        if !node.try_put((cookie, at), bytes, &mut self.progress)? {
            return Err(SendError::WouldBlock.into());
        }
        self.over = true;
        Ok(())
    }
}

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.remote.handle.0.node.abandon_put(self.remote.owner(), &self.progress);
        }
    }
}

impl RemoteHandle {
    /// The cookie.
    pub fn cookie(&self) -> &Cookie {
        &self.cookie
    }

    /// The rank whose memory it is.
    pub fn owner(&self) -> Rank {
        self.cookie.owner()
    }

    /// Puts bytes; sleeps until there is a connection and room, if necessary, but not until the bytes are in
    /// place: [`RemoteHandle::flush`] does. A refused put is an event ([`super::MemoryEvent::Refused`]).
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.handle.0.node.check_fork()?;
        let hint = *self.hint.lock().unwrap_or_else(PoisonError::into_inner);
        let mut put = Putting { remote: self, progress: Progress::with_hint(hint), over: false };
        match put.attempt(at, bytes) {
            Err(error) if error.is_would_block() => {
                self.handle.0.block(self.owner(), || put.attempt(at, bytes))?;
            }
            result => result?,
        }
        if put.progress.hint != hint {
            *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = put.progress.hint;
        }
        Ok(())
    }

    /// Gets bytes.
    pub fn get(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let (memory, operations) = gather(&[(at, len)])?;
        self.run(operations)?;
        Arc::into_inner(memory).and_then(tautline_node::ApertureMemory::into_vec).ok_or(Error::Stale)
    }

    /// Waits until the owner has served all earlier requests to it, of all threads.
    pub fn flush(&self) -> Result<()> {
        self.run(vec![(0, Operation::Flush)]).map(|_| ())
    }

    /// Adds to an aligned word of eight bytes, wrapping around; returns its former value.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.run(vec![(at, Operation::Atomic(Atomic::Add(value)))])
    }

    /// Writes an aligned word of eight bytes; returns its former value.
    pub fn swap(&self, at: u64, value: u64) -> Result<u64> {
        self.run(vec![(at, Operation::Atomic(Atomic::Swap(value)))])
    }

    /// Writes `new` to an aligned word of eight bytes if it is `expected`; returns its former value.
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.run(vec![(at, Operation::Atomic(Atomic::CompareSwap(expected, new)))])
    }

    /// Requests operations, and waits until they are over.
    fn run(&self, operations: Vec<Placed>) -> Result<u64> {
        let shared = &*self.handle.0;
        let ticket = shared.block(self.owner(), || self.submit(&operations))?;
        // Whoever gets bytes must be the only holder of their memory.
        drop(operations);
        let mut running = Running { shared, ticket: Some(ticket) };
        shared.block(self.owner(), || running.attempt())
    }

    fn submit(&self, operations: &[Placed]) -> Result<Ticket> {
        Ok(self.handle.0.node.submit_list(&self.cookie, operations, None, None)?)
    }
}

/// The verbs of a [`RemoteHandle`] as futures, which are `Send`. If one is dropped, an operation that was
/// requested continues, and its result is discarded.
#[derive(Clone, Debug)]
pub struct AsyncRemoteHandle(RemoteHandle);

impl AsyncRemoteHandle {
    /// The remote whose methods block.
    pub fn to_blocking(&self) -> RemoteHandle {
        self.0.clone()
    }

    /// Puts a copy of bytes, and waits until they are in place.
    pub async fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.run(vec![(at, put_copied(bytes.to_vec())?)]).await.map(|_| ())
    }

    /// As [`RemoteHandle::get`].
    pub async fn get(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let (memory, operations) = gather(&[(at, len)])?;
        self.run(operations).await?;
        Arc::into_inner(memory).and_then(tautline_node::ApertureMemory::into_vec).ok_or(Error::Stale)
    }

    /// As [`RemoteHandle::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.run(vec![(0, Operation::Flush)]).await.map(|_| ())
    }

    /// As [`RemoteHandle::fetch_add`].
    pub async fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.run(vec![(at, Operation::Atomic(Atomic::Add(value)))]).await
    }

    /// As [`RemoteHandle::swap`].
    pub async fn swap(&self, at: u64, value: u64) -> Result<u64> {
        self.run(vec![(at, Operation::Atomic(Atomic::Swap(value)))]).await
    }

    /// As [`RemoteHandle::compare_swap`].
    pub async fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.run(vec![(at, Operation::Atomic(Atomic::CompareSwap(expected, new)))]).await
    }

    async fn run(&self, operations: Vec<Placed>) -> Result<u64> {
        let shared = &self.0.handle.0;
        let mut waiting = ActivityWaiter::default();
        let ticket = poll_fn(|context| shared.poll(&mut waiting, context, || self.0.submit(&operations)));
        let ticket = ticket.await?;
        drop(operations);
        let mut running = Running { shared, ticket: Some(ticket) };
        poll_fn(|context| -> Poll<Result<u64>> { shared.poll(&mut waiting, context, || running.attempt()) })
            .await
    }
}
