//! Bare frames of our device, without and with flow control: the layer on which the guarantees are built.
//!
//! The user's work is that of every system: the sender rewrites its buffer, and every byte that arrives is
//! copied to the receiver's buffer and read. No order, no recovery, no protection. Without flow control the
//! sender never waits, and frames for which the receiver has no room are lost; only frames that arrive
//! count. Each message is sent at once, as our messages are.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use tautline::node::device::udp::{Udp, UdpConfig};
use tautline::node::device::{Datagram, HEADROOM, RouteId, RxBatch, SlotId};
use tautline_baseline::content::Pattern;
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::transport::SILENCE;
use tautline_baseline::{Measured, Setup, Side};

use crate::sys::{poll_until, readable};

/// Bytes that a frame costs the receive buffer beyond its own, by the kernel's accounting.
const OVERHEAD: u64 = 1280;
/// A sender whose window stays closed for this long has lost something, and starts with a new one.
const LOST_AFTER: Duration = Duration::from_millis(20);
/// A frame of this length says that everything was sent; one of eight bytes returns credit.
const END: usize = 1;
const CREDIT: usize = 8;
/// Data frames are never so short.
const DATA_MIN: usize = 16;

struct Frames {
    device: Udp,
    route: RouteId,
    batch: RxBatch,
    window: u64,
    slots: Vec<SlotId>,
}

/// Moves messages one way; returns what arrived on side B, and what was sent on side A.
pub fn stream(setup: &mut Setup<'_>, bytes: usize, count: u64, flow: bool) -> io::Result<Measured> {
    let mut frames = Frames::open(setup)?;
    setup.barrier()?;
    let measured = match setup.side {
        Side::A => frames.send_all(setup, bytes, count, flow),
        Side::B => frames.receive_all(setup, bytes, flow),
    };
    setup.barrier()?;
    measured
}

impl Frames {
    fn open(setup: &mut Setup<'_>) -> io::Result<Frames> {
        let socket = UdpSocket::bind((setup.local, 0))?;
        let port = u16::from_le_bytes(setup.exchange(&socket.local_addr()?.port().to_le_bytes())?);
        let mut device = Udp::open(UdpConfig::with(|config| config.socket = Some(socket.into())))?;
        let route = device.route((setup.remote, port).into())?;
        let window = device.receive_buffer() as u64 / 2;
        Ok(Frames { device, route, batch: RxBatch::new(16), window, slots: Vec::new() })
    }

    fn send_all(
        &mut self,
        setup: &mut Setup<'_>,
        bytes: usize,
        count: u64,
        flow: bool,
    ) -> io::Result<Measured> {
        let bytes = bytes.max(DATA_MIN);
        let pattern = Pattern::new(bytes);
        let mut outgoing = vec![0; bytes];
        // Parts begin at multiples of a word, so that their sums add up to that of the message.
        let frame_max = self.device.max_frame(self.route) / 8 * 8;
        let mut flight = Flight { sent: 0, back: 0, drops: 0 };
        let watch = Stopwatch::start();
        for number in 0..count {
            let mut at = 0;
            pattern.write(number, &mut outgoing);
            while at < bytes {
                let len = next_frame(bytes - at, frame_max);
                if flow {
                    self.wait_for_room(&mut flight, len as u64 + OVERHEAD)?;
                }
                self.queue(len, |room| room.copy_from_slice(&outgoing[at..at + len]))?;
                at += len;
            }
            self.flush();
        }
        let measured = watch.stop(count, count * bytes as u64, flight.drops);
        self.say_end(setup)?;
        Ok(measured)
    }

    fn wait_for_room(&mut self, flight: &mut Flight, cost: u64) -> io::Result<()> {
        if flight.sent + cost - flight.back > self.window {
            self.flush();
            let since = Instant::now();
            while flight.sent + cost - flight.back > self.window {
                self.device.recv(&mut self.batch)?;
                for frame in self.batch.frames() {
                    if let Ok(back) = self.batch.bytes(*frame).try_into() {
                        flight.back = flight.back.max(u64::from_le_bytes(back));
                    }
                }
                if since.elapsed() > LOST_AFTER {
                    (flight.back, flight.drops) = (flight.sent, flight.drops + 1);
                }
            }
        }
        flight.sent += cost;
        Ok(())
    }

    fn queue(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        if self.device.arena().available() == 0 {
            self.flush();
        }
        let slot = self.device.arena().take().ok_or(io::ErrorKind::OutOfMemory)?;
        write(&mut self.device.arena().payload_mut(slot)[..len]);
        self.device.send(self.route, slot, HEADROOM..HEADROOM + len);
        self.slots.push(slot);
        Ok(())
    }

    fn flush(&mut self) {
        self.device.flush();
        for slot in self.slots.drain(..) {
            self.device.arena().give(slot);
        }
    }

    /// Repeats the end frame until the other side has received it.
    fn say_end(&mut self, setup: &mut Setup<'_>) -> io::Result<()> {
        use std::os::fd::AsFd;
        let since = Instant::now();
        loop {
            self.queue(END, |room| room.fill(0))?;
            self.flush();
            let received = poll_until(
                &mut [readable(setup.control.as_fd())],
                Some(Instant::now() + Duration::from_millis(2)),
            )?;
            if received {
                return setup.barrier();
            }
            if since.elapsed() > SILENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn receive_all(&mut self, setup: &mut Setup<'_>, bytes: usize, flow: bool) -> io::Result<Measured> {
        let pattern = Pattern::new(bytes);
        let mut place = vec![0; bytes.max(65_536)];
        let (mut got, mut cost, mut returned, mut ended) = (0, 0, 0, false);
        let mut watch = Stopwatch::start();
        let mut received = Instant::now();
        while !ended {
            if self.device.recv(&mut self.batch)? == 0 {
                if received.elapsed() > SILENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                continue;
            }
            received = Instant::now();
            if got == 0 {
                watch = Stopwatch::start();
            }
            for frame in self.batch.frames() {
                let data = self.batch.bytes(*frame);
                if data.len() < DATA_MIN {
                    ended |= data.len() == END;
                    continue;
                }
                place[..data.len()].copy_from_slice(data);
                pattern.read_part(&place[..data.len()]);
                got += data.len() as u64;
                cost += data.len() as u64 + OVERHEAD;
            }
            if flow && cost - returned >= self.window / 4 {
                returned = cost;
                self.queue(CREDIT, |room| room.copy_from_slice(&cost.to_le_bytes()))?;
                self.flush();
            }
        }
        let measured = watch.stop(got / bytes.max(DATA_MIN) as u64, got, 0);
        setup.barrier()?;
        Ok(measured)
    }
}

/// Returns the bytes of the next frame; the last one is never as short as an end or credit frame.
fn next_frame(left: usize, frame_max: usize) -> usize {
    if left <= frame_max {
        left
    } else if left < frame_max + DATA_MIN {
        frame_max - DATA_MIN
    } else {
        frame_max
    }
}

/// What is in flight, by the kernel's accounting.
struct Flight {
    sent: u64,
    back: u64,
    drops: u64,
}
