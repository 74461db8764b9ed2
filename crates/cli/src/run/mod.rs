//! `tautline run`: N processes of one job on this host.
//!
//! The launcher binds one socket per rank and hands it over; the job's description, including the key, goes
//! through a sealed memory file. Neither arguments nor the environment ever contain the key.

mod faults;
mod launch;
mod leftovers;
mod limits;
mod lookup;
mod relay;
mod tag;
mod watch;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tautline::node::limits::MAX_PEERS;
use tautline::{DeviceName, Security};

use crate::sys;
use faults::FaultSpec;

const EXAMPLES: &str = "\
Examples:
  tautline run -n 2 ./hello
        Two processes; they find each other and their key without configuration.
  tautline run -n 4 --tag ./solver --size 1000
        Options after the program are the program's. Each line of output starts with its rank.
  tautline run -n 2 --fault loss=5%,reorder=10%,seed=7 ./hello
        The network between them loses and reorders frames; messages are not affected.
  tautline run -n 2 --device udp ./hello
        Datagrams instead of shared memory, as between hosts.
  tautline run -n 2 --pcap captures ./hello
        Leaves captures/ranks-0-1.pcap for Wireshark.

When a rank fails, the others have --grace seconds to end by themselves; then they are ended.
The exit code is 0 if all ranks ended with 0, else that of the rank that failed first (128 + signal if one killed it).
Rank 0 reads standard input; the others have none.";

/// The arguments of `tautline run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, trailing_var_arg = true)]
pub struct RunArgs {
    /// How many processes
    #[arg(short, long, value_name = "N")]
    n: usize,
    /// Protection of frames: fabric (a keyed tag), sealed (encrypted) or open (none); by default what the
    /// program requests
    #[arg(long, value_name = "MODE")]
    security: Option<Security>,
    /// The only device to use: shm, udp or xdp; by default shared memory, which all ranks of one host can
    /// use. Faults and captures require udp. xdp reaches other hosts only, so that ranks started here share
    /// memory, which a message on standard error says; its options follow the name:
    /// xdp,framing=raw,mode=native,receive=busy-poll
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceName>,
    /// Bind to ::1 instead of 127.0.0.1
    #[arg(long)]
    ipv6: bool,
    /// Begin each line of output with the rank
    #[arg(long)]
    tag: bool,
    /// Seconds that the others have when a rank fails, and again between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    grace: Duration,
    /// Inject faults: loss=5%,dup=1%,reorder=10%,corrupt=1%,delay=100us,seed=1
    #[arg(long, value_name = "FAULTS")]
    fault: Option<FaultSpec>,
    /// Capture the frames of each pair of ranks in this directory
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl RunArgs {
    /// Whether frames pass through the launcher.
    fn is_relayed(&self) -> bool {
        self.fault.is_some() || self.pcap.is_some()
    }
}

/// The arguments of a process that becomes a program of a job.
#[derive(Debug, Args)]
pub struct ChildArgs {
    parent: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a number of seconds from 0 to 86400");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.0..=86_400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// Starts the job and waits for its end.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    check_count(args.n)?;
    if args.device == Some(DeviceName::Shm) && args.is_relayed() {
        bail!("shared memory has neither faults nor captures\nleave out --device shm, or --fault and --pcap");
    }
    let program = lookup::find(&args.program[0])?;
    limits::check(args)?;
    if let Some(DeviceName::Xdp | DeviceName::XdpWith(_)) = args.device {
        let instead = if args.is_relayed() {
            "they use udp, as --fault and --pcap require"
        } else {
            "they share memory, unless the program requests udp"
        };
        eprintln!("tautline: xdp reaches other hosts only, and all ranks are on this one: {instead}");
    }
    let signals = sys::Signals::catch()?;
    let (job, relay, listeners) = launch::start(args, &program)?;
    let code = watch::wait_for_ranks(job, signals, args.grace);
    drop(listeners);
    if let Some(relay) = relay {
        relay.finish();
    }
    code
}

fn check_count(n: usize) -> Result<()> {
    if n == 0 {
        bail!(
            "a job needs at least one process\ngive -n 1 or more, for example: tautline run -n 2 ./program"
        );
    }
    if n > MAX_PEERS {
        bail!("{n} processes are more than the {MAX_PEERS} that a job may have\ngive a smaller -n");
    }
    Ok(())
}

/// Becomes the program; the process ends with the launcher, however the launcher ends.
pub fn become_program(args: &ChildArgs) -> Result<ExitCode> {
    if !sys::end_with(args.parent)? {
        // The launcher is gone: nobody needs this process any more.
        return Ok(ExitCode::from(143));
    }
    let error = Command::new(&args.program[0]).args(&args.program[1..]).exec();
    eprintln!("tautline: cannot start {}: {error}", args.program[0].to_string_lossy());
    eprintln!("  is it a program for this machine, or does its first line name an interpreter that exists?");
    Ok(ExitCode::from(126))
}
