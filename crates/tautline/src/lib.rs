//! User-level cluster messaging for ordinary Linux machines and ordinary Ethernet.
//!
//! A *job* consists of processes with ranks 0, 1, 2, …; each joins it with an [`Endpoint`]. Peers on one host
//! use shared memory. Between hosts an endpoint uses UDP, or AF_XDP where the process may drive the network
//! card itself. The program is the same in all cases: every channel is reliable, ordered and flow controlled.
//!
//! # The map
//! * [`Endpoint`] is a process's access to its job. [`Endpoint::builder`] registers handlers and joins.
//!   [`AsyncEndpoint`] is the same for handlers and for tasks of an executor: calls that wait are `async`.
//! * [`messages`]: begin a message to a handler of a peer, add pieces, end it. Handlers are `async`, start
//!   with the first frame, and read pieces of any size.
//! * [`memory`]: apertures, which peers access with cookies, and tripwires, which report the accesses that
//!   their owner is interested in.
//! * [`Endpoint::barrier`], [`Endpoint::share`], [`Endpoint::exchange`]: calls that several ranks make
//!   together.
//! * [`tags`]: messages that receives take by source and tag, from any thread.
//! * [`group`]: groups of ranks with collectives: broadcasts, reductions and their like.
//! * [`Handle`] sends, calls and puts from other threads.
//! * [`queue`], [`rpc`], [`stream`]: styles of communication, each a thin layer over messages or memory.
//!   [`style`] has the hooks to build others.
//! * [`Config`] has every option, [`Event`] everything that can happen to an endpoint, [`Error`] everything
//!   that can go wrong.
//!
//! Below this crate are `tautline-node` (channels, peers, memory, waiting), `tautline-link` (reliability over
//! datagrams), `tautline-device` (shared memory, UDP, AF_XDP), `tautline-mem` (lock-free structures) and
//! `tautline-wire` (layouts). What each promises, and the test that checks the promise, is in
//! `docs/GUARANTEES.md`.
//!
//! # A first program
//! ```no_run
//! use tautline::{Endpoint, Message};
//!
//! fn main() -> tautline::Result<()> {
//!     let ep = Endpoint::builder()
//!         .on("greet", |mut msg: Message| async move {
//!             let text = msg.read_to_end().await?;
//!             println!("rank {} says {}", msg.from(), String::from_utf8_lossy(&text));
//!             Ok(())
//!         })
//!         .join()?;
//!     if ep.rank() == 0 {
//!         for peer in 1..ep.size() {
//!             ep.send(peer, "greet", b"hello")?;
//!         }
//!     } else {
//!         ep.serve(1)?;
//!     }
//!     ep.close()
//! }
//! ```
//! Start it with `tautline run -n 2 ./program`.
//!
//! # Contracts
//! * Threads: [`Endpoint`], [`AsyncEndpoint`], [`Message`] and [`Outgoing`] are neither `Send` nor `Sync`. An
//!   endpoint belongs to the thread that made it, so handlers may hold `Rc` and `Cell`. [`Handle`] is both,
//!   and sends, calls and puts from other threads; its futures ([`AsyncHandle`]) are `Send`. [`Waker`] wakes
//!   the endpoint from other threads. Recipes are in `docs/THREADS.md`.
//! * Handlers run inside [`Endpoint::extract`] and calls that extract, never elsewhere. They use the
//!   [`AsyncEndpoint`] of their message: an `async` handler awaits its calls, which suspend the handler and
//!   let others continue, and any other handler uses those that never wait, such as `try_send`. Calls of an
//!   [`Endpoint`] that extract, and blocking calls that would have to wait, are [`Error::Reentrant`] in a
//!   handler: they would stop extraction, and with it what they wait for.
//! * Executors: tasks use an [`AsyncEndpoint`], too ([`Endpoint::to_async`]). One task of the endpoint's
//!   thread drives it: it extracts, arms and sleeps ([`Endpoint::arm`]). The feature `tokio` has such a
//!   driver, `tautline::tokio::drive`. Whatever the other tasks call meanwhile, no wake-up is lost.
//! * Deadlines: the deadline of a call ([`rpc::Rpc::call_timeout`], [`AsyncEndpoint::call_timeout`]) bounds
//!   everything that the call waits for: the connection, room to send, and the answer.
//! * Failures: a handler that panics or returns an error affects only its own message. The failure is read by
//!   [`Endpoint::poll_failure`], or given to [`Builder::on_failure`]. Unread, it is logged, and a
//!   [`Endpoint::run_until`] that would sleep returns it.
//! * Cancellation: dropping an [`Outgoing`] before its end aborts the message, and the receiver's handler
//!   gets [`Error::Aborted`]. A [`Sending`] that is dropped goes on. Dropping the future of [`Message::read`]
//!   or [`Message::read_with`] loses nothing; longer reads may have taken a part, as [`Message::remaining`]
//!   shows. Other futures say on their own page what dropping them does.
//! * Closing: dropping handles does not close an endpoint. Once it is closed, all calls through its handles
//!   return [`SendError::Closed`], also those that wait.
//! * Loss of a peer: every call that needs the lost peer returns [`Error::PeerGone`]; other calls are
//!   unaffected.
//! * Fork and exec: a forked child has no node, and every call in it returns an error that says so. Nothing
//!   is inherited over `exec`.
#![forbid(unsafe_code)]

mod async_endpoint;
mod blocking;
mod builder;
mod closing;
mod collective;
mod core;
mod endpoint;
mod error;
#[cfg(feature = "futures")]
mod events;
pub mod group;
mod handle;
mod handler_name;
mod hash;
mod members;
pub mod memory;
pub mod messages;
mod offers;
pub mod queue;
pub mod rpc;
mod spawn;
pub mod stream;
pub mod style;
pub mod tags;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transfer;
mod waiters;
mod waiting;

pub use async_endpoint::AsyncEndpoint;
pub use builder::Builder;
pub use endpoint::{Batch, Endpoint, Lanes, Waker};
pub use error::{Error, Result};
#[cfg(feature = "futures")]
pub use events::Events;
pub use handle::{AsyncHandle, Handle};
pub use handler_name::{Handler, Name};
pub use memory::{Aperture, ApertureMemory, AsyncRemote, Cookie, Remote, Tripset, Tripwire};
pub use messages::{
    AsyncLoan, AsyncOutgoing, Borrowed, HandlerFailure, Loan, Message, Outgoing, Sending, Short,
};
pub use tautline_launch::{job_file, launcher};
pub use tautline_node::wire::{RefuseReason, Security};
pub use tautline_node::{
    Address, Choice, Clock, Config, Counters, DeviceName, Down, Environment, Event, HostId, Job, JoinError,
    Launcher, Member, PassedOver, PeerId, PeerState, Rank, SendError, Shortage, Undelivered, Waiting,
};

/// The layers below, for tools and tests.
pub mod node {
    pub use tautline_node::{
        Endpoint, WaitFor, device, join_addresses, limits, link, unlink_stale_listeners, xdp_chunks,
    };
}
