//! The evaluation of the rounds: one row per cell, with the ratio to its limit formed inside each round.

use serde::Serialize;
use tautline_baseline::stats::{Rounds, median};

use super::case::{Experiment, Outcome, Work};
use super::machine::Run;
use super::many::is_oversubscribed;
use super::pair::Path;
use super::plan::{Cell, Test};

/// A limit that is beaten by more than this is wrong.
const WRONG_BY: f64 = 0.05;

/// The result of one round for a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    pub value: f64,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub mean: Option<f64>,
    /// The kernel's share of the CPU time.
    pub system: Option<f64>,
    /// How often something was lost and sent again, as far as the system reports it.
    pub drops: u64,
    /// The share of the cores' time that the host of a virtual machine took.
    pub stolen: f64,
}

impl Figure {
    /// Worse than anything that a slow or busy machine measures.
    pub fn worsen(&mut self, test: Test) {
        self.value *= if is_better_when_larger(test) { 1e-9 } else { 1e9 };
    }
}

/// A cell and its results.
#[derive(Clone, Debug)]
pub struct Result {
    pub cell: Cell,
    /// One per round that succeeded: the round and its figure.
    pub figures: Vec<(usize, Figure)>,
    pub errors: Vec<String>,
}

/// A row with the run that it belongs to: one line of `--json`.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    #[serde(flatten)]
    pub row: &'a Row,
    pub run: &'a Run,
}

/// One row of the report, and of `--json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub test: &'static str,
    pub path: &'static str,
    pub device: &'static str,
    pub system: String,
    /// One of ours.
    pub ours: bool,
    /// A rival that was found here.
    pub rival: bool,
    pub bytes: usize,
    pub window: Option<u64>,
    /// The number of endpoints, clients or tripwires, where that was varied.
    pub many: Option<u64>,
    /// Its ranks outnumber the cores.
    pub oversubscribed: bool,
    pub load: &'static str,
    pub policy: &'static str,
    pub security: Option<&'static str>,
    pub warm: bool,
    pub unit: &'static str,
    pub median: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub mean: Option<f64>,
    /// The kernel's share of the CPU time, in tests of that.
    pub system_share: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub limit: Option<String>,
    pub ratio: Option<f64>,
    pub wrong_limit: bool,
    pub rounds: usize,
    /// How often something was lost and sent again in all rounds, as far as the system reports it.
    pub drops: u64,
    /// The share of the cores' time that the host of a virtual machine took, the mean over rounds.
    pub stolen: f64,
    pub error: Option<String>,
}

impl Row {
    /// The system as people read it: ours names its device, if that is not UDP.
    pub fn name(&self) -> String {
        if self.security.is_some() && self.device != "udp" {
            format!("{} {}", self.system, self.device)
        } else {
            self.system.clone()
        }
    }

    /// The position on a curve: the number varied, or else the bytes.
    pub fn place(&self) -> usize {
        self.many.map_or(self.bytes, |many| many as usize)
    }
}

/// The unit of a cell's figures.
pub fn unit(cell: &Cell) -> &'static str {
    match cell.test {
        Test::Latency | Test::Paced | Test::Endpoints => "us",
        Test::Rate => "M/s",
        Test::Calls | Test::Clients | Test::Flood => "k/s",
        Test::Matching | Test::Polls => "ns",
        Test::Bandwidth | Test::Guarantees | Test::Protection | Test::Copies | Test::Loss => "GB/s",
        Test::Cpu if cell.bytes <= 64 => "s/M",
        Test::Cpu => "s/GB",
        Test::Idle | Test::Many(Experiment::Asleep) => "%",
        Test::Many(Experiment::Start) => "ms",
        Test::Many(_) => "us",
    }
}

fn is_better_when_larger(test: Test) -> bool {
    matches!(
        test,
        Test::Rate
            | Test::Bandwidth
            | Test::Guarantees
            | Test::Protection
            | Test::Calls
            | Test::Clients
            | Test::Copies
            | Test::Loss
            | Test::Flood
    )
}

/// Returns the figure of a cell from the outcomes of the two sides.
pub fn figure(cell: &Cell, [a, b]: &[Outcome; 2]) -> Figure {
    let plain = |value| Figure { value, drops: a.drops.max(b.drops), ..Figure::default() };
    let elapsed = a.elapsed_ns.max(1) as f64;
    let cpu_ns = (a.cpu_ns + b.cpu_ns) as f64;
    match cell.test {
        Test::Latency | Test::Paced => {
            // Not every rival reports all of them.
            let reported = |us: f64| (us > 0.0).then_some(us);
            let (p99, p999, mean) = (reported(a.p99_us), reported(a.p999_us), reported(a.mean_us));
            Figure { value: a.median_us, p99, p999, mean, ..Figure::default() }
        }
        Test::Endpoints => {
            // Times are one way; this is a round trip.
            Figure {
                value: 2.0 * a.median_us,
                p99: Some(2.0 * a.p99_us),
                p999: Some(2.0 * a.p999_us),
                mean: Some(2.0 * a.mean_us),
                ..Figure::default()
            }
        }
        Test::Calls | Test::Clients => plain(a.messages as f64 * 1e6 / elapsed),
        Test::Matching => {
            // Net of the put itself, unless that is what is measured; the mean is gross.
            let base = if cell.many == Some(0) { 0.0 } else { a.base_ns as f64 };
            let each = |ns: f64| ns / a.messages.max(1) as f64;
            Figure { mean: Some(each(elapsed)), ..plain(each((elapsed - base).max(0.0))) }
        }
        Test::Polls => plain(elapsed / a.messages.max(1) as f64),
        Test::Rate => plain(a.messages as f64 * 1e3 / elapsed),
        Test::Bandwidth | Test::Protection | Test::Loss => plain(a.bytes as f64 / elapsed),
        // A loan is handed over; its time is one way.
        Test::Copies if a.elapsed_ns == 0 => {
            plain(cell.bytes as f64 / (1e3 * a.median_us).max(f64::MIN_POSITIVE))
        }
        Test::Copies => plain(a.bytes as f64 / elapsed),
        Test::Flood => {
            // What a message costs the receiver, in microseconds of CPU time.
            let cost = b.cpu_ns as f64 / 1e3 / b.messages.max(1) as f64;
            Figure { mean: Some(cost), ..plain(a.messages as f64 * 1e6 / elapsed) }
        }
        // Bare frames may be lost: only those that arrive count.
        Test::Guarantees if cell.system.name().starts_with("frames") => {
            plain(b.bytes as f64 / b.elapsed_ns.max(1) as f64)
        }
        Test::Guarantees => plain(a.bytes as f64 / elapsed),
        Test::Cpu => {
            let system = ((a.system_ns + b.system_ns) as f64 / cpu_ns.max(1.0)).min(1.0);
            let value = if cell.bytes <= 64 {
                cpu_ns / 1e3 / a.messages.max(1) as f64
            } else {
                cpu_ns / a.bytes.max(1) as f64
            };
            Figure { system: Some(system), ..plain(value) }
        }
        Test::Many(experiment) => plain(match experiment {
            Experiment::Start => elapsed / 1e6,
            // Times are one way; this is a round trip.
            Experiment::First => 2.0 * elapsed / 1e3,
            Experiment::Beside => elapsed / 1e3,
            Experiment::Asleep => cpu_ns / elapsed * 100.0,
            _ => elapsed / 1e3 / a.messages.max(1) as f64,
        }),
        Test::Idle => {
            let Work::Idle { milliseconds } = cell.work else { return Figure::default() };
            plain(cpu_ns / 2.0 / (milliseconds as f64 * 1e6) * 100.0)
        }
    }
}

/// The rows of all results.
pub fn rows(results: &[Result], path: Path) -> Vec<Row> {
    results.iter().map(|result| row(result, results, path)).collect()
}

fn row(result: &Result, all: &[Result], path: Path) -> Row {
    let cell = &result.cell;
    let values: Vec<f64> = result.figures.iter().map(|(_, figure)| figure.value).collect();
    let of = |get: fn(&Figure) -> Option<f64>| {
        let found: Vec<f64> = result.figures.iter().filter_map(|(_, figure)| get(figure)).collect();
        (!found.is_empty()).then(|| median(&found))
    };
    let spread = (!values.is_empty()).then(|| Rounds::of(&values));
    let ratio = cell.limit.and_then(|limit| {
        let other = all.iter().find(|other| cell.is_limited_by(&other.cell))?;
        ratio(result, other, |figure| Some(figure.value)).map(|ratio| ratio / limit.times)
    });
    let hard = cell.limit.is_some_and(|limit| limit.hard);
    let beaten = |ratio: f64| {
        if is_better_when_larger(cell.test) { ratio > 1.0 + WRONG_BY } else { ratio < 1.0 - WRONG_BY }
    };
    Row {
        test: cell.test.name(),
        path: path.name(),
        device: cell.system.device(),
        system: cell.name().to_owned(),
        ours: cell.system.is_ours(),
        rival: cell.system.is_rival(),
        bytes: cell.bytes,
        window: cell.window,
        many: cell.many,
        oversubscribed: matches!(cell.work, Work::Many { ranks, .. } if is_oversubscribed(ranks)),
        load: cell.load.name(),
        policy: cell.system.policy(),
        security: cell.system.security(),
        warm: cell.warm,
        unit: unit(cell),
        median: spread.map(|s| s.median),
        p99: of(|figure| figure.p99),
        p999: of(|figure| figure.p999),
        mean: of(|figure| figure.mean),
        system_share: of(|figure| figure.system),
        low: spread.map(|s| s.low),
        high: spread.map(|s| s.high),
        limit: cell.limit.map(|limit| limit.system.to_string()),
        ratio,
        wrong_limit: hard && ratio.is_some_and(beaten),
        rounds: values.len(),
        drops: result.figures.iter().map(|(_, figure)| figure.drops).sum(),
        stolen: result.figures.iter().map(|(_, figure)| figure.stolen).sum::<f64>()
            / result.figures.len().max(1) as f64,
        error: result.errors.first().cloned(),
    }
}

impl Result {
    /// The figure of a round.
    pub fn in_round(&self, round: usize) -> Option<&Figure> {
        self.figures.iter().find(|(of, _)| *of == round).map(|(_, figure)| figure)
    }
}

/// The median, over rounds that have both, of the ratio of two figures of the same round.
pub fn ratio(one: &Result, other: &Result, get: impl Fn(&Figure) -> Option<f64>) -> Option<f64> {
    median_of(one.figures.iter().filter_map(|(round, figure)| {
        let (above, below) = (get(figure)?, get(other.in_round(*round)?)?);
        (below > 0.0).then(|| above / below)
    }))
}

/// The median, if there is any figure.
pub fn median_of(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.collect();
    (!figures.is_empty()).then(|| median(&figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::only::Only;
    use crate::bench::plan::{Extent, Here, cells};

    /// A row whose figure is `share` of its limit's.
    fn against_limit(only: &str, share: f64) -> Row {
        let only: Only = only.parse().unwrap();
        let cells = cells(Extent::Smoke, false, &only, &Here::default());
        let hard = |cell: &&Cell| cell.limit.is_some_and(|limit| limit.hard);
        let ours = *cells.iter().find(hard).unwrap();
        let limit = *cells.iter().find(|other| ours.is_limited_by(other)).unwrap();
        let result = |cell, value| Result {
            cell,
            figures: vec![(0, Figure { value, ..Figure::default() })],
            errors: Vec::new(),
        };
        let results = [result(ours, share), result(limit, 1.0)];
        row(&results[0], &results, Path::Loopback)
    }

    #[test]
    fn a_limit_is_wrong_if_it_is_beaten_by_more_than_five_percent() {
        for (share, wrong) in [(1.2, false), (1.0, false), (0.96, false), (0.94, true), (0.1, true)] {
            assert_eq!(against_limit("latency,64,tautline", share).wrong_limit, wrong, "{share}");
        }
        for (share, wrong) in [(0.9, false), (1.04, false), (1.06, true), (10.0, true)] {
            assert_eq!(against_limit("bandwidth,64K,tautline", share).wrong_limit, wrong, "{share}");
        }
    }
}
