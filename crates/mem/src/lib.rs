//! Memory that frames live in, and the words through which threads find each other.
//!
//! What lives here: the slot [`Arena`], the owner word [`Owned`], the [`ForkGuard`], and the
//! [`sync`] façade that becomes loom's types under `--cfg loom`. What does not: any protocol.

pub mod arena;
mod fork;
mod owned;
pub mod sync;

pub use arena::{Arena, SlotId};
pub use fork::ForkGuard;
pub use owned::{Owned, Owner};
