//! Bare AF_XDP between two interfaces: the limit for messages that bypass the kernel's protocols.
//!
//! Real Ethernet, IPv4 and UDP headers; payloads rewritten in the user's buffer before each send and copied
//! to the frame, and copied out and read at the other end; one queue, the kernel's copy mode. Nothing is
//! recovered: a lost frame ends the measurement with an error. The program that takes our frames is
//! attached by a link, which the kernel removes with the process.
//!
//! What lives where: `program` (the few instructions that steer, and how they are loaded), `rings` (the
//! memory that the kernel and we share), `port` (an open interface), and here the two measurements.

mod frame;
mod interface;
mod port;
mod program;
mod rings;

use std::io;
use std::time::Instant;

use crate::content::Pattern;
use crate::cpu::{Measured, Stopwatch};
use crate::transport::{Setup, Side, SpinLimit};
use port::Port;
pub use program::Attach;

/// The largest payload of a frame where the MTU is 1500.
pub const FULL: usize = frame::PAYLOAD_MAX;

/// Where the program is attached, and who moves received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Where the program is attached.
    pub attach: Attach,
    /// Have the caller's own system calls drive the interface, instead of polling rings that the kernel
    /// fills.
    pub busy: bool,
}

/// Frames in flight in a stream without a window.
const STREAM_WINDOW: u64 = 512;

/// Whether such a program may be loaded here.
///
/// # Errors
/// Why not, in a sentence.
pub fn check() -> io::Result<()> {
    program::Steering::load(1).map(drop)
}

/// Sends a frame back and forth, `warm_up` times and then `count` times; returns the latter round trips in
/// nanoseconds on side A, nothing on side B.
///
/// # Errors
/// Whatever the system reports, [`io::ErrorKind::InvalidData`] if a frame is not what was sent, and
/// [`io::ErrorKind::TimedOut`] if the other side is silent.
pub fn ping_pong(
    setup: &mut Setup<'_>,
    mode: Mode,
    bytes: usize,
    warm_up: u64,
    count: u64,
) -> io::Result<Vec<u64>> {
    let mut port = Port::open(setup, mode, bytes)?;
    let pattern = Pattern::new(bytes);
    let (mut outgoing, mut incoming) = (vec![0; bytes], vec![0; bytes]);
    let mut round_trips = Vec::with_capacity(count as usize);
    for number in 0..warm_up + count {
        let started = Instant::now();
        if setup.side == Side::A {
            pattern.write(number, &mut outgoing);
            port.send(|payload| payload.copy_from_slice(&outgoing))?;
        }
        port.wait(|payload| {
            incoming.copy_from_slice(payload);
            pattern.check(number, &incoming)
        })?;
        if setup.side == Side::B {
            pattern.write(number, &mut outgoing);
            port.send(|payload| payload.copy_from_slice(&outgoing))?;
        } else if number >= warm_up {
            round_trips.push(started.elapsed().as_nanos() as u64);
        }
    }
    // The side that ends first detaches its program.
    setup.barrier()?;
    Ok(round_trips)
}

/// Sends frames one way, each with one message, with a bounded number in flight; the receiver reports its
/// position whenever half of them have arrived. With a window, that many and then an answer.
///
/// # Errors
/// As [`ping_pong`].
pub fn stream(
    setup: &mut Setup<'_>,
    mode: Mode,
    bytes: usize,
    count: u64,
    window: Option<u64>,
) -> io::Result<Measured> {
    let (window, step) = window.map_or((STREAM_WINDOW, STREAM_WINDOW / 2), |window| (window, window));
    let mut port = Port::open(setup, mode, if setup.side == Side::A { bytes } else { 8 })?;
    let measured = match setup.side {
        Side::A => send_all(&mut port, bytes, count, window),
        Side::B => receive_all(&mut port, bytes, count, step),
    };
    setup.barrier()?;
    measured
}

fn send_all(port: &mut Port, bytes: usize, count: u64, window: u64) -> io::Result<Measured> {
    let pattern = Pattern::new(bytes);
    let mut outgoing = vec![0; bytes];
    let watch = Stopwatch::start();
    let (mut sent, mut written, mut acknowledged) = (0, 0, 0);
    let mut spin_limit = SpinLimit::new();
    while acknowledged < count {
        while sent < count && sent - acknowledged < window {
            if written == sent {
                pattern.write(sent, &mut outgoing);
                written += 1;
            }
            if !port.queue(|payload| payload.copy_from_slice(&outgoing)) {
                break;
            }
            sent += 1;
            if sent.is_multiple_of(port::BATCH) {
                port.kick()?;
            }
        }
        port.kick()?;
        let received = port.poll(|payload| {
            acknowledged = payload.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
            Ok(())
        })?;
        if received == 0 {
            spin_limit.spin()?;
        } else {
            spin_limit = SpinLimit::new();
        }
    }
    Ok(watch.stop(count, count * bytes as u64, 0))
}

fn receive_all(port: &mut Port, bytes: usize, count: u64, step: u64) -> io::Result<Measured> {
    let pattern = Pattern::new(bytes);
    let mut incoming = vec![0; bytes];
    let mut watch = Stopwatch::start();
    let (mut next, mut complaint) = (0, 0);
    let mut spin_limit = SpinLimit::new();
    while next < count {
        let first = next == 0;
        let received = port.poll(|payload| {
            incoming.copy_from_slice(payload);
            pattern.check(next, &incoming)?;
            next += 1;
            Ok(())
        })?;
        if received == 0 {
            spin_limit.spin()?;
            continue;
        }
        spin_limit = SpinLimit::new();
        if first {
            watch = Stopwatch::start();
        }
        if next - complaint >= step || next == count {
            complaint = next;
            port.send(|payload| payload.copy_from_slice(&next.to_le_bytes()))?;
        }
    }
    Ok(watch.stop(count, count * bytes as u64, 0))
}
