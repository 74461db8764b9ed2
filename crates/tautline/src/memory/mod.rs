//! Memory: apertures that peers reach into, and tripwires that tell of it.
//!
//! An [`Aperture`] is memory that others may reach. A [`Cookie`] is a capability to part of it, and goes to peers in any message; with one they make
//! a [`Remote`], through which they put, get and change words, while the owner does nothing. The owner arms [`Tripwire`]s on the bytes
//! it cares about: they need no help of the sender's.
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
//! What is promised, in what order things take effect, and what is seen of a word that is being written, is in `docs/PROTOCOL.md` under A and T.

mod aperture;
mod awaited;
mod completion;
mod holder;
mod mapped;
mod remote;
pub(crate) mod ring;
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
pub(crate) use tripwire::wait_on;
pub use tripwire::{Tripset, Tripwire, TripwireBuilder};

use crate::core::Core;

/// Wakes whoever waited for what has happened, and notes that there are events.
pub(crate) fn absorb(core: &Core) {
    while let Ok(Some(woken)) = core.node.take_woken() {
        let waker = core.memory_waits.borrow_mut().remove(&woken);
        waker.into_iter().for_each(std::task::Waker::wake);
    }
    if core.node.acknowledge_memory_events().unwrap_or(false) {
        core.news.set(true);
    }
    if core.news.get() && !core.event_waits.is_empty() {
        core.event_waits.wake();
    }
}
