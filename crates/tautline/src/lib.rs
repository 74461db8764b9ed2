//! User-level cluster messaging for ordinary Linux machines and ordinary Ethernet.
//!
//! A *job* consists of processes with ranks 0, 1, 2, …; each joins it with an [`Endpoint`]. Peers on one host
//! use shared memory. Between hosts an endpoint uses UDP, or AF_XDP where the process may drive the network
//! card itself. The program is the same in all cases: every channel is reliable, ordered and flow controlled.
//!
//! # The map
//! * [`Endpoint`] is a process's access to its job. [`Endpoint::builder`] registers handlers and joins.
//! * [`messages`]: begin a message to a handler of a peer, add pieces, end it. Handlers are `async`, start
//!   with the first frame, and read pieces of any size.
//! * [`memory`]: apertures, which peers access with cookies, and tripwires, which report the accesses that
//!   their owner is interested in.
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
//! * Threads: [`Endpoint`], [`Message`] and [`Outgoing`] are neither `Send` nor `Sync`. An endpoint belongs
//!   to the thread that made it, so handlers may hold `Rc` and `Cell`. [`Waker`] is both, and wakes the
//!   endpoint from other threads.
//! * Handlers run inside [`Endpoint::extract`] and calls that extract, never elsewhere. They must not extract
//!   or wait ([`Error::Reentrant`]). To send, an `async` handler uses the verbs that end in `_async`, which
//!   suspend it, and any other handler uses `try_send`: a blocking send in a handler stops extraction and can
//!   deadlock.
//! * Cancellation: dropping an [`Outgoing`] before its end aborts the message, and the receiver's handler
//!   gets [`Error::Aborted`]. Dropping the future of [`Message::read`] or [`Message::read_with`] loses
//!   nothing; longer reads may have taken a part, as [`Message::remaining`] shows. Other futures say on their
//!   own page what dropping them does.
//! * Loss of a peer: every call that needs the lost peer returns [`Error::PeerGone`]; other calls are
//!   unaffected.
//! * Fork and exec: a forked child has no node, and every call in it returns an error that says so. Nothing
//!   is inherited over `exec`.
#![forbid(unsafe_code)]

mod builder;
mod core;
mod endpoint;
mod error;
#[cfg(feature = "futures")]
mod events;
mod hash;
pub mod memory;
pub mod messages;
mod offers;
pub mod queue;
pub mod rpc;
pub mod stream;
pub mod style;
#[cfg(test)]
mod tests;
mod waiters;
mod waiting;

pub use builder::Builder;
pub use endpoint::{Batch, Endpoint, Handler, Name, Waker};
pub use error::{Error, Result};
#[cfg(feature = "futures")]
pub use events::Events;
pub use memory::{Aperture, ApertureMemory, Cookie, Remote, Tripset, Tripwire};
pub use messages::{Borrowed, Loan, Message, Outgoing, Short};
pub use tautline_node::wire::Security;
pub use tautline_node::{
    Choice, Clock, Config, Counters, DeviceName, Down, Environment, Event, Job, JoinError, Member,
    PassedOver, PeerId, PeerState, Rank, SendError, Waiting,
};

/// The layers below, for tools and tests.
pub mod node {
    pub use tautline_node::{Endpoint, WaitFor, device, limits, link, unlink_stale_listeners, xdp_chunks};
}
