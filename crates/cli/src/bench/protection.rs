//! What the tag or the cipher of our frames costs one side, without sockets and other processes. With bare
//! UDP, it gives the limit of a stream of protected frames.

use std::hint::black_box;

use tautline::node::has_vector_aes;
use tautline::node::link::Protection;
use tautline_baseline::Measured;
use tautline_baseline::cpu::Stopwatch;

use super::case::Mode;

/// Frames over an Ethernet with the usual MTU, and over one with jumbo frames.
pub const FRAMES: [usize; 2] = [1_472, 8_972];

/// Protects frames of `bytes` bytes in one buffer.
pub fn protect(security: Mode, bytes: usize, count: u64) -> Measured {
    let mut protection = Protection::new(security.security(), has_vector_aes());
    let mut frame = vec![7; bytes];
    let mut protect =
        |count| (0..count).for_each(|_| _ = black_box(protection.protect(black_box(&mut frame))));
    protect(count / 10);
    let watch = Stopwatch::start();
    protect(count);
    watch.stop(count, count * bytes as u64, 0)
}
