//! The limits between two processes of one host: what shared memory alone allows.
//!
//! No names, no waiting except spinning, no protection from a peer that violates the protocol. The work is
//! still a user's: messages are made anew, and received messages are copied to their place and checked.

mod memory;
mod pingpong;
mod pipeline;
mod ring;
mod stream;
mod transfer;

pub(crate) use memory::SharedMapping;
pub use pingpong::{HandOff, ping_pong};
pub use ring::{WINDOW, ring_stream, ring_window};
pub use stream::{Plan, Touch, best_plan, copies, two_copies};
pub use transfer::{Transfer, transfers};
