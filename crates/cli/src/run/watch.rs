//! Waits for the ranks of this host, ends those that must be ended, and reports how they ended.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal};

use tautline_launch::control::Request;

use super::alive::Alive;
use super::control::Control;
use super::leftovers;
use super::local::{Ranks, Started, Starter};
use super::notices::{Notice, Notices};
use super::outcome::{Outcome, Phase, RankEnd};
use super::tag;
use crate::sys::{Signals, poll_until, readable};

struct Watch<'a> {
    ranks: Ranks,
    alive: Alive,
    /// Through which each rank is told of the others.
    notices: Vec<Notices>,
    output: tag::Output,
    starter: Starter<'a>,
    control: Option<Control>,
    outcome: Outcome,
}

/// Waits until no process is left, and returns the launcher's own exit code.
pub fn wait_for_ranks(job: Started<'_>, mut signals: Signals, outcome: Outcome) -> Result<ExitCode> {
    let Started { ranks, alive, notices, output, starter, control } = job;
    let mut watch = Watch { ranks, alive, notices, output, starter, control, outcome };
    while !watch.alive.is_empty() {
        watch.turn(&mut signals)?;
    }
    // Nobody joins any more.
    drop(watch.control.take());
    let left = watch.end_leftovers(&mut signals)?;
    // Whoever is left may keep the output open.
    let passed_on = if left.is_empty() { watch.output.finish() } else { Ok(()) };
    watch.starter.finish();
    let mut outcome = watch.outcome;
    outcome.report();
    if !left.is_empty() {
        let numbers: Vec<_> = left.iter().map(ToString::to_string).collect();
        report_left("", &numbers.join(", "));
        outcome.incomplete = true;
    }
    if let Err(error) = passed_on {
        report!("tautline: output of the ranks was lost: {error}\n  is there space where it goes?");
        outcome.incomplete = true;
    }
    Ok(outcome.exit_code())
}

/// Names processes that could not be ended.
pub fn report_left(place: &str, numbers: &str) {
    report!("tautline: processes of the ranks could not be ended{place}: {numbers}");
    report!("  they are stuck in the kernel, or belong to another user: ps -o pid,user,stat,args shows it");
}

impl Watch<'_> {
    /// Waits for an event and handles it.
    fn turn(&mut self, signals: &mut Signals) -> Result<()> {
        let asked = self.control.iter().map(Control::fd);
        let mut fds: Vec<_> = signals.fds().chain([self.alive.fd()]).chain(asked).map(readable).collect();
        let happened = poll_until(&mut fds, self.outcome.next_due())?;
        drop(fds);
        if let Some(signal) = signals.take() {
            let sent = self.outcome.interrupt(signal);
            self.signal_all(sent);
        }
        if happened {
            self.reap()?;
            self.answer_requests();
        } else if self.outcome.due.is_some_and(|due| Instant::now() >= due) {
            let sent = self.outcome.time_passed();
            self.signal_all(sent);
        }
        for rank in self.outcome.overdue_ranks() {
            self.alive.signal(rank, Signal::KILL);
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        for rank in self.alive.ended()? {
            let Some(status) = self.ranks.0[rank].try_wait()? else { continue };
            self.alive.remove(rank);
            let how = RankEnd::Status(status);
            self.tell_others(rank, how.notice());
            if self.outcome.restarts(rank, &how) {
                self.start_again(rank)?;
                continue;
            }
            let code = how.code();
            let sent = self.outcome.rank_ended(rank, how);
            self.signal_all(sent);
            if let Some(control) = &mut self.control {
                control.rank_ended(rank, code);
            }
        }
        Ok(())
    }

    /// Starts what others ask for (J-22), and ends what belongs to those that are gone.
    fn answer_requests(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        for gone in control.poll() {
            for rank in gone {
                self.alive.signal(rank, Signal::TERM);
                self.outcome.rank_unwanted(rank);
            }
        }
        while let Some((id, request, streams)) = control.next_request() {
            let answer = match request {
                Ok(request) => self.join(request, streams),
                Err(error) => Err(error),
            };
            control.answer(id, answer);
        }
        self.control = Some(control);
    }

    /// Adds ranks to the job: starts them, and tells the others where they are.
    fn join(&mut self, request: Request, streams: Option<[OwnedFd; 2]>) -> Result<Range<usize>> {
        if self.outcome.phase != Phase::Running {
            bail!("the job is ending");
        }
        let before = self.alive.size();
        for (mut child, mut notices, address) in self.starter.join(request, streams)? {
            notices.tell_all(self.outcome.ended());
            let rank = self.alive.size();
            for (other, notices) in self.notices.iter_mut().enumerate() {
                if self.alive.has(other) {
                    notices.tell_joined(rank, &[address], None);
                }
            }
            self.alive.add(rank, child.id())?;
            self.output.follow(rank, &mut child);
            self.ranks.0.push(child);
            self.notices.push(notices);
            self.outcome.add_rank();
        }
        // Those that were started together were told of each other as the job was described to them.
        Ok(before..self.alive.size())
    }

    fn start_again(&mut self, rank: usize) -> Result<()> {
        let (mut child, mut notices) = self.starter.start(rank, true)?;
        notices.tell_all(self.outcome.ended());
        self.alive.add(rank, child.id())?;
        self.output.follow(rank, &mut child);
        (self.ranks.0[rank], self.notices[rank]) = (child, notices);
        self.tell_others(rank, Notice::Started);
        Ok(())
    }

    fn tell_others(&mut self, rank: usize, notice: Notice) {
        for other in (0..self.alive.size()).filter(|other| *other != rank) {
            if self.alive.has(other) {
                self.notices[other].tell(rank, notice);
            }
        }
    }

    fn signal_all(&self, signal: Option<Signal>) {
        if let Some(signal) = signal {
            self.alive.signal_all(signal);
        }
    }

    /// Ends what the ranks left behind, and returns what could not be ended.
    fn end_leftovers(&mut self, signals: &mut Signals) -> Result<Vec<Pid>> {
        let mut failed = Ok(());
        let left = leftovers::end_all(self.outcome.grace(), |time| {
            let mut fds: Vec<_> = signals.fds().map(readable).collect();
            if let Err(error) = poll_until(&mut fds, Some(Instant::now() + time)) {
                failed = Err(error);
                return true;
            }
            drop(fds);
            // The second signal ends the job at once, here too.
            signals.take().is_some_and(|signal| self.outcome.interrupt_again(signal))
        });
        failed?;
        Ok(left)
    }
}
