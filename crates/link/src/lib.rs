//! Makes a reliable, ordered channel out of datagrams. No I/O, no clock, no randomness.
//!
//! A [`Peering`] is the relation to one other rank: it opens channels by handshake, detects that the peer was
//! restarted, and holds the live [`Link`]. The caller moves the bytes and supplies the time:
//!
//! 1. received frames go into [`Peering::handle_handshake`] or [`Peering::handle_frame`];
//! 2. payload goes in as opaque slot tokens, with [`Link::push`];
//! 3. then, until they return `None`: [`Link::poll_transmit`] + [`Link::finish`] for frames to send,
//!    [`Link::poll_freed`] for tokens no longer needed, [`Link::poll_event`] for events;
//! 4. at [`Link::next_deadline`] at the latest, [`Link::handle_timeout`].
//!
//! A link has a sending half (`sender`, with `queue`, `packets`, `rtt`, `congestion`, `path`, `retransmit`
//! and the policies of `recovery`), a receiving half (`receiver`, with `replay` and `ack_timer`), `liveness`
//! and `seal`; `shared` is what the links of a lane have in common. The rule numbers in comments (`L-1`,
//! `H-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

mod ack_timer;
mod config;
mod congestion;
mod erase;
mod handshake;
mod keys;
mod limiter;
mod link;
mod liveness;
mod packets;
mod path;
mod protection;
mod queue;
mod reassembly;
mod receiver;
mod recovery;
mod replay;
mod report;
mod retransmit;
mod rtt;
mod seal;
mod sender;
mod shared;
mod tag;

pub use config::{Config, RecoveryPolicy};
pub use erase::erase;
pub use handshake::{ChannelIds, HandshakeFrame, HandshakeOutcome, Peering, PeeringParams};
pub use keys::{JobKey, RandomSequence};
pub use limiter::HandshakeLimiter;
/// Frames whose tags are computed together ([`Link::tags`]).
pub const TRAIN_TAGS: usize = tautline_aegis::LANES;
pub use link::{FrameError, FrameOfTrain, Link, PeerTerms, SlotRef, TrainTags, Transmit};
pub use protection::Protection;
pub use reassembly::Reassembly;
pub use receiver::Arrival;
pub use report::{Counters, Death, Event};
pub use shared::Shared;

/// Nanoseconds on the caller's monotonic clock.
pub type Nanos = u64;
/// The caller's name for the payload of a slot.
pub type Token = u32;

pub(crate) const MICRO: Nanos = 1_000;
pub(crate) const MILLI: Nanos = 1_000_000;
