//! Messages: the Fast Messages 2.x interface.
//!
//! To send: [`crate::Endpoint::begin`] with the size, then pieces of any number and size, then
//! [`Outgoing::end`]; or everything in one call, [`crate::Endpoint::send`]. Handlers and tasks do the same
//! with an [`crate::AsyncEndpoint`]. To receive: handlers, which [`crate::Endpoint::extract`] runs, and
//! nothing else.
//!
//! A plain loop that must not stand still starts its sends, or exchanges long messages:
//!
//! ```no_run
//! use tautline::{Endpoint, Message};
//!
//! fn main() -> tautline::Result<()> {
//!     let ep = Endpoint::builder()
//!         .on("block", |mut msg: Message| async move {
//!             println!("{} bytes", msg.read_to_end().await?.len());
//!             Ok(())
//!         })
//!         .join()?;
//!     let block = vec![ep.rank() as u8; 1 << 20];
//!     let peers = (0..ep.size()).filter(|peer| *peer != ep.rank());
//!     // All ranks send to all others at once.
//!     let mut sendings = Vec::new();
//!     for peer in peers.clone() {
//!         sendings.push(ep.start_send(peer, "block", block.clone())?);
//!     }
//!     ep.wait_all(&mut sendings)?;
//!     let others = u64::from(ep.size()) - 1;
//!     ep.run_until(|| ep.handled() == others)?;
//!     // The same with an answer: both ranks of a pair call `exchange`.
//!     for peer in peers {
//!         assert_eq!(ep.exchange(peer, &block)?, vec![peer as u8; 1 << 20]);
//!     }
//!     ep.close()
//! }
//! ```
//!
//! Inside, a frame takes one of two paths. Whole messages from peers on this host go straight to their
//! handlers (`fast_path`). Everything else arrives in a delivery, whose records `dispatch` hands out one by
//! one. Both start and poll handlers through `Runner`.

mod async_sending;
mod borrowed;
mod dispatch;
mod extract;
mod fast_path;
pub(crate) mod handlers;
pub(crate) mod inbox;
mod incoming;
mod incoming_bytes;
mod loan;
mod open_messages;
mod outgoing;
pub(crate) mod panics;
mod runner;
mod sending;
mod started;

pub use crate::error::HandlerFailure;
pub use async_sending::{AsyncLoan, AsyncOutgoing};
pub use borrowed::Borrowed;
pub use incoming::{Message, Short};
pub use loan::Loan;
pub use outgoing::Outgoing;
pub use started::Sending;
