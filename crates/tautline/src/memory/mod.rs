//! Memory: apertures that peers access, and tripwires that report accesses.
//!
//! An [`Aperture`] is memory that peers may access. A [`Cookie`] is a capability for part of it, and can be
//! sent in any message. A peer makes a [`Remote`] of it, through which it puts, gets and changes words, while
//! the owner does nothing. The owner arms a [`Tripwire`] on the bytes it is interested in; the peer need not
//! know.
//!
//! ```no_run
//! use tautline::memory::{Cookie, Rights};
//! use tautline::{Endpoint, Short};
//! use std::{cell::Cell, rc::Rc};
//!
//! fn main() -> tautline::Result<()> {
//!     let given = Rc::new(Cell::new(None));
//!     let got = given.clone();
//!     let ep = Endpoint::builder()
//!         .on_short("cookie", move |m: Short<'_>| got.set(m.data().try_into().ok().map(Cookie::from_bytes)))
//!         .join()?;
//!     if ep.rank() == 0 {
//!         let aperture = ep.aperture(4096)?;
//!         let mut wire = aperture.tripwire(0..8).arm()?;
//!         let cookie = aperture.cookie(.., Rights::ALL)?;
//!         ep.send(1, "cookie", &cookie.to_bytes())?;
//!         wire.wait()?;
//!         println!("rank 1 wrote {}", aperture.read_u64(0)?);
//!     } else {
//!         ep.run_until(|| given.get().is_some())?;
//!         let remote = ep.remote(&given.get().expect("it came"));
//!         remote.put(0, &42u64.to_le_bytes())?;
//!         remote.flush()?.wait()?;
//!     }
//!     ep.close()
//! }
//! ```
//!
//! The promises are in `docs/PROTOCOL.md` under A and T: the order in which operations take effect, and what
//! a reader can see of a word that is being written.

mod aperture;
mod completion;
mod endpoint;
mod fire_counter;
mod holder;
mod mapped;
mod operations;
mod remote;
mod remote_async;
pub(crate) mod ring;
mod tripset;
mod tripwire;

pub use aperture::Aperture;
pub use completion::{Completion, Fetch};
pub use mapped::{MapCookie, Mapped, Share};
pub use remote::{After, Remote};
pub use tautline_node::ApertureMemory;
pub use tautline_node::memory::{
    Access, ApertureId, Condition, Cookie, Failure, MAX_OUT_OF_BAND, MemoryCounters, MemoryEvent, OutOfBand,
    Refusal, Report, Rights, SetId, Test, Ticket, WireId,
};
pub use tripset::Tripset;
pub use tripwire::{Tripwire, TripwireBuilder};
