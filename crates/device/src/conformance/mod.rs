//! One suite per trait, run for every implementation of [`Datagram`] and [`Channel`].
//!
//! The functions panic with the rule that was violated. They are public, so that devices of other crates (the
//! simulator's) are checked against the same rules.
//!
//! | rule | promise |
//! |---|---|
//! | D-1 | a new device has a name, an address of its own, free slots and zero counters |
//! | D-2 | frames arrive byte for byte from any range of a slot, which is free for reuse after `flush` |
//! | D-3 | `send` never blocks, a full queue flushes itself, and what cannot be sent counts as lost |
//! | D-4 | `recv` never blocks, replaces the batch, and keeps what did not fit for the next call |
//! | D-5 | every route has a limit that fits the slots, frames up to it arrive, and a new limit is reported |
//! | D-6 | the device returns how many bytes the system buffers for it, and as many small frames may wait |
//! | D-7 | a channel delivers everything pushed, once, in order, unaltered, until it is closed |
//! | D-8 | frames arrive with their source if it is wanted |
//!
//! [`Datagram`]: crate::Datagram
//! [`Channel`]: crate::Channel

mod channel;
mod datagram;

pub use channel::{Ends, channel_suite};
pub use datagram::{DatagramOptions, datagram_suite};

/// Returns bytes that differ between frames and between positions.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ salt.wrapping_mul(97)) as u8).collect()
}
