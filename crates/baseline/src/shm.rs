//! The limits between two processes of one host: what their shared memory allows, and nothing else.
//!
//! No names, no waiting but spinning, no protection from a peer that does not keep to the protocol. What is measured
//! still does a user's work: messages are made anew, and what comes is copied to its place and looked at.

mod memory;
mod pingpong;
mod ring;
mod stream;

#[cfg(feature = "iceoryx2")]
pub(crate) use memory::Memory;
pub use pingpong::{Way, ping_pong};
pub use ring::{WINDOW, ring_stream, ring_window};
pub use stream::{Plan, best_plan, copies, two_copies};
