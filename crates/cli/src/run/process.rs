//! Starts one process of a job: its description, its socket, and what it inherits.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Member, Security};
use tautline_launch::{JOB_FD, JOB_FILE, job_file};

use super::notices::Notices;
use super::{leftovers, limits};
use crate::sys::{self, Inherited};

/// The processes that were started here.
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

/// The listeners of the ranks on this host. Killed ranks leave theirs behind; dropping this unlinks them.
pub struct ListenerCleanup {
    pub key: JobKey,
    pub members: Vec<Member>,
}

impl Drop for ListenerCleanup {
    fn drop(&mut self) {
        tautline::node::unlink_stale_listeners(&self.key, &self.members);
    }
}

/// What all processes of a job have in common.
#[derive(Clone, Debug)]
pub struct Common<'a> {
    pub key: &'a JobKey,
    pub security: Option<Security>,
    pub device: Option<DeviceName>,
    /// Variables for the program's environment.
    pub env: &'a [(OsString, OsString)],
    /// Each process is bound to a core, in turn.
    pub bind: bool,
}

/// What distinguishes a process from the others.
pub struct Process<'a> {
    pub rank: usize,
    /// Counts the processes of this host.
    pub index: usize,
    /// The program's file, and its arguments.
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    /// The members as this process reaches them.
    pub members: &'a [Member],
    pub socket: &'a UdpSocket,
    pub stdin: Stdio,
    pub stdout: Stdio,
    pub stderr: Stdio,
}

impl Common<'_> {
    /// Starts a process. It is told of the others through what is returned with it.
    pub fn start(&self, process: Process<'_>) -> Result<(Child, Notices)> {
        let Process { rank, index, program, arguments, members, socket, stdin, stdout, stderr } = process;
        let socket = Inherited::new(socket)?;
        let (notices, reader) = Notices::new()?;
        let reader = Inherited::new(&reader)?;
        let mut text = job_file::describe(
            rank as u32,
            self.key,
            members,
            self.security,
            self.device,
            Some(socket.number()),
        );
        text += &format!("notices {}\n", reader.number());
        let description = sealed(&text)?;
        let description = Inherited::new(&description)?;
        let mut command: Command = sys::this_program();
        command.arg("__child");
        if self.bind {
            command.arg(format!("--core={index}"));
        }
        command
            .arg(std::process::id().to_string())
            .arg(program)
            .args(arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(JOB_FD, description.number().to_string())
            .env_remove(JOB_FILE)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr);
        let child = command.spawn().map_err(|error| {
            let advice = limits::advice(&error);
            anyhow::Error::from(error).context(format!("cannot start rank {rank}\n{advice}; the reason was"))
        })?;
        Ok((child, notices))
    }
}

/// Text in a sealed memory file, positioned at its beginning.
fn sealed(text: &str) -> Result<File> {
    let mut file = File::from(memfd_create("tautline-job", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}
