//! Puts, from the requester's bytes to their place in the owner's aperture.
//!
//! The requester's half (`send`) numbers a put and writes it as one record, or in parts as there is room. The
//! owner's half (`serve`) checks each record, writes its bytes to their place, and fires tripwires.

mod send;
mod serve;

pub use send::Progress;
pub(crate) use send::{Part, PutStatus, write_part};
pub(crate) use serve::{PlacedPart, WordCache};
