//! One suite per trait, run for every implementation: it holds devices to what [`Datagram`] and [`Channel`] promise.
//!
//! The functions panic with the rule that was broken. They are ordinary public code, so that devices of other crates
//! (the simulator's, say) are held to the same rules.
//!
//! | rule | promise |
//! |---|---|
//! | D-1 | a device says what it guarantees, who it is and where it is reached |
//! | D-2 | frames arrive byte for byte from any range of a slot, which is free for reuse once `flush` has returned |
//! | D-3 | `send` never blocks, a full queue flushes itself, what cannot be sent counts as lost and hurts nothing else |
//! | D-4 | `recv` never blocks, replaces the batch, keeps what did not fit for the next call, names the source |
//! | D-5 | every route has a limit that fits the slots, frames up to it pass, and a new limit is told |
//! | D-6 | the device says how many bytes the system holds for it, and so many small frames may wait |
//! | D-7 | a channel delivers everything pushed, once, in order, unaltered, until it is closed |
//!
//! [`Datagram`]: crate::Datagram
//! [`Channel`]: crate::Channel

mod channel;
mod datagram;

pub use channel::{Ends, channel_suite};
pub use datagram::{DatagramOptions, datagram_suite};

/// Bytes that differ from frame to frame and from place to place.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ salt.wrapping_mul(97)) as u8).collect()
}
