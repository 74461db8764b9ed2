//! A network that can be spoilt and captured: every pair of ranks talks through the launcher.
//!
//! For each pair there are two sockets here, one that each side takes for the other. What one receives is sent on by
//! its counterpart, through the wrappers `fault` and `pcap` of the device crate. So the programs need to know nothing.

use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tautline::node::device::fault::Fault;
use tautline::node::device::pcap::Pcap;
use tautline::node::device::udp::{Udp, UdpConfig};
use tautline::node::device::{Datagram, HEADROOM, RouteId, RxBatch};

use super::faults::FaultSpec;
use crate::sys::{poll_until, readable};

/// Every pair costs two sockets and their memory.
const RANKS_MAX: usize = 32;
/// How long frames that are held back may wait for the next look.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// What one rank takes for another.
struct Leg {
    /// The rank that talks to this socket, and the one it means.
    from: usize,
    to: usize,
    device: Box<dyn Datagram>,
    /// Leads to `from`.
    route: RouteId,
}

/// A running relay.
pub struct Relay {
    homes: Vec<SocketAddr>,
    /// Where each leg listens.
    legs: Vec<(usize, usize, SocketAddr)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Relay {
    /// Stands between processes that live at these addresses.
    pub fn start(homes: &[SocketAddr], fault: Option<&FaultSpec>, pcap: Option<&Path>) -> Result<Relay> {
        if homes.len() > RANKS_MAX {
            bail!("--fault and --pcap are for jobs of up to {RANKS_MAX} processes\ngive a smaller -n");
        }
        if let Some(folder) = pcap {
            std::fs::create_dir_all(folder).with_context(|| {
                format!(
                    "cannot make the folder {} for captures\ngive another one; the reason was",
                    folder.display()
                )
            })?;
        }
        let mut legs = Vec::new();
        for from in 0..homes.len() {
            for to in (0..homes.len()).filter(|to| *to != from) {
                legs.push(Leg::open(homes, (from, to), fault, pcap)?);
            }
        }
        let seen = legs.iter().map(|leg| (leg.from, leg.to, leg.device.local_addr())).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || pass_frames_on(&mut legs, &told))?;
        Ok(Relay { homes: homes.to_vec(), legs: seen, stop, thread })
    }

    /// Where this rank finds the others, and itself.
    pub fn members(&self, rank: usize) -> Vec<SocketAddr> {
        let seen = |to| self.legs.iter().find(|leg| (leg.0, leg.1) == (rank, to)).map(|leg| leg.2);
        (0..self.homes.len()).map(|to| seen(to).unwrap_or(self.homes[to])).collect()
    }

    /// Stops, and writes captures to their end.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

impl Leg {
    fn open(
        homes: &[SocketAddr],
        (from, to): (usize, usize),
        fault: Option<&FaultSpec>,
        pcap: Option<&Path>,
    ) -> Result<Leg> {
        let bind = SocketAddr::new(homes[from].ip(), 0);
        let mut device: Box<dyn Datagram> =
            Box::new(Udp::open(UdpConfig { bind, tx_slots: 512, ..UdpConfig::default() })?);
        // One of the two legs of a pair sees everything that the pair exchanges.
        if let Some(folder) = pcap.filter(|_| from < to) {
            let file = folder.join(format!("ranks-{from}-{to}.pcap"));
            let file = File::create(&file)
                .with_context(|| format!("cannot write the capture {}", file.display()))?;
            device = Box::new(Pcap::new(device, BufWriter::new(file))?);
        }
        if let Some(spec) = fault {
            let seed = spec.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (from * RANKS_MAX + to) as u64;
            device = Box::new(Fault::new(device, seed, spec.faults, Default::default()));
        }
        let route = device.route(homes[from])?;
        Ok(Leg { from, to, device, route })
    }
}

fn pass_frames_on(legs: &mut [Leg], stop: &AtomicBool) {
    let mut batch = RxBatch::new(16);
    let counterparts: Vec<_> = legs
        .iter()
        .map(|leg| {
            legs.iter()
                .position(|other| (other.from, other.to) == (leg.to, leg.from))
                .expect("legs come in pairs")
        })
        .collect();
    while !stop.load(Ordering::Relaxed) {
        let mut moved = false;
        for (leg, &counterpart) in counterparts.iter().enumerate() {
            // A socket error is a frame lost, which is what this network is for.
            if legs[leg].device.recv(&mut batch).is_ok_and(|frames| frames > 0) {
                moved = true;
                send_on(&mut legs[counterpart], &batch);
            }
            legs[leg].device.flush();
        }
        if !moved {
            let mut fds: Vec<_> = legs.iter().filter_map(|leg| leg.device.fd()).map(readable).collect();
            let _ = poll_until(&mut fds, Some(Instant::now() + LOOK_EVERY));
        }
    }
}

fn send_on(leg: &mut Leg, batch: &RxBatch) {
    for frame in batch.frames() {
        let bytes = batch.bytes(*frame);
        let Some(slot) = leg.device.arena().take() else { continue };
        if let Some(room) = leg.device.arena().payload_mut(slot).get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            leg.device.send(leg.route, slot, HEADROOM..HEADROOM + bytes.len());
            leg.device.flush();
        }
        leg.device.arena().give(slot);
    }
}
