//! One-way streams of large messages through shared memory: the limit of the bandwidth between two processes.
//!
//! The stream is cut into chunks without regard to messages. Each byte is copied twice: by the sender from
//! the user's buffer into a chunk, by the receiver from there to its place in the message. The two copies
//! overlap in time, up to a ring of chunks apart. The sender rewrites its buffer before each message and the
//! receiver reads each message, unless the plan says otherwise.

use std::hint::black_box;
use std::io;
use std::sync::atomic::Ordering;

use super::memory::SharedMapping;
use crate::content::Pattern;
use crate::cpu::{Measured, Stopwatch};
use crate::transport::{Setup, Side, SpinLimit};

/// How a stream is sent. The same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages.
    pub count: u64,
    /// Bytes of a chunk.
    pub chunk: usize,
    /// Chunks that there is room for.
    pub slots: usize,
    /// What users do with the bytes.
    pub touch: Touch,
}

/// What the users at both ends do with each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The sender rewrites its buffer, and the receiver reads every byte.
    Both,
    /// The sender writes each message straight into the chunks; the receiver reads every byte.
    InPlace,
    /// The sender rewrites its buffer; the receiver looks at both ends of a message only.
    Unread,
}

impl Plan {
    /// A reasonable plan for this kind of stream; [`best_plan`] finds a better one.
    #[must_use]
    pub fn new(bytes: usize, count: u64) -> Self {
        Self { bytes, count, chunk: 16 << 10, slots: 16, touch: Touch::Both }
    }

    fn variations(self) -> impl Iterator<Item = Plan> {
        let chunks = [4, 8, 16, 32, 64].map(|kib| kib << 10);
        // More room than a core's own cache holds is rarely better, but sometimes it is.
        let rooms = [128 << 10, 256 << 10, 1 << 20];
        chunks
            .into_iter()
            .flat_map(move |chunk| rooms.map(|room| Plan { chunk, slots: room / chunk, ..self }))
    }
}

/// Runs one side of a stream; side A sends. Both sides measure themselves.
///
/// # Errors
/// Whatever the system reports, [`io::ErrorKind::InvalidData`] if a message is not what was sent, and
/// [`io::ErrorKind::TimedOut`] if the other side is silent.
pub fn two_copies(setup: &mut Setup<'_>, plan: &Plan) -> io::Result<Measured> {
    let bytes = plan.bytes.max(1);
    let [into, from] = SharedMapping::pair(setup, LINES, plan.chunk * plan.slots)?;
    let mut chunks = Chunks { into, from, plan: Plan { bytes, ..*plan }, passed: 0, known: 0 };
    let pattern = Pattern::new(bytes);
    let mut message = vec![0; bytes];
    let side = setup.side;
    let mut run = |count| match side {
        Side::A => chunks.send(&pattern, &mut message, count),
        Side::B => chunks.receive(&pattern, &mut message, count),
    };
    run(plan.count.div_ceil(10))?;
    setup.barrier()?;
    let watch = Stopwatch::start();
    run(plan.count)?;
    Ok(watch.stop(plan.count, plan.count * bytes as u64, 0))
}

/// Tries variations of a plan and returns the fastest; both sides return the same.
///
/// Each is tried three times for about `trial_bytes`, and judged by its best: a limit is what can be done.
///
/// # Errors
/// As [`two_copies`], and if the control stream fails.
pub fn best_plan(setup: &mut Setup<'_>, plan: &Plan, trial_bytes: u64) -> io::Result<Plan> {
    let count = (trial_bytes / plan.bytes.max(1) as u64).max(TRIAL_MESSAGES);
    let mut best = (u64::MAX, *plan);
    for candidate in std::iter::repeat_n(*plan, 3).flat_map(Plan::variations) {
        let ours = two_copies(setup, &Plan { count, ..candidate })?.elapsed_ns;
        // Either clock would do, but the two sides must agree.
        let worse = ours.max(u64::from_le_bytes(setup.exchange(&ours.to_le_bytes())?));
        if worse < best.0 {
            best = (worse, candidate);
        }
    }
    Ok(best.1)
}

/// Fewer messages than this tell nothing.
const TRIAL_MESSAGES: u64 = 4;

/// Side A copies a message from one buffer of its own to another, `count` times; side B waits.
///
/// # Errors
/// Whatever the control stream reports.
pub fn copies(setup: &mut Setup<'_>, bytes: usize, count: u64) -> io::Result<Measured> {
    let source = vec![1_u8; bytes];
    let mut place = vec![0_u8; bytes];
    let mut copy = || {
        place.copy_from_slice(black_box(&source));
        black_box(&mut place);
    };
    copy();
    setup.barrier()?;
    let watch = Stopwatch::start();
    if setup.side == Side::A {
        (0..count).for_each(|_| copy());
    }
    let measured = watch.stop(count, count * bytes as u64, 0);
    setup.barrier()?;
    Ok(measured)
}

/// The counter of chunks, and a line that separates the first chunk from what is fetched together with the
/// counter.
const LINES: usize = 2;

/// One side of the ring of chunks. Chunks lie in side A's memory; each side counts in its own.
struct Chunks {
    into: SharedMapping,
    from: SharedMapping,
    plan: Plan,
    /// Chunks written or read so far.
    passed: u64,
    /// How far the other side is known to be.
    known: u64,
}

impl Chunks {
    fn send(&mut self, pattern: &Pattern, message: &mut [u8], count: u64) -> io::Result<()> {
        let Plan { bytes, chunk, slots, touch, .. } = self.plan;
        let total = count * bytes as u64;
        for (start, len) in cut(total, chunk) {
            if self.passed - self.known == slots as u64 {
                self.wait_for(self.passed + 1 - slots as u64)?;
            }
            let at = self.place();
            // SAFETY: the other side has read what was in this chunk, and reads no more of it until it is
            // counted.
            let room = unsafe { self.into.area(at, len) };
            for (number, at, range) in pieces(start, len, bytes) {
                if touch == Touch::InPlace {
                    pattern.write_part(number, at, &mut room[range]);
                    continue;
                }
                if at == 0 {
                    pattern.write(number, message);
                }
                room[range.clone()].copy_from_slice(&message[at..at + range.len()]);
            }
            self.count();
        }
        self.wait_for(self.passed)
    }

    fn receive(&mut self, pattern: &Pattern, message: &mut [u8], count: u64) -> io::Result<()> {
        let Plan { bytes, chunk, touch, .. } = self.plan;
        let total = count * bytes as u64;
        for (start, len) in cut(total, chunk) {
            if self.passed == self.known {
                self.wait_for(self.passed + 1)?;
            }
            let at = self.place();
            // SAFETY: this chunk is counted as written; the other side writes no more to it until we have
            // counted it.
            let came = unsafe { self.from.area(at, len) };
            for (number, at, range) in pieces(start, len, bytes) {
                let end = at + range.len();
                message[at..end].copy_from_slice(&came[range]);
                if end == bytes && touch == Touch::Unread {
                    pattern.check_ends(number, message)?;
                } else if end == bytes {
                    pattern.check(number, message)?;
                }
            }
            self.count();
        }
        Ok(())
    }

    /// Where the next chunk lies.
    fn place(&self) -> usize {
        self.passed as usize % self.plan.slots * self.plan.chunk
    }

    fn count(&mut self) {
        self.passed += 1;
        self.into.lines()[0].flag.store(self.passed, Ordering::Release);
    }

    /// Waits until the other side has passed `passed` chunks.
    fn wait_for(&mut self, passed: u64) -> io::Result<()> {
        let mut spin_limit = SpinLimit::new();
        loop {
            self.known = self.from.lines()[0].flag.load(Ordering::Acquire);
            if self.known >= passed {
                return Ok(());
            }
            spin_limit.spin()?;
        }
    }
}

/// The chunks of a stream: where each begins, and its length.
fn cut(total: u64, chunk: usize) -> impl Iterator<Item = (u64, usize)> {
    (0..total.div_ceil(chunk as u64)).map(move |i| {
        let start = i * chunk as u64;
        (start, (total - start).min(chunk as u64) as usize)
    })
}

/// The messages of which a chunk has parts: the number of each, where in it the part begins, and where in the
/// chunk it lies.
fn pieces(
    start: u64,
    len: usize,
    bytes: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let position = start + done as u64;
        let at = (position % bytes as u64) as usize;
        let range = done..(done + bytes - at).min(len);
        done = range.end;
        (!range.is_empty()).then_some((position / bytes as u64, at, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_chunks_cover_the_stream_once() {
        for (bytes, count, chunk) in [(1, 100, 7), (8, 5, 8), (100, 7, 64), (64, 9, 100), (4096, 3, 4096)] {
            let mut seen = 0;
            for (start, len) in cut(count * bytes as u64, chunk) {
                assert_eq!(start, seen);
                for (number, at, range) in pieces(start, len, bytes) {
                    assert_eq!(number * bytes as u64 + at as u64, seen);
                    assert!(at + range.len() <= bytes);
                    seen += range.len() as u64;
                }
            }
            assert_eq!(seen, count * bytes as u64);
        }
    }
}
