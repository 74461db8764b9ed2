//! The supervisor of an agent: it outlives an agent that is killed, ends what that has started, and unlinks
//! the listeners of its ranks. If the supervisor itself is killed, the agent ends its processes (J-19).

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use tautline::node::device::inherit;
use tautline::node::link::erase;
use tautline_launch::job_file;

use super::agent::serve_job;
use crate::run::leftovers;
use crate::run::process::ListenerCleanup;
use crate::sys::{self, Inherited};

/// The arguments of `__agent`. Without them it is the supervisor of another one, which has them.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The number of the supervisor
    #[arg(long, requires = "record")]
    supervisor: Option<i32>,
    /// The descriptor of the record for the supervisor
    #[arg(long)]
    record: Option<i32>,
}

/// Serves one job, as the agent of a host.
pub fn agent(args: &AgentArgs) -> Result<ExitCode> {
    match (args.supervisor, args.record) {
        (Some(supervisor), Some(record)) => {
            if !sys::end_with_signal(supervisor, Signal::TERM)? {
                return Ok(ExitCode::FAILURE);
            }
            serve_job(Record(File::from(inherit::take(record)?)))
        }
        _ => supervise(),
    }
}

/// The job's description in memory that agent and supervisor share: what to unlink after the agent.
pub struct Record(File);

impl Record {
    /// Leaves the description of a job whose ranks are about to be started.
    pub fn write(&mut self, job: &ListenerCleanup) -> Result<()> {
        let mut text = job_file::describe(0, &job.key, &job.members, None, None, None).into_bytes();
        let written = self.0.write_all(&text);
        erase(&mut text);
        written.context("cannot note the job for the supervisor\nis there memory left? the reason was")
    }

    /// Reads the description, if a job was started.
    fn read(mut self) -> Option<ListenerCleanup> {
        let len = self.0.metadata().ok()?.len() as usize;
        // With room for all of it, so that no part of the key is copied and left behind.
        let mut text = String::with_capacity(len + 1);
        self.0.rewind().ok()?;
        self.0.read_to_string(&mut text).ok()?;
        let job = job_file::parse(&text).ok();
        erase(&mut text.into_bytes());
        job.map(|job| ListenerCleanup {
            key: job.key,
            members: job.members.to_vec(),
            joined: Default::default(),
        })
    }
}

fn supervise() -> Result<ExitCode> {
    leftovers::adopt()?;
    let record: OwnedFd = memfd_create("tautline-agent", MemfdFlags::CLOEXEC)?;
    let mut agent = sys::this_program();
    agent.arg("__agent").arg(format!("--supervisor={}", std::process::id()));
    let inherited = Inherited::new(&record)?;
    let child = agent.arg(format!("--record={}", inherited.number())).spawn();
    drop(inherited);
    let status = child.context("cannot start the agent\nthe reason was")?.wait()?;
    if status.success() {
        // It has ended everything itself, or has told the launcher what it could not end.
        return Ok(ExitCode::SUCCESS);
    }
    let pause = |time| {
        std::thread::sleep(time);
        false
    };
    leftovers::end_all(Duration::ZERO, pause);
    drop(Record(record.into()).read());
    Ok(ExitCode::FAILURE)
}
