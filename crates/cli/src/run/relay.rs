//! A network with faults and captures: every pair of ranks exchanges frames through the launcher.
//!
//! For each pair there are two sockets here, one that each side takes for the other. Frames that one receives
//! are sent on by its counterpart, through the wrappers `fault` and `pcap` of the device crate. So the
//! programs need to know nothing of it.

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
/// How long frames that are held back may wait for the next poll.
const POLL_EVERY: Duration = Duration::from_micros(500);

/// The socket that one rank takes for another.
struct Leg {
    /// The rank that sends to this socket, and the rank that it means.
    from: usize,
    to: usize,
    device: Box<dyn Datagram>,
    /// Leads to `from`.
    route: RouteId,
}

/// A running relay.
pub struct Relay {
    addresses: Vec<SocketAddr>,
    /// The address of each leg.
    legs: Vec<(usize, usize, SocketAddr)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay between processes at these addresses.
    pub fn start(addresses: &[SocketAddr], fault: Option<&FaultSpec>, pcap: Option<&Path>) -> Result<Relay> {
        if addresses.len() > RANKS_MAX {
            bail!("--fault and --pcap are for jobs of up to {RANKS_MAX} processes\ngive a smaller -n");
        }
        if let Some(folder) = pcap {
            std::fs::create_dir_all(folder).with_context(|| {
                format!(
                    "cannot make the directory {} for captures\ngive another one; the reason was",
                    folder.display()
                )
            })?;
        }
        let mut legs = Vec::new();
        for from in 0..addresses.len() {
            for to in (0..addresses.len()).filter(|to| *to != from) {
                legs.push(Leg::open(addresses, (from, to), fault, pcap)?);
            }
        }
        let seen = legs.iter().map(|leg| (leg.from, leg.to, leg.device.local_addr())).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || forward_frames(&mut legs, &stopped))?;
        Ok(Relay { addresses: addresses.to_vec(), legs: seen, stop, thread })
    }

    /// The addresses under which this rank reaches the others, and its own.
    pub fn members(&self, rank: usize) -> Vec<SocketAddr> {
        let seen = |to| self.legs.iter().find(|leg| (leg.0, leg.1) == (rank, to)).map(|leg| leg.2);
        (0..self.addresses.len()).map(|to| seen(to).unwrap_or(self.addresses[to])).collect()
    }

    /// Stops, and completes the captures.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

impl Leg {
    fn open(
        addresses: &[SocketAddr],
        (from, to): (usize, usize),
        fault: Option<&FaultSpec>,
        pcap: Option<&Path>,
    ) -> Result<Leg> {
        let bind = SocketAddr::new(addresses[from].ip(), 0);
        let mut device: Box<dyn Datagram> =
            Box::new(Udp::open(UdpConfig::with(|config| (config.bind, config.tx_slots) = (bind, 512)))?);
        // One of the two legs of a pair sees all frames of the pair.
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
        let route = device.route(addresses[from])?;
        Ok(Leg { from, to, device, route })
    }
}

fn forward_frames(legs: &mut [Leg], stop: &AtomicBool) {
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
            // A socket error is a lost frame, which this network may have anyway.
            if legs[leg].device.recv(&mut batch).is_ok_and(|frames| frames > 0) {
                moved = true;
                forward_batch(&mut legs[counterpart], &batch);
            }
            legs[leg].device.flush();
        }
        if !moved {
            let mut fds: Vec<_> = legs.iter().filter_map(|leg| leg.device.fd()).map(readable).collect();
            let _ = poll_until(&mut fds, Some(Instant::now() + POLL_EVERY));
        }
    }
}

fn forward_batch(leg: &mut Leg, batch: &RxBatch) {
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
