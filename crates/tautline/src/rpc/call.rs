//! The side that calls.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::timer::Timer;
use super::{BUSY, CANCEL, FAILED, GOOD, PANICKED, REQUEST_HEAD, Rpc, State, UNSENT};
use crate::core::Core;
use crate::endpoint::{Handler, Name};
use crate::later::{self, Parcel};
use crate::memory::ring::life;
use crate::memory::ring::lost;
use crate::memory::wait_on;
use crate::waits::Place;
use crate::{Down, Endpoint, Error, Rank, Result, SendError};

/// Why a call has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The service returned an error: its text, or, of a typed service, what it serialises to.
    Failed(Vec<u8>),
    /// The service panicked.
    Panicked(String),
    /// One side could not read what the other sent.
    Unreadable,
    /// So many handlers are under way at the peer that the service was not begun. Later it may be.
    Busy,
    /// The deadline passed. The service may run nevertheless.
    Late,
    /// The peer is gone. The service may have run.
    PeerGone(Rank, Down),
    /// The call could not be sent, or waited for.
    Not(Error),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Failed(why) => write!(f, "the service failed: {}", String::from_utf8_lossy(why)),
            CallError::Panicked(why) => write!(f, "the service panicked: {why}"),
            CallError::Unreadable => {
                f.write_str("request and service, or answer and caller, do not agree on types")
            }
            CallError::Busy => f.write_str(
                "the peer has too many handlers under way, and did not begin the service; call again later",
            ),
            CallError::Late => f.write_str("no answer came before the deadline"),
            CallError::PeerGone(rank, why) => write!(f, "rank {rank} is gone: {why}"),
            CallError::Not(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {}

impl CallError {
    /// The error of a typed service, if that is what it is.
    pub fn service<E: DeserializeOwned>(&self) -> Option<E> {
        match self {
            CallError::Failed(bytes) => postcard::from_bytes(bytes).ok(),
            _ => None,
        }
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::PeerGone(rank, why) => Error::PeerGone(rank, why),
            CallError::Not(error) => error,
            other => Error::other(other),
        }
    }
}

/// Bytes of a request that are put together without asking for memory.
const SMALL: usize = 256;
/// The same, of most requests: what is not used of it is cleared in vain.
const SMALLEST: usize = 80;

/// Why a request was not sent, in words of calls.
#[cold]
fn told(error: Error) -> Error {
    match error {
        Error::Send(SendError::TooLongForHandler(limit)) => Error::other(format!(
            "the service takes requests of up to {} bytes, because its owner registered it with serve_raw; registered with serve_bytes, it takes any",
            limit.saturating_sub(REQUEST_HEAD)
        )),
        error => error,
    }
}

/// Nanoseconds after which nobody waits any more.
fn patience(limit: Option<Duration>) -> u64 {
    limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
}

impl Rpc {
    /// Calls a raw service: a request of bytes. Those that are served by [`Rpc::serve_raw`] take what fits one frame, those by
    /// [`Rpc::serve_bytes`] any length.
    /// Waits for room if it must, as [`Endpoint::send`] does; in handlers it does not, and with a deadline it waits for the
    /// connection only: the request leaves when there is room.
    #[inline]
    pub fn call_raw(&self, ep: &Endpoint, peer: Rank, service: impl Name, request: &[u8]) -> Result<Call> {
        self.call_within(ep, peer, service, request, None)
    }

    /// As [`Rpc::call_raw`]; after `limit` it is an error, and the service is called off.
    #[allow(clippy::needless_pass_by_value)]
    pub fn call_within(
        &self,
        ep: &Endpoint,
        peer: Rank,
        service: impl Name,
        request: &[u8],
        limit: Option<Duration>,
    ) -> Result<Call> {
        self.check_installed(&ep.core)?;
        let service = service.key(ep)?;
        let id = self.0.calls.borrow_mut().begin(&ep.core, peer)?;
        let mut call = Call {
            state: self.0.clone(),
            core: ep.core.clone(),
            peer,
            life: life(&ep.core, peer),
            id,
            until: limit.and_then(|limit| Instant::now().checked_add(limit)),
            alarm: false,
            sent: false,
            over: false,
            peers: Place::default(),
        };
        let frame = |frame: &mut [u8]| {
            frame[..8].copy_from_slice(&id.to_le_bytes());
            frame[8..REQUEST_HEAD].copy_from_slice(&patience(limit).to_le_bytes());
        };
        if request.len() <= SMALLEST {
            let mut bytes = [0; REQUEST_HEAD + SMALLEST];
            frame(&mut bytes);
            bytes[REQUEST_HEAD..REQUEST_HEAD + request.len()].copy_from_slice(request);
            call.send(ep, service, &bytes[..REQUEST_HEAD + request.len()])?;
        } else if request.len() <= SMALL {
            let mut bytes = [0; REQUEST_HEAD + SMALL];
            frame(&mut bytes);
            bytes[REQUEST_HEAD..REQUEST_HEAD + request.len()].copy_from_slice(request);
            call.send(ep, service, &bytes[..REQUEST_HEAD + request.len()])?;
        } else {
            let mut bytes = Vec::with_capacity(REQUEST_HEAD + request.len());
            bytes.resize(REQUEST_HEAD, 0);
            frame(&mut bytes);
            bytes.extend_from_slice(request);
            call.send(ep, service, &bytes)?;
        }
        Ok(call)
    }

    /// Calls a typed service.
    pub fn call<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        ep: &Endpoint,
        peer: Rank,
        service: impl Name,
        request: &Q,
    ) -> Result<TypedCall<A>> {
        self.call_typed(ep, peer, service, request, None)
    }

    /// As [`Rpc::call`], with a deadline.
    pub fn call_typed<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        ep: &Endpoint,
        peer: Rank,
        service: impl Name,
        request: &Q,
        limit: Option<Duration>,
    ) -> Result<TypedCall<A>> {
        let mut small = [0; SMALL];
        let call = match postcard::to_slice(request, &mut small) {
            Ok(request) => self.call_within(ep, peer, service, request, limit)?,
            Err(postcard::Error::SerializeBufferFull) => {
                let request = postcard::to_allocvec(request).map_err(Error::other)?;
                self.call_within(ep, peer, service, &request, limit)?
            }
            Err(error) => return Err(Error::other(error)),
        };
        Ok(TypedCall { call, answer: PhantomData })
    }
}

/// A call under way: a future, or [`Call::wait`] for it. Dropped, it is called off: a service that has not ended is dropped where it waits.
#[must_use = "a call that is dropped is called off"]
pub struct Call {
    state: Rc<State>,
    core: Rc<Core>,
    peer: Rank,
    /// Which life of the peer's was called, once that is known.
    life: Option<u32>,
    id: u64,
    until: Option<Instant>,
    /// Somebody is to be woken at the deadline.
    alarm: bool,
    /// The request left, or will when there is room.
    sent: bool,
    over: bool,
    peers: Place,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("peer", &self.peer).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Call {
    /// Sends the request, or leaves it to be sent when there is room.
    #[inline]
    fn send(&mut self, ep: &Endpoint, service: Handler, frame: &[u8]) -> Result<()> {
        match self.core.node.try_send(self.peer, service.0, frame) {
            Ok(true) => {}
            Ok(false) | Err(SendError::WouldBlock) if self.must_not_wait() => {
                self.send_later(service, frame.to_vec());
            }
            Ok(false) | Err(SendError::WouldBlock) => {
                ep.send(self.peer, service, frame).map_err(told)?;
            }
            Err(error) => return Err(told(error.into())),
        }
        self.sent = true;
        // Whoever waited for the connection knows by now whom it is with.
        self.life = self.life.or_else(|| life(&self.core, self.peer));
        Ok(())
    }

    /// Handlers never wait; a program waits for the connection, and for room if it has no deadline.
    fn must_not_wait(&self) -> bool {
        // Nor does anybody who calls himself: nobody else would make room.
        self.core.extracting.get()
            || self.peer == self.core.node.rank()
            || self.until.is_some() && self.life.is_some()
    }

    #[cold]
    fn send_later(&self, service: Handler, frame: Vec<u8>) {
        let (state, id) = (self.state.clone(), self.id);
        let mut parcel = Parcel::new(self.peer, service, frame);
        later::add(&self.core, self.peer, move |core| {
            // Nobody waits for it any more.
            if state.calls.borrow_mut().get(id).is_none() {
                parcel.give_up(core);
                return true;
            }
            let result = parcel.go_on(core);
            let over = later::is_over(&result);
            if let Err(error) = result
                && over
            {
                state.calls.borrow_mut().failed(id, told(error));
            }
            over
        });
    }

    /// The answer, if it has come, shown to `look`.
    #[inline]
    fn look<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Option<std::result::Result<T, CallError>> {
        let mut calls = self.state.calls.borrow_mut();
        let entry = calls.get(self.id)?;
        let result = match entry.ended? {
            GOOD => {
                // What looks at it may be about to call, too.
                let bytes = std::mem::take(&mut entry.bytes);
                calls.end(self.id);
                self.over = true;
                drop(calls);
                let seen = look(&bytes);
                self.state.calls.borrow_mut().keep(self.id, bytes);
                return Some(Ok(seen));
            }
            FAILED => Err(CallError::Failed(entry.bytes.clone())),
            PANICKED => Err(CallError::Panicked(String::from_utf8_lossy(&entry.bytes).into_owned())),
            BUSY => Err(CallError::Busy),
            UNSENT => Err(match entry.error.take() {
                Some(Error::PeerGone(rank, why) | Error::Send(SendError::PeerGone(rank, why))) => {
                    CallError::PeerGone(rank, why)
                }
                Some(error) => CallError::Not(error),
                None => CallError::Unreadable,
            }),
            _ => Err(CallError::Unreadable),
        };
        calls.end(self.id);
        self.over = true;
        Some(result)
    }

    /// Why no answer can come any more, if so.
    fn hopeless(&mut self) -> Option<CallError> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Some(CallError::Late);
        }
        // A call that waited for its peer to come up knows by now who it is.
        self.life = self.life.or_else(|| life(&self.core, self.peer));
        Some(match lost(&self.core, self.peer, self.life)? {
            Error::PeerGone(peer, why) => CallError::PeerGone(peer, why),
            error => CallError::Not(error),
        })
    }

    /// Extracts and waits for the answer, and shows it where it is. Not in handlers: there, `await` the call.
    pub fn wait_with<T>(mut self, look: impl FnOnce(&[u8]) -> T) -> std::result::Result<T, CallError> {
        if self.core.extracting.get() {
            return Err(CallError::Not(Error::Reentrant));
        }
        let ep = Endpoint::inner(self.core.clone());
        let mut tries = 0u32;
        // Answers come together: one that is there already needs no look at the network.
        while !self.has_ended() {
            // The first looks are quick: most answers come soon.
            if tries > 1 {
                if let Some(why) = self.hopeless() {
                    return Err(why);
                }
                let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
                let ended = || {
                    let mut calls = self.state.calls.borrow_mut();
                    calls.get(self.id).is_none_or(|entry| entry.ended.is_some())
                };
                let over = || lost(&self.core, self.peer, self.life).is_some();
                wait_on(&self.core, left, ended, over).map_err(CallError::Not)?;
            }
            ep.extract(usize::MAX).map_err(CallError::Not)?;
            tries += 1;
        }
        self.look(look).expect("it has ended")
    }

    #[inline]
    fn has_ended(&self) -> bool {
        self.state.calls.borrow_mut().get(self.id).is_some_and(|entry| entry.ended.is_some())
    }

    /// Extracts and waits for the answer. Not in handlers: there, `await` the call.
    pub fn wait(self) -> std::result::Result<Vec<u8>, CallError> {
        self.wait_with(<[u8]>::to_vec)
    }

    fn poll_answer<T>(
        &mut self,
        context: &Context<'_>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Poll<std::result::Result<T, CallError>> {
        if let Some(result) = self.look(look) {
            return Poll::Ready(result);
        }
        if let Some(why) = self.hopeless() {
            return Poll::Ready(Err(why));
        }
        if let Some(entry) = self.state.calls.borrow_mut().get(self.id) {
            entry.waker = Some(context.waker().clone());
        }
        if let Some(until) = self.until {
            let mut timer = self.state.timer.borrow_mut();
            timer.get_or_insert_with(Timer::start).at((until, self.id), context.waker());
            self.alarm = true;
        }
        // Whoever waits for a peer is woken when it goes.
        self.core.peer_waits.register(&self.peers, context);
        Poll::Pending
    }
}

impl Future for Call {
    type Output = std::result::Result<Vec<u8>, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_answer(context, <[u8]>::to_vec)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.core.peer_waits.leave(&self.peers);
        if let Some(until) = self.until.filter(|_| self.alarm)
            && let Some(timer) = self.state.timer.borrow().as_ref()
        {
            timer.forget((until, self.id));
        }
        if self.over {
            return;
        }
        self.state.calls.borrow_mut().end(self.id);
        let ep = Endpoint::inner(self.core.clone());
        if !self.sent || later::is_over(&ep.try_send(self.peer, CANCEL, &self.id.to_le_bytes())) {
            return;
        }
        let Ok(cancel) = ep.handler(CANCEL) else { return };
        let mut parcel = Parcel::new(self.peer, cancel, self.id.to_le_bytes().to_vec());
        later::add(&self.core, self.peer, move |core| later::is_over(&parcel.go_on(core)));
    }
}

/// A call of a typed service; as [`Call`].
#[derive(Debug)]
#[must_use = "a call that is dropped is called off"]
pub struct TypedCall<A> {
    call: Call,
    answer: PhantomData<fn() -> A>,
}

fn read<A: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<A, CallError> {
    postcard::from_bytes(bytes).map_err(|_| CallError::Unreadable)
}

impl<A: DeserializeOwned> TypedCall<A> {
    /// Extracts and waits for the answer. Not in handlers: there, `await` the call.
    pub fn wait(self) -> std::result::Result<A, CallError> {
        self.call.wait_with(read)?
    }
}

impl<A: DeserializeOwned> Future for TypedCall<A> {
    type Output = std::result::Result<A, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut().call.poll_answer(context, read) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}
