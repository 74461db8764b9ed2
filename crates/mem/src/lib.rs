//! Memory that frames live in, and the words through which threads find each other.
//!
//! What lives here: the slot [`Arena`], the owner word [`Owned`], the [`ForkGuard`]; memory that others may reach ([`ApertureMemory`]); shared memory ([`Segment`]), the [`ring`] in it, the [`pool`] that
//! pieces are lent from and the [`returns`] they come back by, and
//! the [`Barrier`] that only sleepers pay for; and the [`sync`] façade that becomes loom's types under `--cfg loom`. What does not: any protocol.

#[cfg(not(loom))]
mod aperture;
pub mod arena;
mod barrier;
mod fork;
mod owned;
#[cfg(not(loom))]
pub mod pool;
pub mod returns;
pub mod ring;
mod segment;
pub mod sync;

#[cfg(not(loom))]
pub use aperture::{ApertureMemory, OutOfRange, WORD};
pub use arena::{Arena, SlotId};
pub use barrier::Barrier;
pub use fork::ForkGuard;
pub use owned::{Owned, Owner};
pub use segment::Segment;
