//! The costs that no messaging system can avoid: a system call, a clock read, a copy, the transfer of a cache
//! line.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cpu;
use crate::stats::Summary;

/// Turns that are timed together, so that the cost of the clock does not count.
const BATCH: u32 = 1000;

/// The cost of a trivial system call, in nanoseconds: the median of `batches` of a thousand.
#[must_use]
pub fn system_call_ns(batches: usize) -> f64 {
    per_turn_ns(batches, || {
        black_box(rustix::process::getppid());
    })
}

/// The cost of one clock read, in nanoseconds: the median of `batches` of a thousand.
#[must_use]
pub fn clock_read_ns(batches: usize) -> f64 {
    per_turn_ns(batches, || {
        black_box(Instant::now());
    })
}

fn per_turn_ns(batches: usize, mut turn: impl FnMut()) -> f64 {
    let mut batch = || {
        let started = Instant::now();
        for _ in 0..BATCH {
            turn();
        }
        started.elapsed().as_nanos() as u64
    };
    batch();
    let samples: Vec<u64> = (0..batches.max(1)).map(|_| batch()).collect();
    Summary::of(&samples).median / f64::from(BATCH)
}

/// How fast `bytes` are copied from one buffer to another, repeatedly, in gigabytes (10⁹) per second. Bytes
/// are counted once, though each is read and written. The median of `copies`.
#[must_use]
pub fn copy_gigabytes_per_second(bytes: usize, copies: usize) -> f64 {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let mut copy = || {
        let started = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        started.elapsed().as_nanos() as u64
    };
    copy();
    let samples: Vec<u64> = (0..copies.max(1)).map(|_| copy()).collect();
    bytes as f64 / Summary::of(&samples).median.max(1.0)
}

/// A counter with a cache line (and the one that is prefetched with it) to itself.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// How long a cache line takes from one core to another, one way, in nanoseconds (the limit CL): half of the
/// median round trip between two threads pinned to these cores.
///
/// # Errors
/// If the cores are the same or cannot be used, or the other thread does not answer for two seconds.
pub fn cache_line_ns(core: usize, other: usize, round_trips: u64) -> io::Result<f64> {
    if core == other {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a cache line needs two different cores"));
    }
    let (there, back) = (Line::default(), Line::default());
    let samples = std::thread::scope(|scope| {
        // Threads of their own, so that the caller stays unpinned.
        let answering = scope.spawn(|| {
            cpu::pin(other)?;
            answer(&there.0, &back.0, round_trips)
        });
        let asking = scope.spawn(|| {
            cpu::pin(core)?;
            ask(&there.0, &back.0, round_trips)
        });
        let answered = answering.join();
        let samples = asking.join().map_err(|_| io::Error::other("the asking thread failed"))??;
        answered.map_err(|_| io::Error::other("the answering thread failed"))??;
        io::Result::Ok(samples)
    })?;
    // A batch is a hundred round trips.
    Ok(Summary::of(&samples).median / (2.0 * LINE_BATCH as f64))
}

const LINE_BATCH: u64 = 100;

fn ask(there: &AtomicU64, back: &AtomicU64, round_trips: u64) -> io::Result<Vec<u64>> {
    let mut samples = Vec::new();
    let mut number = 0;
    while number < round_trips {
        let started = Instant::now();
        for _ in 0..LINE_BATCH {
            number += 1;
            there.store(number, Ordering::Release);
            wait_for(back, number)?;
        }
        samples.push(started.elapsed().as_nanos() as u64);
    }
    Ok(samples)
}

fn answer(there: &AtomicU64, back: &AtomicU64, round_trips: u64) -> io::Result<()> {
    for number in 1..=round_trips.div_ceil(LINE_BATCH) * LINE_BATCH {
        wait_for(there, number)?;
        back.store(number, Ordering::Release);
    }
    Ok(())
}

fn wait_for(line: &AtomicU64, number: u64) -> io::Result<()> {
    let mut spins = 0_u32;
    let mut since = None;
    while line.load(Ordering::Acquire) != number {
        spins = spins.wrapping_add(1);
        cpu::spin(spins);
        if spins.is_multiple_of(1 << 16)
            && since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(2)
        {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the other core does not answer"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_a_positive_number() {
        assert!(system_call_ns(3) > 0.0);
        assert!(clock_read_ns(3) > 0.0);
        assert!(copy_gigabytes_per_second(64 << 10, 3) > 0.0);
    }

    #[test]
    fn a_cache_line_needs_two_cores() {
        let cores = cpu::allowed_cores().unwrap();
        assert!(cache_line_ns(cores[0], cores[0], 100).is_err());
        if let [one, other, ..] = cores[..] {
            assert!(cache_line_ns(one, other, 1000).unwrap() > 0.0);
        }
    }
}
