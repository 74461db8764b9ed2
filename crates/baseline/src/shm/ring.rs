//! A ring of cache lines from one producer to one consumer: the limit of the rate of small messages between
//! two processes. A message is eight bytes, in one line with its flag.

use std::io;
use std::sync::atomic::Ordering;

use super::memory::{Line, SharedMapping};
use crate::content::Pattern;
use crate::cpu::{Measured, Stopwatch};
use crate::transport::{Setup, Side, SpinLimit};

/// Messages that are acknowledged together by [`ring_window`].
pub const WINDOW: u64 = 64;

/// Lines of the ring. With fewer, each is fetched back from the other core's nearest cache; 256 were half as
/// fast.
const SLOTS: u64 = 4096;
/// The consumer waits for this many at a time, so that it does not take away a line that is about to be
/// written.
const TOGETHER: u64 = 32;
/// The consumer publishes its position after this many messages.
const PUBLISH_EVERY: u64 = SLOTS / 4;
/// Bytes of a message.
const PAYLOAD: u64 = 8;

/// Sends 64 messages, then waits for one acknowledgement; `rounds` times.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if a message is not what was sent, [`io::ErrorKind::TimedOut`] if the other
/// side is silent.
pub fn ring_window(setup: &mut Setup<'_>, rounds: u64) -> io::Result<Measured> {
    let mut ring = Ring::open(setup)?;
    ring.windows(setup.side, rounds.min(WARM_UP))?;
    setup.barrier()?;
    let watch = Stopwatch::start();
    ring.windows(setup.side, rounds)?;
    let messages = rounds * WINDOW;
    Ok(watch.stop(messages, messages * PAYLOAD, 0))
}

/// Sends `count` messages as fast as they are taken.
///
/// # Errors
/// As [`ring_window`].
pub fn ring_stream(setup: &mut Setup<'_>, count: u64) -> io::Result<Measured> {
    let mut ring = Ring::open(setup)?;
    ring.stream(setup.side, count.min(WARM_UP * WINDOW))?;
    setup.barrier()?;
    let watch = Stopwatch::start();
    ring.stream(setup.side, count)?;
    Ok(watch.stop(count, count * PAYLOAD, 0))
}

/// Windows of the warm-up.
const WARM_UP: u64 = 64;

/// One side of a ring. Side A produces into its own memory; side B answers in the first line of its own.
struct Ring {
    into: SharedMapping,
    from: SharedMapping,
    pattern: Pattern,
    /// Messages produced or consumed so far.
    position: u64,
    /// How many messages the other side is known to have consumed.
    taken: u64,
}

impl Ring {
    fn open(setup: &mut Setup<'_>) -> io::Result<Self> {
        let [into, from] = SharedMapping::pair(setup, SLOTS as usize, 0)?;
        Ok(Self { into, from, pattern: Pattern::new(PAYLOAD as usize), position: 0, taken: 0 })
    }

    fn windows(&mut self, side: Side, rounds: u64) -> io::Result<()> {
        for _ in 0..rounds {
            match side {
                Side::A => {
                    (0..WINDOW).for_each(|_| self.produce());
                    self.wait_until_taken(self.position)?;
                }
                Side::B => {
                    self.consume(WINDOW)?;
                    self.publish();
                }
            }
        }
        Ok(())
    }

    fn stream(&mut self, side: Side, count: u64) -> io::Result<()> {
        let end = self.position + count;
        while self.position < end {
            match side {
                Side::A => {
                    if self.position - self.taken == SLOTS {
                        self.wait_until_taken(self.position + 1 - SLOTS)?;
                    }
                    self.produce();
                }
                Side::B => {
                    self.consume((end - self.position).min(PUBLISH_EVERY))?;
                    self.publish();
                }
            }
        }
        if side == Side::A { self.wait_until_taken(end) } else { Ok(()) }
    }

    #[inline]
    fn produce(&mut self) {
        let line = slot(&self.into, self.position);
        line.payload.store(self.pattern.word(self.position), Ordering::Relaxed);
        self.position += 1;
        line.flag.store(self.position, Ordering::Release);
    }

    fn consume(&mut self, count: u64) -> io::Result<()> {
        let end = self.position + count;
        while self.position < end {
            let group = (end - self.position).min(TOGETHER);
            let last = self.position + group;
            slot(&self.from, last - 1).wait_for(last)?;
            while self.position < last {
                let line = slot(&self.from, self.position);
                line.wait_for(self.position + 1)?;
                self.pattern.check_word(self.position, line.payload.load(Ordering::Relaxed))?;
                self.position += 1;
            }
        }
        Ok(())
    }

    /// Side B: publishes that everything so far is consumed.
    #[inline]
    fn publish(&self) {
        self.into.lines()[0].flag.store(self.position, Ordering::Release);
    }

    /// Side A: waits until the other side has consumed `position` messages.
    fn wait_until_taken(&mut self, position: u64) -> io::Result<()> {
        let mut spin_limit = SpinLimit::new();
        loop {
            self.taken = self.from.lines()[0].flag.load(Ordering::Acquire);
            if self.taken >= position {
                return Ok(());
            }
            spin_limit.spin()?;
        }
    }
}

#[inline]
fn slot(memory: &SharedMapping, position: u64) -> &Line {
    &memory.lines()[(position % SLOTS) as usize]
}
