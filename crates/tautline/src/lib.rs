//! User-level cluster messaging for ordinary Linux machines and ordinary Ethernet.
//!
//! # The map
//! * [`Endpoint`]: what a program holds. [`Endpoint::builder`] registers handlers and joins the job.
//! * [`messages`]: begin a message to a peer's handler, add pieces, end it; handlers are `async`, start with the first
//!   frame, and take pieces of any size.
//! * [`memory`]: apertures that peers reach into with cookies, and tripwires that tell the owner of exactly the accesses it cares about.
//! * [`queue`], [`rpc`], [`stream`]: styles, each a thin layer over the two.
//! * [`Config`]: every knob. [`Event`]: everything that can happen. [`Error`]: everything that can go wrong.
//!
//! Below this crate: `tautline-node` (interface, peers, waiting), `tautline-link` (reliability), `tautline-device` (shared memory, UDP)
//! and `tautline-wire` (layouts). What each promises, and the test that holds the promise, is in `docs/GUARANTEES.md`.
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
//! * [`Endpoint`], [`Message`] and [`Outgoing`] are neither `Send` nor `Sync`: an endpoint belongs to the thread that made
//!   it, so handlers may hold `Rc` and `Cell`. [`Waker`] is both, and wakes the endpoint from elsewhere.
//! * Inside a handler: sending, yes; [`Endpoint::extract`] and everything that extracts, no ([`Error::Reentrant`]).
//! * Dropping an [`Outgoing`] before its end gives the message up; the receiver's handler gets [`Error::Aborted`]. Dropping
//!   the future of [`Message::read`] or [`Message::read_with`] loses nothing; the longer reads may have taken a part, which
//!   [`Message::remaining`] shows.
//! * After `fork` the child has no node: every call returns an error that says so. Nothing is inherited over `exec`.
#![forbid(unsafe_code)]

mod builder;
mod core;
mod endpoint;
mod error;
#[cfg(feature = "futures")]
mod events;
mod hash;
mod later;
pub mod memory;
pub mod messages;
pub mod queue;
pub mod rpc;
pub mod stream;
mod waits;

pub use builder::Builder;
pub use endpoint::{Batch, Endpoint, Handler, Name, Waker};
pub use error::{Error, Result};
#[cfg(feature = "futures")]
pub use events::Events;
pub use memory::{Aperture, ApertureMemory, Cookie, Remote, Tripset, Tripwire};
pub use messages::{Lent, Loan, Message, Outgoing, Short};
pub use tautline_node::wire::Security;
pub use tautline_node::{
    Choice, Clock, Config, Counters, DeviceName, Down, Event, Job, JoinError, Member, PassedOver, PeerState,
    Rank, SendError, Waiting,
};

/// The layers below, for tools and tests.
pub mod node {
    pub use tautline_node::{device, limits, link, unlink_stale_listeners, xdp_chunks};
}
