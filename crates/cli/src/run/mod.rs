//! `tautline run`: the processes of one job, on this host or, through ssh, on many.
//!
//! On this host the launcher binds one socket per rank and hands it over; the job's description, including
//! the key, goes through a sealed memory file. On others an agent does that (`remote`). Neither arguments nor
//! the environment ever contain the key.

mod alive;
mod args;
mod control;
mod faults;
pub mod hosts;
mod join;
mod leftovers;
mod limits;
mod local;
mod lookup;
mod notices;
mod outcome;
mod process;
mod programs;
mod record;
mod relay;
mod remote;
mod slurm;
mod supervised;
mod tag;
mod watch;

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tautline::DeviceName;
use tautline_launch::launcher::PROGRAMS;

use crate::sys;
pub use args::{ChildArgs, RunArgs};
use outcome::Outcome;
use programs::Program;
use remote::Connector;
pub use remote::{AgentArgs, agent};
pub use slurm::is_in_allocation;
pub use supervised::is_supervised;
use supervised::{Begun, Launcher};

/// What is to be started: the programs, and what all of them are given.
pub struct JobPlan {
    programs: Vec<Program>,
    env: Vec<(OsString, OsString)>,
}

impl JobPlan {
    fn new(args: &RunArgs, fill: Option<usize>) -> Result<JobPlan> {
        let programs = programs::parse(args.n, &args.program, fill)?;
        let mut env = args.env.iter().map(parse_variable).collect::<Result<Vec<_>>>()?;
        // By its rank each process tells which program it is (J-30).
        let counts: Vec<_> = programs.iter().map(|program| program.count.to_string()).collect();
        env.push((PROGRAMS.into(), counts.join(",").into()));
        // All ranks, on all hosts, must choose the same algorithms.
        let choices = OsString::from(tautline::group::CHOICES);
        if let Some(value) = std::env::var_os(&choices)
            && env.iter().all(|(name, _)| *name != choices)
        {
            env.push((choices, value));
        }
        Ok(JobPlan { programs, env })
    }

    /// How many processes there are.
    fn size(&self) -> usize {
        self.programs.iter().map(|program| program.count).sum()
    }

    /// The file of each rank's program. Each program is looked up once.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::with_capacity(self.size());
        for program in &self.programs {
            files.extend(std::iter::repeat_n(lookup::find(&program.words[0])?, program.count));
        }
        Ok(files)
    }

    /// The program of each rank.
    fn programs(&self) -> impl Iterator<Item = &Program> {
        programs::by_rank(&self.programs)
    }
}

/// Reads `NAME=VALUE`, or `NAME` with the value that it has here.
fn parse_variable(text: &OsString) -> Result<(OsString, OsString)> {
    let bytes = text.as_bytes();
    if let Some(at) = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) {
        return Ok((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())));
    }
    let shown = text.to_string_lossy();
    if bytes.first().is_none_or(|first| *first == b'=') {
        bail!("--env {shown}: a variable needs a name\nfor example: --env NAME=VALUE");
    }
    match std::env::var_os(text) {
        Some(value) => Ok((text.clone(), value)),
        None => bail!("--env {shown}: there is no such variable here\ngive it a value: --env {shown}=VALUE"),
    }
}

/// Starts the job and waits for its end.
pub fn run(mut args: RunArgs) -> Result<ExitCode> {
    if let Some(job) = &args.join {
        return join::run(&args, job);
    }
    // Also valid in the directory of the programs.
    for path in [&mut args.output, &mut args.pcap].into_iter().flatten() {
        *path = std::path::absolute(&path)?;
    }
    if args.device == Some(DeviceName::Shm) && args.is_relayed() {
        bail!("shared memory has neither faults nor captures\nleave out --device shm, or --fault and --pcap");
    }
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Some(hosts::parse_list(list)?),
        (None, Some(file)) => Some(hosts::read_file(file)?),
        (None, None) => None,
    };
    let (hosts, connector) = match hosts {
        Some(hosts) => (Some(hosts), Connector::Ssh(args.ssh.clone())),
        None if args.here || args.is_relayed() || args.ipv6 => (None, Connector::Slurm),
        None => (slurm::allocation()?, Connector::Slurm),
    };
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).with_context(|| {
            format!("cannot make the directory {}\ngive another one; the reason was", folder.display())
        })?;
    }
    let fill = hosts.as_ref().map(|hosts| hosts::capacity(hosts, args.ppn));
    let hosts = match hosts {
        Some(hosts) if args.oversubscribe => {
            let programs = programs::parse(args.n, &args.program, fill)?;
            let n = programs.iter().map(|program| program.count).sum();
            Some(hosts::oversubscribed(hosts, args.ppn, n))
        }
        hosts => hosts,
    };
    match hosts {
        Some(hosts) if needs_no_ssh(&args, &hosts) => {
            let n = args.n.or(fill).unwrap_or(1);
            hosts::place(&hosts, args.ppn, n)?;
            run_here(&RunArgs { n: Some(n), ppn: None, ..args })
        }
        Some(hosts) => {
            let launcher = match supervised::begin(args.grace)? {
                Begun::Launcher(launcher) => launcher,
                Begun::Ended(code) => return Ok(code),
            };
            let plan = JobPlan::new(&args, fill)?;
            remote::run(&args, &plan, &hosts, &connector, launcher)
        }
        None => run_here(&args),
    }
}

/// Whether the named hosts are this one. An agent, an interface or a command that connects is used if it is
/// named.
fn needs_no_ssh(args: &RunArgs, hosts: &[hosts::Host]) -> bool {
    let names_hosts = args.hosts.is_some() || args.hostfile.is_some();
    let is_plain = args.agent.is_none() && args.interface.is_none() && args.ssh == args::SSH;
    names_hosts && is_plain && hosts::are_here(hosts)
}

fn run_here(args: &RunArgs) -> Result<ExitCode> {
    if args.ppn.is_some() || args.agent.is_some() || args.interface.is_some() {
        bail!("--ppn, --agent and --interface are for jobs on several hosts\nname the hosts: --hosts a,b");
    }
    let Launcher { number, signals, record } = match supervised::begin(args.grace)? {
        Begun::Launcher(launcher) => launcher,
        Begun::Ended(code) => return Ok(code),
    };
    let plan = JobPlan::new(args, None)?;
    limits::check(args, plan.size())?;
    if let Some(folder) = &args.wdir {
        enter(folder)?;
    }
    let files = plan.files()?;
    if let Some(DeviceName::Xdp | DeviceName::XdpWith(_)) = args.device {
        let instead = if args.is_relayed() {
            "they use udp, as --fault and --pcap require"
        } else {
            "they share memory, unless the program requests udp"
        };
        report!("tautline: xdp reaches other hosts only, and all ranks are on this one: {instead}");
    }
    let control = control::Control::open(number);
    let (job, listeners) = local::start(args, &plan, &files, control, record)?;
    let outcome =
        Outcome::new(plan.size(), args.grace, args.keep_going, args.timeout).with_restarts(args.restarts());
    let code = watch::wait_for_ranks(job, signals, outcome);
    drop(listeners);
    code
}

/// Makes `folder` the directory of this process, and of those that it starts.
fn enter(folder: &Path) -> Result<()> {
    std::env::set_current_dir(folder).with_context(|| {
        format!("cannot enter the directory {}\ncheck --wdir; the reason was", folder.display())
    })
}

/// The file for a rank's output; of a rank that is started again, the end of the one that it has.
fn output_file(folder: &Path, rank: usize, again: bool) -> Result<File> {
    let path: PathBuf = folder.join(format!("rank-{rank}.txt"));
    let opened = if again { File::options().append(true).open(&path) } else { File::create(&path) };
    opened.with_context(|| {
        format!("cannot write {}\ngive --output another directory; the reason was", path.display())
    })
}

/// Becomes the program; the process ends with the launcher, however the launcher ends.
pub fn become_program(args: &ChildArgs) -> Result<ExitCode> {
    if !sys::end_with(args.parent)? {
        // The launcher is gone: nobody needs this process any more.
        return Ok(ExitCode::from(143));
    }
    if let Some(index) = args.core {
        bind_to_core(index)?;
    }
    let error = Command::new(&args.program[0]).args(&args.program[1..]).exec();
    report!("tautline: cannot start {}: {error}", args.program[0].to_string_lossy());
    report!("  is it a program for this machine, or does its first line name an interpreter that exists?");
    Ok(ExitCode::from(126))
}

/// Binds this process to one of the cores that it may use.
fn bind_to_core(index: usize) -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut one = CpuSet::new();
    one.set(cores[index % cores.len()]);
    sched_setaffinity(None, &one).context("cannot bind to a core\nleave out --bind; the reason was")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_names() {
        let parsed = |text: &str| parse_variable(&OsString::from(text));
        assert_eq!(parsed("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(parsed("A=").unwrap(), ("A".into(), "".into()));
        for (text, word) in [("", "a name"), ("=x", "a name"), ("NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE=VALUE")]
        {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
