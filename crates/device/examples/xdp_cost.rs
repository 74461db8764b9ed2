//! The cost of a frame over a veth pair between two namespaces, by each transport: the one-way time of a
//! ping-pong, and the rate of a stream.
//!
//! `cargo run --release -p tautline-device --example xdp_cost [ping-pongs [transport]]`, as root. It creates
//! two namespaces and removes them again.
#![allow(clippy::print_stdout)]

#[path = "../tests/netns_device/mod.rs"]
mod netns_device;
#[path = "../tests/spaces/mod.rs"]
mod spaces;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use netns_device::data_frame;
use spaces::{Shape, Spaces};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{Framing, Mode, Receive, Xdp, XdpConfig};
use tautline_device::{Datagram, HEADROOM, RouteId, RxBatch};

/// How a device is opened; `None` for UDP.
type Config = fn() -> Option<XdpConfig>;

const PORTS: [u16; 2] = [7_001, 7_002];

fn open(spaces: &Spaces, side: usize, config: Option<XdpConfig>) -> (Box<dyn Datagram>, RouteId) {
    spaces.enter(side);
    let addr = |side| SocketAddr::new(spaces.addr(side, false), PORTS[side]);
    let udp = UdpConfig::with(|config| (config.bind, config.tx_slots) = (addr(side), 1_024));
    let mut device: Box<dyn Datagram> = match config {
        None => Box::new(Udp::open(udp).expect("a UDP device")),
        Some(mut config) => {
            config.udp = udp;
            Box::new(Xdp::open(config).unwrap_or_else(|r| panic!("{}", r.why)))
        }
    };
    device.want_sources(false);
    let route = device.route(addr(1 - side)).expect("a route");
    (device, route)
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn send(device: &mut dyn Datagram, route: RouteId, frame: &[u8]) {
    let slot = device.arena().take().expect("a slot");
    device.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
    device.send(route, slot, HEADROOM..HEADROOM + frame.len());
    device.flush();
    device.arena().give(slot);
}

/// Returns nanoseconds one way: the lower quartile, because noise of the machine makes the others longer.
fn ping_pong(spaces: &Arc<Spaces>, config: Config, len: usize, rounds: usize) -> f64 {
    let (mut far, to_near) = open(spaces, 1, config());
    let (mut near, to_far) = open(spaces, 0, config());
    let done = Arc::new(AtomicBool::new(false));
    let over = done.clone();
    let space = spaces.clone();
    let answers = std::thread::spawn(move || {
        space.enter(1);
        pin(1);
        let mut batch = RxBatch::new(16);
        let frame = data_frame(2, len);
        while !over.load(Ordering::Relaxed) {
            for _ in 0..far.recv(&mut batch).expect("receiving works") {
                send(&mut *far, to_near, &frame);
            }
        }
    });
    spaces.enter(0);
    pin(0);
    let mut batch = RxBatch::new(16);
    let frame = data_frame(1, len);
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        send(&mut *near, to_far, &frame);
        let mut asked = start;
        while near.recv(&mut batch).expect("receiving works") == 0 {
            if asked.elapsed().as_millis() > 100 {
                send(&mut *near, to_far, &frame);
                asked = Instant::now();
            }
        }
        times.push(start.elapsed().as_nanos() as f64 / 2.0);
    }
    times.sort_by(f64::total_cmp);
    let time = times[times.len() / 4];
    done.store(true, Ordering::Relaxed);
    answers.join().expect("the other side");
    time
}

/// Returns frames received per second, with 32 frames per doorbell.
fn stream(spaces: &Arc<Spaces>, config: Config, len: usize, frames: usize) -> f64 {
    let (mut far, _) = open(spaces, 1, config());
    let (mut near, to_far) = open(spaces, 0, config());
    let done = Arc::new(AtomicBool::new(false));
    let over = done.clone();
    let count = std::thread::spawn(move || {
        pin(1);
        let mut batch = RxBatch::new(64);
        let (mut got, mut sum) = (0, 0u64);
        while !over.load(Ordering::Relaxed) {
            got += far.recv(&mut batch).expect("receiving works");
            for frame in batch.frames() {
                sum += batch.bytes(*frame).iter().map(|b| u64::from(*b)).sum::<u64>();
            }
        }
        std::hint::black_box(sum);
        got
    });
    spaces.enter(0);
    pin(0);
    let frame = data_frame(1, len);
    let start = Instant::now();
    for _ in 0..frames / 32 {
        let slots: Vec<_> = (0..32)
            .map(|_| {
                let slot = near.arena().take().expect("a slot");
                near.arena().payload_mut(slot)[..len].copy_from_slice(&frame);
                near.send(to_far, slot, HEADROOM..HEADROOM + len);
                slot
            })
            .collect();
        near.flush();
        slots.into_iter().for_each(|slot| near.arena().give(slot));
    }
    let time = start.elapsed().as_secs_f64();
    std::thread::sleep(std::time::Duration::from_millis(20));
    done.store(true, Ordering::Relaxed);
    count.join().expect("the other side") as f64 / time
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(50_000);
    let Some(spaces) = spaces::spaces("xdp_cost", Shape::default()) else { return };
    let configs: [(&str, Config); 6] = [
        ("udp", || None),
        ("xdp generic", || Some(XdpConfig::with(|config| config.mode = Mode::Generic))),
        ("xdp native", || Some(XdpConfig::with(|config| config.mode = Mode::Native))),
        ("xdp generic, busy poll", || {
            Some(XdpConfig::with(|config| (config.mode, config.receive) = (Mode::Generic, Receive::BusyPoll)))
        }),
        ("xdp native, busy poll", || {
            Some(XdpConfig::with(|config| (config.mode, config.receive) = (Mode::Native, Receive::BusyPoll)))
        }),
        ("xdp generic, raw framing", || {
            Some(XdpConfig::with(|config| (config.mode, config.framing) = (Mode::Generic, Framing::Raw)))
        }),
    ];
    println!("{:26} {:>10} {:>10} {:>12} {:>12}", "", "64 B ns", "1472 B ns", "64 B M/s", "1472 B GB/s");
    let only = std::env::args().nth(2);
    for (name, config) in
        configs.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name))
    {
        let small = ping_pong(&spaces, config, 64, rounds);
        let large = ping_pong(&spaces, config, 1_472, rounds);
        let rate = stream(&spaces, config, 64, rounds * 4) / 1e6;
        let bytes = stream(&spaces, config, 1_472, rounds * 4) * 1_472.0 / 1e9;
        println!("{name:26} {small:>10.0} {large:>10.0} {rate:>12.2} {bytes:>12.2}");
    }
}
