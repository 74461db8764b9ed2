//! Makes a reliable, ordered channel out of datagrams. No I/O, no clock, no randomness.
//!
//! A [`Peering`] is the relation to one other rank: it opens channels by handshake, notices that the peer was
//! restarted, and holds the live [`Link`]. The caller moves bytes and tells the time:
//!
//! 1. frames that arrived go into [`Peering::handle_handshake`] or [`Link::handle_frame`];
//! 2. payload to be sent goes in as opaque slot tokens with [`Link::push`];
//! 3. then, until they return `None`: [`Link::poll_transmit`] + [`Link::finish`] for frames to be sent,
//!    [`Link::poll_freed`] for tokens no longer needed, [`Link::poll_event`] for what happened;
//! 4. at [`Link::next_deadline`] at the latest, [`Link::handle_timeout`].
//!
//! One file per verb: `send`, `recv`, `ack`, `timer`, `shake`; the policies are `recovery` and `congestion`. The rule
//! numbers in comments (`L-1`, `H-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

mod ack;
mod config;
mod congestion;
mod cookie;
mod keys;
mod link;
mod path;
mod queue;
mod reassembly;
mod recovery;
mod recv;
mod rtt;
mod seal;
mod send;
mod shake;
mod tag;
mod timer;

pub use config::{Config, Policy};
pub use cookie::Doorkeeper;
pub use keys::{JobKey, Role};
pub use link::{Counters, Death, Event, Link};
pub use reassembly::Reassembly;
pub use recv::{Arrival, Refused};
pub use seal::SEAL_LEN;
pub use send::{SlotRef, Transmit};
pub use shake::{Fresh, Outcome, Peering, ShakeFrame, Who};

/// Nanoseconds on the caller's monotonic clock.
pub type Nanos = u64;
/// The caller's name for a piece of payload.
pub type Token = u32;

pub(crate) const MICRO: Nanos = 1_000;
pub(crate) const MILLI: Nanos = 1_000_000;
