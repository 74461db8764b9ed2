//! The calling side.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::calls::Ended;
use super::error::CallError;
use super::protocol::{CANCEL, REQUEST_HEAD, Status};
use super::timer::{Alarm, Timer};
use super::{Rpc, State, not_registered};
use crate::async_endpoint::AsyncEndpoint;
use crate::core::is_settled;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::handler_name::{Handler, Name};
use crate::style::{Hooks, PeerWaiter, PendingMessage};
use crate::{PeerId, Rank, SendError};

type Result<T> = std::result::Result<T, CallError>;

/// Requests of up to this many bytes are assembled on the stack.
const SMALL: usize = 256;
/// As [`SMALL`], for most requests: unused bytes are cleared in vain.
const SMALLEST: usize = 80;

/// Explains, in terms of calls, why a request was not sent.
#[cold]
pub(super) fn explain(error: Error) -> Error {
    match error {
        Error::Send(SendError::TooLongForHandler(limit)) => Error::other(format!(
            "the service takes requests of up to {} bytes, because its owner registered it with serve_raw; \
             registered with serve_bytes, it takes any",
            limit.saturating_sub(REQUEST_HEAD)
        )),
        error => error,
    }
}

/// A time limit in nanoseconds; `u64::MAX` for none.
pub(super) fn limit_nanos(limit: Option<Duration>) -> u64 {
    limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
}

/// What happens to a request for which there is no room, or no connection yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRoom {
    /// The caller waits.
    Wait,
    /// The request leaves when there is room.
    Later,
}

impl Rpc {
    /// Calls a raw service with a request of bytes. A service registered with [`Rpc::serve_raw`] takes
    /// requests that fit one frame, one registered with [`Rpc::serve_bytes`] requests of any length.
    ///
    /// Waits for the connection and for room if necessary, as [`Endpoint::send`] does. Handlers and tasks use
    /// [`AsyncEndpoint::call_raw`].
    #[inline]
    pub fn call_raw(&self, ep: &Endpoint, peer: Rank, service: impl Name, request: &[u8]) -> Result<Call> {
        self.call_raw_timeout(ep, peer, service, request, None)
    }

    /// As [`Rpc::call_raw`]. After `limit` the call fails, and the service is cancelled. The limit includes
    /// the time to connect, and to wait for room: with a limit this never waits, and the request leaves when
    /// it can.
    #[allow(clippy::needless_pass_by_value)]
    pub fn call_raw_timeout(
        &self,
        ep: &Endpoint,
        peer: Rank,
        service: impl Name,
        request: &[u8],
        limit: Option<Duration>,
    ) -> Result<Call> {
        self.check_registered(ep)?;
        let service = service.key(ep.node())?;
        let no_room = if limit.is_some() { NoRoom::Later } else { NoRoom::Wait };
        self.begin(ep, (peer, service), request, limit, no_room)
    }

    /// Makes a call of a service of a peer.
    fn begin(
        &self,
        ep: &Endpoint,
        (peer, service): (Rank, Handler),
        request: &[u8],
        limit: Option<Duration>,
        no_room: NoRoom,
    ) -> Result<Call> {
        let number = self.0.calls.borrow_mut().begin(ep, peer)?;
        let mut call = Call {
            state: self.0.clone(),
            endpoint: ep.view(),
            peer,
            callee: ep.peer_id(peer),
            number,
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            has_alarm: false,
            sent: false,
            over: false,
            peers: None,
        };
        let fill_head = |frame: &mut [u8]| {
            frame[..8].copy_from_slice(&number.to_le_bytes());
            frame[8..REQUEST_HEAD].copy_from_slice(&limit_nanos(limit).to_le_bytes());
        };
        if request.len() <= SMALLEST {
            let mut bytes = [0; REQUEST_HEAD + SMALLEST];
            fill_head(&mut bytes);
            bytes[REQUEST_HEAD..REQUEST_HEAD + request.len()].copy_from_slice(request);
            call.send(ep, service, &bytes[..REQUEST_HEAD + request.len()], no_room)?;
        } else if request.len() <= SMALL {
            let mut bytes = [0; REQUEST_HEAD + SMALL];
            fill_head(&mut bytes);
            bytes[REQUEST_HEAD..REQUEST_HEAD + request.len()].copy_from_slice(request);
            call.send(ep, service, &bytes[..REQUEST_HEAD + request.len()], no_room)?;
        } else {
            let mut bytes = Vec::with_capacity(REQUEST_HEAD + request.len());
            bytes.resize(REQUEST_HEAD, 0);
            fill_head(&mut bytes);
            bytes.extend_from_slice(request);
            call.send(ep, service, &bytes, no_room)?;
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
        self.call_timeout(ep, peer, service, request, None)
    }

    /// As [`Rpc::call`]. After `limit` the call fails, and the service is cancelled; see
    /// [`Rpc::call_raw_timeout`].
    pub fn call_timeout<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        ep: &Endpoint,
        peer: Rank,
        service: impl Name,
        request: &Q,
        limit: Option<Duration>,
    ) -> Result<TypedCall<A>> {
        let call = serialize(request, |request| self.call_raw_timeout(ep, peer, service, request, limit))?;
        Ok(TypedCall { call, answer: PhantomData })
    }
}

/// Passes a serialised request to `call`.
#[inline]
fn serialize<Q: Serialize + ?Sized>(request: &Q, call: impl FnOnce(&[u8]) -> Result<Call>) -> Result<Call> {
    let mut small = [0; SMALL];
    match postcard::to_slice(request, &mut small) {
        Ok(request) => call(request),
        Err(postcard::Error::SerializeBufferFull) => {
            call(&postcard::to_allocvec(request).map_err(Error::other)?)
        }
        Err(error) => Err(Error::other(error).into()),
    }
}

/// Calls from handlers and tasks, with the [`Rpc`] that is registered at the endpoint.
// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl AsyncEndpoint {
    /// Calls a typed service, and waits for the answer. An error if no [`Rpc`] is registered here. Dropped
    /// before it is done, it cancels the call.
    ///
    /// ```no_run
    /// # async fn example(caller: tautline::rpc::Caller) -> Result<u64, tautline::rpc::CallError> {
    /// let sum: u64 = caller.endpoint().call(1, "add", &(2u64, 3u64)).await?;
    /// # Ok(sum)
    /// # }
    /// ```
    pub async fn call<Q, A>(&self, peer: Rank, service: impl Name, request: &Q) -> Result<A>
    where
        Q: Serialize + ?Sized,
        A: DeserializeOwned,
    {
        self.start_call(peer, service, request, None)?.await
    }

    /// As [`AsyncEndpoint::call`]. After `limit` the call fails, and the service is cancelled. The limit
    /// includes the time to connect, and to wait for room.
    ///
    /// ```no_run
    /// # async fn example(ep: &tautline::AsyncEndpoint) -> Result<(), tautline::rpc::CallError> {
    /// use std::time::Duration;
    /// use tautline::rpc::CallError;
    /// let limit = Some(Duration::from_millis(200));
    /// match ep.call_timeout::<_, u64>(1, "add", &(2u64, 3u64), limit).await {
    ///     Ok(sum) => println!("{sum}"),
    ///     Err(CallError::DeadlinePassed) => println!("rank 1 is not there, or slow"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call_timeout<Q, A>(
        &self,
        peer: Rank,
        service: impl Name,
        request: &Q,
        limit: Option<Duration>,
    ) -> Result<A>
    where
        Q: Serialize + ?Sized,
        A: DeserializeOwned,
    {
        self.start_call(peer, service, request, limit)?.await
    }

    /// Calls a raw service with a request of bytes, as [`Rpc::call_raw`] does, and waits for the answer.
    ///
    /// ```no_run
    /// # async fn example(ep: &tautline::AsyncEndpoint) -> Result<(), tautline::rpc::CallError> {
    /// assert_eq!(ep.call_raw(1, "echo", b"hello").await?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call_raw(&self, peer: Rank, service: impl Name, request: &[u8]) -> Result<Vec<u8>> {
        self.start_call_raw(peer, service, request, None)?.await
    }

    /// As [`AsyncEndpoint::call_raw`], with a limit; see [`AsyncEndpoint::call_timeout`].
    pub async fn call_raw_timeout(
        &self,
        peer: Rank,
        service: impl Name,
        request: &[u8],
        limit: Option<Duration>,
    ) -> Result<Vec<u8>> {
        self.start_call_raw(peer, service, request, limit)?.await
    }

    /// Makes a call of a typed service without waiting: the request leaves now, or when there is a connection
    /// and room. Await what it returns, which does not borrow the endpoint.
    ///
    /// ```no_run
    /// # async fn example(ep: &tautline::AsyncEndpoint) -> Result<u64, tautline::rpc::CallError> {
    /// let one = ep.start_call::<_, u64>(1, "add", &(2u64, 3u64), None)?;
    /// let other = ep.start_call::<_, u64>(2, "add", &(4u64, 5u64), None)?;
    /// # Ok(
    /// one.await? + other.await?
    /// # )
    /// # }
    /// ```
    pub fn start_call<Q, A>(
        &self,
        peer: Rank,
        service: impl Name,
        request: &Q,
        limit: Option<Duration>,
    ) -> Result<TypedCall<A>>
    where
        Q: Serialize + ?Sized,
        A: DeserializeOwned,
    {
        let call = serialize(request, |request| self.start_call_raw(peer, service, request, limit))?;
        Ok(TypedCall { call, answer: PhantomData })
    }

    /// As [`AsyncEndpoint::start_call`], for a raw service.
    pub fn start_call_raw(
        &self,
        peer: Rank,
        service: impl Name,
        request: &[u8],
        limit: Option<Duration>,
    ) -> Result<Call> {
        let rpc = self.attachment::<Rpc>().ok_or_else(|| not_registered(false))?;
        let service = service.key(self.node())?;
        rpc.begin(self.plain(), (peer, service), request, limit, NoRoom::Later)
    }
}

/// A call in progress. Await it, or call [`Call::wait`]. Dropping it cancels it: a service that is suspended
/// is dropped.
#[must_use = "a call that is dropped is cancelled"]
pub struct Call {
    state: Rc<State>,
    endpoint: Endpoint,
    peer: Rank,
    /// The peer's incarnation that was called, once it is known.
    callee: Option<PeerId>,
    number: u64,
    deadline: Option<Instant>,
    /// The timer has an alarm for it.
    has_alarm: bool,
    /// The request was sent, or will be when there is room.
    sent: bool,
    over: bool,
    /// Registered when the call is first awaited.
    peers: Option<PeerWaiter>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("peer", &self.peer).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Call {
    /// Sends the request, or leaves it to be sent when there is room.
    #[inline]
    fn send(&mut self, ep: &Endpoint, service: Handler, frame: &[u8], no_room: NoRoom) -> Result<()> {
        match ep.try_send_frame(self.peer, service, frame) {
            Ok(true) => {}
            Ok(false) | Err(Error::Send(SendError::WouldBlock)) => {
                // A call to oneself would have to make the room.
                if no_room == NoRoom::Later || self.peer == self.endpoint.core.node.number() {
                    self.send_later(service, frame.to_vec());
                } else {
                    ep.send(self.peer, service, frame).map_err(explain)?;
                }
            }
            Err(error) => return Err(explain(error).into()),
        }
        self.sent = true;
        // If it waited for the connection, the incarnation is known only now.
        self.callee = self.callee.or_else(|| ep.peer_id(self.peer));
        Ok(())
    }

    #[cold]
    fn send_later(&self, service: Handler, frame: Vec<u8>) {
        let (state, number) = (self.state.clone(), self.number);
        let mut message = PendingMessage::new(self.peer, service, frame);
        // The caller learns of the end of its call.
        self.endpoint.post(self.peer, None, move |ep| {
            if !state.calls.borrow_mut().is_live(number) {
                message.abort(ep);
                return true;
            }
            match message.try_send(ep) {
                Ok(()) => true,
                Err(error) if error.is_would_block() => false,
                Err(error) => {
                    state.calls.borrow_mut().unsent(number, explain(error));
                    true
                }
            }
        });
    }

    /// The result of the call, if it has ended; `read` converts the answer.
    #[inline]
    fn take_result<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<Result<T>> {
        let (ended, bytes) = self.state.calls.borrow_mut().take_ended(self.number)?;
        self.over = true;
        Some(match ended {
            Ended::Answered(Status::Good) => {
                // The table is not borrowed here: `read` may make calls.
                let answer = read(&bytes);
                self.state.calls.borrow_mut().recycle(self.number, bytes);
                Ok(answer)
            }
            ended => Err(call_error(ended, bytes)),
        })
    }

    /// Why no answer will arrive, if so.
    fn error(&mut self) -> Option<CallError> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(CallError::DeadlinePassed);
        }
        // If the call was made before the peer was up, the incarnation may be known now.
        self.callee = self.callee.or_else(|| self.endpoint.peer_id(self.peer));
        self.endpoint.peer_error(self.peer, self.callee).map(CallError::Endpoint)
    }

    /// Extracts and waits for the answer, and passes it to `read` in place. Not in handlers: `await` the call
    /// there.
    pub fn wait_with<T>(mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        if self.endpoint.in_handler() {
            return Err(Error::Reentrant.into());
        }
        let mut tries = 0u32;
        // Answers arrive together: one that is there needs no poll of the network.
        while !self.has_ended() {
            // The first attempts only extract: most answers arrive soon.
            if tries > 1 {
                if let Some(error) = self.error() {
                    return Err(error);
                }
                let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                let over = || self.endpoint.peer_error(self.peer, self.callee).is_some();
                self.endpoint.wait_until(left, || self.has_ended(), over)?;
            }
            self.endpoint.extract(usize::MAX)?;
            tries += 1;
        }
        self.take_result(read).expect("it has ended")
    }

    #[inline]
    fn has_ended(&self) -> bool {
        self.state.calls.borrow_mut().has_ended(self.number)
    }

    /// Extracts and waits for the answer. Not in handlers: `await` the call there.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.wait_with(<[u8]>::to_vec)
    }

    fn poll_result<T>(&mut self, context: &Context<'_>, read: impl FnOnce(&[u8]) -> T) -> Poll<Result<T>> {
        if let Some(result) = self.take_result(read) {
            return Poll::Ready(result);
        }
        if let Some(error) = self.error() {
            return Poll::Ready(Err(error));
        }
        self.state.calls.borrow_mut().wake_at_end(self.number, context.waker());
        if let Some(alarm) = self.alarm() {
            self.state.timer.borrow_mut().get_or_insert_with(Timer::start).set(alarm, context.waker());
            self.has_alarm = true;
        }
        self.peers.get_or_insert_with(|| PeerWaiter::new(&self.endpoint)).register(context);
        Poll::Pending
    }

    fn alarm(&self) -> Option<Alarm> {
        self.deadline.map(|at| Alarm { at, call: self.number })
    }
}

#[cold]
pub(super) fn call_error(ended: Ended, bytes: Vec<u8>) -> CallError {
    match ended {
        Ended::Answered(Status::Failed) => CallError::Failed(bytes),
        Ended::Answered(Status::Panicked) => {
            CallError::Panicked(String::from_utf8_lossy(&bytes).into_owned())
        }
        Ended::Answered(Status::Busy) => CallError::Busy,
        Ended::Answered(Status::TooLong) => CallError::TooLong,
        Ended::Answered(Status::Good | Status::Unreadable) => CallError::Unreadable,
        Ended::Unsent(error) => CallError::Endpoint(error),
    }
}

impl Future for Call {
    type Output = Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_result(context, <[u8]>::to_vec)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm().filter(|_| self.has_alarm)
            && let Some(timer) = self.state.timer.borrow().as_ref()
        {
            timer.cancel(alarm);
        }
        if self.over {
            return;
        }
        self.state.calls.borrow_mut().remove(self.number);
        let (ep, number) = (&self.endpoint, self.number.to_le_bytes());
        if !self.sent || !matches!(ep.try_send(self.peer, CANCEL, &number), Err(e) if e.is_would_block()) {
            return;
        }
        if let Ok(cancel) = ep.handler(CANCEL) {
            let mut message = PendingMessage::new(self.peer, cancel, number.to_vec());
            ep.post(self.peer, None, move |ep| is_settled(&message.try_send(ep)));
        }
    }
}

/// A call of a typed service; as [`Call`].
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub struct TypedCall<A> {
    call: Call,
    answer: PhantomData<fn() -> A>,
}

pub(super) fn deserialize<A: DeserializeOwned>(bytes: &[u8]) -> Result<A> {
    postcard::from_bytes(bytes).map_err(|_| CallError::Unreadable)
}

impl<A: DeserializeOwned> TypedCall<A> {
    /// Extracts and waits for the answer. Not in handlers: `await` the call there.
    pub fn wait(self) -> Result<A> {
        self.call.wait_with(deserialize)?
    }
}

impl<A: DeserializeOwned> Future for TypedCall<A> {
    type Output = Result<A>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut().call.poll_result(context, deserialize) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}
