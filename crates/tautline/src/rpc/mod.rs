//! Calls: a request to a service of a peer, and its answer.
//!
//! Typed calls carry any type that serde supports; raw calls carry bytes, and cost as much as two messages.
//! Many calls may be in progress at once. Services are `async`: they may call others, and wait, while further
//! calls are served. A call is sent once and never repeated: it runs at most once. If its peer goes down, it
//! ends with an error, and may or may not have run. An error or a panic of the service is an error of the
//! call.
//!
//! ```no_run
//! use tautline::rpc::Rpc;
//! use tautline::Endpoint;
//!
//! fn main() -> tautline::Result<()> {
//!     let rpc = Rpc::new();
//!     let ep = Endpoint::builder()
//!         .with(&rpc)
//!         .with(rpc.serve("add", |_, (a, b): (u64, u64)| async move { Ok::<u64, String>(a + b) }))
//!         .with(rpc.serve_raw("echo", |_, request, answer| answer.extend_from_slice(request)))
//!         .join()?;
//!     if ep.rank() == 1 {
//!         let sum: u64 = rpc.call::<_, u64>(&ep, 0, "add", &(2u64, 3u64))?.wait()?;
//!         assert_eq!(sum, 5);
//!         assert_eq!(rpc.call_raw(&ep, 0, "echo", b"hello")?.wait()?, b"hello");
//!     } else {
//!         ep.serve(2)?;
//!     }
//!     ep.close()
//! }
//! ```
//!
//! Handlers, services and tasks of an executor call with their [`crate::AsyncEndpoint`], which uses the
//! [`Rpc`] that is registered:
//!
//! ```no_run
//! # use tautline::rpc::Rpc;
//! # fn example(rpc: &Rpc) -> impl tautline::style::Style {
//! rpc.serve("add twice", |caller, (a, b): (u64, u64)| async move {
//!     let sum = caller.endpoint().call::<_, u64>(caller.rank(), "add", &(a, b)).await;
//!     Ok::<u64, String>(2 * sum.map_err(|error| error.to_string())?)
//! })
//! # }
//! ```
//!
//! A deadline ([`Rpc::call_timeout`], [`crate::AsyncEndpoint::call_timeout`]) bounds everything that a call
//! waits for: the connection, room to send, and the answer.
//!
//! For many bytes use [`Rpc::serve_bytes`] and [`Rpc::call_raw`]: to serde, a `Vec<u8>` is a sequence of
//! numbers, which are written and read one by one. If bytes are part of a typed request, use the crate
//! `serde_bytes`.
//!
//! Both sides register the [`Rpc`] itself ([`crate::Builder::with`]); the serving side also registers its
//! services. Calls of an [`crate::Endpoint`] are made with the registered [`Rpc`] or a clone of it.

mod answer;
mod call;
mod calls;
mod deferred;
mod error;
mod handle_call;
mod protocol;
mod serve;
mod shared_calls;
mod timer;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

pub use answer::Answer;
pub use call::{Call, TypedCall};
pub use deferred::{Replier, TypedReplier};
pub use error::CallError;
pub use handle_call::{HandleCall, TypedHandleCall};
pub use serve::Caller;

use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::builder::{Builder, Style};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::messages::{Message, Short};
use crate::style::Hooks;
use calls::Calls;
use protocol::{ANSWER, ANSWER_HEAD, CANCEL, LONG_ANSWER, Status, word};
use shared_calls::SharedCalls;
use timer::Timer;

/// The calls and services of one endpoint. Clones share them.
///
/// As a [`Style`] it registers the handlers that receive answers and cancellations: once per endpoint.
/// Without it, calls are errors.
#[derive(Clone, Default)]
pub struct Rpc(Rc<State>);

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc")
            .field("calls", &(self.0.calls.borrow().len() + self.0.shared.len()))
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    calls: RefCell<Calls>,
    /// Calls through handles, of other threads.
    shared: Arc<SharedCalls>,
    /// Services in progress that were suspended.
    services: RefCell<HashMap<CallId, SuspendedService>>,
    timer: RefCell<Option<Timer>>,
}

/// A call, as its service identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CallId {
    from: Rank,
    /// The caller's number for it.
    number: u64,
}

#[derive(Default)]
struct SuspendedService {
    cancelled: bool,
    waker: Option<Waker>,
}

impl Rpc {
    /// Returns an `Rpc` without calls and services.
    pub fn new() -> Rpc {
        Rpc::default()
    }

    /// An error if answers to calls of this `Rpc` would not arrive at an endpoint.
    #[inline]
    fn check_registered(&self, ep: &Endpoint) -> Result<()> {
        match ep.attachment::<Rpc>() {
            Some(rpc) if Rc::ptr_eq(&rpc.0, &self.0) => Ok(()),
            other => Err(not_registered(other.is_some())),
        }
    }
}

#[cold]
fn not_registered(another: bool) -> Error {
    Error::other(if another {
        "answers would not arrive: another Rpc is registered here; call with that one, or a clone of it"
    } else {
        "answers would not arrive: register the Rpc with Builder::with before joining"
    })
}

impl Style for &Rpc {
    fn register(self, builder: Builder) -> Builder {
        let (short, long, cancel) = (self.0.clone(), self.0.clone(), self.0.clone());
        builder
            .attach(self.clone())
            .attach_shared(self.0.shared.clone())
            .on_short(ANSWER, move |m: Short<'_>| short.answered(m.from(), m.data(), || m.endpoint()))
            .on(LONG_ANSWER, move |m: Message| long.clone().long_answer(m))
            .on_short(CANCEL, move |m: Short<'_>| {
                if let Some(number) = word(m.data(), 0) {
                    cancel.cancel(CallId { from: m.from(), number });
                }
            })
    }
}

impl State {
    /// Receives an answer of more than one frame. One that nobody waits for is dropped as it arrives (M-20).
    async fn long_answer(self: Rc<State>, mut m: Message) -> Result<()> {
        if m.len() < ANSWER_HEAD as u64 {
            return Ok(());
        }
        let mut head = [0; ANSWER_HEAD];
        m.read_into(&mut head[..8]).await?;
        let number = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        if !self.is_awaited(m.from(), number) {
            return Ok(());
        }
        m.read_into(&mut head[8..]).await?;
        let status = Status::from_wire(word(&head, 8).unwrap_or_default());
        let waker = match m.read_whole().await {
            Ok(answer) => {
                let unclaimed = self.calls.borrow_mut().answered_whole(m.from(), number, status, answer);
                unclaimed.and_then(|answer| self.shared.answered_whole(m.from(), number, status, answer))
            }
            Err(error) if serve::is_limit(&error) => {
                if let Some(error) = self.calls.borrow_mut().refused(number, error) {
                    self.shared.fail(number, error);
                }
                None
            }
            Err(error) => return Err(error),
        };
        if let Some(waker) = waker {
            m.endpoint().core().extraction.wake_at_end(waker);
        }
        Ok(())
    }

    /// Whether somebody waits for an answer of a peer.
    fn is_awaited(&self, from: Rank, number: u64) -> bool {
        self.calls.borrow_mut().is_awaited(from, number) || self.shared.is_awaited(from, number)
    }

    // Part of the answer handler, which is hot.
    #[inline(always)]
    fn answered(&self, from: Rank, data: &[u8], endpoint: impl FnOnce() -> AsyncEndpoint) {
        if let (Some(number), Some(status)) = (word(data, 0), word(data, 8)) {
            let status = Status::from_wire(status);
            let answer = &data[ANSWER_HEAD..];
            if !self.calls.borrow_mut().answered(from, number, status, answer)
                && let Some(waker) = self.shared.answered(from, number, status, answer)
            {
                endpoint().core().extraction.wake_at_end(waker);
            }
        }
    }

    /// A caller no longer waits for a service.
    fn cancel(&self, id: CallId) {
        if let Some(service) = self.services.borrow_mut().get_mut(&id) {
            service.cancelled = true;
            if let Some(waker) = service.waker.take() {
                waker.wake();
            }
        }
    }
}
