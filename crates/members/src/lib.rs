//! How the members of a job tell each other who is alive, where no launcher does it (B-1 … B-12).
//!
//! What lives here: facts about members and their order, and [`Membership`], the state machine that decides
//! whom a member watches, what it tells to whom, and what its program is told. What does not: channels,
//! clocks and threads. The caller opens channels and carries messages, as [`Action`] says.
//!
//! The rule numbers in comments (`B-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

mod action;
mod fact;
mod membership;
mod message;
mod ring;

pub use action::{Action, End, Notice, Start};
pub use fact::{Fact, Status};
pub use membership::Membership;
pub use message::Message;

/// The number of a member.
pub type Rank = u32;
/// A point in time, in nanoseconds from an origin of the caller's choice.
pub type Nanos = u64;

/// Facts about members with a higher number are ignored.
pub const MAX_MEMBERS: u32 = 1 << 16;
