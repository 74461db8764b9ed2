//! What the tag or the cipher of our frames costs one side, without sockets and other processes. With bare
//! UDP, it gives the limit of a stream of protected frames.

use std::hint::black_box;

use tautline::node::link::{Protection, TRAIN_TAGS};
use tautline_baseline::Measured;
use tautline_baseline::cpu::Stopwatch;

use super::case::Mode;

/// Frames over an Ethernet with the usual MTU, and over one with jumbo frames.
pub const FRAMES: [usize; 2] = [1_472, 8_972];

/// Protects trains of frames of `bytes` bytes, in the same buffers again and again.
pub fn protect(security: Mode, bytes: usize, count: u64) -> Measured {
    let count = count.next_multiple_of(TRAIN_TAGS as u64);
    let mut protection = Protection::new(security.security());
    let mut frames = [7, 7, 7, 7].map(|byte| vec![byte; bytes]);
    let mut protect = |count| {
        (0..count / TRAIN_TAGS as u64).for_each(|_| {
            protection.protect_train(black_box(&mut frames), |tag| _ = black_box(tag));
        });
    };
    protect(count / 10);
    let watch = Stopwatch::start();
    protect(count);
    watch.stop(count, count * bytes as u64, 0)
}
