//! Messages: the Fast Messages 2.x interface.
//!
//! To send: [`crate::Endpoint::begin`] with the size, then pieces of any number and size, then
//! [`Outgoing::end`]; or everything in one call, [`crate::Endpoint::send`]. To receive: handlers, which
//! [`crate::Endpoint::extract`] runs, and nothing else.
//!
//! Inside, a frame takes one of two paths. Whole messages from peers on this host go straight to their
//! handlers (`fast_path`). Everything else arrives in a delivery, whose records `dispatch` hands out one by
//! one. Both start and poll handlers through `Runner`.

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

pub use crate::core::HandlerFailure;
pub use borrowed::Borrowed;
pub use incoming::{Message, Short};
pub use loan::Loan;
pub use outgoing::Outgoing;
