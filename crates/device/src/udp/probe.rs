//! What UDP supports on this machine, found out by trying it over loopback.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Feature, Udp, UdpConfig};
use crate::{Datagram, HEADROOM, RouteId, RxBatch};

/// The result of the probe; every refusal contains its reason, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Frames arrive over IPv4.
    pub ipv4: Result<(), String>,
    /// Frames arrive over IPv6.
    pub ipv6: Result<(), String>,
    /// The kernel segments trains of frames when sending.
    pub gso: Result<(), String>,
    /// The kernel coalesces frames when receiving.
    pub gro: Result<(), String>,
    /// This process may make the kernel poll the card.
    pub busy_poll: Result<(), String>,
    /// Bytes that a socket buffers by default before it drops.
    pub receive_buffer: usize,
}

/// Frames of the probe.
const FRAMES: usize = 8;
/// Loopback delivers within the system call that sends, so a few polls suffice.
const POLLS: usize = 1_000;

/// Tries UDP, over loopback only.
pub fn probe() -> Probe {
    let mut found = Probe {
        ipv4: Err(String::new()),
        ipv6: trial(Ipv6Addr::LOCALHOST.into()).map(drop).map_err(|e| e.to_string()),
        gso: Err("IPv4 does not work".into()),
        gro: Err("IPv4 does not work".into()),
        busy_poll: Err("IPv4 does not work".into()),
        receive_buffer: 0,
    };
    match trial(Ipv4Addr::LOCALHOST.into()) {
        Ok(trial) => {
            found.ipv4 = Ok(());
            found.gso = trial.gso;
            found.gro = trial.gro;
            found.busy_poll = trial.busy_poll;
            found.receive_buffer = trial.receive_buffer;
        }
        Err(error) => found.ipv4 = Err(error.to_string()),
    }
    found
}

struct Trial {
    gso: Result<(), String>,
    gro: Result<(), String>,
    busy_poll: Result<(), String>,
    receive_buffer: usize,
}

/// Sends a train of frames to a second socket, and checks how it left and how it arrived.
fn trial(ip: IpAddr) -> io::Result<Trial> {
    let config =
        || UdpConfig { bind: SocketAddr::new(ip, 0), tx_slots: 1, busy_poll_us: 1, ..UdpConfig::default() };
    let mut from = Udp::open(config())?;
    let mut to = Udp::open(config())?;
    let route = from.route(to.local_addr())?;
    // Twice: the first burst turns coalescing on.
    let joined = burst(&mut from, &mut to, route)? | burst(&mut from, &mut to, route)?;
    let cut = from.routes[route.0 as usize].gso;
    Ok(Trial {
        gso: verdict(from.features.gso, cut, "the kernel supports it, but the path refused it"),
        // Frames can only arrive coalesced if they left as a train.
        gro: verdict(
            to.features.gro,
            joined || !cut,
            "the kernel supports it, but frames arrived one by one",
        ),
        busy_poll: verdict(to.features.busy_poll, true, ""),
        receive_buffer: Udp::open(UdpConfig {
            bind: SocketAddr::new(ip, 0),
            tx_slots: 1,
            ..UdpConfig::default()
        })?
        .receive_buffer(),
    })
}

/// Sends a train and receives it; returns whether any of it arrived coalesced.
fn burst(from: &mut Udp, to: &mut Udp, route: RouteId) -> io::Result<bool> {
    let slot = from.arena.take().ok_or(io::ErrorKind::OutOfMemory)?;
    for _ in 0..FRAMES {
        from.send(route, slot, HEADROOM..HEADROOM + 100);
    }
    from.flush();
    from.arena.give(slot);
    let mut batch = RxBatch::new(FRAMES);
    let (mut frames, mut joined) = (0, false);
    for _ in 0..POLLS {
        frames += to.recv(&mut batch)?;
        joined |= batch.frames().iter().any(|frame| frame.start > 0);
        if frames == FRAMES {
            return Ok(joined);
        }
    }
    let why = format!("only {frames} of {FRAMES} frames arrived over loopback");
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

fn verdict(feature: Feature, worked: bool, otherwise: &str) -> Result<(), String> {
    match feature {
        Feature::On if worked => Ok(()),
        Feature::On => Err(otherwise.into()),
        Feature::Off => Err("not tried".into()),
        Feature::Refused(errno) => Err(format!("the system refused it: {errno}")),
    }
}
