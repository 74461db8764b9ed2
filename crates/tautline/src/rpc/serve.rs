//! The side that serves.

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

use super::{
    ANSWER, ANSWER_HEAD, Answer, BUSY, FAILED, GOOD, LONG_ANSWER, PANICKED, REQUEST_HEAD, Rpc, Serving,
    State, UNREADABLE, let_go, word,
};
use crate::core::Core;
use crate::endpoint::Handler;
use crate::later::{self, Parcel};
use crate::memory::ring::life;
use crate::memory::ring::lost;
use crate::messages::panic_text;
use crate::waits::Place;
use crate::{Builder, Endpoint, Error, Message, Rank, Result, SendError, Short};

/// Who called, and what it expects.
#[derive(Clone, Debug)]
pub struct Caller {
    from: Rank,
    left: u64,
    endpoint: Endpoint,
}

impl Caller {
    /// Its rank.
    pub fn rank(&self) -> Rank {
        self.from
    }

    /// How long it was going to wait when it called; nothing if for ever.
    pub fn patience(&self) -> Option<Duration> {
        (self.left != u64::MAX).then(|| Duration::from_nanos(self.left))
    }

    /// The endpoint that was called, to call others from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Rpc {
    /// Registers a raw service: a plain function of one request of up to a frame (longer ones: [`Rpc::serve_bytes`]), which adds its answer to what is empty at first. The cheapest there is.
    pub fn serve_raw(
        &self,
        builder: Builder,
        name: &str,
        mut service: impl FnMut(Rank, &[u8], &mut Answer) + 'static,
    ) -> Builder {
        let mut answer = Answer::new();
        let answers = Answers::default();
        builder.on_short(name, move |m: Short<'_>| {
            let data = m.data();
            let (Some(id), true) = (word(data, 0), data.len() >= REQUEST_HEAD) else { return };
            answer.begin(id);
            let ran =
                catch_unwind(AssertUnwindSafe(|| service(m.from(), &data[REQUEST_HEAD..], &mut answer)));
            if let Err(panic) = &ran {
                answer.clear();
                answer.end(PANICKED);
                answer.extend_from_slice(panic_text(&**panic).as_bytes());
            }
            answer_now(&m.endpoint(), m.from(), &answers, answer.framed());
            answer.let_go();
            if let Err(panic) = ran {
                // The failure is reported here, too.
                std::panic::resume_unwind(panic);
            }
        })
    }

    /// Registers a service of bytes that may wait, and call others, while further calls are served; requests and answers have any size.
    pub fn serve_bytes<S, F>(&self, builder: Builder, name: &str, service: S) -> Builder
    where
        S: Fn(Caller, Vec<u8>) -> F + 'static,
        F: Future<Output = std::result::Result<Vec<u8>, Vec<u8>>> + 'static,
    {
        self.serve_any(builder, name, move |_, caller, bytes| {
            let run = service(caller, bytes.into_owned());
            async move {
                let (how, answer) = match run.await {
                    Ok(answer) => (GOOD, answer),
                    Err(answer) => (FAILED, answer),
                };
                let mut framed = head(how, Vec::with_capacity(ANSWER_HEAD + answer.len()));
                framed.extend_from_slice(&answer);
                framed
            }
        })
    }

    /// Registers a typed service. Its error crosses to the caller; see [`super::CallError::service`].
    pub fn serve<Q, A, E, S, F>(&self, builder: Builder, name: &str, service: S) -> Builder
    where
        Q: DeserializeOwned + 'static,
        A: Serialize + 'static,
        E: Serialize + 'static,
        S: Fn(Caller, Q) -> F + 'static,
        F: Future<Output = std::result::Result<A, E>> + 'static,
    {
        self.serve_any(builder, name, move |answers, caller, bytes| {
            let run = postcard::from_bytes(&bytes).ok().map(|request| service(caller, request));
            let answers = answers.clone();
            async move {
                let Some(run) = run else { return head(UNREADABLE, answers.spare()) };
                let written = match run.await {
                    Ok(answer) => postcard::to_extend(&answer, head(GOOD, answers.spare())),
                    Err(error) => postcard::to_extend(&error, head(FAILED, answers.spare())),
                };
                written.unwrap_or_else(|_| head(UNREADABLE, Vec::new()))
            }
        })
    }

    fn serve_any<S, F>(&self, builder: Builder, name: &str, service: S) -> Builder
    where
        S: Fn(&Rc<Answers>, Caller, Cow<'_, [u8]>) -> F + 'static,
        F: Future<Output = Vec<u8>> + 'static,
    {
        let serving = Rc::new(Service { state: self.0.clone(), answers: Rc::default(), service });
        let whole = serving.clone();
        builder.on_whole(
            name,
            move |message, crowded| run(serving.clone(), Request::Arriving(message, crowded)),
            move |m, crowded| {
                let request = whole.begin(&m.endpoint(), m.from(), Cow::Borrowed(m.data()), crowded);
                run(whole.clone(), request)
            },
        )
    }
}

/// A service and what its calls share.
struct Service<S> {
    state: Rc<State>,
    answers: Rc<Answers>,
    service: S,
}

/// A request to a service: still to be read, or read, and the service begun, unless it panicked.
enum Request<F> {
    /// Perhaps to be refused, because too many handlers are under way.
    Arriving(Message, bool),
    Begun {
        id: u64,
        from: Rank,
        endpoint: Endpoint,
        run: std::result::Result<F, Panic>,
    },
    Refused {
        id: u64,
        from: Rank,
        endpoint: Endpoint,
    },
    /// Not even a head.
    Cut,
}

impl<S, F> Service<S>
where
    S: Fn(&Rc<Answers>, Caller, Cow<'_, [u8]>) -> F,
{
    /// Begins to serve a request that is there as a whole.
    fn begin(&self, endpoint: &Endpoint, from: Rank, request: Cow<'_, [u8]>, crowded: bool) -> Request<F> {
        let (Some(id), Some(left)) = (word(&request, 0), word(&request, 8)) else { return Request::Cut };
        if crowded {
            return Request::Refused { id, from, endpoint: endpoint.clone() };
        }
        let caller = Caller { from, left, endpoint: endpoint.clone() };
        let bytes = match request {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[REQUEST_HEAD..]),
            Cow::Owned(mut bytes) => {
                bytes.drain(..REQUEST_HEAD);
                Cow::Owned(bytes)
            }
        };
        let run = catch_unwind(AssertUnwindSafe(|| (self.service)(&self.answers, caller, bytes)));
        Request::Begun { id, from, endpoint: endpoint.clone(), run }
    }
}

/// Serves one call.
async fn run<S, F>(service: Rc<Service<S>>, request: Request<F>) -> Result<()>
where
    S: Fn(&Rc<Answers>, Caller, Cow<'_, [u8]>) -> F,
    F: Future<Output = Vec<u8>>,
{
    let begun = match request {
        Request::Arriving(mut m, true) => {
            let id = m.read::<u64>().await?;
            Request::Refused { id, from: m.from(), endpoint: m.endpoint() }
        }
        Request::Arriving(mut m, false) => {
            let bytes = m.read_to_end().await?;
            service.begin(&m.endpoint(), m.from(), Cow::Owned(bytes), false)
        }
        begun => begun,
    };
    let (id, from, endpoint, run) = match begun {
        Request::Begun { id, from, endpoint, run } => (id, from, endpoint, run),
        Request::Refused { id, from, endpoint } => {
            service.answers.answer(&endpoint, from, id, head(BUSY, Vec::new()));
            return Err(Error::other("too many handlers are under way; the caller was told"));
        }
        Request::Cut | Request::Arriving(..) => return Err(Error::other("a request without a head")),
    };
    let ended = match run {
        Ok(run) => until_called_off(&service.state, &endpoint, (from, id), run).await,
        Err(panic) => Some(Err(panic)),
    };
    // Nobody waits for the answer of a call that was called off.
    let Some(ended) = ended else { return Ok(()) };
    let (answer, panicked) = match ended {
        Ok(answer) => (answer, None),
        Err(panic) => {
            let mut answer = head(PANICKED, Vec::new());
            answer.extend_from_slice(panic_text(&*panic).as_bytes());
            (answer, Some(panic))
        }
    };
    service.answers.answer(&endpoint, from, id, answer);
    match panicked {
        // The failure is reported here, too.
        Some(panic) => std::panic::resume_unwind(panic),
        None => Ok(()),
    }
}

/// The head of an answer in an empty buffer; the call's number is filled in later.
fn head(how: u64, mut answer: Vec<u8>) -> Vec<u8> {
    answer.extend_from_slice(&[0; 8]);
    answer.extend_from_slice(&how.to_le_bytes());
    answer
}

type Panic = Box<dyn std::any::Any + Send>;
type Ended = std::result::Result<Vec<u8>, Panic>;

/// Takes a service off the list, however it ends.
struct Listed<'a> {
    state: &'a State,
    core: &'a Core,
    which: (Rank, u64),
    peers: Place,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.state.serving.borrow_mut().remove(&self.which);
        self.core.peer_waits.leave(&self.peers);
    }
}

/// Runs a service; nothing if it was called off first, or the caller is gone.
async fn until_called_off(
    state: &State,
    ep: &Endpoint,
    which: (Rank, u64),
    run: impl Future<Output = Vec<u8>>,
) -> Option<Ended> {
    let life = life(&ep.core, which.0);
    let mut run = pin!(run);
    let mut listed = None;
    poll_fn(|context| {
        if listed.is_some() && state.serving.borrow().get(&which).is_none_or(|service| service.called_off) {
            return Poll::Ready(None);
        }
        // Whose life is known now is there the first time.
        if (listed.is_some() || life.is_none()) && lost(&ep.core, which.0, life).is_some() {
            return Poll::Ready(None);
        }
        match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context))) {
            Ok(Poll::Ready(ended)) => return Poll::Ready(Some(Ok(ended))),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Some(Err(panic))),
        }
        // Most services end at once, and nobody can call them off meanwhile. This one is to be found.
        let listed = listed.get_or_insert_with(|| {
            state.serving.borrow_mut().insert(which, Serving::default());
            Listed { state, core: &ep.core, which, peers: Place::default() }
        });
        if let Some(service) = state.serving.borrow_mut().get_mut(&which) {
            service.waker = Some(context.waker().clone());
        }
        ep.core.peer_waits.register(&listed.peers, context);
        Poll::Pending
    })
    .await
}

/// Bytes that most answers take no more than.
const LIKELY: usize = 128;

/// Where answers go, looked up at the first of them, and what the next one is written to. Of one service, and so of one endpoint.
#[derive(Default)]
struct Answers {
    short: Cell<Option<Handler>>,
    spare: Cell<Vec<u8>>,
}

impl Answers {
    /// An empty buffer.
    #[inline]
    fn spare(&self) -> Vec<u8> {
        let mut spare = self.spare.take();
        spare.reserve(LIKELY);
        spare
    }

    /// Sends an answer at once if there is room, and otherwise later.
    fn answer(&self, ep: &Endpoint, to: Rank, id: u64, mut answer: Vec<u8>) {
        answer[..8].copy_from_slice(&id.to_le_bytes());
        gather(ep, to);
        if self.short(ep).is_ok_and(|short| ep.core.node.try_send(to, short.0, &answer) == Ok(true)) {
            self.keep(answer);
        } else {
            answer_later(ep, to, answer);
        }
    }

    /// A buffer is not needed any more.
    #[inline]
    fn keep(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let_go(&mut buffer);
        self.spare.set(buffer);
    }

    #[inline]
    fn short(&self, ep: &Endpoint) -> Result<Handler> {
        match self.short.get() {
            Some(handler) => Ok(handler),
            None => {
                let handler = ep.handler(ANSWER)?;
                self.short.set(Some(handler));
                Ok(handler)
            }
        }
    }
}

/// Between hosts a frame costs more than an answer: those to requests that came together leave together.
#[inline]
fn gather(ep: &Endpoint, to: Rank) {
    if !ep.node().is_local(to) {
        ep.core.gather();
    }
}

/// Sends an answer at once if there is room, and otherwise later.
#[inline]
fn answer_now(ep: &Endpoint, to: Rank, answers: &Answers, answer: &[u8]) {
    gather(ep, to);
    if answers.short(ep).is_ok_and(|short| ep.try_send(to, short, answer).is_ok()) {
        return;
    }
    answer_later(ep, to, answer.to_vec());
}

/// Sends an answer when there is room, of whatever length, behind those that wait already. The service is over: it need not wait for that.
#[cold]
fn answer_later(ep: &Endpoint, to: Rank, answer: Vec<u8>) {
    let (Ok(short), Ok(long)) = (ep.handler(ANSWER), ep.handler(LONG_ANSWER)) else { return };
    let handler = if answer.len() <= ep.node().short_limit(to) { short } else { long };
    let mut parcel = Parcel::new(to, handler, answer);
    // Whoever is gone needs no answer.
    later::add(&ep.core, to, move |core| match parcel.go_on(core) {
        Err(Error::Send(SendError::TooLongForHandler(_))) => {
            // What fitted when it was written does not any more.
            parcel.redirect(long);
            later::is_over(&parcel.go_on(core))
        }
        result => later::is_over(&result),
    });
}
