//! The supervisor of an agent: it outlives an agent that is killed, ends what that has started, and unlinks
//! the listeners of its ranks. If the supervisor itself is killed, the agent ends its processes (J-19).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::Signal;

use super::agent::serve_job;
use crate::run::control::agent_path;
use crate::run::leftovers;
use crate::run::record::Record;
use crate::sys;

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
            serve_job(Record::take(record)?)
        }
        _ => supervise(),
    }
}

fn supervise() -> Result<ExitCode> {
    leftovers::adopt()?;
    let record = Record::new()?;
    let mut agent = sys::this_program();
    agent.arg("__agent").arg(format!("--supervisor={}", std::process::id()));
    let inherited = record.inherited()?;
    let child = agent.arg(format!("--record={}", inherited.number())).spawn();
    drop(inherited);
    let mut child = child.context("cannot start the agent\nthe reason was")?;
    let (number, status) = (child.id(), child.wait()?);
    if status.success() {
        // It has ended everything itself, or has told the launcher what it could not end.
        return Ok(ExitCode::SUCCESS);
    }
    leftovers::end_all(Duration::ZERO, leftovers::sleep);
    record.clean_up();
    let _ = std::fs::remove_file(agent_path(number));
    Ok(ExitCode::FAILURE)
}
