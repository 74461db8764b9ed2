//! Calls through a handle, from any thread.

use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::{call_error, deserialize, explain, limit_nanos};
use super::calls::Ended;
use super::error::CallError;
use super::not_registered;
use super::protocol::{CANCEL, REQUEST_HEAD, Status};
use super::shared_calls::SharedCalls;
use super::timer::Alarm;
use crate::core::ActivityWaiter;
use crate::error::Error;
use crate::handle::{AsyncHandle, Handle, HandleMessage};
use crate::handler_name::{Handler, Name};
use crate::{PeerState, Rank, SendError};

type Result<T> = std::result::Result<T, CallError>;

/// Requests of up to this many bytes are assembled on the stack.
const SMALL: usize = 112;
/// A thread that waits for an answer checks this often whether the peer is gone, in case the endpoint's
/// thread does not extract.
const CHECK: Duration = Duration::from_millis(100);

/// A request with its head.
enum Frame {
    Small([u8; REQUEST_HEAD + SMALL], usize),
    Large(Vec<u8>),
}

impl Frame {
    fn new(number: u64, limit: Option<Duration>, request: &[u8]) -> Frame {
        let (number, limit) = (number.to_le_bytes(), limit_nanos(limit).to_le_bytes());
        if request.len() <= SMALL {
            let (mut bytes, len) = ([0; REQUEST_HEAD + SMALL], REQUEST_HEAD + request.len());
            bytes[..8].copy_from_slice(&number);
            bytes[8..REQUEST_HEAD].copy_from_slice(&limit);
            bytes[REQUEST_HEAD..len].copy_from_slice(request);
            return Frame::Small(bytes, len);
        }
        Frame::Large([&number, &limit, request].concat())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Frame::Small(bytes, len) => &bytes[..*len],
            Frame::Large(bytes) => bytes,
        }
    }
}

// A name is read, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Handle {
    fn calls(&self) -> Result<&SharedCalls> {
        Ok(self.0.style::<SharedCalls>().ok_or_else(|| not_registered(false))?)
    }

    /// Calls a raw service, as [`super::Rpc::call_raw`]: sleeps until there is room for the request, if
    /// necessary. The answer arrives when the endpoint's thread extracts. An [`super::Rpc`] must be
    /// registered with the endpoint ([`crate::Builder::with`]).
    pub fn call_raw(&self, peer: Rank, service: impl Name, request: &[u8]) -> Result<HandleCall> {
        self.call_raw_timeout(peer, service, request, None)
    }

    /// As [`Handle::call_raw`]. After `limit` the call fails, and the service is cancelled.
    pub fn call_raw_timeout(
        &self,
        peer: Rank,
        service: impl Name,
        request: &[u8],
        limit: Option<Duration>,
    ) -> Result<HandleCall> {
        let (mut call, service) = HandleCall::begin(self, peer, &service, limit)?;
        let frame = Frame::new(call.number, limit, request);
        let mut message = HandleMessage::new(&self.0, peer, service, frame.bytes());
        let sent = match message.attempt() {
            Err(error) if error.is_would_block() => {
                self.0.block_until(peer, call.deadline, || message.attempt())
            }
            sent => sent.map(Some),
        };
        sent.map_err(explain)?.ok_or(CallError::DeadlinePassed)?;
        call.sent = true;
        Ok(call)
    }

    /// Calls a typed service, as [`super::Rpc::call`].
    pub fn call<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        peer: Rank,
        service: impl Name,
        request: &Q,
    ) -> Result<TypedHandleCall<A>> {
        self.call_timeout(peer, service, request, None)
    }

    /// As [`Handle::call`]. After `limit` the call fails, and the service is cancelled.
    pub fn call_timeout<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        peer: Rank,
        service: impl Name,
        request: &Q,
        limit: Option<Duration>,
    ) -> Result<TypedHandleCall<A>> {
        let request = postcard::to_allocvec(request).map_err(Error::other)?;
        let call = self.call_raw_timeout(peer, service, &request, limit)?;
        Ok(TypedHandleCall { call, answer: PhantomData })
    }
}

#[allow(clippy::needless_pass_by_value)]
impl AsyncHandle {
    /// Calls a raw service and waits for its answer; see [`Handle::call_raw`]. Dropping the future cancels
    /// the call.
    pub async fn call_raw(&self, peer: Rank, service: impl Name, request: &[u8]) -> Result<Vec<u8>> {
        self.call_raw_timeout(peer, service, request, None).await
    }

    /// As [`AsyncHandle::call_raw`]. After `limit` the call fails, and the service is cancelled.
    pub async fn call_raw_timeout(
        &self,
        peer: Rank,
        service: impl Name,
        request: &[u8],
        limit: Option<Duration>,
    ) -> Result<Vec<u8>> {
        let (mut call, service) = HandleCall::begin(&self.0, peer, &service, limit)?;
        {
            let shared = &self.0.0;
            let frame = Frame::new(call.number, limit, request);
            let mut message = HandleMessage::new(shared, peer, service, frame.bytes());
            let mut waiting = ActivityWaiter::default();
            let sent = poll_fn(|context| match shared.poll(&mut waiting, context, || message.attempt()) {
                Poll::Ready(sent) => Poll::Ready(sent.map_err(|error| explain(error).into())),
                Poll::Pending if call.is_late() => Poll::Ready(Err(CallError::DeadlinePassed)),
                Poll::Pending => {
                    call.set_alarm(context);
                    Poll::Pending
                }
            });
            sent.await?;
        }
        call.sent = true;
        call.await
    }

    /// Calls a typed service and waits for its answer; see [`Handle::call`]. Dropping the future cancels the
    /// call.
    pub async fn call<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        peer: Rank,
        service: impl Name,
        request: &Q,
    ) -> Result<A> {
        // Not a reference to the request, which need not be `Sync`, is kept while the future waits.
        let request = postcard::to_allocvec(request).map_err(Error::other)?;
        deserialize(&self.call_raw(peer, service, &request).await?)
    }

    /// As [`AsyncHandle::call`]. After `limit` the call fails, and the service is cancelled.
    pub async fn call_timeout<Q: Serialize + ?Sized, A: DeserializeOwned>(
        &self,
        peer: Rank,
        service: impl Name,
        request: &Q,
        limit: Option<Duration>,
    ) -> Result<A> {
        let request = postcard::to_allocvec(request).map_err(Error::other)?;
        deserialize(&self.call_raw_timeout(peer, service, &request, limit).await?)
    }
}

/// A call in progress, made through a [`Handle`]. Await it, or call [`HandleCall::wait`], on any thread but
/// the endpoint's own. Dropping it cancels it: a service that is suspended is dropped.
#[must_use = "a call that is dropped is cancelled"]
pub struct HandleCall {
    handle: Handle,
    peer: Rank,
    number: u64,
    deadline: Option<Instant>,
    /// The timer has an alarm for it.
    has_alarm: bool,
    /// The request was sent.
    sent: bool,
    over: bool,
}

impl std::fmt::Debug for HandleCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("HandleCall");
        debug.field("peer", &self.peer).field("number", &self.number).finish_non_exhaustive()
    }
}

/// Wakes a thread that waits for an answer.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}

impl HandleCall {
    /// Enters a call whose request is still to be sent.
    fn begin(
        handle: &Handle,
        peer: Rank,
        service: &impl Name,
        limit: Option<Duration>,
    ) -> Result<(HandleCall, Handler)> {
        // First of all: in a forked child the locks of the table may be held for ever.
        handle.0.node.check_fork()?;
        let service = service.key(&handle.0.node)?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let number = handle.calls()?.begin(&handle.0.node, peer)?;
        let handle = handle.clone();
        let call = HandleCall { handle, peer, number, deadline, has_alarm: false, sent: false, over: false };
        // After the call was entered: an endpoint that is closed later ends it.
        call.handle.0.check_open()?;
        Ok((call, service))
    }

    fn calls(&self) -> &SharedCalls {
        self.handle.calls().expect("it was there when the call began")
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The result of the call, if it has ended; `read` converts the answer. Otherwise `waker` is woken at its
    /// end.
    fn take_result<T>(&mut self, waker: Option<&Waker>, read: impl FnOnce(&[u8]) -> T) -> Option<Result<T>> {
        if self.over {
            return Some(Err(Error::Stale.into()));
        }
        let (ended, answer) = self.calls().take_ended(self.number, waker)?;
        self.over = true;
        Some(match ended {
            Ended::Answered(Status::Good) => Ok(read(&answer)),
            ended => Err(call_error(ended, answer.to_vec())),
        })
    }

    /// Waits for the answer, and passes it to `read` in place. Not on the endpoint's own thread, which has to
    /// extract meanwhile.
    pub fn wait_with<T>(mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.handle.0.node.check_fork()?;
        let mut read = Some(read);
        loop {
            let once = |bytes: &[u8]| (read.take().expect("a call has one answer"))(bytes);
            let ended = UNPARK.with(|waker| self.take_result(Some(waker), once));
            if let Some(result) = ended {
                return result;
            }
            self.handle.0.check_not_home()?;
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(CallError::DeadlinePassed);
            }
            let parked = Instant::now();
            std::thread::park_timeout(left.map_or(CHECK, |left| left.min(CHECK)));
            if parked.elapsed() >= CHECK {
                self.check_peer();
            }
        }
    }

    /// Ends the call if its peer is gone, which the endpoint's thread may not have noticed.
    fn check_peer(&self) {
        if let Some(PeerState::Down(why)) = self.handle.peer_state(self.peer) {
            self.calls().fail(self.number, Error::PeerGone(self.peer, why));
        }
    }

    /// Waits for the answer. Not on the endpoint's own thread, which has to extract meanwhile.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.wait_with(<[u8]>::to_vec)
    }

    fn poll_result<T>(&mut self, context: &Context<'_>, read: impl FnOnce(&[u8]) -> T) -> Poll<Result<T>> {
        if let Err(forked) = self.handle.0.node.check_fork() {
            return Poll::Ready(Err(forked.into()));
        }
        if let Some(result) = self.take_result(Some(context.waker()), read) {
            return Poll::Ready(result);
        }
        if self.is_late() {
            return Poll::Ready(Err(CallError::DeadlinePassed));
        }
        self.set_alarm(context);
        Poll::Pending
    }

    fn alarm(&self) -> Option<Alarm> {
        self.deadline.map(|at| Alarm { at, call: self.number })
    }

    fn set_alarm(&mut self, context: &Context<'_>) {
        if let Some(alarm) = self.alarm() {
            self.calls().timer().set(alarm, context.waker());
            self.has_alarm = true;
        }
    }
}

impl Future for HandleCall {
    type Output = Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_result(context, <[u8]>::to_vec)
    }
}

impl Drop for HandleCall {
    fn drop(&mut self) {
        if self.handle.0.node.check_fork().is_err() {
            return;
        }
        if let Some(alarm) = self.alarm().filter(|_| self.has_alarm)
            && let Some(timer) = self.calls().started_timer()
        {
            timer.cancel(alarm);
        }
        if self.over {
            return;
        }
        self.calls().remove(self.number);
        if !self.sent {
            return;
        }
        let Ok(cancel) = self.handle.handler(CANCEL) else { return };
        let (peer, number) = (self.peer, self.number.to_le_bytes());
        self.handle.0.post(None, move |node| {
            !matches!(node.try_send(peer, cancel.0, &number), Err(SendError::WouldBlock))
        });
    }
}

/// A call of a typed service; as [`HandleCall`].
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub struct TypedHandleCall<A> {
    call: HandleCall,
    answer: PhantomData<fn() -> A>,
}

impl<A: DeserializeOwned> TypedHandleCall<A> {
    /// Waits for the answer. Not on the endpoint's own thread, which has to extract meanwhile.
    pub fn wait(self) -> Result<A> {
        self.call.wait_with(deserialize)?
    }
}

impl<A: DeserializeOwned> Future for TypedHandleCall<A> {
    type Output = Result<A>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().call.poll_result(context, deserialize).map(|result| result?)
    }
}
