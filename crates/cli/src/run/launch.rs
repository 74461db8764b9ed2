//! Starts the processes: sockets, key, descriptions, and the hand-over.

use std::fs::File;
use std::io::{Seek, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::rand::{GetRandomFlags, getrandom};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Job, Member};

use super::relay::Relay;
use super::{RunArgs, leftovers, limits, tag};
use crate::sys::{self, Inherited};

/// Names the descriptor to the program, for `tautline` to find.
const JOB_FD: &str = "TAUTLINE_JOB_FD";
const JOB_FILE: &str = "TAUTLINE_JOB_FILE";

/// The processes of a job, in order of rank.
pub struct Ranks(pub Vec<Child>);

impl Drop for Ranks {
    /// Only reached with live processes when starting them failed half-way, or on unwinding.
    fn drop(&mut self) {
        for child in &mut self.0 {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        leftovers::end_all(Duration::ZERO, |time| {
            std::thread::sleep(time);
            false
        });
    }
}

/// What the launcher watches.
pub struct Started {
    pub ranks: Ranks,
    pub output: tag::Output,
}

/// The listeners of the ranks on this host. Killed ranks leave theirs behind; dropping this unlinks them.
pub struct ListenerCleanup {
    key: JobKey,
    members: Vec<Member>,
}

impl Drop for ListenerCleanup {
    fn drop(&mut self) {
        tautline::node::unlink_stale_listeners(&self.key, &self.members);
    }
}

/// Starts all processes; on an error none is left running.
pub fn start(args: &RunArgs, program: &Path) -> Result<(Started, Option<Relay>, ListenerCleanup)> {
    let ip: IpAddr = if args.ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let sockets =
        (0..args.n).map(|_| UdpSocket::bind((ip, 0))).collect::<Result<Vec<_>, _>>().with_context(|| {
            format!(
                "cannot bind {} UDP sockets on {ip}\ntautline doctor shows what works here; the reason was",
                args.n
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
    let mut started = Started { ranks: Ranks(Vec::with_capacity(args.n)), output: tag::Output::default() };
    for (rank, socket) in sockets.into_iter().enumerate() {
        let seen = match &relay {
            Some(relay) => relay.members(rank),
            None => addresses.clone(),
        };
        let mut child = start_one(args, program, rank, &key, &seen, &socket)?;
        started.output.follow(rank, &mut child);
        started.ranks.0.push(child);
    }
    Ok((started, relay, listeners))
}

fn random_key() -> Result<JobKey> {
    let mut key = [0; 32];
    let mut filled = 0;
    while filled < key.len() {
        filled += getrandom(&mut key[filled..], GetRandomFlags::empty())?;
    }
    Ok(JobKey::new(key))
}

fn start_one(
    args: &RunArgs,
    program: &Path,
    rank: usize,
    key: &JobKey,
    seen: &[SocketAddr],
    socket: &UdpSocket,
) -> Result<Child> {
    let members: Vec<_> = seen.iter().map(|addr| Member::new(*addr)).collect();
    let socket = Inherited::new(socket)?;
    // Faults and captures need datagrams.
    let device = if args.is_relayed() { Some(DeviceName::Udp) } else { args.device };
    let text = Job::describe(rank as u32, key, &members, args.security, device, Some(socket.number()));
    let description = sealed(&text)?;
    let description = Inherited::new(&description)?;
    let mut command: Command = sys::this_program();
    command
        .arg("__child")
        .arg(std::process::id().to_string())
        .arg(program)
        .args(&args.program[1..])
        .env(JOB_FD, description.number().to_string())
        .env_remove(JOB_FILE);
    if rank > 0 {
        command.stdin(Stdio::null());
    }
    if args.tag {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command.spawn().map_err(|error| {
        let advice = limits::advice(&error);
        anyhow::Error::from(error).context(format!("cannot start rank {rank}\n{advice}; the reason was"))
    })
}

/// Text in a sealed memory file, positioned at its beginning.
fn sealed(text: &str) -> Result<File> {
    let mut file = File::from(memfd_create("tautline-job", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}
