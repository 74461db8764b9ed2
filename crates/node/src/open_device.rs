//! Chooses and opens the device, and says why (N-11).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use tautline_device::Datagram;
use tautline_device::fault::Fault;
use tautline_device::pcap::Pcap;
use tautline_device::trace::{Trace, lines};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{Framing, OpenError, Receive, Xdp, XdpConfig};
use tautline_wire::handshake::Security;

use crate::shortage::explain;
use crate::{Choice, Config, DeviceName, Job, JoinError, PassedOver, Waiting, join_addresses};

/// Opens the best device, or the one that the configuration asks for.
pub fn open_device(job: &mut Job, config: &Config) -> Result<(Box<dyn Datagram>, Choice), JoinError> {
    let bind = bind_address(job, config)?;
    let mut told = udp_config(job.socket.take(), config, job, bind);
    let mut passed_over = Vec::new();
    if config.device == Some(DeviceName::Xdp) {
        match open_xdp(told, config, job) {
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
        JoinError::NoDevice(vec![PassedOver { device: "udp", reason: format!("{bind}: {}", explain(&e)) }])
    })?;
    let reason = match config.device {
        Some(DeviceName::Xdp | DeviceName::XdpWith(_)) => "xdp was asked for and cannot be used".to_owned(),
        Some(DeviceName::Udp) => "asked for by the configuration".to_owned(),
        Some(DeviceName::Shm) => "open but unused: only shared memory was asked for".to_owned(),
        None => "works everywhere".to_owned(),
    };
    let choice = Choice { device: "udp", reason, details: udp.describe(), passed_over };
    tracing::info!(device = choice.device, reason = %choice.reason, details = %choice.details, "device chosen");
    Ok((wrap(Box::new(udp), config)?, choice))
}

/// Opens the device of a lane other than lane 0: a UDP socket at the address of this rank, with a port of its
/// own. AF_XDP queues belong to lane 0 (N-23).
pub(crate) fn open_lane_device(
    job: &Job,
    config: &Config,
    lane: u16,
) -> Result<(Box<dyn Datagram>, Choice), JoinError> {
    let mut bind = bind_address(job, config)?;
    bind.set_port(0);
    let udp = Udp::open(udp_config(None, config, job, bind)).map_err(|e| {
        JoinError::NoDevice(vec![PassedOver { device: "udp", reason: format!("{bind}: {}", explain(&e)) }])
    })?;
    let mut passed_over = Vec::new();
    if matches!(config.device, Some(DeviceName::Xdp | DeviceName::XdpWith(_))) {
        let reason = "the queues of the interface belong to lane 0".to_owned();
        passed_over.push(PassedOver { device: "xdp", reason });
    }
    let reason = format!("lane {lane} has a socket of its own");
    let choice = Choice { device: "udp", reason, details: udp.describe(), passed_over };
    tracing::info!(lane, device = choice.device, details = %choice.details, "device chosen");
    Ok((wrap(Box::new(udp), config)?, choice))
}

/// Opens AF_XDP (N-14). If it is refused, the error says why and gives back what UDP needs.
fn open_xdp(
    udp: UdpConfig,
    config: &Config,
    job: &Job,
) -> Result<(Box<dyn Datagram>, Choice), Box<OpenError>> {
    let (framing, reframed) = framing(config.xdp_framing, job);
    let device = Xdp::open(XdpConfig::with(|xdp| {
        xdp.udp = udp;
        xdp.address = Some(job.members[job.rank as usize].addr.ip());
        xdp.mode = config.xdp_mode;
        xdp.receive = receive(config);
        xdp.framing = framing;
        xdp.drop_privileges = config.xdp_drop_privileges;
        xdp.sharers = sharers(job, job.members[job.rank as usize].addr.ip());
        xdp.rx_chunks = xdp_chunks(job.size());
        xdp.job = Some(job.key.job_id());
        // L-22, L-23: with a key every frame has a tag over all of it.
        xdp.checksums = config.link.security == Security::Open;
    }))?;
    let reason = "asked for by the configuration".to_owned();
    let details = format!("{}{reframed}", device.describe());
    let choice = Choice { device: "xdp", reason, details, passed_over: Vec::new() };
    tracing::info!(device = choice.device, reason = %choice.reason, details = %choice.details, "device chosen");
    Ok((Box::new(device), choice))
}

/// Who moves received frames. Nothing can be measured while the program sleeps.
fn receive(config: &Config) -> Receive {
    match (config.xdp_receive, config.waiting) {
        (Receive::Measured, Waiting::Park) => Receive::Kernel,
        (receive, _) => receive,
    }
}

/// Returns the number of chunks that AF_XDP receives into, for a job of `size` ranks. The kernel uses them in
/// turn, so that each is cold when it comes back: there are no more than the peers' windows need (D-6).
pub fn xdp_chunks(size: u32) -> u32 {
    size.saturating_mul(CHUNKS_EACH).clamp(CHUNKS_MIN, CHUNKS_MAX).next_power_of_two()
}

/// For each rank, and in all.
const CHUNKS_EACH: u32 = 128;
const CHUNKS_MIN: u32 = 512;
const CHUNKS_MAX: u32 = 2_048;

/// Counts the ranks with this address, which share its interface.
fn sharers(job: &Job, ip: IpAddr) -> u32 {
    job.members.iter().filter(|member| member.addr.ip() == ip).count() as u32
}

/// Returns the framing, and why it is not the one that was asked for (D-12, D-20, D-23). A raw frame names no
/// address, so a card cannot tell ranks apart that share one. A rank without raw framing takes no raw frames,
/// so all ranks must come to the same answer.
fn framing(asked: Framing, job: &Job) -> (Framing, String) {
    let shared = job.members.iter().map(|member| member.addr.ip()).find(|ip| sharers(job, *ip) > 1);
    match (asked, shared) {
        (Framing::Raw, Some(ip)) => {
            let ranks = sharers(job, ip);
            (Framing::Udp, format!(", not raw Ethernet framing because {ranks} ranks share the address {ip}"))
        }
        _ => (asked, String::new()),
    }
}

/// The address to bind. If this member has several, one socket receives for all of them (J-28); then at least
/// one of them must be of this host, as binding it would have shown.
fn bind_address(job: &Job, config: &Config) -> Result<SocketAddr, JoinError> {
    let own = &job.members[job.rank as usize];
    let is_here = |addr: SocketAddr| UdpSocket::bind(SocketAddr::new(addr.ip(), 0)).is_ok();
    match config.bind {
        Some(bind) => Ok(bind),
        None if own.address_count() == 1 || own.addresses().any(is_here) => Ok(own.bind_address()),
        None => {
            let reason = format!("none of {} is an address of this host", join_addresses(own.addresses()));
            Err(JoinError::NoDevice(vec![PassedOver { device: "udp", reason }]))
        }
    }
}

fn udp_config(socket: Option<OwnedFd>, config: &Config, job: &Job, bind: SocketAddr) -> UdpConfig {
    UdpConfig::with(|udp| {
        udp.bind = bind;
        udp.addresses = job.members[job.rank as usize].addresses().map(|addr| addr.ip()).collect();
        udp.socket = socket;
        udp.tx_slots = config.tx_slots;
        (udp.gso, udp.gro) = (config.gso, config.gro);
        udp.busy_poll_us = config.busy_poll_us;
        udp.rcvbuf = config.receive_buffer;
        udp.packed = Some(tautline_wire::frame::HEADER_LEN);
    })
}

/// Wraps the device: faults outermost, so that the capture and the trace show what really went over the wire.
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

#[cfg(test)]
mod tests {
    use tautline_link::JobKey;

    use super::*;
    use crate::Member;

    /// D-6: small jobs have few chunks, which stay warm; large ones have as many as 16 peers need.
    #[test]
    fn chunks_are_for_the_job() {
        let all = [1, 2, 4, 5, 8, 9, 16, 17, u32::MAX].map(xdp_chunks);
        assert_eq!(all, [512, 512, 512, 1_024, 1_024, 2_048, 2_048, 2_048, 2_048]);
    }

    /// D-23: if ranks share an address, no rank of the job uses raw framing, and the reason is given.
    #[test]
    fn raw_framing_wants_an_address_for_each_rank() {
        let of = |rank, addrs: &[&str]| {
            Job::new(
                rank,
                JobKey::new([7; 32]),
                addrs.iter().map(|addr| Member::new(addr.parse().unwrap())).collect(),
            )
        };
        let alone = of(0, &["10.0.0.1:7000", "10.0.0.2:7000"]);
        assert_eq!(framing(Framing::Raw, &alone), (Framing::Raw, String::new()));
        for rank in 0..3 {
            let shared = of(rank, &["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.2:7001"]);
            let (chosen, why) = framing(Framing::Raw, &shared);
            assert_eq!(chosen, Framing::Udp, "rank {rank}");
            assert!(why.contains("2 ranks share the address 10.0.0.2"), "{why}");
            assert_eq!(framing(Framing::Udp, &shared), (Framing::Udp, String::new()));
        }
    }
}
