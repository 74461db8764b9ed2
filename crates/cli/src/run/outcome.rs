//! How the ranks of a job ended, in which phases the others are ended, and what is reported of it. Both jobs
//! on this host and jobs on many are watched with this.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::notices::Notice;

/// The phases in which a job ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// No rank has failed.
    Running,
    /// A rank has failed; the others may end by themselves.
    Grace,
    /// SIGTERM was sent.
    Terminating,
    /// SIGKILL was sent.
    Killing,
}

/// How a rank ended.
#[derive(Clone, Debug)]
pub enum RankEnd {
    Status(ExitStatus),
    /// The connection to its host was lost.
    Lost(String),
}

impl RankEnd {
    /// What the other ranks are told.
    pub fn notice(&self) -> Notice {
        if self.is_failure() { Notice::Died } else { Notice::Left }
    }

    fn is_failure(&self) -> bool {
        !matches!(self, RankEnd::Status(status) if status.success())
    }

    pub fn code(&self) -> u8 {
        match self {
            RankEnd::Status(status) => match (status.code(), status.signal()) {
                (Some(code), _) => code as u8,
                (None, Some(signal)) => (128 + signal) as u8,
                (None, None) => 1,
            },
            // As ssh reports it.
            RankEnd::Lost(_) => 255,
        }
    }
}

/// What has become of the ranks.
#[derive(Debug)]
pub struct Outcome {
    pub phase: Phase,
    /// When the next phase begins.
    pub due: Option<Instant>,
    grace: Duration,
    /// A failure does not end the others.
    keep_going: bool,
    ended: Vec<Option<RankEnd>>,
    /// Ranks that were still running when we sent SIGTERM.
    signalled: Vec<bool>,
    first_failure: Option<usize>,
    /// How often each rank may still be started again.
    restarts: Vec<u32>,
    interrupted: Option<Signal>,
    /// When the job must have ended, and for how long it may run.
    deadline: Option<(Instant, Duration)>,
    timed_out: bool,
    /// Ranks that were sent SIGTERM for themselves, and when SIGKILL follows.
    ending: Vec<(Instant, usize)>,
    /// Some output of the ranks could not be forwarded, or some process could not be ended.
    pub incomplete: bool,
}

/// The exit code of a job that ran for too long, as of timeout(1).
const TIMED_OUT: u8 = 124;

impl Outcome {
    /// The outcome of `n` ranks that have just been started.
    pub fn new(n: usize, grace: Duration, keep_going: bool, timeout: Option<Duration>) -> Outcome {
        let deadline = timeout.map(|time| (Instant::now() + time, time));
        Outcome {
            phase: Phase::Running,
            due: deadline.map(|(due, _)| due),
            grace,
            keep_going,
            ended: vec![None; n],
            signalled: vec![false; n],
            first_failure: None,
            restarts: vec![0; n],
            interrupted: None,
            deadline,
            timed_out: false,
            ending: Vec::new(),
            incomplete: false,
        }
    }

    /// Lets each rank be started again this often.
    pub fn with_restarts(mut self, times: u32) -> Outcome {
        self.restarts.fill(times);
        self
    }

    /// Whether a rank that ended in this way is to be started again (J-20). That is reported, and counted.
    pub fn restarts(&mut self, rank: usize, how: &RankEnd) -> bool {
        let again = self.phase == Phase::Running && how.is_failure() && self.restarts[rank] > 0;
        if again {
            self.restarts[rank] -= 1;
            let (left, how) = (self.restarts[rank], self.account(rank, how));
            report!("tautline: rank {rank} is started again (restarts left: {left}): {how}");
        }
        again
    }

    /// One more rank has been started: the next one.
    pub fn add_rank(&mut self) {
        self.ended.push(None);
        self.signalled.push(false);
        self.restarts.push(0);
    }

    pub fn grace(&self) -> Duration {
        self.grace
    }

    pub fn is_running(&self, rank: usize) -> bool {
        self.ended.get(rank).is_some_and(Option::is_none)
    }

    /// The ranks that have ended, with what others are told of them.
    pub fn ended(&self) -> impl Iterator<Item = (usize, Notice)> {
        let ended = self.ended.iter().enumerate();
        ended.filter_map(|(rank, end)| Some((rank, end.as_ref()?.notice())))
    }

    /// A rank has ended. Returns the signal that all others are to be sent.
    #[must_use]
    pub fn rank_ended(&mut self, rank: usize, how: RankEnd) -> Option<Signal> {
        let failed = how.is_failure();
        self.ended[rank] = Some(how);
        if failed && self.first_failure.is_none() {
            self.first_failure = Some(rank);
            if self.phase == Phase::Running && !self.keep_going {
                return self.enter(Phase::Grace);
            }
        }
        None
    }

    /// The user wants the job to end. Returns the signal that all ranks are to be sent.
    #[must_use]
    pub fn interrupt(&mut self, signal: Signal) -> Option<Signal> {
        // The second signal ends the job at once.
        let phase =
            if self.interrupted.replace(signal).is_some() { Phase::Killing } else { Phase::Terminating };
        self.enter(phase)
    }

    /// A rank was sent SIGTERM, because nobody wants it any more.
    pub fn rank_unwanted(&mut self, rank: usize) {
        self.ending.push((Instant::now() + self.grace, rank));
    }

    /// Ranks that are to be sent SIGKILL now: they have not ended within the grace.
    pub fn overdue_ranks(&mut self) -> Vec<usize> {
        let now = Instant::now();
        let (overdue, later) = std::mem::take(&mut self.ending).into_iter().partition(|(due, _)| *due <= now);
        self.ending = later;
        let overdue: Vec<(Instant, usize)> = overdue;
        overdue.into_iter().map(|(_, rank)| rank).filter(|rank| self.is_running(*rank)).collect()
    }

    /// When something is to be done although nothing has happened.
    pub fn next_due(&self) -> Option<Instant> {
        self.ending.iter().map(|(due, _)| *due).chain(self.due).min()
    }

    /// Whether this is the second signal, after all ranks have ended.
    pub fn interrupt_again(&mut self, signal: Signal) -> bool {
        self.interrupted.replace(signal).is_some()
    }

    /// `due` has passed. Returns the signal that all ranks are to be sent.
    #[must_use]
    pub fn time_passed(&mut self) -> Option<Signal> {
        match self.phase {
            Phase::Running if self.deadline.is_some() => {
                self.timed_out = true;
                self.enter(Phase::Terminating)
            }
            Phase::Grace => self.enter(Phase::Terminating),
            Phase::Terminating => self.enter(Phase::Killing),
            Phase::Running | Phase::Killing => None,
        }
    }

    fn enter(&mut self, phase: Phase) -> Option<Signal> {
        self.phase = phase;
        self.due = (phase != Phase::Killing).then(|| Instant::now() + self.grace);
        let signal = match phase {
            Phase::Running | Phase::Grace => return None,
            Phase::Terminating => Signal::TERM,
            Phase::Killing => Signal::KILL,
        };
        for (signalled, ended) in self.signalled.iter_mut().zip(&self.ended) {
            *signalled |= ended.is_none();
        }
        Some(signal)
    }

    pub fn exit_code(&self) -> ExitCode {
        if let Some(signal) = self.interrupted {
            return ExitCode::from((128 + signal.as_raw()) as u8);
        }
        if self.timed_out {
            return ExitCode::from(TIMED_OUT);
        }
        let failed = self.first_failure.and_then(|rank| self.ended[rank].as_ref());
        let otherwise = if self.incomplete { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        failed.map_or(otherwise, |end| ExitCode::from(end.code()))
    }

    /// Prints one line per rank that did not end with 0, if there is any.
    pub fn report(&self) {
        const LINES: usize = 32;
        if let Some((_, time)) = self.deadline.filter(|_| self.timed_out) {
            report!(
                "tautline: the job was ended after {} s\n  --timeout says how long it may take",
                time.as_secs_f64()
            );
        }
        let failed: Vec<_> =
            self.ended.iter().enumerate().filter_map(|(rank, end)| Some((rank, end.as_ref()?))).collect();
        let failed: Vec<_> = failed.into_iter().filter(|(_, end)| end.is_failure()).collect();
        if failed.is_empty() {
            return;
        }
        report!("tautline: {} of {} ranks failed", failed.len(), self.ended.len());
        report!("  rank  code  how it ended");
        for &(rank, end) in failed.iter().take(LINES) {
            report!("  {rank:>4}  {:>4}  {}", end.code(), self.account(rank, end));
        }
        if failed.len() > LINES {
            report!("  and {} more", failed.len() - LINES);
        }
    }

    fn account(&self, rank: usize, end: &RankEnd) -> String {
        let how = match end {
            RankEnd::Lost(why) => why.clone(),
            RankEnd::Status(status) => match status.signal() {
                // Not by another process.
                Some(9) if self.signalled[rank] => "killed by signal 9 (KILL)".to_owned(),
                Some(signal) => format!("killed by signal {signal}{}", name_of(signal)),
                None => format!("exit code {}", end.code()),
            },
        };
        if self.first_failure == Some(rank) && !self.signalled[rank] {
            format!("{how} (the first to fail)")
        } else if self.signalled[rank] {
            let why = match (self.interrupted, self.timed_out) {
                (Some(Signal::PIPE), _) => "nobody reads the output",
                (Some(_), _) => "on request",
                (None, true) => "the time was over",
                (None, false) => "another rank had failed",
            };
            format!("{how} (ended by tautline: {why})")
        } else {
            how
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn code(of: &Outcome) -> String {
        format!("{:?}", of.exit_code())
    }

    fn exited(code: i32) -> RankEnd {
        RankEnd::Status(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn a_failure_ends_the_others_after_the_grace() {
        let mut job = Outcome::new(2, Duration::ZERO, false, None);
        assert_eq!((job.rank_ended(0, exited(3)), job.phase), (None, Phase::Grace));
        assert_eq!(job.time_passed(), Some(Signal::TERM));
        assert_eq!(job.time_passed(), Some(Signal::KILL));
        assert_eq!((job.time_passed(), job.due), (None, None));
        assert_eq!(code(&job), format!("{:?}", ExitCode::from(3)));
    }

    #[test]
    fn a_job_can_go_on_after_failures() {
        let mut job = Outcome::new(2, Duration::ZERO, true, None);
        assert_eq!(job.rank_ended(1, RankEnd::Lost("lost".into())), None);
        assert_eq!((job.phase, job.due, job.time_passed()), (Phase::Running, None, None));
        assert!(job.is_running(0) && !job.is_running(1) && !job.is_running(2));
        assert_eq!(code(&job), format!("{:?}", ExitCode::from(255)));
    }

    /// J-20: failures use up the restarts; a rank that ended well is not started again, nor in a job that
    /// ends.
    #[test]
    fn a_rank_is_started_again_a_few_times() {
        let mut job = Outcome::new(2, Duration::ZERO, false, None).with_restarts(2);
        assert!(!job.restarts(0, &exited(0)));
        assert!(job.restarts(0, &exited(1)) && job.restarts(0, &exited(1)) && !job.restarts(0, &exited(1)));
        assert_eq!(job.rank_ended(0, exited(1)), None);
        assert!(!job.restarts(1, &exited(1)), "the job ends");
    }

    #[test]
    fn a_job_ends_in_time_and_on_request() {
        let mut job = Outcome::new(1, Duration::ZERO, false, Some(Duration::ZERO));
        assert!(job.due.is_some());
        assert_eq!(job.time_passed(), Some(Signal::TERM));
        assert_eq!(code(&job), format!("{:?}", ExitCode::from(TIMED_OUT)));
        assert_eq!(job.interrupt(Signal::INT), Some(Signal::TERM));
        assert_eq!(job.interrupt(Signal::INT), Some(Signal::KILL));
        assert_eq!(code(&job), format!("{:?}", ExitCode::from(130)));
    }
}
