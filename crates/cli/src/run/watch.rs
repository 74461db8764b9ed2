//! Waits for the ranks, ends those that must be ended, and reports how they ended.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::launch::{Ranks, Started};
use super::leftovers;
use crate::sys::{Signals, poll_until, readable};

/// The phases in which a job ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No rank has failed.
    Running,
    /// A rank has failed; the others may end by themselves.
    Grace,
    /// SIGTERM was sent.
    Terminating,
    /// SIGKILL was sent.
    Killing,
}

struct Watch {
    ranks: Ranks,
    /// The pidfd of each live rank.
    alive: Vec<Option<OwnedFd>>,
    ended: Vec<Option<ExitStatus>>,
    /// Ranks that were still running when we sent SIGTERM.
    signalled: Vec<bool>,
    first_failure: Option<usize>,
    interrupted: Option<Signal>,
    phase: Phase,
    /// When the next phase begins.
    due: Option<Instant>,
    grace: Duration,
    /// Some output of the ranks could not be forwarded, or some process could not be ended.
    incomplete: bool,
}

/// Waits until no process is left, and returns the launcher's own exit code.
pub fn wait_for_ranks(job: Started, mut signals: Signals, grace: Duration) -> Result<ExitCode> {
    let Started { ranks, output } = job;
    let n = ranks.0.len();
    let alive = ranks.0.iter().map(|child| open(child.id()).map(Some)).collect::<Result<Vec<_>>>()?;
    let mut watch = Watch {
        ranks,
        alive,
        ended: vec![None; n],
        signalled: vec![false; n],
        first_failure: None,
        interrupted: None,
        phase: Phase::Running,
        due: None,
        grace,
        incomplete: false,
    };
    while watch.alive.iter().any(Option::is_some) {
        watch.turn(&mut signals)?;
    }
    let left = watch.end_leftovers(&mut signals)?;
    // Whoever is left may keep the output open.
    let passed_on = if left.is_empty() { output.finish() } else { Ok(()) };
    watch.report();
    if !left.is_empty() {
        let numbers: Vec<_> = left.iter().map(ToString::to_string).collect();
        eprintln!("tautline: processes of the ranks could not be ended: {}", numbers.join(", "));
        eprintln!(
            "  they are stuck in the kernel, or belong to another user: ps -o pid,user,stat,args shows it"
        );
        watch.incomplete = true;
    }
    if let Err(error) = passed_on {
        eprintln!("tautline: output of the ranks was lost: {error}\n  is there space where it goes?");
        watch.incomplete = true;
    }
    Ok(watch.exit_code())
}

fn open(pid: u32) -> Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).expect("a child's number is positive");
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

impl Watch {
    /// Waits for an event and handles it.
    fn turn(&mut self, signals: &mut Signals) -> Result<()> {
        let mut fds: Vec<_> =
            signals.fds().chain(self.alive.iter().flatten().map(AsFd::as_fd)).map(readable).collect();
        let happened = poll_until(&mut fds, self.due)?;
        drop(fds);
        if let Some(signal) = signals.take() {
            // The second signal ends the job at once.
            let phase =
                if self.interrupted.replace(signal).is_some() { Phase::Killing } else { Phase::Terminating };
            self.enter(phase);
        }
        if happened {
            self.reap()?;
        } else if self.phase == Phase::Grace {
            self.enter(Phase::Terminating);
        } else if self.phase == Phase::Terminating {
            self.enter(Phase::Killing);
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        for rank in 0..self.alive.len() {
            if self.alive[rank].is_none() {
                continue;
            }
            let Some(status) = self.ranks.0[rank].try_wait()? else { continue };
            self.alive[rank] = None;
            self.ended[rank] = Some(status);
            if !status.success() && self.first_failure.is_none() {
                self.first_failure = Some(rank);
                if self.phase == Phase::Running {
                    self.enter(Phase::Grace);
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.due = (phase != Phase::Killing).then(|| Instant::now() + self.grace);
        let signal = match phase {
            Phase::Running | Phase::Grace => return,
            Phase::Terminating => Signal::TERM,
            Phase::Killing => Signal::KILL,
        };
        for (rank, alive) in self.alive.iter().enumerate() {
            if let Some(fd) = alive {
                self.signalled[rank] = true;
                // It may have ended just now; then there is nothing to do.
                let _ = pidfd_send_signal(fd, signal);
            }
        }
    }

    /// Ends what the ranks left behind, and returns what could not be ended.
    fn end_leftovers(&mut self, signals: &mut Signals) -> Result<Vec<Pid>> {
        let mut failed = Ok(());
        let left = leftovers::end_all(self.grace, |time| {
            let mut fds: Vec<_> = signals.fds().map(readable).collect();
            if let Err(error) = poll_until(&mut fds, Some(Instant::now() + time)) {
                failed = Err(error);
                return true;
            }
            drop(fds);
            // The second signal ends the job at once, here too.
            signals.take().is_some_and(|signal| self.interrupted.replace(signal).is_some())
        });
        failed?;
        Ok(left)
    }

    fn exit_code(&self) -> ExitCode {
        if let Some(signal) = self.interrupted {
            return ExitCode::from((128 + signal.as_raw()) as u8);
        }
        let failed = self.first_failure.and_then(|rank| self.ended[rank]);
        let otherwise = if self.incomplete { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        failed.map_or(otherwise, |status| ExitCode::from(code_of(status)))
    }

    /// Prints one line per rank that did not end with 0, if there is any.
    fn report(&self) {
        const LINES: usize = 32;
        let failed: Vec<_> = (0..self.ended.len())
            .filter(|rank| self.ended[*rank].is_some_and(|status| !status.success()))
            .collect();
        if failed.is_empty() {
            return;
        }
        eprintln!("tautline: {} of {} ranks failed", failed.len(), self.ended.len());
        eprintln!("  rank  code  how it ended");
        for &rank in failed.iter().take(LINES) {
            let Some(status) = self.ended[rank] else { continue };
            eprintln!("  {rank:>4}  {:>4}  {}", code_of(status), self.account(rank, status));
        }
        if failed.len() > LINES {
            eprintln!("  and {} more", failed.len() - LINES);
        }
    }

    fn account(&self, rank: usize, status: ExitStatus) -> String {
        let how = match status.signal() {
            Some(signal) => format!("killed by signal {signal}{}", name_of(signal)),
            None => format!("exit code {}", code_of(status)),
        };
        if self.first_failure == Some(rank) && !self.signalled[rank] {
            format!("{how} (the first to fail)")
        } else if self.signalled[rank] {
            let why = if self.interrupted.is_some() { "on request" } else { "another rank had failed" };
            format!("{how} (ended by tautline: {why})")
        } else {
            how
        }
    }
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => 1,
    }
}

fn name_of(signal: i32) -> &'static str {
    match signal {
        2 => " (INT)",
        6 => " (ABRT: it aborted, often after a panic or a failed assertion)",
        7 => " (BUS)",
        8 => " (FPE)",
        9 => " (KILL: by another process, or out of memory)",
        11 => " (SEGV: invalid memory access)",
        13 => " (PIPE)",
        15 => " (TERM)",
        _ => "",
    }
}
