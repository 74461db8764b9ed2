//! Which device, and why: never in silence (N-11).

use std::net::SocketAddr;

use tautline_device::Datagram;
use tautline_device::fault::Fault;
use tautline_device::pcap::Pcap;
use tautline_device::trace::{Trace, lines};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{Refused, Xdp, XdpConfig};
use tautline_wire::handshake::Security;

use crate::{Config, DeviceName, Job, JoinError};

/// A device that was considered and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Its name.
    pub device: &'static str,
    /// Why not.
    pub reason: String,
}

/// The device that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub device: &'static str,
    /// Why this one, in a sentence.
    pub reason: String,
    /// How it is set up.
    pub details: String,
    /// Better ones that could not be used.
    pub passed_over: Vec<PassedOver>,
}

/// Opens the best device there is, or the one that the configuration insists on.
pub fn open_device(job: &mut Job, config: &Config) -> Result<(Box<dyn Datagram>, Choice), JoinError> {
    let bind = config.bind.unwrap_or(job.members[job.rank as usize].addr);
    let mut told = udp_config(job, config, bind);
    let mut passed_over = Vec::new();
    if config.device == Some(DeviceName::Xdp) {
        match open_xdp(told, config, sharers(job)) {
            Ok((device, choice)) => return Ok((wrap(device, config)?, choice)),
            Err(refused) => {
                let reason = refused.why.to_string();
                tracing::warn!(%reason, "AF_XDP cannot be used");
                passed_over.push(PassedOver { device: "xdp", reason });
                told = refused.udp;
            }
        }
    }
    let udp = Udp::open(told).map_err(|e| {
        JoinError::NoDevice(vec![PassedOver { device: "udp", reason: format!("{bind}: {e}") }])
    })?;
    let reason = match config.device {
        Some(DeviceName::Xdp) => "xdp was asked for and cannot be used".to_owned(),
        Some(DeviceName::Udp) => "asked for by the configuration".to_owned(),
        Some(DeviceName::Shm) => "to be reached by nobody: shared memory was asked for".to_owned(),
        None => "works everywhere; peers on this host are reached through shared memory".to_owned(),
    };
    let choice = Choice { device: "udp", reason, details: udp.describe(), passed_over };
    tracing::info!(device = choice.device, reason = %choice.reason, details = %choice.details, "device chosen");
    Ok((wrap(Box::new(udp), config)?, choice))
}

/// Opens AF_XDP, which is asked for (N-14); refused, it says why and gives back what UDP needs.
fn open_xdp(
    udp: UdpConfig,
    config: &Config,
    sharers: u32,
) -> Result<(Box<dyn Datagram>, Choice), Box<Refused>> {
    let told = XdpConfig {
        udp,
        mode: config.xdp_mode,
        receive: config.xdp_receive,
        framing: config.xdp_framing,
        drop_privileges: config.xdp_drop_privileges,
        sharers,
        // L-22, L-23: with a key every frame has a tag over all of it.
        checksums: config.link.security == Security::Open,
        ..XdpConfig::default()
    };
    let device = Xdp::open(told)?;
    let reason = "asked for by the configuration".to_owned();
    let details = device.describe().to_owned();
    let choice = Choice { device: "xdp", reason, details, passed_over: Vec::new() };
    tracing::info!(device = choice.device, reason = %choice.reason, details = %choice.details, "device chosen");
    Ok((Box::new(device), choice))
}

/// Ranks that have this rank's address: they share its interface.
fn sharers(job: &Job) -> u32 {
    let mine = job.members[job.rank as usize].addr.ip();
    job.members.iter().filter(|member| member.addr.ip() == mine).count() as u32
}

fn udp_config(job: &mut Job, config: &Config, bind: SocketAddr) -> UdpConfig {
    UdpConfig {
        bind,
        socket: job.socket.take(),
        tx_slots: config.tx_slots,
        gso: config.gso,
        gro: config.gro,
        busy_poll_us: config.busy_poll_us,
        rcvbuf: config.receive_buffer,
        ..UdpConfig::default()
    }
}

/// Faults innermost, then the capture, then the trace: both show what really went over the wire.
fn wrap(device: Box<dyn Datagram>, config: &Config) -> Result<Box<dyn Datagram>, JoinError> {
    let mut device = device;
    if let Some(path) = &config.pcap {
        let file = std::fs::File::create(path)?;
        device = Box::new(Pcap::new(device, std::io::BufWriter::new(file))?);
    }
    if config.trace {
        device = Box::new(Trace::new(device, lines(std::io::stderr())));
    }
    if let Some((seed, faults)) = config.fault {
        device = Box::new(Fault::new(device, seed, faults, faults));
    }
    Ok(device)
}
