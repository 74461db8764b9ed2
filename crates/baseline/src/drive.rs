//! The drivers: the same work over any transport, ours as well as the baselines.
//!
//! Buffers are rewritten before each send and read out after each receive, inside the measured time; each message
//! carries its number at both ends, and a wrong one is an error. `Content::Warm` leaves all that out and resends an
//! untouched buffer, to show what that trap hides.

use std::io;
use std::time::{Duration, Instant};

use crate::cpu::{Measured, Stopwatch};
use crate::pattern::{self, Pattern};
use crate::transport::{Side, Transport};

/// What the messages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Rewritten before each send, read out and checked after each receive.
    Rewritten,
    /// Never touched.
    Warm,
}

/// Sends a message back and forth; returns the round trips in nanoseconds on side A, nothing on side B.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if what came is not what was sent.
pub fn ping_pong(
    transport: &mut dyn Transport,
    side: Side,
    bytes: usize,
    iterations: u64,
    content: Content,
) -> io::Result<Vec<u64>> {
    let mut peer = Peer::new(transport, bytes, content);
    match side {
        Side::A => (0..iterations).map(|number| peer.round_trip(number)).collect(),
        Side::B => peer.echo(iterations),
    }
}

/// Sends messages one way: `window` of them, then waits for one 8-byte answer, until `count` have gone.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if what came is not what was sent.
pub fn stream(
    transport: &mut dyn Transport,
    side: Side,
    bytes: usize,
    count: u64,
    window: u64,
    content: Content,
) -> io::Result<Measured> {
    let window = window.max(1);
    let mut peer = Peer::new(transport, bytes, content);
    let mut answer = [0; 8];
    // Side B's time begins with its first message, not with the start of the other process.
    let mut watch = Stopwatch::start();
    for number in 0..count {
        match side {
            Side::A => peer.send(number)?,
            Side::B => peer.receive(number)?,
        }
        if side == Side::B && number == 0 {
            watch = Stopwatch::start();
        }
        if (number + 1).is_multiple_of(window) || number + 1 == count {
            match side {
                Side::A => {
                    peer.transport.flush()?;
                    peer.transport.recv(&mut answer)?;
                    pattern::check(number, &answer)?;
                }
                Side::B => {
                    peer.transport.send(&number.to_le_bytes())?;
                    peer.transport.flush()?;
                }
            }
        }
    }
    Ok(watch.stop(count, count * bytes as u64, 0))
}

/// Sends one message per `period` and has it echoed; returns the round trips in nanoseconds on side A.
///
/// Side A sleeps between two messages if `blocking`, and spins otherwise. A round trip longer than the period delays
/// the next message; there are no bursts to catch up.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if what came is not what was sent.
pub fn paced(
    transport: &mut dyn Transport,
    side: Side,
    bytes: usize,
    count: u64,
    period: Duration,
    blocking: bool,
) -> io::Result<Vec<u64>> {
    let mut peer = Peer::new(transport, bytes, Content::Rewritten);
    if side == Side::B {
        return peer.echo(count);
    }
    let mut due = Instant::now();
    let mut round_trips = Vec::with_capacity(count as usize);
    for number in 0..count {
        due = wait_until(due, blocking) + period;
        round_trips.push(peer.round_trip(number)?);
    }
    Ok(round_trips)
}

/// Waits until then, and returns then, or now if that is past.
fn wait_until(due: Instant, blocking: bool) -> Instant {
    loop {
        let now = Instant::now();
        if now >= due {
            return if now - due > Duration::from_micros(500) { now } else { due };
        }
        if blocking { std::thread::sleep(due - now) } else { std::hint::spin_loop() }
    }
}

/// One side's buffers and what it does with them.
struct Peer<'a> {
    transport: &'a mut dyn Transport,
    content: Content,
    pattern: Pattern,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl<'a> Peer<'a> {
    fn new(transport: &'a mut dyn Transport, bytes: usize, content: Content) -> Self {
        let pattern = Pattern::new(bytes);
        let mut outgoing = vec![0; bytes];
        pattern.write(0, &mut outgoing);
        Self { transport, content, pattern, outgoing, incoming: vec![0; bytes] }
    }

    fn send(&mut self, number: u64) -> io::Result<()> {
        if self.content == Content::Rewritten {
            self.pattern.write(number, &mut self.outgoing);
        }
        self.transport.send(&self.outgoing)
    }

    fn receive(&mut self, number: u64) -> io::Result<()> {
        let len = self.transport.recv(&mut self.incoming)?;
        if len != self.incoming.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{len} bytes is the wrong length"),
            ));
        }
        if self.content == Content::Rewritten {
            pattern::check(number, &self.incoming)?;
            pattern::read_out(&self.incoming);
        }
        Ok(())
    }

    fn round_trip(&mut self, number: u64) -> io::Result<u64> {
        let started = Instant::now();
        self.send(number)?;
        self.transport.flush()?;
        self.receive(number)?;
        Ok(started.elapsed().as_nanos() as u64)
    }

    fn echo(&mut self, count: u64) -> io::Result<Vec<u64>> {
        for number in 0..count {
            self.receive(number)?;
            self.send(number)?;
            self.transport.flush()?;
        }
        Ok(Vec::new())
    }
}
