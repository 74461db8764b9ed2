//! Sends that were started and complete later.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::blocking::{Step, extract_until};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::handler_name::Handler;
use crate::transfer::Transfer;
use crate::{PeerId, Rank, SendError};

/// A message that [`crate::Endpoint::start_send`] has started. It is sent as there is room, by every call
/// that extracts.
///
/// It is complete when all its bytes are with the network, as [`crate::Endpoint::send`] is when it returns;
/// the peer's handler may not have run. If the peer goes down first, or the endpoint is closed, it ends with
/// the error.
///
/// As a future it gives the result. [`Sending::wait`] and [`crate::Endpoint::wait_all`] give it to a plain
/// loop. The result is taken once; after that they return [`Error::Stale`].
///
/// Dropping it changes nothing: the message is still sent, and nobody learns how it ended. [`Sending::abort`]
/// aborts it.
#[derive(Debug)]
pub struct Sending {
    core: Rc<Core>,
    state: Rc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing once the send has ended.
    unsent: RefCell<Option<Unsent>>,
    ended: Cell<bool>,
    /// How it ended, until somebody takes it.
    result: RefCell<Option<Result<()>>>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Debug)]
struct Unsent {
    transfer: Transfer,
    bytes: Vec<u8>,
    /// The incarnation of the peer that the message is for.
    peer: Option<PeerId>,
}

/// What the outbox runs. If it is dropped before its end, the endpoint was closed.
struct Job(Rc<State>);

impl Sending {
    /// Starts to send; an error if that is refused at once.
    pub(super) fn start(core: &Rc<Core>, peer: Rank, handler: Handler, bytes: Vec<u8>) -> Result<Sending> {
        core.check_open()?;
        let mut unsent = Unsent { transfer: Transfer::new(peer, handler), bytes, peer: core.peer_id(peer) };
        // M-14: messages that were started earlier begin earlier.
        let state = if core.outbox.has_jobs_for(peer) {
            State { unsent: RefCell::new(Some(unsent)), ..State::default() }
        } else {
            match unsent.try_send(core) {
                Ok(()) => {
                    State { ended: Cell::new(true), result: RefCell::new(Some(Ok(()))), ..State::default() }
                }
                Err(error) if error.is_would_block() => {
                    State { unsent: RefCell::new(Some(unsent)), ..State::default() }
                }
                Err(error) => return Err(error),
            }
        };
        let sending = Sending { core: core.clone(), state: Rc::new(state) };
        if !sending.is_done() {
            let job = Job(sending.state.clone());
            let bytes = job.0.unsent.borrow().as_ref().map(|unsent| unsent.bytes.len() as u64);
            core.post(peer, bytes, move |core| job.0.advance(core));
        }
        Ok(sending)
    }

    /// Whether the send has ended: completely, or with an error.
    pub fn is_done(&self) -> bool {
        self.state.ended.get()
    }

    /// Extracts and waits until the send has ended; returns its result. Not in handlers, which await it.
    pub fn wait(&mut self) -> Result<()> {
        if !self.is_done() {
            wait_until(&self.core, || self.is_done())?;
        }
        self.take_result()
    }

    /// Aborts the message if it is not complete: if part of it was sent, the receiver's handler gets
    /// [`Error::Aborted`], otherwise it is never called.
    pub fn abort(self) {
        if let Some(unsent) = self.state.unsent.take() {
            unsent.transfer.abort(&self.core.node);
            self.state.end(Err(Error::Aborted));
        }
    }

    fn take_result(&self) -> Result<()> {
        self.state.result.take().unwrap_or(Err(Error::Stale))
    }

    /// Whether the send has ended, and its result was not taken.
    fn has_result(&self) -> bool {
        self.state.result.borrow().is_some()
    }
}

impl Future for Sending {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_done() {
            return Poll::Ready(self.take_result());
        }
        *self.state.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

/// As [`crate::Endpoint::wait_any`].
pub(super) fn wait_any(core: &Rc<Core>, sendings: &[Sending]) -> Result<usize> {
    let find = || sendings.iter().position(Sending::has_result);
    if sendings.iter().all(Sending::is_done) {
        return find().ok_or(Error::Stale);
    }
    wait_until(core, || find().is_some())?;
    find().ok_or(Error::Stale)
}

/// As [`crate::Endpoint::wait_all`].
pub(super) fn wait_all(core: &Rc<Core>, sendings: &[Sending]) -> Result<()> {
    wait_until(core, || sendings.iter().all(Sending::is_done))?;
    let mut all = Ok(());
    for sending in sendings.iter().filter(|sending| sending.has_result()) {
        all = all.and(sending.take_result());
    }
    all
}

fn wait_until(core: &Rc<Core>, done: impl Fn() -> bool) -> Result<()> {
    extract_until(core, |_| Ok(if done() { Step::Done(()) } else { Step::Wait }))
}

impl Unsent {
    fn try_send(&mut self, core: &Core) -> Result<()> {
        let rank = self.transfer.peer;
        // A message that was begun is bound to the incarnation anyhow.
        if !self.transfer.is_begun() {
            self.peer = self.peer.or_else(|| core.peer_id(rank));
            if self.peer.is_some()
                && let Some(gone) = core.peer_error(rank, self.peer)
            {
                return Err(gone);
            }
        }
        Ok(self.transfer.try_send(&core.node, &self.bytes)?)
    }
}

impl State {
    /// Sends as much as there is room for; true if the send has ended.
    fn advance(&self, core: &Core) -> bool {
        let mut unsent = self.unsent.borrow_mut();
        let Some(message) = &mut *unsent else { return true };
        let result = message.try_send(core);
        if matches!(&result, Err(error) if error.is_would_block()) {
            return false;
        }
        *unsent = None;
        drop(unsent);
        self.end(result);
        true
    }

    fn end(&self, result: Result<()>) {
        self.ended.set(true);
        *self.result.borrow_mut() = Some(result);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.0.unsent.take().is_some() {
            self.0.end(Err(SendError::Closed.into()));
        }
    }
}
