//! One process on the fabric.
//!
//! An [`Endpoint`] is what a program's thread holds: it adds records to frames, takes delivered ones, reads
//! events and waits. Behind it a *lane* owns the device and the channels; a lock, the *owner word*, protects
//! the lane, because the watchdog polls it while the program computes. What does not live here: the meaning
//! of messages, which is the `tautline` crate's.
//!
//! Modules, from the bottom up: `memory` (apertures, requests, tripwires), `tags` (messages matched to
//! receives), `multicast` (messages that nodes forward along trees), `channel` (what connects with a peer),
//! `membership` (who the peers are), `local` (processes of this host), `lane` (what one thread drives),
//! `wait` (sleeping, waking, the watchdog), `endpoint` (the verbs of upper crates). No module uses a later
//! one.
//!
//! The rule numbers in comments (`N-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

mod address;
mod channel;
mod choice;
mod clock;
mod config;
mod counters;
mod down;
mod endpoint;
mod environment;
mod error;
mod event;
mod group_waits;
mod job;
mod lane;
mod launcher;
pub mod limits;
mod local;
mod member;
mod membership;
pub mod memory;
pub mod multicast;
mod open_device;
mod peer_id;
mod peer_table;
mod secrets;
mod shortage;
pub mod tags;
#[cfg(test)]
mod testing;
mod undelivered;
mod wait;

pub use address::Address;
pub use channel::ChannelNumbers;
pub use channel::loans::{BorrowedLoan, Loan, Offer};
pub use choice::{Choice, PassedOver};
pub use clock::Clock;
pub use config::{Config, DeviceName, Waiting, XdpOptions};
pub use counters::{Counters, LocalCounters};
pub use down::Down;
pub use endpoint::{Endpoint, Lanes, Members, Multicasts, Received, TagRequest, Tagged, WaitFor, Waker};
pub use environment::Environment;
pub use error::{JoinError, SendError};
pub use event::Event;
pub use group_waits::GroupWaitId;
pub use job::Job;
pub use lane::{Delivery, FastPoll, FrameBatch, Item};
pub use launcher::Launcher;
pub use local::{SimulatedHost, unlink_stale_listeners};
pub use member::{HostId, Member, join_addresses};
pub use membership::{Key, Liveness, PeerState};
pub(crate) use open_device::open_lane_device;
pub use open_device::{open_device, xdp_chunks};
pub use peer_id::{MessageId, PeerId};
pub use peer_table::PeerTable;
pub use shortage::Shortage;
pub use undelivered::Undelivered;

/// Re-exported so that layers above need not depend on the crates below.
pub mod wire {
    pub use tautline_wire::handshake::{RefuseReason, Security};
    pub use tautline_wire::record::{LONG_LEN, LoanLocation, Record, Records, SHORT_LEN, as_more, as_short};
}
pub use tautline_device as device;
pub use tautline_link as link;
pub use tautline_mem::{
    ApertureMemory, Asleep, Awaited, GroupFault, GroupMemory, MAX_GROUP_BYTES, MAX_GROUP_MEMBERS,
    MAX_GROUP_OPERATIONS, OutOfRange, open_memory_of,
};

/// A process of the job, counted from zero. As the number of a peer it stands for lane 0 of that process;
/// other lanes have other numbers. Whatever names a peer or a sender in this way, [`Address::from`] takes it
/// apart into rank and lane, and `Rank::from` of an [`Address`] makes the number.
pub type Rank = u32;
