//! A message copied in and copied out at the same time, chunk by chunk: the limit for the latency of large
//! messages. Each side sends only after it has received.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::memory::SharedMapping;
use crate::content::Pattern;
use crate::stats::median;
use crate::transport::{Setup, Side, SpinLimit};

/// Bytes of a chunk: each is tried.
const CHUNKS: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];
/// Bytes of the ring of chunks. More no longer stays in a core's own cache.
const ROOM: usize = 128 << 10;
/// Round trips of a trial.
const TRIALS: u64 = 8;

/// Sends a message of `bytes` back and forth: rewritten in the sender's buffer, copied to the receiver's and
/// read there. Returns the round trips in nanoseconds on side A, nothing on side B.
///
/// # Errors
/// As [`ping_pong`](super::ping_pong).
pub(super) fn ping_pong(
    setup: &mut Setup<'_>,
    bytes: usize,
    warm_up: u64,
    count: u64,
) -> io::Result<Vec<u64>> {
    let mut ends = Ends {
        out: Channel::open(setup)?,
        back: Channel::open(setup)?,
        pattern: Pattern::new(bytes),
        outgoing: vec![0; bytes],
        incoming: vec![0; bytes],
        number: 0,
    };
    let mut best = (u64::MAX, CHUNKS[0]);
    for chunk in CHUNKS {
        let times: Vec<f64> = ends.run(setup.side, chunk, TRIALS)?.into_iter().map(|ns| ns as f64).collect();
        let ours = if times.is_empty() { 0 } else { median(&times) as u64 };
        // Only side A has measured.
        let took = ours.max(u64::from_le_bytes(setup.exchange(&ours.to_le_bytes())?));
        best = best.min((took, chunk));
    }
    ends.run(setup.side, best.1, warm_up)?;
    ends.run(setup.side, best.1, count)
}

struct Ends {
    /// From side A to side B, and back.
    out: Channel,
    back: Channel,
    pattern: Pattern,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    number: u64,
}

impl Ends {
    fn run(&mut self, side: Side, chunk: usize, count: u64) -> io::Result<Vec<u64>> {
        let mut round_trips = Vec::with_capacity(if side == Side::A { count as usize } else { 0 });
        for _ in 0..count {
            let number = self.number;
            self.number += 1;
            match side {
                Side::A => {
                    let started = Instant::now();
                    self.pattern.write(number, &mut self.outgoing);
                    self.out.push(&self.outgoing, chunk)?;
                    self.back.pull(&mut self.incoming, chunk)?;
                    self.pattern.check(number, &self.incoming)?;
                    round_trips.push(started.elapsed().as_nanos() as u64);
                }
                Side::B => {
                    self.out.pull(&mut self.incoming, chunk)?;
                    self.pattern.check(number, &self.incoming)?;
                    self.pattern.write(number, &mut self.outgoing);
                    self.back.push(&self.outgoing, chunk)?;
                }
            }
        }
        Ok(round_trips)
    }
}

/// One side of a ring of chunks, which lie in the sender's memory. Each side counts in its own.
struct Channel {
    into: SharedMapping,
    from: SharedMapping,
    /// Chunks written or read so far, and how far the other side is known to be.
    passed: u64,
    known: u64,
}

impl Channel {
    fn open(setup: &mut Setup<'_>) -> io::Result<Self> {
        let [into, from] = SharedMapping::pair(setup, LINES, ROOM)?;
        Ok(Self { into, from, passed: 0, known: 0 })
    }

    fn push(&mut self, message: &[u8], chunk: usize) -> io::Result<()> {
        let slots = (ROOM / chunk) as u64;
        for part in message.chunks(chunk) {
            if self.passed - self.known >= slots {
                self.wait_for(self.passed + 1 - slots)?;
            }
            let at = (self.passed % slots) as usize * chunk;
            // SAFETY: the other side has read what was in this chunk, and reads no more of it until it is
            // counted.
            unsafe { self.into.area(at, part.len()) }.copy_from_slice(part);
            self.count();
        }
        Ok(())
    }

    fn pull(&mut self, message: &mut [u8], chunk: usize) -> io::Result<()> {
        let slots = (ROOM / chunk) as u64;
        for part in message.chunks_mut(chunk) {
            if self.passed == self.known {
                self.wait_for(self.passed + 1)?;
            }
            let at = (self.passed % slots) as usize * chunk;
            // SAFETY: this chunk is counted as written; the other side writes no more to it until we have
            // counted it.
            part.copy_from_slice(unsafe { self.from.area(at, part.len()) });
            self.count();
        }
        Ok(())
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

/// The counter of chunks, and a line that separates the first chunk from what is fetched together with the
/// counter.
const LINES: usize = 2;
