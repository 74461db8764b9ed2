//! Memory: apertures that peers access, and tripwires that report accesses.
//!
//! An [`Aperture`] is memory that peers may access. A [`Cookie`] is a capability for part of it, and can be
//! sent in any message. A peer makes a [`Remote`] of it, through which it puts, gets and changes words, while
//! the owner does nothing. The owner arms a [`Tripwire`] on the bytes it is interested in; the peer need not
//! know.
//!
//! ```no_run
//! use tautline::Endpoint;
//! use tautline::memory::Rights;
//!
//! fn main() -> tautline::Result<()> {
//!     let ep = Endpoint::builder().join()?;
//!     let aperture = ep.aperture(4096)?;
//!     let mut wire = aperture.tripwire(0..8).arm()?;
//!     // Every rank hands a cookie of its own to all others.
//!     let cookies = ep.share(aperture.cookie(.., Rights::ALL)?)?;
//!     if ep.rank() == 0 {
//!         wire.wait()?;
//!         println!("rank 1 wrote {}", aperture.read_u64(0)?);
//!     } else if ep.rank() == 1 {
//!         let remote = ep.remote(&cookies[0].expect("rank 0 has shared one"));
//!         remote.put(0, &42u64.to_le_bytes())?;
//!         remote.flush()?.wait()?;
//!     }
//!     // The owner is there until nobody needs its memory any more.
//!     ep.barrier()?;
//!     ep.close()
//! }
//! ```
//!
//! The promises are in `docs/PROTOCOL.md` under A and T: the order in which operations take effect, and what
//! a reader can see of a word that is being written.

mod aperture;
mod async_remote;
mod completion;
mod endpoint;
mod fire_counter;
mod holder;
mod mapped;
mod multicast;
mod operations;
mod remote;
mod remote_handle;
pub(crate) mod ring;
mod tripset;
mod tripwire;

pub use aperture::Aperture;
pub use async_remote::{AsyncAfter, AsyncRemote};
pub use completion::{Completion, Fetch};
pub use mapped::{MapCookie, Mapped, Share};
pub use multicast::{MulticastMemory, MulticastPut};
pub use remote::{After, Remote};
pub use remote_handle::{AsyncRemoteHandle, RemoteHandle};
pub use tautline_node::ApertureMemory;
pub use tautline_node::memory::{
    Access, ApertureId, Condition, Cookie, Failure, MAX_OUT_OF_BAND, MemoryCounters, MemoryEvent, OutOfBand,
    Refusal, Report, Rights, SetId, Test, Ticket, WireId,
};
pub use tripset::Tripset;
pub use tripwire::{Tripwire, TripwireBuilder};
