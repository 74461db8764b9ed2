//! `tautline run`: N processes of one job on this host.
//!
//! The launcher binds one socket per rank and hands it over; the job's description, key included, goes through a sealed
//! memory file. Neither arguments nor the environment ever hold the key.

mod faults;
mod launch;
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
        Two processes; they find each other, and their key, without any configuration.
  tautline run -n 4 --tag ./solver --size 1000
        Options after the program are the program's. Each line of output says which rank wrote it.
  tautline run -n 2 --fault loss=5%,reorder=10%,seed=7 ./hello
        The network between them loses and reorders frames; messages must not notice.
  tautline run -n 2 --device udp ./hello
        As between hosts: datagrams in place of shared memory.
  tautline run -n 2 --pcap captures ./hello
        Leaves captures/ranks-0-1.pcap for Wireshark.

A rank that fails gives the others --grace seconds to see it for themselves; then they are ended.
The exit code is 0 if all ranks ended with 0, else that of the rank that failed first (128 + signal if one killed it).
Rank 0 reads standard input; the others have none.";

/// What `tautline run` is told.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, trailing_var_arg = true)]
pub struct RunArgs {
    /// How many processes
    #[arg(short, long, value_name = "N")]
    n: usize,
    /// Protection of frames: fabric (a keyed tag), sealed (enciphered) or open (none); by default what the program asks for
    #[arg(long, value_name = "MODE")]
    security: Option<Security>,
    /// The only device to use: shm, udp or xdp; by default shared memory, which all ranks of one host can use. Faults and captures want
    /// udp; xdp reaches other hosts only, so that ranks started here share memory, which is said on standard error; its options follow, as in xdp,framing=raw,mode=native,receive=busy-poll
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
    /// Spoil the network: loss=5%,dup=1%,reorder=10%,corrupt=1%,delay=100us,seed=1
    #[arg(long, value_name = "FAULTS")]
    fault: Option<FaultSpec>,
    /// Capture what each pair of ranks exchanges into this folder
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What a process is told that is to become a program of a job.
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
    if args.device == Some(DeviceName::Shm) && (args.fault.is_some() || args.pcap.is_some()) {
        bail!(
            "shared memory can be neither spoilt nor captured\nleave out --device shm, or --fault and --pcap"
        );
    }
    let program = lookup::find(&args.program[0])?;
    if let Some(DeviceName::Xdp | DeviceName::XdpWith(_)) = args.device {
        let instead = if args.fault.is_some() || args.pcap.is_some() {
            "they use udp, as --fault and --pcap want it"
        } else {
            "they share memory, unless the program asks for udp"
        };
        eprintln!("tautline: xdp reaches other hosts only, and all ranks are on this one: {instead}");
    }
    let signals = sys::Signals::catch()?;
    let (job, relay, doors) = launch::start(args, &program)?;
    let code = watch::until_the_end(job, signals, args.grace);
    drop(doors);
    if let Some(relay) = relay {
        relay.finish();
    }
    code
}

/// Descriptors that a rank costs the launcher: its socket, its pidfd, two pipes for its output, and what starting takes.
const DESCRIPTORS_EACH: u64 = 4;
const DESCRIPTORS_SPARE: u64 = 64;

fn check_count(n: usize) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if n == 0 {
        bail!(
            "a job of 0 processes cannot do anything\ngive -n 1 or more, for example: tautline run -n 2 ./program"
        );
    }
    if n > MAX_PEERS {
        bail!("{n} processes are more than the {MAX_PEERS} that a job may have\ngive a smaller -n");
    }
    let needed = n as u64 * DESCRIPTORS_EACH + DESCRIPTORS_SPARE;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < needed) {
        if limit.maximum.is_some_and(|hard| hard < needed) {
            let hard = limit.maximum.unwrap_or(0);
            bail!(
                "{n} processes need {needed} open files here, and {hard} are allowed\ngive a smaller -n, or raise the limit: ulimit -Hn {needed}"
            );
        }
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })?;
    }
    Ok(())
}

/// Becomes the program; the process ends with the launcher, however that ends.
pub fn become_program(args: &ChildArgs) -> Result<ExitCode> {
    if !sys::end_with(args.parent)? {
        // The launcher is gone: nobody wants this any more.
        return Ok(ExitCode::from(143));
    }
    let error = Command::new(&args.program[0]).args(&args.program[1..]).exec();
    eprintln!("tautline: cannot start {}: {error}", args.program[0].to_string_lossy());
    eprintln!("  is it a program for this machine, or does its first line name an interpreter that exists?");
    Ok(ExitCode::from(126))
}
