//! Jobs of many ranks: how long they take to start, what a message costs beside idle ranks, collectives, a
//! halo exchange, and what it costs to wait.
//!
//! One job per system, number of ranks and round does all the experiments that are wanted of it. Its ranks
//! are started by the system's own launcher and are not pinned: there may be more of them than cores.

mod grid;
mod rank;
mod varied;

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use tautline_baseline::cpu;
use tautline_baseline::rivals::{JobProgram, run_job};

use super::case::{Experiment, Other, Outcome, System, Work};
use super::pair::Interrupted;
use super::side::Fault;
use crate::sys::Signals;
pub use rank::{RankArgs, rank};

/// No job takes longer than this: a rival whose ranks poll may need minutes where they outnumber the cores.
const JOB_TIME: Duration = Duration::from_secs(60);

/// What a rank measured, by experiment.
type Results = HashMap<Work, Result<Outcome, String>>;

/// The jobs of one bench.
#[derive(Default)]
pub struct Jobs {
    programs: HashMap<Other, Result<JobProgram, String>>,
    /// The results of this round, by system and ranks.
    results: HashMap<(System, u64), Results>,
    round: usize,
    /// Jobs that were tried and failed, which are not tried again.
    failed: HashMap<(System, u64), String>,
    /// The sum of the halo exchange, by its steps.
    sums: HashMap<u64, u64>,
    sabotage: Option<Fault>,
    /// How jobs were started.
    pub commands: Vec<String>,
}

impl Jobs {
    /// Jobs whose ranks have a fault, in tests.
    pub fn new(sabotage: Option<Fault>) -> Jobs {
        Jobs { sabotage, ..Jobs::default() }
    }

    /// The outcome of an experiment in this round. `all` are the experiments that a job of this system and
    /// number of ranks will be asked for.
    pub fn run(
        &mut self,
        round: usize,
        (system, work): (System, Work),
        all: &[Work],
        signals: &mut Signals,
    ) -> Result<Outcome> {
        if self.round != round {
            self.results.clear();
            self.round = round;
        }
        let Work::Many { ranks, .. } = work else { bail!("no experiment of a job") };
        if !self.results.contains_key(&(system, ranks)) {
            let results = self.start(system, ranks, all, signals)?;
            self.results.insert((system, ranks), results);
        }
        let found = self.results.get(&(system, ranks)).and_then(|results| results.get(&work));
        found.context("the job was not asked for it")?.clone().map_err(anyhow::Error::msg)
    }

    /// Runs a job. An error only if the bench is to end.
    fn start(&mut self, system: System, ranks: u64, all: &[Work], signals: &mut Signals) -> Result<Results> {
        if let Some(why) = self.failed.get(&(system, ranks)) {
            let why = format!("not tried again: {why}");
            return Ok(all.iter().map(|work| (*work, Err(why.clone()))).collect());
        }
        let mut signal = None;
        let mut stop = || {
            signal = signal.or_else(|| signals.take());
            signal.is_some()
        };
        let words: Vec<String> = all.iter().filter_map(|work| word(*work)).collect();
        let report =
            self.command(system, ranks).and_then(|command| run_job(command, &words, JOB_TIME, &mut stop));
        if let Some(signal) = signal {
            return Err(Interrupted(signal.as_raw()).into());
        }
        let report = match report {
            Ok(report) => report,
            Err(why) => {
                self.failed.insert((system, ranks), why.clone());
                return Ok(all.iter().map(|work| (*work, Err(why.clone()))).collect());
            }
        };
        let command = report.command.replacen(&format!("-n {ranks} "), "-n RANKS ", 1);
        if !self.commands.contains(&command) {
            self.commands.push(command);
        }
        let joined = Outcome { elapsed_ns: report.joined.as_nanos() as u64, ..Outcome::default() };
        let mut lines = report.lines.iter();
        let results = all.iter().map(|work| {
            let result = match word(*work) {
                None => Ok(joined),
                Some(word) => self.outcome(*work, &word, lines.next().map_or("", String::as_str)),
            };
            (*work, result)
        });
        Ok(results.collect())
    }

    /// Reads a line of rank 0.
    fn outcome(&mut self, work: Work, word: &str, line: &str) -> Result<Outcome, String> {
        let Work::Many { experiment, ranks, bytes, count } = work else {
            return Err("no experiment of a job".into());
        };
        let numbers: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect();
        let ([steps, ns, cpu_ns, sum, read], true) = (&numbers[..], line.starts_with(word)) else {
            return Err(format!("it answered {line:?}"));
        };
        // Collectives may be done more often than they were asked for.
        if *steps != count && (*steps < count || !experiment.is_collective()) {
            return Err(format!("unfair: {steps} steps were done and {count} asked for"));
        }
        if experiment == Experiment::Halo
            && *self.sums.entry(count).or_insert_with(|| grid::sum_after(count)) != *sum
        {
            return Err("unfair: the result is not that of one process".into());
        }
        let must = experiment.words_read(ranks, bytes as u64 / 8) * steps;
        if *read != must {
            return Err(format!("unfair: {read} words were read where {must} were moved"));
        }
        Ok(Outcome { elapsed_ns: *ns, cpu_ns: *cpu_ns, messages: (*steps).max(1), ..Outcome::default() })
    }

    fn command(&mut self, system: System, ranks: u64) -> Result<Command, String> {
        let System::Rival { other, .. } = system else {
            let program = std::env::current_exe().map_err(|e| e.to_string())?;
            let mut command = Command::new(&program);
            command.args(["run", "-n", &ranks.to_string()]);
            command.arg("--").arg(program).arg("__rank");
            if let Some(fault) = self.sabotage.and_then(|fault| fault.to_possible_value()) {
                command.args(["--sabotage", fault.get_name()]);
            }
            return Ok(command);
        };
        let program = self.programs.entry(other).or_insert_with(|| JobProgram::build(other.rival()));
        let crowded = is_oversubscribed(ranks);
        program.as_ref().map(|program| program.command(ranks, crowded)).map_err(Clone::clone)
    }
}

/// Whether so many ranks outnumber the cores that they may run on.
pub fn is_oversubscribed(ranks: u64) -> bool {
    ranks > cpu::allowed_cores().map_or(1, |cores| cores.len()) as u64
}

/// An experiment as ranks are told of it; the start of the job is none.
fn word(work: Work) -> Option<String> {
    let Work::Many { experiment, bytes, count, .. } = work else { return None };
    (experiment != Experiment::Start).then(|| format!("{}:{bytes}:{count}", experiment.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_results_and_unread_words_are_unfair() {
        let mut jobs = Jobs::default();
        let halo = |ranks| Work::Many { experiment: Experiment::Halo, ranks, bytes: 1024, count: 10 };
        let sum = grid::sum_after(10);
        let mut read = |work, word: &str, line: &str| jobs.outcome(work, word, line);
        let line = format!("halo:1024:10 10 5000 7000 {sum} 0\n");
        let outcome = read(halo(2), "halo:1024:10", &line).unwrap();
        assert_eq!((outcome.elapsed_ns, outcome.cpu_ns, outcome.messages), (5000, 7000, 10));
        let wrong = format!("halo:1024:10 10 5000 7000 {} 0\n", sum + 1);
        assert!(read(halo(4), "halo:1024:10", &wrong).unwrap_err().starts_with("unfair"));
        let more = format!("halo:1024:10 20 5000 7000 {sum} 0\n");
        assert!(read(halo(4), "halo:1024:10", &more).unwrap_err().starts_with("unfair"));
        assert!(read(halo(4), "halo:1024:10", "scan:8:10 10 1 1 0 0").is_err());
        let scan = Work::Many { experiment: Experiment::Scan, ranks: 3, bytes: 16, count: 10 };
        assert!(read(scan, "scan:16:10", "scan:16:10 10 1 1 0 60").is_ok());
        let more = read(scan, "scan:16:10", "scan:16:10 40 8 1 0 240").unwrap();
        assert_eq!((more.elapsed_ns, more.messages), (8, 40));
        for wrong in ["10 1 1 0 59", "40 1 1 0 60", "9 1 1 0 54"] {
            let error = read(scan, "scan:16:10", &format!("scan:16:10 {wrong}")).unwrap_err();
            assert!(error.starts_with("unfair"), "{error}");
        }
        // Parts of 3, 2 and 3 words; between two ranks, as many as a rank with the sum of their numbers has.
        for (experiment, words) in [
            (Experiment::GatherVaried, 8),
            (Experiment::AllGatherVaried, 3 * 8),
            (Experiment::AllToAllVaried, 5 * 3 + 4 * 2),
            (Experiment::ExclusiveScan, 2 * 3),
            (Experiment::Neighbours, 2 * 3 * 3),
        ] {
            assert_eq!(experiment.words_read(3, 3), words, "{}", experiment.name());
        }
    }
}
