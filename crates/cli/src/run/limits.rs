//! What a job needs of the system, checked before anything is started: so a shortage is reported once and by
//! its name, not as the death of ranks (J-7).

use std::io;
use std::path::Path;

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline::DeviceName;

use super::RunArgs;
use crate::sys::THIS_PROGRAM;

/// Descriptors of the launcher: a socket, a pidfd, two pipes for the output of each rank and one for notices;
/// standard ones, signals, and what starting a process needs for a moment.
const LAUNCHER_EACH: u64 = 5;
const LAUNCHER_SPARE: u64 = 32;
/// Descriptors of the launcher for each direction between two ranks, if it relays frames: a socket, and one
/// that learns the limits of the path. A capture is a file for both directions.
const RELAY_EACH: u64 = 2;

/// Descriptors of a rank that has joined; for each member of the job; and for each peer that it shares memory
/// with (docs/SIZING.md). The spare ones are for the program and for connections under way.
const RANK_JOINED: u64 = 13;
const RANK_EACH: u64 = 1;
const RANK_EACH_SHARED: u64 = 2;
const RANK_SPARE: u64 = 32;

/// Raises the limit on descriptors as far as the job needs, for the launcher and for the ranks, which inherit
/// it.
pub fn check(args: &RunArgs, n: usize) -> Result<()> {
    if !Path::new(THIS_PROGRAM).exists() {
        bail!(
            "/proc is not mounted, and ranks are started and ended with its help\nmount it: mount -t proc proc /proc"
        );
    }
    let needed = launcher_needs(args, n).max(rank_needs(n, shares_memory(args)));
    raise(needed).or_else(|hard| {
        bail!(
            "{n} processes need up to {needed} open files each, and {hard} are allowed (RLIMIT_NOFILE)\ngive a smaller -n{}, or raise the limit: ulimit -Hn {needed}",
            if shares_memory(args) { " or --device udp" } else { "" }
        )
    })
}

/// The same for the ranks of one host of a job on several.
pub fn check_ranks(n: usize) -> Result<()> {
    let needed = rank_needs(n, true);
    raise(needed).or_else(|hard| {
        bail!("{n} processes need up to {needed} open files each, and {hard} are allowed (RLIMIT_NOFILE)\nraise the limit: ulimit -Hn {needed}")
    })
}

/// Raises the limit on descriptors as far as needed; an error is the limit that cannot be exceeded.
fn raise(needed: u64) -> Result<(), u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    if let Some(hard) = limit.maximum.filter(|hard| *hard < needed) {
        return Err(hard);
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum }).map_err(|_| needed)
}

fn launcher_needs(args: &RunArgs, n: usize) -> u64 {
    let n = n as u64;
    let directions = if args.is_relayed() { n * (n - 1) } else { 0 };
    let captures = if args.pcap.is_some() { directions / 2 } else { 0 };
    n * LAUNCHER_EACH + LAUNCHER_SPARE + directions * RELAY_EACH + captures
}

fn rank_needs(n: usize, shares_memory: bool) -> u64 {
    let n = n as u64;
    let shared = if shares_memory { (n - 1) * RANK_EACH_SHARED } else { 0 };
    RANK_JOINED + n * RANK_EACH + shared + RANK_SPARE
}

fn shares_memory(args: &RunArgs) -> bool {
    !args.is_relayed() && args.device != Some(DeviceName::Udp)
}

/// What to do about a process that could not be started.
pub fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => {
            "there are too many processes: ulimit -u, or the limit of the container (pids.max)"
        }
        Some(Errno::NOMEM) => "there is too little memory: ulimit -v, or the limit of the container",
        Some(Errno::MFILE | Errno::NFILE) => "there are too many open files: ulimit -n",
        Some(Errno::NOENT | Errno::ACCESS) => "is /proc mounted, and may this user read it?",
        _ => "tautline doctor shows what works here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shortage_has_its_advice() {
        for (errno, word) in [
            (Errno::AGAIN, "ulimit -u"),
            (Errno::NOMEM, "ulimit -v"),
            (Errno::MFILE, "ulimit -n"),
            (Errno::NOENT, "/proc"),
        ] {
            let advice = advice(&io::Error::from(errno));
            assert!(advice.contains(word), "{advice}");
        }
    }
}
