//! The ends of operations.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tautline_node::ApertureMemory;
use tautline_node::memory::{Failure, Ticket, Wakeup};

use crate::core::Core;
use crate::{Endpoint, Error, Result};

/// An operation on its way. A future; or [`Completion::wait`] for it; or let its end be an event. Its value is a word's former value, where there is one.
///
/// Dropped, the operation goes on, and nobody is told of its end. When a peer dies, all operations on its memory end with an error, once.
#[derive(Debug)]
#[must_use = "an operation goes on without it, but nobody learns how it ends"]
pub struct Completion {
    core: Rc<Core>,
    ticket: Option<Ticket>,
    /// It is over, and has failed.
    failed: bool,
}

impl Completion {
    pub(crate) fn new(core: Rc<Core>, ticket: Ticket) -> Completion {
        Completion { core, ticket: Some(ticket), failed: false }
    }

    /// For whatever shall follow it: nothing if it is over, an error if it failed.
    pub(crate) fn first(&self) -> std::result::Result<Option<Ticket>, Failure> {
        if self.failed { Err(Failure::Before) } else { Ok(self.ticket) }
    }

    /// The result, if it is there; then the operation is over, and whoever waits for it all the same gets [`Error::Stale`].
    pub fn try_take(&mut self) -> Option<Result<u64>> {
        self.look(false)
    }

    /// As [`Completion::try_take`]; `wait`: otherwise, there is news when it is over.
    pub(crate) fn look(&mut self, wait: bool) -> Option<Result<u64>> {
        let ticket = self.ticket?;
        let result = match self.core.node.poll_operation(ticket, wait) {
            Ok(result) => result?.map_err(Error::from),
            Err(error) => Err(error.into()),
        };
        (self.ticket, self.failed) = (None, result.is_err());
        Some(result)
    }

    /// Extracts and waits until the operation is over. Not in handlers: there, `await` it.
    pub fn wait(mut self) -> Result<u64> {
        if self.core.extracting.get() {
            return Err(Error::Reentrant);
        }
        if self.ticket.is_none() {
            // Its result was taken, and there is no other.
            return Err(Error::Stale);
        }
        let endpoint = Endpoint::inner(self.core.clone());
        loop {
            if let Some(result) = self.look(true) {
                return result;
            }
            endpoint.extract(usize::MAX)?;
            if let Some(result) = self.look(true) {
                return result;
            }
            endpoint.sleep(None)?;
        }
    }

    /// Its end shall be an event ([`super::MemoryEvent::Completed`]) with this tag.
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
        if let Some(result) = self.look(true) {
            return Poll::Ready(result);
        }
        wait_for(&self.core, Wakeup::Op(ticket), context);
        Poll::Pending
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.core.memory_waits.borrow_mut().remove(&Wakeup::Op(ticket));
            let _ = self.core.node.let_go(ticket);
        }
    }
}

/// Whoever polled last is woken when it has happened: nobody but the holder of it waits, and in one place at a time.
pub(crate) fn wait_for(core: &Core, what: Wakeup, context: &Context<'_>) {
    core.memory_waits.borrow_mut().insert(what, context.waker().clone());
}

/// Bytes on their way from another node. As [`Completion`], with the bytes as its value.
#[derive(Debug)]
#[must_use = "bytes that nobody takes were fetched in vain"]
pub struct Fetch {
    completion: Completion,
    memory: Option<Arc<ApertureMemory>>,
}

impl Fetch {
    pub(crate) fn new(completion: Completion, memory: Arc<ApertureMemory>) -> Fetch {
        Fetch { completion, memory: Some(memory) }
    }

    fn take(memory: Option<Arc<ApertureMemory>>, result: Result<u64>) -> Result<Vec<u8>> {
        result?;
        memory.and_then(Arc::into_inner).and_then(ApertureMemory::into_vec).ok_or(Error::Stale)
    }

    /// Extracts and waits until the bytes are here. Not in handlers: there, `await` it.
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
