//! Services that answer later, from any thread: a pool of threads, or tasks of a runtime.

use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::protocol::{ANSWER, ANSWER_HEAD, LONG_ANSWER, REQUEST_HEAD, Status, word};
use super::serve::is_limit;
use super::{CallId, Rpc};
use crate::async_endpoint::AsyncEndpoint;
use crate::builder::{Builder, Style};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::handler_name::Handler;
use crate::messages::{Message, Short};
use crate::style::PendingMessage;
use crate::{Rank, SendError, Undelivered};

/// Answers one call of a service registered with [`Rpc::serve_bytes_deferred`], from any thread. Dropped
/// without an answer, it tells the caller so ([`super::CallError::Panicked`]).
#[must_use = "a call whose replier is dropped fails"]
pub struct Replier {
    handle: Handle,
    id: CallId,
    limit_nanos: u64,
    answered: bool,
}

impl std::fmt::Debug for Replier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replier").field("caller", &self.id.from).finish_non_exhaustive()
    }
}

impl Replier {
    /// The rank of the caller.
    pub fn caller(&self) -> Rank {
        self.id.from
    }

    /// How long the caller will wait for the answer, counted from its call; nothing if without limit.
    pub fn time_limit(&self) -> Option<Duration> {
        (self.limit_nanos != u64::MAX).then(|| Duration::from_nanos(self.limit_nanos))
    }

    /// A handle of the endpoint that was called.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Answers the call. Never waits: without room, the answer leaves as soon as there is some. A caller that
    /// is gone needs no answer.
    pub fn answer(self, bytes: &[u8]) {
        self.finish(Status::Good, bytes);
    }

    /// Fails the call with an error ([`super::CallError::Failed`]).
    pub fn fail(self, error: &[u8]) {
        self.finish(Status::Failed, error);
    }

    fn finish(mut self, status: Status, bytes: &[u8]) {
        self.reply(status, bytes);
    }

    fn reply(&mut self, status: Status, bytes: &[u8]) {
        self.answered = true;
        let (node, to) = (&self.handle.0.node, self.id.from);
        let (Ok(short), Ok(long)) = (node.key(ANSWER), node.key(LONG_ANSWER)) else { return };
        let mut answer = Vec::with_capacity(ANSWER_HEAD + bytes.len());
        answer.extend_from_slice(&self.id.number.to_le_bytes());
        answer.extend_from_slice(&status.to_bytes());
        answer.extend_from_slice(bytes);
        // A message that exceeds one frame needs the other handler.
        match node.try_send(to, short, &answer) {
            Ok(true) => return self.handle.0.sent(to),
            Ok(false) | Err(SendError::WouldBlock | SendError::TooLongForHandler(_)) => {}
            Err(_) => return,
        }
        let shared = self.handle.0.clone();
        let first = if answer.len() <= node.short_limit(to) { short } else { long };
        let unsent = Undelivered::new(to, 1, answer.len() as u64);
        let mut message = PendingMessage::new(to, Handler(first), answer);
        self.handle.0.post(Some(unsent), move |node| {
            let mut sent = message.try_send_on(node);
            if let Err(SendError::TooLongForHandler(_)) = sent {
                // Frames have become shorter since the handler was chosen.
                message.redirect(Handler(long));
                sent = message.try_send_on(node);
            }
            if sent.is_ok() {
                shared.sent(to);
            }
            !matches!(sent, Err(SendError::WouldBlock))
        });
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if !self.answered && self.handle.0.node.check_fork().is_ok() {
            self.reply(Status::Panicked, b"the service dropped the call without an answer");
        }
    }
}

/// Answers one call of a typed service registered with [`Rpc::serve_deferred`]; as [`Replier`].
#[derive(Debug)]
#[must_use = "a call whose replier is dropped fails"]
pub struct TypedReplier<A, E> {
    replier: Replier,
    answer: PhantomData<fn(A, E)>,
}

impl<A: Serialize, E: Serialize> TypedReplier<A, E> {
    /// The rank of the caller.
    pub fn caller(&self) -> Rank {
        self.replier.caller()
    }

    /// How long the caller will wait for the answer, counted from its call; nothing if without limit.
    pub fn time_limit(&self) -> Option<Duration> {
        self.replier.time_limit()
    }

    /// A handle of the endpoint that was called.
    pub fn handle(&self) -> &Handle {
        self.replier.handle()
    }

    /// Answers the call, or fails it with the service's error. Never waits, as [`Replier::answer`].
    pub fn answer(self, result: &std::result::Result<A, E>) {
        let (status, bytes) = match result {
            Ok(answer) => (Status::Good, postcard::to_allocvec(answer)),
            Err(error) => (Status::Failed, postcard::to_allocvec(error)),
        };
        match bytes {
            Ok(bytes) => self.replier.finish(status, &bytes),
            Err(_) => self.replier.finish(Status::Unreadable, &[]),
        }
    }
}

impl Rpc {
    /// Describes a service of bytes, for [`Builder::with`], that answers later and from any thread: `service`
    /// runs on the endpoint's thread, and hands request and [`Replier`] over to a pool of threads or a
    /// runtime. Requests and answers have any size.
    ///
    /// ```no_run
    /// use std::sync::{Arc, Mutex, mpsc};
    /// use tautline::Endpoint;
    /// use tautline::rpc::{Replier, Rpc};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let (requests, queue) = mpsc::channel::<(Replier, Vec<u8>)>();
    ///     let queue = Arc::new(Mutex::new(queue));
    ///     for _ in 0..4 {
    ///         let queue = queue.clone();
    ///         std::thread::spawn(move || {
    ///             let next = || queue.lock().unwrap().recv();
    ///             while let Ok((replier, request)) = next() {
    ///                 replier.answer(&request);
    ///             }
    ///         });
    ///     }
    ///     let rpc = Rpc::new();
    ///     let service = rpc.serve_bytes_deferred("echo", move |replier, request| {
    ///         requests.send((replier, request)).unwrap();
    ///     });
    ///     let ep = Endpoint::builder().with(&rpc).with(service).join()?;
    ///     if ep.rank() == 0 {
    ///         ep.serve(u64::from(ep.size()) - 1)?;
    ///     } else {
    ///         assert_eq!(rpc.call_raw(&ep, 0, "echo", b"hello")?.wait()?, b"hello");
    ///     }
    ///     ep.barrier()?;
    ///     Ok(ep.close()?)
    /// }
    /// ```
    pub fn serve_bytes_deferred(
        &self,
        name: &str,
        service: impl Fn(Replier, Vec<u8>) + 'static,
    ) -> impl Style {
        let whole = Rc::new(service);
        let parts = whole.clone();
        move |builder: Builder| {
            builder.on_whole(
                name,
                move |message, overload| run(parts.clone(), Request::Arriving(message, overload)),
                move |m: Short<'_>, overload| {
                    let request = Request::Whole(m.endpoint(), m.from(), m.data().to_vec(), overload);
                    run(whole.clone(), request)
                },
            )
        }
    }

    /// As [`Rpc::serve_bytes_deferred`], for a typed service.
    pub fn serve_deferred<Q, A, E>(
        &self,
        name: &str,
        service: impl Fn(TypedReplier<A, E>, Q) + 'static,
    ) -> impl Style
    where
        Q: DeserializeOwned + 'static,
        A: Serialize + 'static,
        E: Serialize + 'static,
    {
        self.serve_bytes_deferred(name, move |replier, bytes| match postcard::from_bytes(&bytes) {
            Ok(request) => service(TypedReplier { replier, answer: PhantomData }, request),
            Err(_) => replier.finish(Status::Unreadable, &[]),
        })
    }
}

enum Request {
    /// It is still to be read. The flag: it is to be refused, because too many handlers are unfinished.
    Arriving(Message, bool),
    Whole(AsyncEndpoint, Rank, Vec<u8>, bool),
}

async fn run<S: Fn(Replier, Vec<u8>)>(service: Rc<S>, request: Request) -> Result<()> {
    let (endpoint, from, head, bytes, overload) = match request {
        Request::Arriving(mut m, overload) => {
            // The head first: a caller whose request is too long is told.
            let head: [u8; REQUEST_HEAD] = m.read().await?;
            let bytes = if overload { Ok(Vec::new()) } else { m.read_to_end().await };
            (m.endpoint(), m.from(), head, bytes, overload)
        }
        Request::Whole(endpoint, from, mut bytes, overload) => {
            let Some(head) = bytes.first_chunk().copied() else {
                return Err(Error::other("a request that is shorter than its head"));
            };
            bytes.drain(..REQUEST_HEAD);
            (endpoint, from, head, Ok(bytes), overload)
        }
    };
    let number = word(&head, 0).unwrap_or_default();
    let limit_nanos = word(&head, 8).unwrap_or_default();
    let id = CallId { from, number };
    let replier = Replier { handle: endpoint.plain().handle(), id, limit_nanos, answered: false };
    if overload {
        replier.finish(Status::Busy, &[]);
        return Err(Error::other("too many handlers are unfinished; the caller was told"));
    }
    match bytes {
        Ok(bytes) => service(replier, bytes),
        Err(error) => {
            let status = if is_limit(&error) { Status::TooLong } else { Status::Unreadable };
            replier.finish(status, &[]);
            return Err(error);
        }
    }
    Ok(())
}
