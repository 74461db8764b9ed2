//! The command line of `tautline run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tautline::{DeviceName, Security};

use super::faults::FaultSpec;

const EXAMPLES: &str = "\
Examples:
  tautline run -n 2 ./hello
        Two processes; they find each other and their key without configuration.
  tautline run -n 4 --tag ./solver --size 1000
        Options after the program are the program's. Each line of output starts with its rank.
  tautline run -n 1 ./master : -n 3 ./worker --fast
        Two programs in one job: rank 0 is the master, ranks 1 to 3 are workers.
  tautline run -n 8 --hosts a,b:4,c ./hello
        Through ssh on three hosts: b takes four processes, a and c share the rest. The same tautline must be
        installed at the same path on each, or at the one that --agent names.
  salloc -N 4 -n 16 tautline run ./hello
        On the hosts of a Slurm allocation, with as many processes as it has tasks.
  tautline run -n 2 --join 4711 ./worker
        Two more processes in the job whose tautline run, on this host and of this user, has the process number
        4711. They get the next ranks; their output and exit code are those of this command, and they end with it.
        If one fails, the job ends, unless it has --keep-going.
        Of a job on several hosts, --hosts a,d, or --hostfile, names those that take them, also ones that the job has
        not used yet; without it they go where the fewest ranks run.
  tautline run -n 2 --fault loss=5%,reorder=10%,seed=7 ./hello
        The network between them loses and reorders frames; messages are not affected.
  tautline run -n 2 --device udp ./hello
        Datagrams instead of shared memory, as between hosts.
  tautline run -n 2 --pcap captures ./hello
        Leaves captures/ranks-0-1.pcap for Wireshark.

When a rank fails, the others have --grace seconds to end by themselves; then they are ended.
The exit code is 0 if all ranks ended with 0, else that of the rank that failed first (128 + signal if one killed it,
255 if its host was lost); it is 124 after --timeout.
Rank 0 reads standard input; the others have none.";

/// The command that connects to a host, unless another one is given.
pub const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=10";

/// The arguments of `tautline run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, trailing_var_arg = true)]
pub struct RunArgs {
    /// How many processes; by default as many as --hosts or --hostfile name
    #[arg(short, long, value_name = "N")]
    pub n: Option<usize>,
    /// Start them on these hosts, through ssh; b:4 takes four processes. localhost alone needs no ssh
    #[arg(long, value_name = "HOSTS", conflicts_with = "hostfile")]
    pub hosts: Option<String>,
    /// Start them on the hosts of this file: a, b:4 or c slots=4 in each line
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Start them on this host, even inside a Slurm allocation
    #[arg(long, conflicts_with_all = ["hosts", "hostfile"])]
    pub here: bool,
    /// How many processes a host takes for which no number is given
    #[arg(long, value_name = "N")]
    pub ppn: Option<usize>,
    /// Let hosts take more processes than their numbers say, if there are more
    #[arg(long)]
    pub oversubscribe: bool,
    /// The command that connects to a host
    #[arg(long, value_name = "COMMAND", default_value = SSH)]
    pub ssh: String,
    /// The path of tautline on the hosts; by default the path of this one
    #[arg(long, value_name = "PATH")]
    pub agent: Option<PathBuf>,
    /// The interface or network whose address the hosts announce: eth1 or 10.0.0.0/8; by default the address
    /// that ssh connected to. Of several, as in eth1,eth2, all are announced; the first that answers is used
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Add the processes to the running job of the tautline run with this process number
    #[arg(
        long,
        value_name = "JOB",
        conflicts_with_all = ["restart", "keep_going", "security", "device", "ipv6", "output", "fault", "pcap",
            "timeout", "bind", "grace", "ppn", "oversubscribe", "agent", "interface"]
    )]
    pub join: Option<String>,
    /// Set a variable of the program's environment, or pass on one of this environment to the hosts
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// The directory that the programs run in; by default this one
    #[arg(long, value_name = "DIR")]
    pub wdir: Option<PathBuf>,
    /// Seconds after which the job is ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Write the output of each rank to a file in this directory, rank-0.txt and so on
    #[arg(long, value_name = "DIR", conflicts_with = "tag")]
    pub output: Option<PathBuf>,
    /// Bind each process to a core of its host, in turn
    #[arg(long, value_name = "TO", default_value = "none")]
    pub bind: Bind,
    /// Start a rank again that fails, up to so many times; 3 if no number is given
    #[arg(long, value_name = "TIMES", num_args = 0..=1, require_equals = true, default_missing_value = "3")]
    pub restart: Option<u32>,
    /// When a rank fails, let the others go on
    #[arg(long)]
    pub keep_going: bool,
    /// Protection of frames: fabric (a keyed tag), sealed (encrypted) or open (none); by default what the
    /// program requests
    #[arg(long, value_name = "MODE")]
    pub security: Option<Security>,
    /// The only device to use: shm, udp or xdp; by default shared memory, which all ranks of one host can
    /// use. Faults and captures require udp. xdp reaches other hosts only, so that ranks started here share
    /// memory, which a message on standard error says; its options follow the name:
    /// xdp,framing=raw,mode=native,receive=busy-poll
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceName>,
    /// Bind to ::1 instead of 127.0.0.1
    #[arg(long)]
    pub ipv6: bool,
    /// Begin each line of output with the rank
    #[arg(long)]
    pub tag: bool,
    /// Seconds that the others have when a rank fails, and again between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub grace: Duration,
    /// Inject faults: loss=5%,dup=1%,reorder=10%,corrupt=1%,delay=100us,seed=1
    #[arg(long, value_name = "FAULTS")]
    pub fault: Option<FaultSpec>,
    /// Capture the frames of each pair of ranks in this directory
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
    /// The program and its arguments; further programs after a colon
    #[arg(required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What a process is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bind {
    /// One core each
    Core,
    /// Nothing
    None,
}

impl RunArgs {
    /// Whether frames pass through the launcher.
    pub fn is_relayed(&self) -> bool {
        self.fault.is_some() || self.pcap.is_some()
    }

    /// How often a rank is started again.
    pub fn restarts(&self) -> u32 {
        self.restart.unwrap_or(0)
    }

    /// Whether processes are bound to cores.
    pub fn binds(&self) -> bool {
        self.bind == Bind::Core
    }
}

/// The arguments of a process that becomes a program of a job.
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// Binds the process to a core: the one of this number among those that it may use
    #[arg(long)]
    pub core: Option<usize>,
    pub parent: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a number of seconds from 0 to 86400");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.0..=86_400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}
