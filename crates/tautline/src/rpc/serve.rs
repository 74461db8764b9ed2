//! The side that serves.

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
    ANSWER, ANSWER_HEAD, Answer, FAILED, GOOD, LONG_ANSWER, PANICKED, REQUEST_HEAD, Rpc, Serving, State,
    UNREADABLE, word,
};
use crate::core::{Core, PeerWait};
use crate::endpoint::Handler;
use crate::later::{self, Parcel};
use crate::memory::ring::life;
use crate::memory::ring::lost;
use crate::messages::panic_text;
use crate::{Builder, Endpoint, Error, Message, Rank, Result, Short};

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
        self.serve_any(builder, name, move |caller, bytes| {
            let run = service(caller, bytes);
            async move {
                let (how, answer) = match run.await {
                    Ok(answer) => (GOOD, answer),
                    Err(answer) => (FAILED, answer),
                };
                let mut framed = head(how, answer.len());
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
        self.serve_any(builder, name, move |caller, bytes| {
            let run = postcard::from_bytes(&bytes).ok().map(|request| service(caller, request));
            async move {
                let Some(run) = run else { return head(UNREADABLE, 0) };
                let written = match run.await {
                    Ok(answer) => postcard::to_extend(&answer, head(GOOD, LIKELY)),
                    Err(error) => postcard::to_extend(&error, head(FAILED, LIKELY)),
                };
                written.unwrap_or_else(|_| head(UNREADABLE, 0))
            }
        })
    }

    fn serve_any<S, F>(&self, builder: Builder, name: &str, service: S) -> Builder
    where
        S: Fn(Caller, Vec<u8>) -> F + 'static,
        F: Future<Output = Vec<u8>> + 'static,
    {
        let (state, service) = (self.0.clone(), Rc::new(service));
        let answers = Rc::new(Answers::default());
        builder.on(name, move |mut m: Message| {
            let (state, service, answers) = (state.clone(), service.clone(), answers.clone());
            async move {
                let (id, left) = (m.read::<u64>().await?, m.read::<u64>().await?);
                let bytes = m.read_to_end().await?;
                let (from, endpoint) = (m.from(), m.endpoint());
                let caller = Caller { from, left, endpoint: endpoint.clone() };
                let making = catch_unwind(AssertUnwindSafe(|| service(caller, bytes)));
                let ended = match making {
                    Ok(run) => until_called_off(&state, &endpoint, (from, id), run).await,
                    Err(panic) => Some(Err(panic)),
                };
                // Nobody waits for the answer of a call that was called off.
                let Some(ended) = ended else { return Ok(()) };
                let (mut answer, panicked) = match ended {
                    Ok(answer) => (answer, None),
                    Err(panic) => {
                        let text = panic_text(&*panic);
                        let mut answer = head(PANICKED, text.len());
                        answer.extend_from_slice(text.as_bytes());
                        (answer, Some(text))
                    }
                };
                answer[..8].copy_from_slice(&id.to_le_bytes());
                send_answer(&endpoint, from, &answers, &answer).await?;
                match panicked {
                    Some(text) => Err(Error::other(format!("the service panicked: {text}"))),
                    None => Ok(()),
                }
            }
        })
    }
}

/// Bytes that most answers take no more than.
const LIKELY: usize = 112;

/// The head of an answer, with room for so many bytes behind it; the call's number is filled in later.
fn head(how: u64, room: usize) -> Vec<u8> {
    let mut answer = Vec::with_capacity(ANSWER_HEAD + room);
    answer.extend_from_slice(&[0; 8]);
    answer.extend_from_slice(&how.to_le_bytes());
    answer
}

type Ended = std::result::Result<Vec<u8>, Box<dyn std::any::Any + Send>>;

/// Takes a service off the list, however it ends.
struct Listed<'a> {
    state: &'a State,
    core: &'a Core,
    which: (Rank, u64),
    peers: PeerWait,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.state.serving.borrow_mut().remove(&self.which);
        self.peers.leave(self.core);
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
            Listed { state, core: &ep.core, which, peers: PeerWait::default() }
        });
        if let Some(service) = state.serving.borrow_mut().get_mut(&which) {
            service.waker = Some(context.waker().clone());
        }
        listed.peers.register(&ep.core, context);
        Poll::Pending
    })
    .await
}

/// Where answers go, looked up at the first of them. Of one service, and so of one endpoint.
#[derive(Default)]
struct Answers {
    short: Cell<Option<Handler>>,
}

impl Answers {
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
    if !ep.node().is_near(to) {
        ep.core.gather();
    }
}

/// Sends an answer, when there is room.
async fn send_answer(ep: &Endpoint, to: Rank, answers: &Answers, answer: &[u8]) -> Result<()> {
    gather(ep, to);
    if ep.core.node.try_send(to, answers.short(ep)?.0, answer) == Ok(true) {
        return Ok(());
    }
    if answer.len() <= ep.node().short_limit(to) {
        ep.send_async(to, answers.short(ep)?, answer).await
    } else {
        ep.send_async(to, LONG_ANSWER, answer).await
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

/// Sends an answer when there is room, of whatever length, behind those that wait already.
#[cold]
fn answer_later(ep: &Endpoint, to: Rank, answer: Vec<u8>) {
    let name = if answer.len() <= ep.node().short_limit(to) { ANSWER } else { LONG_ANSWER };
    let Ok(handler) = ep.handler(name) else { return };
    let mut parcel = Parcel::new(to, handler, answer);
    // Whoever is gone needs no answer.
    later::add(&ep.core, to, move |core| later::is_over(&parcel.go_on(core)));
}
