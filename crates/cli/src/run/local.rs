//! Starts a job on this host: sockets, key, and the processes; and processes that have failed, again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Member};
use tautline_launch::random_key;

use super::notices::Notices;
use super::process::{Common, Process};
pub use super::process::{ListenerCleanup, Ranks};
use super::programs::Program;
use super::relay::Relay;
use super::{JobPlan, RunArgs, leftovers, output_file, tag};

/// What the launcher watches.
pub struct Started<'a> {
    pub ranks: Ranks,
    /// Through which each rank is told of the others.
    pub notices: Vec<Notices>,
    pub output: tag::Output,
    pub starter: Starter<'a>,
}

/// What it takes to start a rank, also for the second time: then it has the address that it had.
pub struct Starter<'a> {
    args: &'a RunArgs,
    plan: &'a JobPlan,
    programs: Vec<&'a Program>,
    /// The programs' files, by rank.
    files: &'a [PathBuf],
    key: JobKey,
    sockets: Vec<UdpSocket>,
    addresses: Vec<SocketAddr>,
    relay: Option<Relay>,
}

/// Starts all processes; on an error none is left running. `files` are the programs' files, by rank.
pub fn start<'a>(
    args: &'a RunArgs,
    plan: &'a JobPlan,
    files: &'a [PathBuf],
) -> Result<(Started<'a>, ListenerCleanup)> {
    let n = plan.size();
    let ip: IpAddr = if args.ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let sockets =
        (0..n).map(|_| UdpSocket::bind((ip, 0))).collect::<Result<Vec<_>, _>>().with_context(|| {
            format!(
                "cannot bind {n} UDP sockets on {ip}\ntautline doctor shows what works here; the reason was"
            )
        })?;
    let addresses = sockets.iter().map(UdpSocket::local_addr).collect::<Result<Vec<_>, _>>()?;
    let relay = if args.is_relayed() {
        Some(Relay::start(&addresses, args.fault.as_ref(), args.pcap.as_deref())?)
    } else {
        None
    };
    let key = random_key()?;
    leftovers::adopt()?;
    let members = addresses.iter().map(|addr| Member::new(*addr)).collect();
    let listeners = ListenerCleanup { key: key.clone(), members };
    let programs = plan.programs().collect();
    let starter = Starter { args, plan, programs, files, key, sockets, addresses, relay };
    let (ranks, output) = (Ranks(Vec::with_capacity(n)), tag::Output::default());
    let mut started = Started { ranks, notices: Vec::with_capacity(n), output, starter };
    for rank in 0..n {
        let (mut child, notices) = started.starter.start(rank, false)?;
        started.output.follow(rank, &mut child);
        started.ranks.0.push(child);
        started.notices.push(notices);
    }
    if args.restart.is_none() {
        // Frames to a rank that has ended are refused at once, and not stored for nobody.
        started.starter.sockets.clear();
    }
    Ok((started, listeners))
}

impl Starter<'_> {
    /// Starts a rank, for the first time or `again`.
    pub fn start(&self, rank: usize, again: bool) -> Result<(Child, Notices)> {
        let seen = self.relay.as_ref().map_or_else(|| self.addresses.clone(), |relay| relay.members(rank));
        let members: Vec<_> = seen.into_iter().map(Member::new).collect();
        let (stdout, stderr) = streams(self.args, rank, again)?;
        // Faults and captures need datagrams.
        let device = if self.args.is_relayed() { Some(DeviceName::Udp) } else { self.args.device };
        let common = Common {
            key: &self.key,
            security: self.args.security,
            device,
            env: &self.plan.env,
            bind: self.args.binds(),
        };
        common.start(Process {
            rank,
            index: rank,
            program: &self.files[rank],
            arguments: &self.programs[rank].words[1..],
            members: &members,
            socket: &self.sockets[rank],
            stdin: if rank == 0 { Stdio::inherit() } else { Stdio::null() },
            stdout,
            stderr,
        })
    }

    /// No rank will be started any more: completes the captures.
    pub fn finish(self) {
        if let Some(relay) = self.relay {
            relay.finish();
        }
    }
}

/// Where a rank's output goes: to a file, through us, or where ours goes.
fn streams(args: &RunArgs, rank: usize, again: bool) -> Result<(Stdio, Stdio)> {
    if let Some(folder) = &args.output {
        let file = output_file(folder, rank, again)?;
        return Ok((file.try_clone()?.into(), file.into()));
    }
    let stream = || if args.tag { Stdio::piped() } else { Stdio::inherit() };
    Ok((stream(), stream()))
}
