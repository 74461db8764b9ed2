//! Collectives: asynchronous functions over messages in a context of their own. A blocking collective waits
//! for its future, a non-blocking one is a request that has it, and a persistent one makes one at each start.
//!
//! The algorithms (`algorithms`, `reductions`) move bytes. How the data of the program is packed into them,
//! and which ranks take part, is the business of their callers.

pub mod algorithms;
mod reducer;
pub mod reductions;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tautline::tags::{Receive, Request as _, RequestId, Send as Sent, Tags};

use crate::error::{Error, Result};
use crate::network::{failure, network};
use crate::objects::Communicator;
use crate::operation::{Completion, Operation};
use crate::waiting::{self, Wait};
pub use reducer::Reducer;

/// The future of a collective.
pub type Steps = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A collective under way.
pub struct Collective {
    future: Steps,
    comm: Arc<Communicator>,
    ids: Vec<RequestId>,
}

thread_local! {
    /// What the futures that were polled wait for.
    static PENDING: RefCell<Vec<RequestId>> = const { RefCell::new(Vec::new()) };
}

/// Polls a future; what it waits for is in `ids` afterwards.
fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>, ids: &mut Vec<RequestId>) -> Option<T> {
    ids.clear();
    // A function of the program that a reduction calls might poll another collective.
    let outer = PENDING.replace(std::mem::take(ids));
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    *ids = PENDING.replace(outer);
    match polled {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

impl Collective {
    /// Begins a collective; it may have ended already.
    pub fn start(comm: &Arc<Communicator>, future: Steps) -> Operation {
        let mut collective = Collective { future, comm: Arc::clone(comm), ids: Vec::new() };
        match collective.poll(false) {
            Some(result) => Operation::Ended(Completion::of(result)),
            None => Operation::Collective(collective),
        }
    }

    /// How it ended, if it has.
    pub fn poll(&mut self, idle: bool) -> Option<Result<()>> {
        match poll(self.future.as_mut(), &mut self.ids) {
            None if idle => network().check_alive(&self.comm.members.0).err().map(Err),
            polled => polled,
        }
    }

    /// What it waited for when it was polled last.
    pub fn waits_for(&self) -> &[RequestId] {
        &self.ids
    }
}

/// Waits for a collective of `comm`.
pub fn run<T>(comm: &Communicator, future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = std::pin::pin!(future);
    let mut ids = Vec::new();
    waiting::wait_until(|wait: &mut Wait| match poll(future.as_mut(), &mut ids) {
        Some(result) => result.map(Some),
        None => {
            wait.ids.extend_from_slice(&ids);
            if wait.idle { network().check_alive(&comm.members.0).map(|()| None) } else { Ok(None) }
        }
    })
}

/// The messages of one collective: a context and a tag that no other one of the communicator has at the time.
#[derive(Clone)]
pub struct Channel {
    tags: Tags,
    comm: Arc<Communicator>,
    tag: u32,
    /// The rank of this process.
    pub rank: usize,
    /// The number of members.
    pub size: usize,
}

/// Tags of collectives count up to this; the bits above tell messages of one collective apart.
const COUNTED: u32 = 0xff_ffff;

/// Messages that a group of ranks exchanges without the others have tags of their own.
const BY_GROUP: u32 = 1 << 31;

impl Channel {
    /// For the next collective of `comm`. All members begin their collectives in the same order.
    pub fn next(comm: &Arc<Communicator>) -> Result<Channel> {
        let tag = comm.collectives.fetch_add(1, std::sync::atomic::Ordering::Relaxed) & COUNTED;
        Channel::with_tag(comm, tag)
    }

    /// For a group of the members that do something together, by a tag of the program.
    pub fn by_group(comm: &Arc<Communicator>, tag: u32) -> Result<Channel> {
        Channel::with_tag(comm, BY_GROUP | tag)
    }

    fn with_tag(comm: &Arc<Communicator>, tag: u32) -> Result<Channel> {
        let (rank, size) = (comm.rank as usize, comm.size());
        Ok(Channel { tags: comm.channels()?.1.clone(), comm: Arc::clone(comm), tag, rank, size })
    }

    /// The communicator.
    pub fn comm(&self) -> &Arc<Communicator> {
        &self.comm
    }

    /// The same for messages of another kind; at most 63 kinds.
    pub fn of_kind(&self, kind: usize) -> Channel {
        Channel { tag: self.tag | (kind as u32 & 0x3f) << 24, ..self.clone() }
    }

    /// Starts to send a copy of `bytes`.
    pub fn send(&self, to: usize, bytes: &[u8]) -> Sending {
        let to = self.comm.members.0[to];
        Sending(match self.tags.try_send(to, self.tag, bytes) {
            Ok(true) => Ok(None),
            Ok(false) => self.tags.start_send(to, self.tag, bytes.to_vec()).map(Some),
            Err(error) => Err(error),
        })
    }

    /// Starts to send `bytes`.
    pub fn send_owned(&self, to: usize, bytes: Vec<u8>) -> Sending {
        let to = self.comm.members.0[to];
        Sending(self.tags.start_send(to, self.tag, bytes).map(Some))
    }

    /// Starts to receive up to `len` bytes.
    pub fn receive(&self, from: usize, len: usize) -> Receiving {
        Receiving(self.tags.start_receive(self.comm.members.0[from], self.tag, vec![0; len]))
    }

    /// Sends `bytes` to one member while as many are received from another.
    pub async fn exchange(&self, to: usize, bytes: &[u8], from: usize, len: usize) -> Result<Vec<u8>> {
        let received = self.receive(from, len);
        let sent = self.send(to, bytes);
        let bytes = received.await?;
        sent.await?;
        Ok(bytes)
    }
}

/// A send that was started.
pub struct Sending(tautline::Result<Option<Sent>>);

impl Future for Sending {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        let send = match std::mem::replace(&mut self.0, Ok(None)) {
            Ok(None) => return Poll::Ready(Ok(())),
            Err(error) => return Poll::Ready(Err(failure(error))),
            Ok(Some(send)) => send,
        };
        let mut send = send;
        match send.poll() {
            Ok(Some(result)) => Poll::Ready(result.map_err(failure)),
            Err(error) => Poll::Ready(Err(failure(error))),
            Ok(None) => {
                PENDING.with_borrow_mut(|ids| ids.push(send.id()));
                self.0 = Ok(Some(send));
                Poll::Pending
            }
        }
    }
}

/// A receive that was started.
pub struct Receiving(tautline::Result<Receive>);

impl Future for Receiving {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        let receive = match &mut self.0 {
            Ok(receive) => receive,
            Err(error) => return Poll::Ready(Err(Error::new(failure_code(error), error.to_string()))),
        };
        match receive.poll() {
            Ok(Some((Ok(status), mut bytes))) => {
                bytes.truncate(status.len as usize);
                Poll::Ready(Ok(bytes))
            }
            Ok(Some((Err(error), _))) | Err(error) => Poll::Ready(Err(failure(error))),
            Ok(None) => {
                PENDING.with_borrow_mut(|ids| ids.push(receive.id()));
                Poll::Pending
            }
        }
    }
}

fn failure_code(error: &tautline::Error) -> std::ffi::c_int {
    match error {
        tautline::Error::PeerGone(..) => crate::constants::ERR_PROC_ABORTED,
        _ => crate::constants::ERR_OTHER,
    }
}
