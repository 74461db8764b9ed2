//! The drivers: the same work over any transport, ours as well as the baselines.
//!
//! Buffers are rewritten before each send and every byte is read after each receive, inside the measured
//! time. The content changes with every message, and a wrong sum is an error. `Content::Warm` leaves all
//! that out and resends an untouched buffer, to show what that mistake hides.

use std::io;
use std::time::{Duration, Instant};

use crate::content::Pattern;
use crate::cpu::{Measured, Stopwatch};
use crate::transport::{Side, Transport};

/// What the messages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Rewritten before each send, read and checked after each receive.
    Rewritten,
    /// Never touched.
    Warm,
}

/// Sends a message back and forth; returns the round trips in nanoseconds on side A, nothing on side B.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if a message is not what was sent.
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

/// Sends messages one way, until `count` were sent: with a window, that many and then one 8-byte answer;
/// without, one answer at the end, and the transport's own flow control in between.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if a message is not what was sent.
pub fn stream(
    transport: &mut dyn Transport,
    side: Side,
    bytes: usize,
    count: u64,
    window: Option<u64>,
    content: Content,
) -> io::Result<Measured> {
    let mut peer = Peer::new(transport, bytes, content);
    peer.transport.set_one_way(window.is_none());
    let window = window.unwrap_or(count).max(1);
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
                    if u64::from_le_bytes(answer) != number {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is out of step"));
                    }
                }
                Side::B => {
                    peer.transport.send(&number.to_le_bytes())?;
                    peer.transport.flush()?;
                }
            }
        }
    }
    let measured = watch.stop(count, count * bytes as u64, 0);
    peer.transport.set_one_way(false);
    Ok(measured)
}

/// Sends requests that are each answered by as many bytes, with up to `window` in progress, until `count`
/// were answered. That many requests, and that many answers, must fit the transport's buffers: nobody takes
/// answers while it sends.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if a message is not what was sent.
pub fn calls(
    transport: &mut dyn Transport,
    side: Side,
    bytes: usize,
    count: u64,
    window: u64,
) -> io::Result<Measured> {
    let mut peer = Peer::new(transport, bytes, Content::Rewritten);
    let watch = Stopwatch::start();
    match side {
        Side::A => {
            let mut asked = 0;
            for number in 0..count {
                while asked < count.min(number + window.max(1)) {
                    peer.send(asked)?;
                    asked += 1;
                }
                peer.transport.flush()?;
                peer.receive(number)?;
            }
        }
        Side::B => drop(peer.echo(count)?),
    }
    Ok(watch.stop(count, count * bytes as u64, 0))
}

/// Sends one message per `period`, which is echoed; returns the round trips in nanoseconds on side A.
///
/// Side A sleeps between two messages if `blocking`, and spins otherwise. Messages that fall due while one is
/// delayed count as delayed too, see [`Pace`]; the first `count` times are returned.
///
/// # Errors
/// Whatever the transport reports, and [`io::ErrorKind::InvalidData`] if a message is not what was sent.
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
    let mut pace = Pace::new(period, blocking);
    let mut round_trips = Vec::with_capacity(count as usize);
    for number in 0..count {
        pace.wait();
        peer.round_trip(number)?;
        pace.record(&mut round_trips);
    }
    round_trips.truncate(count as usize);
    Ok(round_trips)
}

/// A source of one message per period, whatever happens to the messages.
///
/// The time of a message counts from when it was due. Messages that fall due while one is delayed would be
/// delayed with it: they are not sent, but their times are recorded as if they had been answered together
/// with it. Otherwise a delayed system would be measured less often, and seem faster. A sleeping source is no
/// part of that: the messages are not charged for how late the system wakes it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    due: Instant,
    period: Duration,
    sleeps: bool,
}

impl Pace {
    /// The first is due now.
    #[must_use]
    pub fn new(period: Duration, sleeps: bool) -> Self {
        Self { due: Instant::now(), period, sleeps }
    }

    /// Waits until the next is due.
    pub fn wait(&mut self) {
        let now = Instant::now();
        if self.sleeps && now < self.due {
            std::thread::sleep(self.due - now);
            self.due = Instant::now();
        }
        while Instant::now() < self.due {
            std::hint::spin_loop();
        }
    }

    /// The last message has returned: records its time, and the times of those that were delayed with it.
    pub fn record(&mut self, round_trips: &mut Vec<u64>) {
        let mut took = self.due.elapsed();
        loop {
            round_trips.push(took.as_nanos() as u64);
            self.due += self.period;
            if took <= self.period {
                return;
            }
            took -= self.period;
        }
    }
}

/// One side's buffers and its work on them.
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
        pattern.prime(&mut outgoing);
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
            self.pattern.check(number, &self.incoming)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_due_during_a_delay_are_delayed_too() {
        let period = Duration::from_millis(20);
        let mut pace = Pace::new(period, false);
        let mut times = Vec::new();
        pace.wait();
        pace.record(&mut times);
        let first = times.len();
        pace.wait();
        std::thread::sleep(3 * period + period / 2);
        pace.record(&mut times);
        assert!(times.len() >= first + 4, "one that was stuck, and at least three with it: {times:?}");
        assert!(times[first] >= 70_000_000 && times[first + 1] + 20_000_000 == times[first], "{times:?}");
        assert!(times[times.len() - 1] <= 20_000_000, "{times:?}");
    }
}
