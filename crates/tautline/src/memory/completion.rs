//! Operations in progress, and their results.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tautline_node::ApertureMemory;
use tautline_node::memory::{Failure, Ticket, Wakeup};

use crate::core::Core;
use crate::error::{Error, Result};

/// An operation in progress. Await it, call [`Completion::wait`], or turn its end into an event. Its value is
/// the former value of a word, for operations that have one.
///
/// If it is dropped, the operation continues, and its result is discarded. When a peer dies, every operation
/// on its memory fails, once.
#[derive(Debug)]
#[must_use = "an operation goes on without it, but its result is lost"]
pub struct Completion {
    core: Rc<Core>,
    ticket: Option<Ticket>,
    /// It is over, and has failed.
    failed: bool,
}

impl Completion {
    pub(super) fn new(core: Rc<Core>, ticket: Ticket) -> Completion {
        Completion { core, ticket: Some(ticket), failed: false }
    }

    /// For an operation that is to follow this one: nothing if this one is over, an error if it failed.
    pub(super) fn predecessor(&self) -> std::result::Result<Option<Ticket>, Failure> {
        if self.failed { Err(Failure::Before) } else { Ok(self.ticket) }
    }

    /// Takes the result, if it is there. Afterwards, waiting for it returns [`Error::Stale`].
    pub fn try_take(&mut self) -> Option<Result<u64>> {
        self.poll_result(false)
    }

    /// As [`Completion::try_take`]. `wake`: if there is no result yet, the node reports when there is.
    pub(super) fn poll_result(&mut self, wake: bool) -> Option<Result<u64>> {
        let ticket = self.ticket?;
        let result = match self.core.node.poll_operation(ticket, wake) {
            Ok(result) => result?.map_err(Error::from),
            Err(error) => Err(error.into()),
        };
        (self.ticket, self.failed) = (None, result.is_err());
        Some(result)
    }

    /// Extracts and waits until the operation is over. Not in handlers: `await` it there.
    pub fn wait(mut self) -> Result<u64> {
        self.core.check_not_in_handler()?;
        if self.ticket.is_none() {
            // Its result was taken, and there is no other.
            return Err(Error::Stale);
        }
        loop {
            if let Some(result) = self.poll_result(true) {
                return result;
            }
            self.core.extract(usize::MAX)?;
            if let Some(result) = self.poll_result(true) {
                return result;
            }
            self.core.sleep(None)?;
        }
    }

    /// Turns the end of the operation into an event ([`super::MemoryEvent::Completed`]) with this tag.
    pub fn into_event(mut self, tag: u64) -> Result<Ticket> {
        let ticket = self.ticket.take().ok_or(Error::Stale)?;
        self.core.node.complete_by_event(ticket, tag)?;
        Ok(ticket)
    }
}

impl Future for Completion {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let Some(ticket) = self.ticket else { return Poll::Ready(Err(Error::Stale)) };
        if let Some(result) = self.poll_result(true) {
            return Poll::Ready(result);
        }
        self.core.waits.register_memory(Wakeup::Op(ticket), context);
        Poll::Pending
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.core.waits.remove_memory(Wakeup::Op(ticket));
            let _ = self.core.node.detach_operation(ticket);
        }
    }
}

/// Bytes on their way from another node. As [`Completion`], with the bytes as its value.
#[derive(Debug)]
#[must_use = "the bytes are fetched in vain if nobody takes them"]
pub struct Fetch {
    completion: Completion,
    memory: Option<Arc<ApertureMemory>>,
}

impl Fetch {
    pub(super) fn new(completion: Completion, memory: Arc<ApertureMemory>) -> Fetch {
        Fetch { completion, memory: Some(memory) }
    }

    fn take(memory: Option<Arc<ApertureMemory>>, result: Result<u64>) -> Result<Vec<u8>> {
        result?;
        memory.and_then(Arc::into_inner).and_then(ApertureMemory::into_vec).ok_or(Error::Stale)
    }

    /// Extracts and waits until the bytes are here. Not in handlers: `await` it there.
    pub fn wait(self) -> Result<Vec<u8>> {
        let result = self.completion.wait();
        Fetch::take(self.memory, result)
    }
}

impl Future for Fetch {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        let Poll::Ready(result) = Pin::new(&mut self.completion).poll(context) else { return Poll::Pending };
        Poll::Ready(Fetch::take(self.memory.take(), result))
    }
}
