//! Which device, and why: never in silence (N-11).

use std::net::SocketAddr;

use tautline_device::Datagram;
use tautline_device::fault::Fault;
use tautline_device::pcap::Pcap;
use tautline_device::trace::{Trace, lines};
use tautline_device::udp::{Udp, UdpConfig};

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
    let udp = open_udp(job, config, bind).map_err(|e| {
        JoinError::NoDevice(vec![PassedOver { device: "udp", reason: format!("{bind}: {e}") }])
    })?;
    let reason = match config.device {
        Some(DeviceName::Udp) => "asked for by the configuration".to_owned(),
        Some(DeviceName::Shm) => "shared memory was asked for, which this version does not have".to_owned(),
        None => "works everywhere, and is the only device between processes that this version has".to_owned(),
    };
    let choice = Choice { device: "udp", reason, details: udp.describe(), passed_over: Vec::new() };
    tracing::info!(device = choice.device, reason = %choice.reason, details = %choice.details, "device chosen");
    Ok((wrap(Box::new(udp), config)?, choice))
}

fn open_udp(job: &mut Job, config: &Config, bind: SocketAddr) -> std::io::Result<Udp> {
    Udp::open(UdpConfig {
        bind,
        socket: job.socket.take(),
        tx_slots: config.tx_slots,
        gso: config.gso,
        gro: config.gro,
        busy_poll_us: config.busy_poll_us,
        rcvbuf: config.receive_buffer,
        ..UdpConfig::default()
    })
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
