//! The cost of the UDP device compared with a bare socket, on loopback: `cargo run --release --example
//! udp_cost`.
//!
//! Both are measured in turn in one run, by the same two pinned threads: a ping-pong of 8 B, and a stream of
//! 64 KiB messages. Pass `sizes` to compare frame sizes, `gso` to compare with offloads off.
#![allow(clippy::print_stdout)]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tautline_device::udp::{FRAME_CAP, Udp, UdpConfig};
use tautline_device::{Datagram, HEADROOM, RouteId, RxBatch};

const ROUNDS: usize = 15;
const PINGS: u32 = 20_000;
const TIMEOUT: Duration = Duration::from_secs(10);
const MESSAGE: usize = 65_536;
const MESSAGES: u64 = 20_000;

fn main() -> io::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("sizes") => sizes(),
        Some("gso") => {
            for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
                println!("gso {gso} gro {gro}: {:.2} GB/s", stream(FRAME_CAP, gso, gro)?);
            }
            Ok(())
        }
        _ => ping_pong().and_then(|()| {
            println!(
                "64 KiB messages: {:.2} GB/s",
                median(&mut collect(5, || stream(FRAME_CAP, true, true))?)
            );
            Ok(())
        }),
    }
}

fn sizes() -> io::Result<()> {
    for frame in [1_472, 4_096, 8_185, 8_448, 8_972, 16_371, 21_829, 32_743] {
        println!("frames of {frame}: {:.2} GB/s", median(&mut collect(5, || stream(frame, true, true))?));
    }
    Ok(())
}

fn collect(times: usize, mut f: impl FnMut() -> io::Result<f64>) -> io::Result<Vec<f64>> {
    (0..times).map(|_| f()).collect()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One side of a ping-pong.
trait Ping: Send {
    fn send(&mut self);
    fn receive(&mut self, until: Instant) -> io::Result<()>;
}

struct Raw {
    socket: UdpSocket,
    to: SocketAddr,
    out: [u8; 8],
    buffer: Vec<u8>,
    connected: bool,
}

impl Ping for Raw {
    fn send(&mut self) {
        self.out[0] = self.out[0].wrapping_add(1);
        let _ = if self.connected {
            self.socket.send(&self.out)
        } else {
            self.socket.send_to(&self.out, self.to)
        };
    }

    fn receive(&mut self, until: Instant) -> io::Result<()> {
        loop {
            let got = if self.connected {
                self.socket.recv(&mut self.buffer)
            } else {
                self.socket.recv_from(&mut self.buffer).map(|got| got.0)
            };
            match got {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => late(until)?,
                Err(e) => return Err(e),
            }
        }
    }
}

struct Ours {
    device: Udp,
    route: RouteId,
    batch: RxBatch,
    calls: u32,
}

impl Ping for Ours {
    fn send(&mut self) {
        self.calls = self.calls.wrapping_add(1);
        let slot = self.device.arena().take().expect("a slot");
        self.device.arena().payload_mut(slot)[0] = self.calls as u8;
        self.device.send(self.route, slot, HEADROOM..HEADROOM + 8);
        self.device.flush();
        self.device.arena().give(slot);
    }

    fn receive(&mut self, until: Instant) -> io::Result<()> {
        while self.device.recv(&mut self.batch)? == 0 {
            late(until)?;
        }
        let frame = self.batch.frames()[0];
        std::hint::black_box(self.batch.bytes(frame)[0]);
        Ok(())
    }
}

/// Returns an error after the deadline. Reads the clock in one of 65,536 calls, so that it is cheap enough
/// for every poll.
#[inline]
fn late(until: Instant) -> io::Result<()> {
    use std::cell::Cell;
    thread_local!(static POLLS: Cell<u32> = const { Cell::new(0) });
    let polls = POLLS.with(|polls| {
        polls.set(polls.get().wrapping_add(1));
        polls.get()
    });
    if polls.is_multiple_of(65_536) && Instant::now() > until {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}

fn raw_pair(connected: bool) -> io::Result<(Raw, Raw)> {
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let addrs = [sockets[0].local_addr()?, sockets[1].local_addr()?];
    let [a, b] = sockets;
    for (socket, to) in [(&a, addrs[1]), (&b, addrs[0])] {
        socket.set_nonblocking(true)?;
        if connected {
            socket.connect(to)?;
        }
    }
    let make = |socket, to| Raw { socket, to, out: [0; 8], buffer: vec![0; 65_536], connected };
    Ok((make(a, addrs[1]), make(b, addrs[0])))
}

fn our_pair() -> io::Result<(Ours, Ours)> {
    let mut a = Udp::open(UdpConfig::default())?;
    let mut b = Udp::open(UdpConfig::default())?;
    println!("{}", a.describe());
    let there = a.route(b.local_addr())?;
    let back = b.route(a.local_addr())?;
    let make = |device, route| Ours { device, route, batch: RxBatch::new(64), calls: 0 };
    Ok((make(a, there), make(b, back)))
}

/// Prints nanoseconds one way, per system.
fn ping_pong() -> io::Result<()> {
    let (raw_a, raw_b) = raw_pair(false)?;
    let (con_a, con_b) = raw_pair(true)?;
    let (our_a, our_b) = our_pair()?;
    let mut near: Vec<Box<dyn Ping>> = vec![Box::new(raw_a), Box::new(con_a), Box::new(our_a)];
    let mut far: Vec<Box<dyn Ping>> = vec![Box::new(raw_b), Box::new(con_b), Box::new(our_b)];
    let start = Arc::new(Barrier::new(2));
    let far_start = Arc::clone(&start);
    let echo = std::thread::spawn(move || -> io::Result<()> {
        pin(1);
        for _ in 0..ROUNDS {
            for system in &mut far {
                far_start.wait();
                let until = Instant::now() + TIMEOUT;
                for _ in 0..PINGS {
                    system.receive(until)?;
                    system.send();
                }
            }
        }
        Ok(())
    });
    pin(0);
    let mut times = vec![Vec::new(); near.len()];
    for _ in 0..ROUNDS {
        for (system, times) in near.iter_mut().zip(&mut times) {
            start.wait();
            let start_time = Instant::now();
            for _ in 0..PINGS {
                system.send();
                system.receive(start_time + TIMEOUT)?;
            }
            times.push(start_time.elapsed().as_nanos() as f64 / f64::from(PINGS) / 2.0);
        }
    }
    echo.join().expect("the echoing thread")?;
    let ratio: Vec<f64> = times[2].iter().zip(&times[0]).map(|(ours, raw)| ours / raw).collect();
    let medians: Vec<f64> = times.iter_mut().map(|t| median(t)).collect();
    for (name, ns) in ["raw sendto/recvfrom", "raw connected", "our device"].iter().zip(&medians) {
        println!("8 B one way, {name:20}: {ns:7.0} ns");
    }
    println!("ours / raw: {:.3} (median of rounds)", median(&mut ratio.clone()));
    Ok(())
}

/// Returns GB/s of 64 KiB messages in frames, with as much in flight as an ordinary receive buffer holds;
/// lost frames do not count.
fn stream(frame: usize, gso: bool, gro: bool) -> io::Result<f64> {
    let config = || {
        UdpConfig::with(|config| {
            config.slot_payload = Some(frame.max(1_232));
            config.gso = gso;
            config.gro = gro;
        })
    };
    let (mut a, mut b) = (Udp::open(config())?, Udp::open(config())?);
    let route = a.route(b.local_addr())?;
    let received = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let (seen, finish) = (Arc::clone(&received), Arc::clone(&done));
    let taker = std::thread::spawn(move || -> io::Result<()> {
        pin(1);
        let mut batch = RxBatch::new(16);
        let mut out = vec![0_u8; 65_536];
        while !finish.load(Ordering::Relaxed) {
            b.recv(&mut batch)?;
            let mut bytes = 0;
            for frame in batch.frames() {
                let bytes_in = batch.bytes(*frame);
                out[..bytes_in.len()].copy_from_slice(bytes_in);
                bytes += bytes_in.len() as u64;
            }
            if bytes > 0 {
                seen.fetch_add(bytes, Ordering::Release);
            }
        }
        Ok(())
    });
    pin(0);
    let message = vec![7_u8; MESSAGE];
    let start_time = Instant::now();
    let mut sent = 0;
    for _ in 0..MESSAGES {
        let mut slots = Vec::with_capacity(64);
        for part in message.chunks(frame) {
            let slot = a.arena().take().expect("a slot");
            a.arena().payload_mut(slot)[..part.len()].copy_from_slice(part);
            a.send(route, slot, HEADROOM..HEADROOM + part.len());
            slots.push(slot);
        }
        a.flush();
        slots.drain(..).for_each(|slot| a.arena().give(slot));
        sent += MESSAGE as u64;
        let waiting = Instant::now();
        while sent - received.load(Ordering::Acquire) > 2 * MESSAGE as u64 {
            if waiting.elapsed() > Duration::from_millis(20) {
                // Lost for lack of room.
                sent = received.load(Ordering::Acquire);
            }
            std::hint::spin_loop();
        }
    }
    let seconds = start_time.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    taker.join().expect("the receiving thread")?;
    Ok(received.load(Ordering::Acquire) as f64 / seconds / 1e9)
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
