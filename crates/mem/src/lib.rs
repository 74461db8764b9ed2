//! Memory for frames, and the words that threads and processes synchronise by.
//!
//! What lives here: the slot [`Arena`], the owner word [`Owned`], the [`EventQueue`] behind it, the
//! [`Turns`] of threads that wait, the [`ForkGuard`]; memory that peers may access ([`ApertureMemory`]), or
//! that a program has lent ([`Region`]); shared memory ([`Segment`]), the [`ring`] in it, the [`pool`] that
//! messages are lent from, the [`returns`] that give them back and the [`windows`] of messages, the
//! [`LanePages`] by which lanes find work and wake each other, the [`GroupMemory`] of collectives, and the
//! asymmetric [`Barrier`]; and the [`sync`] façade that becomes loom's types under `--cfg loom`. What does
//! not: any protocol.

#[cfg(not(loom))]
mod aperture;
pub mod arena;
mod barrier;
mod events;
#[cfg(not(loom))]
mod foreign;
mod fork;
mod group_memory;
mod lane_pages;
mod owned;
#[cfg(not(loom))]
pub mod pool;
mod region;
pub mod returns;
pub mod ring;
mod segment;
#[cfg(not(loom))]
mod space;
mod stamped;
pub mod sync;
mod turns;
pub mod windows;

#[cfg(not(loom))]
pub use aperture::{ApertureMemory, OutOfRange, WORD};
pub use arena::{Arena, SlotId};
pub use barrier::Barrier;
pub use events::{EventQueue, NextEvent};
#[cfg(not(loom))]
pub use foreign::open_memory_of;
pub use fork::ForkGuard;
pub use group_memory::{
    Asleep, Awaited, GroupFault, GroupMemory, MAX_GROUP_BYTES, MAX_GROUP_MEMBERS, MAX_GROUP_OPERATIONS,
};
pub use lane_pages::{LanePages, MAX_RINGS, PeerPages, RingNumber};
pub use owned::{Owned, Owner};
pub use region::Region;
pub use segment::Segment;
#[cfg(not(loom))]
pub use space::has_address_space;
pub use turns::Turns;
