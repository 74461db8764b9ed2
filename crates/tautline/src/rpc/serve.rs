//! The serving side.

use std::borrow::Cow;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::Answer;
use super::protocol::{ANSWER, ANSWER_HEAD, LONG_ANSWER, REQUEST_HEAD, Status, shrink, word};
use super::{CallId, Rpc, State, SuspendedService};
use crate::async_endpoint::AsyncEndpoint;
use crate::builder::{Builder, Style};
use crate::error::{Error, Result};
use crate::handler_name::Handler;
use crate::messages::{Message, Short};
use crate::style::{Hooks, PeerWaiter, PendingMessage, panic_text};
use crate::{Rank, SendError};

/// The peer that called a service.
#[derive(Clone, Debug)]
pub struct Caller {
    from: Rank,
    limit_nanos: u64,
    endpoint: AsyncEndpoint,
}

impl Caller {
    /// Its number: the rank, if lane 0 called. [`crate::Address::from`] takes it apart into rank and lane.
    pub fn rank(&self) -> Rank {
        self.from
    }

    /// How long it will wait for the answer, counted from its call; nothing if without limit.
    pub fn time_limit(&self) -> Option<Duration> {
        (self.limit_nanos != u64::MAX).then(|| Duration::from_nanos(self.limit_nanos))
    }

    /// The endpoint that was called, to call others from.
    pub fn endpoint(&self) -> &AsyncEndpoint {
        &self.endpoint
    }
}

impl Rpc {
    /// Describes a raw service, for [`Builder::with`]: a plain function of a request that fits one frame (for
    /// longer ones: [`Rpc::serve_bytes`]), which adds its answer to an empty [`Answer`]. The cheapest kind.
    pub fn serve_raw(
        &self,
        name: &str,
        mut service: impl FnMut(Rank, &[u8], &mut Answer) + 'static,
    ) -> impl Style {
        let mut answer = Answer::new();
        let sender = AnswerSender::default();
        move |builder: Builder| {
            builder.tells_sender(name).on_short(name, move |m: Short<'_>| {
                let data = m.data();
                let (Some(number), true) = (word(data, 0), data.len() >= REQUEST_HEAD) else { return };
                answer.begin(number);
                let ran =
                    catch_unwind(AssertUnwindSafe(|| service(m.from(), &data[REQUEST_HEAD..], &mut answer)));
                if let Err(panic) = &ran {
                    answer.clear();
                    answer.set_status(Status::Panicked);
                    answer.extend_from_slice(panic_text(&**panic).as_bytes());
                }
                sender.send(&m.endpoint(), m.from(), answer.with_head());
                answer.shrink();
                if let Err(panic) = ran {
                    // This side reports the failure, too.
                    std::panic::resume_unwind(panic);
                }
            })
        }
    }

    /// Describes a service of bytes, for [`Builder::with`]. It may wait, and call others, while further calls
    /// are served. Requests and answers have any size.
    pub fn serve_bytes<S, F>(&self, name: &str, service: S) -> impl Style
    where
        S: Fn(Caller, Vec<u8>) -> F + 'static,
        F: Future<Output = std::result::Result<Vec<u8>, Vec<u8>>> + 'static,
    {
        self.serve_with(name, move |_, caller, bytes| {
            let run = service(caller, bytes.into_owned());
            async move {
                let (status, answer) = match run.await {
                    Ok(answer) => (Status::Good, answer),
                    Err(answer) => (Status::Failed, answer),
                };
                let mut framed = begin_answer(status, Vec::with_capacity(ANSWER_HEAD + answer.len()));
                framed.extend_from_slice(&answer);
                framed
            }
        })
    }

    /// Describes a typed service, for [`Builder::with`]. Its error is sent to the caller; see
    /// [`super::CallError::service`].
    pub fn serve<Q, A, E, S, F>(&self, name: &str, service: S) -> impl Style
    where
        Q: DeserializeOwned + 'static,
        A: Serialize + 'static,
        E: Serialize + 'static,
        S: Fn(Caller, Q) -> F + 'static,
        F: Future<Output = std::result::Result<A, E>> + 'static,
    {
        self.serve_with(name, move |answers, caller, bytes| {
            let run = postcard::from_bytes(&bytes).ok().map(|request| service(caller, request));
            let answers = answers.clone();
            async move {
                let Some(run) = run else { return begin_answer(Status::Unreadable, answers.buffer()) };
                let written = match run.await {
                    Ok(answer) => postcard::to_extend(&answer, begin_answer(Status::Good, answers.buffer())),
                    Err(error) => postcard::to_extend(&error, begin_answer(Status::Failed, answers.buffer())),
                };
                written.unwrap_or_else(|_| begin_answer(Status::Unreadable, Vec::new()))
            }
        })
    }

    fn serve_with<S, F>(&self, name: &str, function: S) -> impl Style
    where
        S: Fn(&Rc<AnswerSender>, Caller, Cow<'_, [u8]>) -> F + 'static,
        F: Future<Output = Vec<u8>> + 'static,
    {
        let service = Rc::new(Service { state: self.0.clone(), answers: Rc::default(), function });
        let whole = service.clone();
        move |builder: Builder| {
            builder.on_whole(
                name,
                move |message, overload| run(service.clone(), Request::Arriving(message, overload)),
                move |m, overload| {
                    let (head, request) = m.data().split_at(REQUEST_HEAD.min(m.data().len()));
                    let request =
                        whole.begin(&m.endpoint(), m.from(), head, Cow::Borrowed(request), overload);
                    run(whole.clone(), request)
                },
            )
        }
    }
}

/// A service and what its calls share.
struct Service<S> {
    state: Rc<State>,
    answers: Rc<AnswerSender>,
    function: S,
}

/// A request to a service.
enum Request<F> {
    /// It is still to be read. The flag: it is to be refused, because too many handlers are unfinished.
    Arriving(Message, bool),
    /// The service was begun, unless it panicked.
    Begun {
        id: CallId,
        endpoint: AsyncEndpoint,
        run: std::result::Result<F, Panic>,
    },
    Refused {
        id: CallId,
        endpoint: AsyncEndpoint,
    },
    /// It is shorter than its head.
    Malformed,
}

impl<S, F> Service<S>
where
    S: Fn(&Rc<AnswerSender>, Caller, Cow<'_, [u8]>) -> F,
{
    /// Begins to serve a whole request, which follows its head.
    fn begin(
        &self,
        endpoint: &AsyncEndpoint,
        from: Rank,
        head: &[u8],
        request: Cow<'_, [u8]>,
        overload: bool,
    ) -> Request<F> {
        let (Some(number), Some(limit_nanos)) = (word(head, 0), word(head, 8)) else {
            return Request::Malformed;
        };
        let id = CallId { from, number };
        if overload {
            return Request::Refused { id, endpoint: endpoint.clone() };
        }
        let caller = Caller { from, limit_nanos, endpoint: endpoint.clone() };
        let run = catch_unwind(AssertUnwindSafe(|| (self.function)(&self.answers, caller, request)));
        Request::Begun { id, endpoint: endpoint.clone(), run }
    }
}

/// Whether a message was not kept because of a limit (M-19).
pub(super) fn is_limit(error: &Error) -> bool {
    matches!(error, Error::TooLong { .. } | Error::TooMuchHeld { .. })
}

/// Serves one call.
async fn run<S, F>(service: Rc<Service<S>>, request: Request<F>) -> Result<()>
where
    S: Fn(&Rc<AnswerSender>, Caller, Cow<'_, [u8]>) -> F,
    F: Future<Output = Vec<u8>>,
{
    let begun = match request {
        Request::Arriving(mut m, true) => {
            let number = m.read::<u64>().await?;
            Request::Refused { id: CallId { from: m.from(), number }, endpoint: m.endpoint() }
        }
        Request::Arriving(mut m, false) => {
            // The head first: a caller whose request is too long is told.
            let head: [u8; REQUEST_HEAD] = m.read().await?;
            let number = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
            match m.read_to_end().await {
                Ok(bytes) => service.begin(&m.endpoint(), m.from(), &head, Cow::Owned(bytes), false),
                Err(error) if is_limit(&error) => {
                    let (id, endpoint) = (CallId { from: m.from(), number }, m.endpoint());
                    service.answers.send_owned(&endpoint, id, begin_answer(Status::TooLong, Vec::new()));
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        begun => begun,
    };
    let (id, endpoint, run) = match begun {
        Request::Begun { id, endpoint, run } => (id, endpoint, run),
        Request::Refused { id, endpoint } => {
            service.answers.send_owned(&endpoint, id, begin_answer(Status::Busy, Vec::new()));
            return Err(Error::other("too many handlers are unfinished; the caller was told"));
        }
        Request::Malformed | Request::Arriving(..) => {
            return Err(Error::other("a request that is shorter than its head"));
        }
    };
    let ended = match run {
        Ok(run) => until_cancelled(&service.state, &endpoint, id, run).await,
        Err(panic) => Some(Err(panic)),
    };
    // Nobody waits for the answer of a cancelled call.
    let Some(ended) = ended else { return Ok(()) };
    let (answer, panicked) = match ended {
        Ok(answer) => (answer, None),
        Err(panic) => {
            let mut answer = begin_answer(Status::Panicked, Vec::new());
            answer.extend_from_slice(panic_text(&*panic).as_bytes());
            (answer, Some(panic))
        }
    };
    service.answers.send_owned(&endpoint, id, answer);
    match panicked {
        // This side reports the failure, too.
        Some(panic) => std::panic::resume_unwind(panic),
        None => Ok(()),
    }
}

/// Appends the head of an answer to an empty buffer; the call's number is filled in later.
fn begin_answer(status: Status, mut answer: Vec<u8>) -> Vec<u8> {
    answer.extend_from_slice(&[0; 8]);
    answer.extend_from_slice(&status.to_bytes());
    answer
}

type Panic = Box<dyn std::any::Any + Send>;
type Ended = std::result::Result<Vec<u8>, Panic>;

/// An entry in the list of suspended services, removed when this is dropped.
struct Suspended<'a> {
    state: &'a State,
    id: CallId,
    peers: PeerWaiter,
}

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        self.state.services.borrow_mut().remove(&self.id);
    }
}

/// Runs a service; nothing if it was cancelled first, or the caller is gone.
async fn until_cancelled(
    state: &State,
    ep: &AsyncEndpoint,
    id: CallId,
    run: impl Future<Output = Vec<u8>>,
) -> Option<Ended> {
    let caller = ep.peer_id(id.from);
    let mut run = pin!(run);
    let mut suspended = None;
    poll_fn(|context| {
        if suspended.is_some() && state.services.borrow().get(&id).is_none_or(|service| service.cancelled) {
            return Poll::Ready(None);
        }
        // At the first poll a caller whose incarnation is known is still there.
        if (suspended.is_some() || caller.is_none()) && ep.peer_error(id.from, caller).is_some() {
            return Poll::Ready(None);
        }
        match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context))) {
            Ok(Poll::Ready(ended)) => return Poll::Ready(Some(Ok(ended))),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Some(Err(panic))),
        }
        // Most services end at the first poll, and cannot be cancelled meanwhile. Only others are listed.
        let suspended = suspended.get_or_insert_with(|| {
            state.services.borrow_mut().insert(id, SuspendedService::default());
            Suspended { state, id, peers: PeerWaiter::new(ep) }
        });
        if let Some(service) = state.services.borrow_mut().get_mut(&id) {
            service.waker = Some(context.waker().clone());
        }
        suspended.peers.register(context);
        Poll::Pending
    })
    .await
}

/// Bytes that suffice for most answers.
const LIKELY: usize = 128;

/// Sends the answers of one service, and so of one endpoint.
#[derive(Default)]
struct AnswerSender {
    /// The handler of short answers, looked up for the first one.
    short: Cell<Option<Handler>>,
    /// A buffer for the next answer.
    spare: Cell<Vec<u8>>,
}

impl AnswerSender {
    /// An empty buffer.
    #[inline]
    fn buffer(&self) -> Vec<u8> {
        let mut spare = self.spare.take();
        spare.reserve(LIKELY);
        spare
    }

    #[inline]
    fn short(&self, ep: &AsyncEndpoint) -> Result<Handler> {
        match self.short.get() {
            Some(handler) => Ok(handler),
            None => {
                let handler = ep.handler(ANSWER)?;
                self.short.set(Some(handler));
                Ok(handler)
            }
        }
    }

    /// Sends an answer at once if there is room, otherwise later.
    #[inline]
    fn send(&self, ep: &AsyncEndpoint, to: Rank, answer: &[u8]) {
        share_frames(ep, to);
        if self.short(ep).is_ok_and(|short| ep.try_send(to, short, answer).is_ok()) {
            return;
        }
        send_later(ep, to, answer.to_vec());
    }

    /// As [`AnswerSender::send`]; fills in the call's number, and keeps the buffer for the next answer.
    fn send_owned(&self, ep: &AsyncEndpoint, id: CallId, mut answer: Vec<u8>) {
        answer[..8].copy_from_slice(&id.number.to_le_bytes());
        share_frames(ep, id.from);
        let sent = self.short(ep).and_then(|short| ep.try_send_frame(id.from, short, &answer));
        if matches!(sent, Ok(true)) {
            answer.clear();
            shrink(&mut answer);
            self.spare.set(answer);
        } else {
            send_later(ep, id.from, answer);
        }
    }
}

/// Where a frame costs more than an answer, answers to requests that arrived together leave together.
#[inline]
fn share_frames(ep: &AsyncEndpoint, to: Rank) {
    if ep.node().prefers_batches(to) {
        ep.batch_extraction();
    }
}

/// Sends an answer of any length when there is room, behind those that wait already. The service has ended,
/// and does not wait for it.
#[cold]
fn send_later(ep: &AsyncEndpoint, to: Rank, answer: Vec<u8>) {
    let (Ok(short), Ok(long)) = (ep.handler(ANSWER), ep.handler(LONG_ANSWER)) else { return };
    let handler = if answer.len() <= ep.node().short_limit(to) { short } else { long };
    let bytes = answer.len();
    let mut message = PendingMessage::new(to, handler, answer);
    // A lost peer needs no answer.
    ep.post(to, Some(bytes), move |ep| {
        let mut sent = message.try_send(ep);
        if let Err(Error::Send(SendError::TooLongForHandler(_))) = sent {
            // Frames have become shorter since the handler was chosen.
            message.redirect(long);
            sent = message.try_send(ep);
        }
        !matches!(sent, Err(error) if error.is_would_block())
    });
}
