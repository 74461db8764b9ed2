//! One process on the fabric.
//!
//! Two halves. The [`Interface`] owns the device and the links: it is the network card of the papers, in software. An
//! [`Endpoint`] is what a program's thread holds: it adds records to slots, takes delivered frames, reads events and
//! waits. Between them stands one owner word (a lock), because the watchdog takes the interface over when the program
//! computes. What does not live here: the meaning of messages, which is the `tautline` crate's.
//!
//! The rule numbers in comments (`N-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

mod choose;
mod clock;
mod config;
mod counters;
mod delivery;
mod descriptors;
mod endpoint;
mod error;
mod event;
mod handshake;
mod interface;
mod job;
pub mod limits;
pub mod memory;
mod near;
mod outgoing;
mod peer;
mod presence;
mod rx;
mod shared;
mod tx;
mod wait;
mod watchdog;
mod xdp_options;

pub use choose::{Choice, PassedOver, open_device, xdp_chunks};
pub use clock::Clock;
pub use config::{Config, DeviceName, Waiting};
pub use counters::{Counters, LocalCounters};
pub use delivery::{Delivery, Item};
pub use endpoint::{Endpoint, WaitFor, Waker};
pub use error::{JoinError, SendError};
pub use event::{Down, Event};
pub use job::{Job, Member};
pub use near::{BorrowedLoan, FastPoll, FrameBatch, Loan, Offer, unlink_stale_listeners};
pub use peer::{Key, Liveness, MessageId, PeerId, PeerState};
pub use xdp_options::XdpOptions;

/// Re-exported so that layers above need not depend on the crates below.
pub mod wire {
    pub use tautline_wire::handshake::Security;
    pub use tautline_wire::record::{LONG_LEN, Record, Records, SHORT_LEN, Where, as_short};
}
pub use tautline_device as device;
pub use tautline_link as link;
pub use tautline_mem::{ApertureMemory, OutOfRange};

/// A process of the job, counted from zero.
pub type Rank = u32;
