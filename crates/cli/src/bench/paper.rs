//! `bench --paper 002`: a paper's figures beside ours, from the same experiments.

mod list;

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::Report;
use super::pair::Path;
use super::plan::Test;
use super::rows::Row;
use super::table::{curves, half_power_bytes, short};
use list::PAPERS;

/// The papers whose experiments are repeated.
pub const NUMBERS: [&str; 5] = ["000", "001", "002", "003", "004"];

/// A paper: what it measured, and which of our rows to measure for it.
pub struct Paper {
    number: &'static str,
    title: &'static str,
    /// As in `--only`.
    pub words: &'static str,
    lines: &'static [Line],
}

/// A figure of the paper, and ours for the same work.
struct Line {
    what: &'static str,
    /// As the paper gives it.
    theirs: &'static str,
    unit: &'static str,
    ours: &'static [Pick],
}

/// One of our figures.
struct Pick {
    name: &'static str,
    from: From,
    /// From the unit of our rows to that of the paper.
    times: f64,
}

/// A row: its test, system, device and policy, and its size or number.
type Spot = (Test, &'static str, &'static str, &'static str, usize);

enum From {
    /// The median of a row on this host.
    Row(Spot),
    /// Of a row between hosts with this MTU.
    Far(Spot, u16),
    /// The mean of a row on this host.
    Mean(Spot),
    /// The highest of a system's rows.
    Peak(Test, &'static str, &'static str),
    /// The size in bytes at which a curve of this name reaches half of its maximum.
    HalfPower(&'static str),
    /// What the first row takes more than the second.
    Less(Spot, Spot),
    /// The share of the first row in the second, on this host or between hosts.
    Share(Spot, Spot, Option<u16>),
    /// The share of calls in the round trips that messages of the second row would make in the same time.
    OfRoundTrips(Spot, Spot),
    /// What one core would do in a second, from CPU seconds.
    PerCore(Spot),
    /// Instructions of a frame, as `cargo xtask icount` has counted them in this source tree; less those of
    /// another kind of frame.
    Counted(&'static str, Option<&'static str>),
}

impl From {
    /// The rows that it needs, and where.
    fn spots(&self) -> Vec<(Spot, Path)> {
        let far = |mtu: Option<u16>| mtu.map_or(Path::Loopback, |mtu| Path::Veth { mtu });
        match *self {
            From::Row(spot) | From::Mean(spot) | From::PerCore(spot) => vec![(spot, Path::Loopback)],
            From::Far(spot, mtu) => vec![(spot, far(Some(mtu)))],
            From::Less(one, other) | From::OfRoundTrips(one, other) => {
                vec![(one, Path::Loopback), (other, Path::Loopback)]
            }
            From::Share(one, other, mtu) => vec![(one, far(mtu)), (other, far(mtu))],
            From::Peak(..) | From::HalfPower(_) | From::Counted(..) => Vec::new(),
        }
    }
}

/// Finds a paper by its number.
pub fn of_number(number: &str) -> Option<&'static Paper> {
    PAPERS.iter().find(|paper| paper.number == number)
}

impl Paper {
    /// The paths between hosts that it needs.
    pub fn far(&self) -> Vec<Path> {
        let spots = self.lines.iter().flat_map(|line| line.ours).flat_map(|pick| pick.from.spots());
        let mut paths: Vec<Path> = spots.map(|(_, path)| path).filter(|path| path.is_veth()).collect();
        paths.sort_by_key(|path| path.name());
        paths.dedup();
        paths
    }
}

/// One of our figures beside the paper's, as `--json` shows it.
#[derive(Serialize)]
struct Shown<'a> {
    paper: &'a str,
    what: &'a str,
    unit: &'a str,
    theirs: &'a str,
    system: &'a str,
    ours: Option<f64>,
}

/// The paper's table beside ours, or one JSON object per figure and line.
pub fn render(paper: &Paper, report: &Report, json: bool) -> Result<String> {
    let rows: Vec<Row> = report.rows().cloned().collect();
    let mut text = String::new();
    if !json {
        let _ = writeln!(text, "{}: {}", paper.number, paper.title);
        let _ = writeln!(
            text,
            "The paper's machines are of its time: its figures show what is measured, not a rival.\n"
        );
        let _ = writeln!(text, "{:62} {:>8} {:>7}  here", "", "paper", "unit");
    }
    for line in paper.lines {
        for (i, pick) in line.ours.iter().enumerate() {
            let ours = value(pick, &rows);
            if json {
                let shown = Shown {
                    paper: paper.number,
                    what: line.what,
                    unit: line.unit,
                    theirs: line.theirs,
                    system: pick.name,
                    ours,
                };
                let _ = writeln!(text, "{}", serde_json::to_string(&shown)?);
                continue;
            }
            let (what, theirs, unit) =
                if i == 0 { (line.what, line.theirs, line.unit) } else { ("", "", "") };
            let ours = ours.map_or_else(|| "not measured".to_owned(), short);
            let _ = writeln!(text, "{what:62} {theirs:>8} {unit:>7}  {ours:>8}  {}", pick.name);
        }
    }
    if !json && !report.missing.is_empty() {
        let _ = writeln!(text, "\nnot measured:");
        for what in &report.missing {
            let _ = writeln!(text, "  {what}");
        }
    }
    Ok(text)
}

fn value(pick: &Pick, rows: &[Row]) -> Option<f64> {
    let on_host = |row: &&Row| row.path == Path::Loopback.name();
    let median = |spot: Spot| find(rows, spot, Path::Loopback).and_then(|row| row.median);
    let value = match pick.from {
        From::Row(spot) => median(spot),
        From::Far(spot, mtu) => find(rows, spot, Path::Veth { mtu }).and_then(|row| row.median),
        From::Mean(spot) => find(rows, spot, Path::Loopback).and_then(|row| row.mean),
        From::PerCore(spot) => median(spot).map(|seconds| 1.0 / seconds),
        From::Less(one, other) => median(one).zip(median(other)).map(|(one, other)| one - other),
        From::Share(one, other, mtu) => {
            let path = mtu.map_or(Path::Loopback, |mtu| Path::Veth { mtu });
            let of = |spot| find(rows, spot, path).and_then(|row| row.median);
            of(one).zip(of(other)).map(|(one, other)| one / other)
        }
        From::OfRoundTrips(calls, latency) => {
            // Thousands per second, and microseconds one way.
            median(calls).zip(median(latency)).map(|(calls, one_way)| calls * 2.0 * one_way / 1e3)
        }
        From::Peak(test, system, device) => {
            let these = rows
                .iter()
                .filter(|row| is_plain(row) && on_host(row))
                .filter(|row| (row.test, row.system.as_str(), row.device) == (test.name(), system, device));
            these.filter_map(|row| row.median).reduce(f64::max)
        }
        From::HalfPower(name) => {
            let here: Vec<Row> = rows.iter().filter(on_host).cloned().collect();
            let curves = curves(&here, Test::Bandwidth);
            curves.iter().find(|curve| curve.0 == name).and_then(|curve| half_power_bytes(&curve.1))
        }
        From::Counted(frame, less) => {
            let less = less.map_or(Some(0.0), counted);
            counted(frame).zip(less).map(|(frame, less)| frame - less)
        }
    };
    value.map(|value| value * pick.times)
}

fn is_plain(row: &Row) -> bool {
    !row.warm && row.security.is_none_or(|security| security == "fabric")
}

fn find(rows: &[Row], (test, system, device, policy, place): Spot, path: Path) -> Option<&Row> {
    let (policy, load) = policy.split_once(", ").unwrap_or((policy, "idle"));
    rows.iter().filter(|row| is_plain(row)).find(|row| {
        (row.test, row.system.as_str(), row.device, row.policy, row.place())
            == (test.name(), system, device, policy, place)
            && (row.path, row.load) == (path.name(), load)
    })
}

/// Instructions of a frame, if this program runs beside its source.
fn counted(frame: &str) -> Option<f64> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/golden/icount.txt");
    let text = std::fs::read_to_string(file).ok()?;
    let mut lines = text.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| (words.next() == Some(frame)).then_some(words))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::only::Only;
    use crate::bench::plan::{Cell, Extent, Here, cells};

    fn is_at(cell: &Cell, (test, system, device, policy, place): Spot) -> bool {
        let (policy, load) = policy.split_once(", ").unwrap_or((policy, "idle"));
        let at = cell.many.map_or(cell.bytes, |many| many as usize);
        (cell.test, cell.name(), at) == (test, system, place)
            && (cell.system.device(), cell.system.policy(), cell.load.name()) == (device, policy, load)
    }

    /// Whatever a paper's table shows is measured.
    #[test]
    fn the_plan_has_every_figure() {
        assert_eq!(PAPERS.map(|paper| paper.number), NUMBERS);
        for paper in &PAPERS {
            let only: Only = paper.words.parse().unwrap();
            for extent in [Extent::Full, Extent::Quick] {
                let here = cells(extent, false, &only, &Here::default());
                let brief = Here { xdp: true, brief: true, ..Here::default() };
                let far = cells(extent, true, &only, &brief);
                for pick in paper.lines.iter().flat_map(|line| line.ours) {
                    for (spot, path) in pick.from.spots() {
                        let cells = if path.is_veth() { &far } else { &here };
                        let measured = cells.iter().any(|cell| is_at(cell, spot));
                        assert!(measured, "{}: {} {spot:?} ({extent:?})", paper.number, pick.name);
                    }
                    let measured = match pick.from {
                        From::Peak(test, system, device) => here.iter().any(|cell| {
                            (cell.test, cell.name(), cell.system.device()) == (test, system, device)
                        }),
                        From::Counted(frame, _) => counted(frame).is_some(),
                        _ => true,
                    };
                    assert!(measured, "{}: {} ({extent:?})", paper.number, pick.name);
                }
            }
        }
    }
}
