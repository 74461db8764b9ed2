//! The evaluation of the rounds: one row per cell, with the ratio to its limit formed inside each round.

use serde::Serialize;
use tautline_baseline::stats::{Rounds, median};

use super::case::{Outcome, Work};
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
    /// How often something was lost and sent again, as far as the system reports it.
    pub drops: u64,
}

/// A cell and its results.
#[derive(Clone, Debug)]
pub struct Result {
    pub cell: Cell,
    /// One per round that succeeded: the round and its figure.
    pub figures: Vec<(usize, Figure)>,
    pub errors: Vec<String>,
}

/// One line of the report, and of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub test: &'static str,
    pub path: &'static str,
    pub device: &'static str,
    pub system: String,
    /// A rival that was found here.
    pub rival: bool,
    pub bytes: usize,
    pub window: Option<u64>,
    /// The number of endpoints, clients or tripwires, where that was varied.
    pub many: Option<u64>,
    pub load: &'static str,
    pub policy: &'static str,
    pub security: Option<&'static str>,
    pub warm: bool,
    pub unit: &'static str,
    pub median: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub mean: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub limit: Option<String>,
    pub ratio: Option<f64>,
    pub wrong_limit: bool,
    pub rounds: usize,
    /// How often something was lost and sent again in all rounds, as far as the system reports it.
    pub drops: u64,
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
        Test::Calls | Test::Clients => "k/s",
        Test::Matching => "ns",
        Test::Bandwidth | Test::Guarantees => "GB/s",
        Test::Cpu if cell.bytes <= 64 => "s/M",
        Test::Cpu => "s/GB",
        Test::Idle => "%",
    }
}

fn is_better_when_larger(test: Test) -> bool {
    matches!(test, Test::Rate | Test::Bandwidth | Test::Guarantees | Test::Calls | Test::Clients)
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
            Figure { value: a.median_us, p99, p999, mean, drops: 0 }
        }
        Test::Endpoints => {
            // Times are one way; this is a round trip.
            Figure {
                value: 2.0 * a.median_us,
                p99: Some(2.0 * a.p99_us),
                p999: Some(2.0 * a.p999_us),
                mean: Some(2.0 * a.mean_us),
                drops: 0,
            }
        }
        Test::Calls | Test::Clients => plain(a.messages as f64 * 1e6 / elapsed),
        Test::Matching => plain(elapsed / a.messages.max(1) as f64),
        Test::Rate => plain(a.messages as f64 * 1e3 / elapsed),
        Test::Bandwidth => plain(a.bytes as f64 / elapsed),
        // Bare frames may be lost: only those that arrive count.
        Test::Guarantees if cell.system.name().starts_with("frames") => {
            plain(b.bytes as f64 / b.elapsed_ns.max(1) as f64)
        }
        Test::Guarantees => plain(a.bytes as f64 / elapsed),
        Test::Cpu if cell.bytes <= 64 => plain(cpu_ns / 1e3 / a.messages.max(1) as f64),
        Test::Cpu => plain(cpu_ns / a.bytes.max(1) as f64),
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
        let other =
            all.iter().find(|other| other.cell.is_beside(cell) && other.cell.system == limit.system)?;
        ratio(result, other, |figure| Some(figure.value))
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
        rival: cell.system.is_rival(),
        bytes: cell.bytes,
        window: cell.window,
        many: cell.many,
        load: cell.load.name(),
        policy: cell.system.policy(),
        security: cell.system.security(),
        warm: cell.warm,
        unit: unit(cell),
        median: spread.map(|s| s.median),
        p99: of(|figure| figure.p99),
        p999: of(|figure| figure.p999),
        mean: of(|figure| figure.mean),
        low: spread.map(|s| s.low),
        high: spread.map(|s| s.high),
        limit: cell.limit.map(|limit| limit.system.to_string()),
        ratio,
        wrong_limit: hard && ratio.is_some_and(beaten),
        rounds: values.len(),
        drops: result.figures.iter().map(|(_, figure)| figure.drops).sum(),
        error: result.errors.first().cloned(),
    }
}

/// The median, over rounds that have both, of the ratio of two figures of the same round.
pub fn ratio(one: &Result, other: &Result, get: impl Fn(&Figure) -> Option<f64>) -> Option<f64> {
    let ratios: Vec<f64> = one
        .figures
        .iter()
        .filter_map(|(round, figure)| {
            let (_, beside) = other.figures.iter().find(|(r, _)| r == round)?;
            let (above, below) = (get(figure)?, get(beside)?);
            (below > 0.0).then(|| above / below)
        })
        .collect();
    (!ratios.is_empty()).then(|| median(&ratios))
}
