//! Starts a job on this host: sockets, key, and the processes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use tautline::{DeviceName, Member};
use tautline_launch::random_key;

use super::process::{Common, Process};
pub use super::process::{ListenerCleanup, Ranks};
use super::relay::Relay;
use super::{JobPlan, RunArgs, leftovers, output_file, tag};

/// What the launcher watches.
pub struct Started {
    pub ranks: Ranks,
    pub output: tag::Output,
}

/// Starts all processes; on an error none is left running. `files` are the programs' files, by rank.
pub fn start(
    args: &RunArgs,
    plan: &JobPlan,
    files: &[PathBuf],
) -> Result<(Started, Option<Relay>, ListenerCleanup)> {
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
    let listeners = ListenerCleanup {
        key: key.clone(),
        members: addresses.iter().map(|addr| Member::new(*addr)).collect(),
    };
    // Faults and captures need datagrams.
    let device = if args.is_relayed() { Some(DeviceName::Udp) } else { args.device };
    let common = Common { key: &key, security: args.security, device, env: &plan.env, bind: args.binds() };
    let mut started = Started { ranks: Ranks(Vec::with_capacity(n)), output: tag::Output::default() };
    for (rank, (program, socket)) in plan.programs().zip(sockets).enumerate() {
        let seen = relay.as_ref().map_or_else(|| addresses.clone(), |relay| relay.members(rank));
        let members: Vec<_> = seen.into_iter().map(Member::new).collect();
        let (stdout, stderr) = streams(args, rank)?;
        let mut child = common.start(Process {
            rank,
            index: rank,
            program: &files[rank],
            arguments: &program.words[1..],
            members: &members,
            socket: &socket,
            stdin: if rank == 0 { Stdio::inherit() } else { Stdio::null() },
            stdout,
            stderr,
        })?;
        started.output.follow(rank, &mut child);
        started.ranks.0.push(child);
    }
    Ok((started, relay, listeners))
}

/// Where a rank's output goes: to a file, through us, or where ours goes.
fn streams(args: &RunArgs, rank: usize) -> Result<(Stdio, Stdio)> {
    if let Some(folder) = &args.output {
        let file = output_file(folder, rank)?;
        return Ok((file.try_clone()?.into(), file.into()));
    }
    let stream = || if args.tag { Stdio::piped() } else { Stdio::inherit() };
    Ok((stream(), stream()))
}
