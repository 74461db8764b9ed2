//! Starts one process of a job: its description, its socket, and what it inherits.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Member, Security};
use tautline_launch::{JOB_FD, JOB_FILE, job_file};

use super::notices::Notices;
use super::{leftovers, limits, supervised};
use crate::sys::{self, Inherited};

/// The processes that were started here.
pub struct Ranks(pub Vec<Child>);

/// Kills those that still run.
pub fn kill_all(children: &mut [Child]) {
    for child in children {
        if !matches!(child.try_wait(), Ok(Some(_))) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Ranks {
    /// Only reached with live processes when starting them failed half-way, or on unwinding.
    fn drop(&mut self) {
        kill_all(&mut self.0);
        leftovers::end_all(Duration::ZERO, leftovers::sleep);
    }
}

/// The listeners of the ranks on this host. Killed ranks leave theirs behind; dropping this unlinks them.
pub struct ListenerCleanup {
    pub key: JobKey,
    /// Those that the job began with.
    pub members: Vec<Member>,
    /// How many have joined since.
    pub joined: Rc<Cell<u32>>,
}

impl Drop for ListenerCleanup {
    fn drop(&mut self) {
        tautline::node::unlink_stale_listeners(&self.key, &self.members, self.joined.get());
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
    /// Where the launcher is asked to start further processes.
    pub control: Option<&'a Path>,
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
    /// How many of them joined the running job.
    pub joined: u32,
    /// Where it runs, if it joined the running job.
    pub place: Option<Place<'a>>,
    pub socket: &'a UdpSocket,
    pub stdin: Stdio,
    pub stdout: Stdio,
    pub stderr: Stdio,
}

/// What a process has that joined the running job, as who asked for it wants it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub dir: &'a Path,
    /// The environment in place of that of the launcher or agent.
    pub env: Option<&'a [(OsString, OsString)]>,
    /// Variables that were given for it. They take precedence over those of the job.
    pub given: &'a [(OsString, OsString)],
}

fn pairs(env: &[(OsString, OsString)]) -> impl Iterator<Item = (&OsString, &OsString)> {
    env.iter().map(|(name, value)| (name, value))
}

impl Common<'_> {
    /// Starts a process. It is told of the others through what is returned with it.
    pub fn start(&self, process: Process<'_>) -> Result<(Child, Notices)> {
        let Process { rank, index, program, arguments, members, joined, place, .. } = process;
        let Process { socket, stdin, stdout, stderr, .. } = process;
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
        text += &format!("notices {}\njoined {joined}\n", reader.number());
        if let Some(control) = self.control {
            text += &format!("control {}\n", control.display());
        }
        let description = sealed(&text)?;
        let description = Inherited::new(&description)?;
        let mut command: Command = sys::this_program();
        command.arg("__child");
        if self.bind {
            command.arg(format!("--core={index}"));
        }
        if let Some(place) = place {
            command.current_dir(place.dir);
            if let Some(env) = place.env {
                command.env_clear().envs(pairs(env));
            }
        }
        command
            .arg(std::process::id().to_string())
            .arg(program)
            .args(arguments)
            .envs(pairs(self.env))
            .envs(pairs(place.map_or(&[], |place| place.given)))
            .env(JOB_FD, description.number().to_string())
            .env_remove(JOB_FILE)
            .env_remove(supervised::SUPERVISOR)
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
