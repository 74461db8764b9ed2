//! Calls: a request to a peer's service, and its answer.
//!
//! Typed calls carry any type that serde knows; raw ones carry bytes, and cost what two messages cost. Many may be under way at once; services are `async`,
//! so they may call others, and wait, while further calls are served. A call is sent once and never repeated: it runs at most once. If its peer
//! goes, it ends with an error, and may or may not have run. An error or a panic of the service is an error of the call.
//!
//! ```no_run
//! use tautline::rpc::Rpc;
//! use tautline::Endpoint;
//!
//! fn main() -> tautline::Result<()> {
//!     let rpc = Rpc::new();
//!     let builder = rpc.install(Endpoint::builder());
//!     let builder = rpc.serve(builder, "add", |_, (a, b): (u64, u64)| async move { Ok::<u64, String>(a + b) });
//!     let builder = rpc.serve_raw(builder, "echo", |_, request, answer| answer.extend_from_slice(request));
//!     let ep = builder.join()?;
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
//! Of many bytes, [`Rpc::serve_bytes`] with [`Rpc::call_raw`] is the way: to serde a `Vec<u8>` is a sequence of numbers, which are written and read one by one. Where bytes are part of a
//! typed request, the crate `serde_bytes` makes one piece of them.
//!
//! Whoever calls needs [`Rpc::install`] only; whoever serves, too. Calls are made with the [`Rpc`] that was installed, or a clone of it.

mod answer;
mod call;
mod serve;
mod timer;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::task::Waker;

pub use answer::Answer;
pub use call::{Call, CallError, TypedCall};
pub use serve::Caller;

use crate::core::Core;
use crate::{Builder, Error, Rank, Result, SendError, Short};
use timer::Timer;

/// Where answers come to: those of one frame, and all others.
const ANSWER: &str = "tautline.rpc.answer";
const LONG_ANSWER: &str = "tautline.rpc.answer.long";
/// Where calls that nobody waits for any more are named.
const CANCEL: &str = "tautline.rpc.cancel";

/// Bytes in front of a request: the call's number, and nanoseconds until nobody waits for it any more.
const REQUEST_HEAD: usize = 16;
/// Bytes in front of an answer: the call's number, and how it ended.
const ANSWER_HEAD: usize = 16;

/// How a call ended.
const GOOD: u64 = 0;
const FAILED: u64 = 1;
const PANICKED: u64 = 2;
const UNREADABLE: u64 = 3;
const BUSY: u64 = 4;
/// Never said by a peer: the call did not get there.
const UNSENT: u64 = u64::MAX;

/// One's calls and services. Clones share them.
#[derive(Clone, Default)]
pub struct Rpc(Rc<State>);

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc").field("calls", &self.0.calls.borrow().live).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    calls: RefCell<Calls>,
    /// Services under way, by who called and under which number: what to wake when they are called off.
    serving: RefCell<HashMap<(Rank, u64), Serving>>,
    timer: RefCell<Option<Timer>>,
}

/// A service under way.
#[derive(Default)]
struct Serving {
    called_off: bool,
    waker: Option<Waker>,
}

/// Calls under way.
#[derive(Default)]
struct Calls {
    entries: Vec<Entry>,
    free: Vec<u32>,
    live: usize,
    /// Counts calls, from a secret number on: an answer to a former life of this node is not taken for one to this.
    count: Option<u64>,
}

#[derive(Default)]
struct Entry {
    id: u64,
    peer: Rank,
    live: bool,
    /// How it ended, once it has; the answer lies in `bytes`.
    ended: Option<u64>,
    /// It could not be sent.
    error: Option<Error>,
    bytes: Vec<u8>,
    waker: Option<Waker>,
}

/// Bits of a call's number that say where it is listed; the others are counted.
const INDEX_BITS: u32 = 24;

impl Calls {
    fn begin(&mut self, core: &Core, peer: Rank) -> Result<u64> {
        let count = match self.count {
            Some(count) => count.wrapping_add(1),
            None => word(&core.node.fresh_secret()?, 0).unwrap_or_default(),
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() >> INDEX_BITS > 0 => return Err(SendError::WouldBlock.into()),
            None => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
        };
        self.count = Some(count);
        let entry = &mut self.entries[index as usize];
        entry.id = count << INDEX_BITS | u64::from(index);
        (entry.peer, entry.live, entry.ended, entry.error) = (peer, true, None, None);
        entry.bytes.clear();
        self.live += 1;
        Ok(entry.id)
    }

    fn get(&mut self, id: u64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut((id & ((1 << INDEX_BITS) - 1)) as usize)?;
        (entry.live && entry.id == id).then_some(entry)
    }

    fn end(&mut self, id: u64) {
        if let Some(entry) = self.get(id) {
            entry.live = false;
            let_go(&mut entry.bytes);
            entry.waker = None;
            self.live -= 1;
            self.free.push((id & ((1 << INDEX_BITS) - 1)) as u32);
        }
    }

    /// The memory of an answer that has been looked at goes to the next call that is listed in its place.
    #[inline]
    fn keep(&mut self, id: u64, mut bytes: Vec<u8>) {
        bytes.clear();
        let_go(&mut bytes);
        let entry = &mut self.entries[(id & ((1 << INDEX_BITS) - 1)) as usize];
        if entry.bytes.capacity() == 0 {
            entry.bytes = bytes;
        }
    }

    /// A call could not be sent.
    fn failed(&mut self, id: u64, error: Error) {
        if let Some(entry) = self.get(id).filter(|entry| entry.ended.is_none()) {
            (entry.ended, entry.error) = (Some(UNSENT), Some(error));
            if let Some(waker) = entry.waker.take() {
                waker.wake();
            }
        }
    }

    /// An answer has come. One that nobody waits for, or that comes from somebody else, is dropped.
    fn answered(&mut self, from: Rank, id: u64, ended: u64, bytes: &[u8]) {
        if let Some(entry) = self.get(id).filter(|entry| entry.peer == from && entry.ended.is_none()) {
            entry.ended = Some(if ended <= BUSY { ended } else { UNREADABLE });
            entry.bytes.extend_from_slice(bytes);
            if let Some(waker) = entry.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cold]
fn not_installed(another: bool) -> Error {
    Error::other(if another {
        "answers would not come here: another Rpc is installed in this endpoint; call with that one, or a clone of it"
    } else {
        "answers would not come here: hand the builder to Rpc::install before it joins"
    })
}

/// Bytes of an answer that its buffer keeps room for.
const KEPT: usize = 64 << 10;

/// What is in a buffer is not needed any more, nor all of its memory if that is much.
#[inline]
fn let_go(bytes: &mut Vec<u8>) {
    if bytes.capacity() > KEPT {
        bytes.truncate(KEPT);
        bytes.shrink_to(KEPT);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Rpc {
    /// Whether answers to this one's calls come to an endpoint.
    #[inline]
    fn check_installed(&self, core: &Core) -> Result<()> {
        match &core.rpc {
            Some(rpc) if Rc::ptr_eq(&rpc.0, &self.0) => Ok(()),
            other => Err(not_installed(other.is_some())),
        }
    }

    /// No calls and no services.
    pub fn new() -> Rpc {
        Rpc::default()
    }

    /// Registers what calls need: the handlers that answers come to. Once per endpoint; without it, calls are errors.
    pub fn install(&self, mut builder: Builder) -> Builder {
        builder.rpc = Some(self.clone());
        let (short, long, cancel) = (self.0.clone(), self.0.clone(), self.0.clone());
        builder
            .on_short(ANSWER, move |m: Short<'_>| {
                let data = m.data();
                if let (Some(id), Some(ended)) = (word(data, 0), word(data, 8)) {
                    short.calls.borrow_mut().answered(m.from(), id, ended, &data[ANSWER_HEAD..]);
                }
            })
            .on(LONG_ANSWER, move |mut m| {
                let long = long.clone();
                async move {
                    let data = m.read_to_end().await?;
                    if let (Some(id), Some(ended)) = (word(&data, 0), word(&data, 8)) {
                        long.calls.borrow_mut().answered(m.from(), id, ended, &data[ANSWER_HEAD..]);
                    }
                    Ok(())
                }
            })
            .on_short(CANCEL, move |m: Short<'_>| {
                let called_off = word(m.data(), 0).map(|id| (m.from(), id));
                let mut serving = cancel.serving.borrow_mut();
                if let Some(service) = called_off.and_then(|which| serving.get_mut(&which)) {
                    service.called_off = true;
                    if let Some(waker) = service.waker.take() {
                        waker.wake();
                    }
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long answer keeps its memory for as long as it is looked at; a short one keeps it for the next.
    #[test]
    fn long_answers_are_let_go() {
        let mut calls = Calls { entries: vec![Entry { live: true, ..Entry::default() }], ..Calls::default() };
        calls.live = 1;
        calls.answered(0, 0, GOOD, &vec![1; KEPT / 2]);
        assert!(calls.entries[0].bytes.capacity() <= KEPT);
        calls.end(0);
        assert!(calls.entries[0].bytes.capacity() >= KEPT / 2);
        let entry = &mut calls.entries[0];
        (entry.live, entry.ended, calls.live) = (true, None, 1);
        calls.answered(0, 0, GOOD, &vec![1; 1 << 20]);
        assert!(calls.entries[0].bytes.len() >= 1 << 20);
        calls.end(0);
        assert!(calls.entries[0].bytes.capacity() <= KEPT);
    }
}
