//! Starts a job on this host: sockets, key, and the processes; and processes that have failed, again.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use tautline::node::limits::MAX_PEERS;
use tautline::node::link::JobKey;
use tautline::{DeviceName, Member};
use tautline_launch::control::Request;
use tautline_launch::random_key;

use super::alive::Alive;
use super::control::Control;
use super::notices::Notices;
use super::process::{Common, Place, Process, kill_all};
pub use super::process::{ListenerCleanup, Ranks};
use super::programs::Program;
use super::record::Record;
use super::relay::Relay;
use super::{JobPlan, RunArgs, leftovers, lookup, output_file, tag};

/// What the launcher watches.
pub struct Started<'a> {
    pub ranks: Ranks,
    pub alive: Alive,
    /// Through which each rank is told of the others.
    pub notices: Vec<Notices>,
    pub output: tag::Output,
    pub starter: Starter<'a>,
    pub control: Option<Control>,
}

/// What it takes to start a rank, also for the second time: then it has the address that it had.
pub struct Starter<'a> {
    args: &'a RunArgs,
    plan: &'a JobPlan,
    programs: Vec<&'a Program>,
    /// The programs' files, by rank.
    files: &'a [PathBuf],
    /// Ranks that joined the running job.
    joined: Vec<Joined>,
    joined_count: Rc<Cell<u32>>,
    record: Option<Record>,
    control: Option<PathBuf>,
    key: JobKey,
    sockets: Vec<UdpSocket>,
    addresses: Vec<SocketAddr>,
    relay: Option<Relay>,
}

/// What a rank is started with that joined the running job.
struct Joined {
    file: PathBuf,
    request: Rc<Request>,
    /// Where its output and errors go, unless where those of the job go.
    streams: Option<Rc<[OwnedFd; 2]>>,
}

/// Starts all processes; on an error none is left running. `files` are the programs' files, by rank.
pub fn start<'a>(
    args: &'a RunArgs,
    plan: &'a JobPlan,
    files: &'a [PathBuf],
    control: Option<Control>,
    record: Option<Record>,
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
    let joined_count = Rc::<Cell<u32>>::default();
    let listeners = ListenerCleanup { key: key.clone(), members, joined: joined_count.clone() };
    let mut record = record;
    if let Some(record) = &mut record {
        record.write(&listeners)?;
    }
    let programs = plan.programs().collect();
    let path = control.as_ref().map(|control| control.path().to_owned());
    let starter = Starter {
        args,
        plan,
        programs,
        files,
        joined: Vec::new(),
        joined_count,
        record,
        control: path,
        key,
        sockets,
        addresses,
        relay,
    };
    let (ranks, output) = (Ranks(Vec::with_capacity(n)), tag::Output::default());
    let (alive, notices) = (Alive::new()?, Vec::with_capacity(n));
    let mut started = Started { ranks, alive, notices, output, starter, control };
    for rank in 0..n {
        let (mut child, notices) = started.starter.start(rank, false)?;
        // At once: an end is in its place among others only if it comes after this.
        let added = started.alive.add(rank, child.id());
        started.output.follow(rank, &mut child);
        started.ranks.0.push(child);
        started.notices.push(notices);
        added?;
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
        let joined = rank.checked_sub(self.plan.size()).map(|at| &self.joined[at]);
        let (stdout, stderr) = match joined.and_then(|joined| joined.streams.as_ref()) {
            Some(streams) => (streams[0].try_clone()?.into(), streams[1].try_clone()?.into()),
            None => streams(self.args, rank, again)?,
        };
        // Faults and captures need datagrams.
        let device = if self.args.is_relayed() { Some(DeviceName::Udp) } else { self.args.device };
        let common = Common {
            key: &self.key,
            security: self.args.security,
            device,
            env: &self.plan.env,
            bind: self.args.binds(),
            control: self.control.as_deref(),
        };
        // Without restarts the sockets of the first ranks were closed.
        let offset = self.addresses.len() - self.sockets.len();
        let socket = &self.sockets[rank - offset];
        common.start(Process {
            rank,
            index: rank,
            program: joined.map_or_else(|| &*self.files[rank], |joined| &joined.file),
            arguments: joined.map_or_else(|| &self.programs[rank].words[1..], |it| &it.request.arguments),
            members: &members,
            joined: self.joined.len() as u32,
            place: joined.map(|Joined { request, .. }| Place {
                dir: &request.dir,
                env: Some(&request.env),
                given: &request.given,
            }),
            socket,
            stdin: if rank == 0 { Stdio::inherit() } else { Stdio::null() },
            stdout,
            stderr,
        })
    }

    /// Starts further ranks (J-22). If that fails, there are none, and nobody needs to know of them.
    pub fn join(
        &mut self,
        request: Request,
        streams: Option<[OwnedFd; 2]>,
    ) -> Result<Vec<(Child, Notices, SocketAddr)>> {
        let (before, count) = (self.addresses.len(), request.count as usize);
        if self.relay.is_some() {
            bail!("a job with --fault or --pcap has a fixed number of ranks\nstart all of them with the job");
        }
        if !request.hosts.is_empty() {
            bail!(
                "the job is on one host, whose addresses others cannot reach\nleave out --hosts and --hostfile"
            );
        }
        check_size(before, count)?;
        let file = match &request.file {
            Some(file) => file.clone(),
            None => lookup::find_in(&request.dir, &request.program)?,
        };
        let ip = self.addresses[0].ip();
        let sockets = (0..count).map(|_| UdpSocket::bind((ip, 0))).collect::<Result<Vec<_>, _>>()?;
        let addresses = sockets.iter().map(UdpSocket::local_addr).collect::<Result<Vec<_>, _>>()?;
        if let Some(record) = &mut self.record {
            record.write_joined((self.joined.len() + count) as u32)?;
        }
        let (request, streams, kept) = (Rc::new(request), streams.map(Rc::new), self.sockets.len());
        for (socket, address) in sockets.into_iter().zip(&addresses) {
            self.sockets.push(socket);
            self.addresses.push(*address);
            let (file, request) = (file.clone(), request.clone());
            self.joined.push(Joined { file, request, streams: streams.clone() });
        }
        let mut children = Vec::with_capacity(count);
        let mut others = Vec::with_capacity(count);
        for (rank, address) in (before..).zip(&addresses) {
            match self.start(rank, false) {
                Ok((child, notices)) => {
                    children.push(child);
                    others.push((notices, *address));
                }
                Err(error) => {
                    kill_all(&mut children);
                    self.addresses.truncate(before);
                    self.sockets.truncate(kept);
                    self.joined.truncate(before - self.plan.size());
                    return Err(error);
                }
            }
        }
        // Whoever reads the output waits until nobody can write it. Ranks that joined are not started again.
        for joined in &mut self.joined {
            joined.streams = None;
        }
        if self.args.restart.is_none() {
            self.sockets.clear();
        }
        self.joined_count.set(self.joined.len() as u32);
        Ok(children
            .into_iter()
            .zip(others)
            .map(|(child, (notices, address))| (child, notices, address))
            .collect())
    }

    /// No rank will be started any more: completes the captures.
    pub fn finish(self) {
        if let Some(relay) = self.relay {
            relay.finish();
        }
    }
}

/// Checks that a job may have more ranks.
pub fn check_size(before: usize, more: usize) -> Result<()> {
    if more == 0 || before + more > MAX_PEERS {
        bail!("{more} more ranks are not possible\na job has 1 to {MAX_PEERS} ranks, and this one {before}");
    }
    Ok(())
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
