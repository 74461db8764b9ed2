//! Back and forth through shared memory. Each side sends only after it has received, so that one buffer per
//! direction is enough, and a counter beside it says whose turn it is.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::memory::SharedMapping;
use super::pipeline;
use crate::content::Pattern;
use crate::drive::{self, Content};
use crate::transport::{Setup, Side, Transport};

/// How a message is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOff {
    /// Up to eight bytes, in one cache line with their flag.
    Line,
    /// Copied in from the sender's own buffer, and copied out to the receiver's own.
    CopyInCopyOut,
    /// Written where the other side sees it, and copied out to the receiver's own buffer.
    WriteFlagCopy,
    /// Copied in and copied out at the same time, chunk by chunk.
    Pipelined,
}

/// Sends a message back and forth, `warm_up` times and then `count` times; returns the latter round trips in
/// nanoseconds on side A, nothing on side B.
///
/// # Errors
/// Whatever the system reports, [`io::ErrorKind::InvalidData`] if a message is not what was sent, and
/// [`io::ErrorKind::TimedOut`] if the other side is silent.
pub fn ping_pong(
    setup: &mut Setup<'_>,
    hand_off: HandOff,
    bytes: usize,
    warm_up: u64,
    count: u64,
) -> io::Result<Vec<u64>> {
    if hand_off == HandOff::Line && bytes > 8 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a line holds eight bytes beside its flag"));
    }
    if hand_off == HandOff::Pipelined {
        return pipeline::ping_pong(setup, bytes, warm_up, count);
    }
    let [into, from] = SharedMapping::pair(setup, LINES, if hand_off == HandOff::Line { 0 } else { bytes })?;
    let pattern = Pattern::new(bytes);
    let mut buffers = Buffers { into, from, sent: 0, received: 0 };
    let mut run = |count| match hand_off {
        HandOff::Line => buffers.lines(setup.side, &pattern, bytes, count),
        HandOff::CopyInCopyOut => {
            drive::ping_pong(&mut buffers, setup.side, bytes, count, Content::Rewritten)
        }
        HandOff::WriteFlagCopy | HandOff::Pipelined => {
            Direct::new(&mut buffers, bytes).ping_pong(setup.side, count)
        }
    };
    run(warm_up)?;
    run(count)
}

/// The flag, and a line that separates the message from what is fetched together with the flag.
const LINES: usize = 2;

/// One buffer for a message in each direction.
struct Buffers {
    into: SharedMapping,
    from: SharedMapping,
    sent: u64,
    received: u64,
}

impl Buffers {
    /// Says that a message is there.
    #[inline]
    fn raise(&mut self) {
        self.sent += 1;
        self.into.lines()[0].flag.store(self.sent, Ordering::Release);
    }

    /// Waits for a message.
    #[inline]
    fn wait(&mut self) -> io::Result<()> {
        self.received += 1;
        self.from.lines()[0].wait_for(self.received)
    }

    fn lines(&mut self, side: Side, pattern: &Pattern, bytes: usize, count: u64) -> io::Result<Vec<u64>> {
        let mut round_trips = Vec::with_capacity(if side == Side::A { count as usize } else { 0 });
        for number in 0..count {
            match side {
                Side::A => {
                    let started = Instant::now();
                    self.send_line(pattern, bytes, number);
                    self.receive_line(pattern, bytes, number)?;
                    round_trips.push(started.elapsed().as_nanos() as u64);
                }
                Side::B => {
                    self.receive_line(pattern, bytes, number)?;
                    self.send_line(pattern, bytes, number);
                }
            }
        }
        Ok(round_trips)
    }

    #[inline]
    fn send_line(&mut self, pattern: &Pattern, bytes: usize, number: u64) {
        if bytes > 0 {
            self.into.lines()[0].payload.store(pattern.word(number), Ordering::Relaxed);
        }
        self.raise();
    }

    #[inline]
    fn receive_line(&mut self, pattern: &Pattern, bytes: usize, number: u64) -> io::Result<()> {
        self.wait()?;
        if bytes > 0 {
            let payload = self.from.lines()[0].payload.load(Ordering::Relaxed);
            pattern.check_word(number, payload)?;
        }
        Ok(())
    }
}

impl Transport for Buffers {
    fn name(&self) -> &'static str {
        "hand-over"
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the other side has answered the last message, so it has read it, and reads no more until
        // the flag.
        unsafe { self.into.area(0, bytes.len()) }.copy_from_slice(bytes);
        self.raise();
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        // SAFETY: the flag says that the message is there; the other side writes no more until we have
        // answered.
        buf.copy_from_slice(unsafe { self.from.area(0, buf.len()) });
        Ok(buf.len())
    }
}

/// A sender whose buffer is the shared memory itself.
struct Direct<'a> {
    buffers: &'a mut Buffers,
    pattern: Pattern,
    incoming: Vec<u8>,
}

impl<'a> Direct<'a> {
    fn new(buffers: &'a mut Buffers, bytes: usize) -> Self {
        Self { buffers, pattern: Pattern::new(bytes), incoming: vec![0; bytes] }
    }

    fn ping_pong(&mut self, side: Side, count: u64) -> io::Result<Vec<u64>> {
        let mut round_trips = Vec::with_capacity(if side == Side::A { count as usize } else { 0 });
        for number in 0..count {
            match side {
                Side::A => {
                    let started = Instant::now();
                    self.send(number);
                    self.receive(number)?;
                    round_trips.push(started.elapsed().as_nanos() as u64);
                }
                Side::B => {
                    self.receive(number)?;
                    self.send(number);
                }
            }
        }
        Ok(round_trips)
    }

    fn send(&mut self, number: u64) {
        // SAFETY: the other side has answered the last message, so it has read it, and reads no more until
        // the flag.
        self.pattern.write(number, unsafe { self.buffers.into.area(0, self.incoming.len()) });
        self.buffers.raise();
    }

    fn receive(&mut self, number: u64) -> io::Result<()> {
        self.buffers.recv(&mut self.incoming)?;
        self.pattern.check(number, &self.incoming)
    }
}
