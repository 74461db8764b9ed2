//! The report as text.

use std::fmt::Write as _;

use super::case::Experiment;
use super::plan::Test;
use super::rows::Row;
use super::summary::{self, Figure, MARK, Summary};
use super::{Part, Report};

/// Said before any figure of a busy machine.
pub const BUSY: &str = "THE MACHINE IS BUSY: figures will vary, and polling systems suffer most";

/// Formats a size.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 if bytes.is_multiple_of(1024) => format!("{} KiB", bytes >> 10),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} B"),
    }
}

/// Formats a figure with three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn opt(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), short)
}

/// The whole report: first what it is compared with, then everything.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    if report.machine.is_busy() {
        let _ = writeln!(text, "{BUSY}\n");
    }
    for table in summary::tables(report) {
        summary(&mut text, &table);
    }
    missing(&mut text, report);
    let _ = writeln!(text, "\n== details ==");
    about(&mut text, report);
    for part in &report.parts {
        let _ = writeln!(text, "\n== {} ==", part.path.describe());
        for test in Test::ALL {
            let rows: Vec<_> = part.rows.iter().filter(|row| row.test == test.name()).collect();
            if !rows.is_empty() {
                section(&mut text, test, &rows);
            }
        }
        half_power(&mut text, part);
        targets(&mut text, part);
    }
    text
}

/// A table of the first screen.
fn summary(text: &mut String, table: &Summary) {
    let _ = writeln!(text, "{}", table.title);
    let _ = write!(text, "{:28}", "");
    for column in &table.columns {
        let _ = write!(text, " {column:>12}");
    }
    let _ = writeln!(text);
    for line in &table.lines {
        let _ = write!(text, "{:28}", line.name);
        for value in &line.values {
            let _ = write!(text, " {:>12}", value.map_or_else(|| "-".into(), Figure::text));
        }
        let _ = writeln!(text);
    }
    if table.has_marks() {
        let _ = writeln!(text, "{MARK}");
    }
    let _ = writeln!(text);
}

fn missing(text: &mut String, report: &Report) {
    if !report.missing.is_empty() {
        let _ = writeln!(text, "not measured:");
        for what in &report.missing {
            let _ = writeln!(text, "  {what}");
        }
    }
}

fn about(text: &mut String, report: &Report) {
    let m = &report.machine;
    let _ = writeln!(
        text,
        "{}, {} core{}{}, {}; others used {:.1} cores when it began",
        m.machine.cpu,
        m.machine.cores,
        if m.machine.cores == 1 { "" } else { "s" },
        if m.machine.virtualised { " (virtual)" } else { "" },
        m.machine.kernel,
        m.cores_in_use
    );
    let _ = writeln!(
        text,
        "side A on core {}, side B on core {}; governor {}, rmem_max {}",
        m.cores[0],
        m.cores[1],
        m.machine.governor.as_deref().unwrap_or("unknown"),
        m.machine.rmem_max.map_or_else(|| "unknown".into(), |b| b.to_string())
    );
    let _ = writeln!(
        text,
        "system call {:.0} ns, clock {:.0} ns, cache line {} ns one way, copy {:.0} GB/s (64 KiB) {:.0} GB/s (1 MiB)",
        m.system_call_ns,
        m.clock_read_ns,
        m.cache_line_ns.map_or_else(|| "?".into(), |ns| format!("{ns:.0}")),
        m.copy[0],
        m.copy[1]
    );
    for found in m.found.iter().filter(|found| found.version.is_some()) {
        let _ = writeln!(text, "rival {found}");
    }
    for command in &report.commands {
        let _ = writeln!(text, "job {command}");
    }
}

/// What the host of a virtual machine takes is shown from this share on.
const STOLEN: f64 = 0.01;

fn heading(test: Test) -> &'static str {
    match test {
        Test::Latency => "latency: one way, back to back (µs)",
        Test::Rate => "rate: 8 B messages (million per second)",
        Test::Bandwidth => "bandwidth: one way (GB/s)",
        Test::Paced => "paced: one 64 B message per millisecond, one way (µs)",
        Test::Cpu => "cpu: of both sides, saturated (seconds per million messages, or per GB)",
        Test::Guarantees => {
            "guarantees: each layer's bandwidth (GB/s), and what it keeps of the layer before it"
        }
        Test::Protection => "protection: tags and ciphers of frames, computed by one process (GB/s)",
        Test::Idle => "idle: CPU of a connected process with nothing to do (% of a core)",
        Test::Calls => {
            "calls: requests of 64 B that are answered, by the number in progress (thousand per second)"
        }
        Test::Endpoints => {
            "endpoints: a word put to one of a server's endpoints, and its answer; there and back (µs) against their number"
        }
        Test::Clients => {
            "clients: requests to that server (thousand per second) against clients with one request each"
        }
        Test::Matching => {
            "matching: what tripwires that a put of 8 B does not trip add to it (ns); with none, the put itself"
        }
        Test::Polls => {
            "polls: of an endpoint (ns), 0 for one that finds nothing, 1 for each message that one finds"
        }
        Test::Copies => {
            "copies: of a buffer by one process, in several ways (GB/s); a loan is handed over without a copy"
        }
        Test::Loss => "loss: streams of 64 KiB (GB/s) against lost frames of a thousand",
        Test::Many(experiment) => many(experiment),
        Test::Flood => {
            "flood: windows of 64 B messages (thousand per second) against foreign datagrams for each message"
        }
    }
}

/// The headings of jobs, by the number of ranks.
fn many(experiment: Experiment) -> &'static str {
    match experiment {
        Experiment::Start => "start: of a job, until its last rank has joined (ms) against ranks",
        Experiment::First => {
            "first: message from the first rank to the last, and its answer (µs) against ranks"
        }
        Experiment::Beside => {
            "beside: 8 B between two ranks, one way (µs), while all others wait for a message, against ranks"
        }
        Experiment::Halo => {
            "halo: a step on a grid of 256² with an exchange of rows (µs) against ranks that share it"
        }
        Experiment::Asleep => "asleep: CPU of a job in which everyone waits (% of a core) against ranks",
        Experiment::Barrier => "barrier (µs) against ranks",
        Experiment::Broadcast => "broadcast (µs) against ranks",
        Experiment::Reduce => "reduce: a sum at one rank (µs) against ranks",
        Experiment::AllReduce => "all-reduce: a sum at all ranks (µs) against ranks",
        Experiment::Gather => "gather (µs) against ranks",
        Experiment::Scatter => "scatter (µs) against ranks",
        Experiment::AllGather => "all-gather (µs) against ranks",
        Experiment::AllToAll => "all-to-all (µs) against ranks",
        Experiment::ReduceScatter => "reduce-scatter: a part of the sum at each rank (µs) against ranks",
        Experiment::Scan => "scan: the sum of all ranks before (µs) against ranks",
        Experiment::ExclusiveScan => "exclusive-scan: the sum of all ranks before, without its own (µs)",
        Experiment::GatherVaried => "gather-varied: every other rank has half as much (µs) against ranks",
        Experiment::ScatterVaried => "scatter-varied: every other rank gets half as much (µs) against ranks",
        Experiment::AllGatherVaried => "all-gather-varied: every other rank has half as much (µs)",
        Experiment::AllToAllVaried => {
            "all-to-all-varied: every other part is half as long (µs) against ranks"
        }
        Experiment::Neighbours => "neighbours: an exchange with both neighbours on a ring (µs) against ranks",
        Experiment::Multicast => {
            "multicast: forwarded by nodes, and answered by the last rank (µs) against ranks; MPI: a broadcast"
        }
        Experiment::MultiSend => "multi-send: the same, sent by the first rank to all at once (µs)",
        Experiment::RepeatedSend => "repeated-send: the same, sent to one rank after the other (µs)",
        Experiment::Overlap => "overlap: a started all-reduce during a computation (µs) against ranks",
    }
}

fn section(text: &mut String, test: Test, rows: &[&Row]) {
    let _ = writeln!(text, "\n{}", heading(test));
    let _ = writeln!(
        text,
        "{:>8} {:7} {:18} {:7} {:14} {:>9} {:>9} {:>9} {:>19}  ratio to its limit or rival",
        if rows.iter().any(|row| row.many.is_some()) { "many" } else { "size" },
        "load",
        "system",
        "mode",
        "policy",
        "median",
        "p99",
        "p99.9",
        "low – high"
    );
    for row in rows {
        let mut notes = String::new();
        if let (Some(ratio), Some(limit)) = (row.ratio, &row.limit) {
            let _ = write!(notes, "{ratio:.2} of {limit}");
        }
        if row.wrong_limit {
            notes.push_str("  WRONG LIMIT");
        }
        if let Some(window) = row.window {
            let _ = write!(notes, "  (window {window})");
        }
        if let Some(share) = row.system_share {
            let _ = write!(notes, "  ({:.0} % in the kernel)", 100.0 * share);
        }
        if let Some(mean) = row.mean.filter(|_| test == Test::Flood) {
            let _ = write!(notes, "  ({} µs of the receiver's CPU for each)", short(mean));
        }
        if matches!(test, Test::Many(_)) && row.bytes > 0 {
            let _ = write!(notes, "  ({})", size(row.bytes));
        }
        if row.oversubscribed {
            notes.push_str("  (oversubscribed)");
        }
        if row.drops > 0 {
            let _ = write!(notes, "  ({} losses)", row.drops);
        }
        if row.stolen >= STOLEN {
            let _ = write!(notes, "  (the host took {:.0} % of the time)", 100.0 * row.stolen);
        }
        if row.warm {
            notes.push_str("  (warm buffer)");
        }
        if let Some(error) = &row.error {
            let _ = write!(notes, "  FAILED: {error}");
        }
        let spread = format!("{} – {}", opt(row.low), opt(row.high));
        let _ = writeln!(
            text,
            "{:>8} {:7} {:18} {:7} {:14} {:>9} {:>9} {:>9} {:>19}  {}",
            row.many.map_or_else(|| size(row.bytes), |many| many.to_string()),
            row.load,
            row.name(),
            row.security.unwrap_or("-"),
            row.policy,
            opt(row.median),
            opt(row.p99),
            opt(row.p999),
            spread,
            notes.trim_start()
        );
    }
}

/// The message size at which a curve of (bytes, GB/s) reaches half of its maximum.
pub fn half_power_bytes(curve: &[(usize, f64)]) -> Option<f64> {
    let most = curve.iter().map(|point| point.1).reduce(f64::max)?;
    let above = curve.iter().position(|point| point.1 >= most / 2.0)?;
    let (bytes, height) = curve[above];
    let Some(before) = above.checked_sub(1).map(|i| curve[i]) else { return Some(bytes as f64) };
    // Interpolated between two sizes, on logarithmic axes.
    let share = (most / 2.0 / before.1).ln() / (height / before.1).ln();
    Some((before.0 as f64) * (bytes as f64 / before.0 as f64).powf(share))
}

/// The curve of each system, by name, in order of size. Rows that differ in anything but size are different
/// curves; of two that do not, the first counts.
pub fn curves(rows: &[Row], test: Test) -> Vec<(String, Vec<(usize, f64)>)> {
    let mut curves: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for row in rows.iter().filter(|row| row.test == test.name() && !row.warm && row.load == "idle") {
        let Some(median) = row.median else { continue };
        let mut name = match row.security {
            Some(security) => format!("{} {security} {}", row.name(), row.policy),
            None => format!("{} {}", row.name(), row.policy),
        };
        if let Some(window) = row.window {
            let _ = write!(name, ", window {window}");
        }
        let point = (row.place(), median);
        match curves.iter_mut().find(|curve| curve.0 == name) {
            Some(curve) if curve.1.iter().any(|other| other.0 == point.0) => {}
            Some(curve) => curve.1.push(point),
            None => curves.push((name, vec![point])),
        }
    }
    for curve in &mut curves {
        curve.1.sort_by_key(|point| point.0);
    }
    curves
}

fn half_power(text: &mut String, part: &Part) {
    let curves = curves(&part.rows, Test::Bandwidth);
    if curves.iter().all(|curve| curve.1.len() < 2) {
        return;
    }
    let _ = writeln!(text, "\nhalf-power message size: where the bandwidth is half of its maximum");
    for (name, curve) in curves {
        let smallest = curve.first().map_or(0, |point| point.0);
        if let Some(bytes) = half_power_bytes(&curve) {
            let bound = if bytes <= smallest as f64 { "at most " } else { "" };
            let _ = writeln!(text, "  {name:28} {bound}{bytes:.0} B");
        }
    }
}

fn targets(text: &mut String, part: &Part) {
    if part.targets.is_empty() {
        return;
    }
    let _ = writeln!(text, "\ngoals");
    for target in &part.targets {
        let _ = writeln!(
            text,
            "  {:7} {:48} {:>8}  {}",
            target.verdict(),
            target.what,
            opt(target.value),
            target.goal
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted() {
        assert_eq!(
            [0, 64, 1024, 65_536, 1 << 20, 1500].map(size),
            ["0 B", "64 B", "1 KiB", "64 KiB", "1 MiB", "1500 B"]
        );
    }

    #[test]
    fn curves_are_sorted_and_never_join_two_series() {
        let row = |system: &str, bytes, window, value| Row {
            test: "rate",
            system: system.into(),
            bytes,
            window,
            policy: "polled",
            load: "idle",
            median: Some(value),
            ..Row::default()
        };
        let rows = [
            row("a", 64, None, 2.0),
            row("b", 8, None, 9.0),
            row("a", 8, None, 1.0),
            row("a", 16, Some(64), 7.0),
            row("a", 32, None, 1.5),
        ];
        let curves = curves(&rows, Test::Rate);
        let of = |name: &str| curves.iter().find(|curve| curve.0 == name).unwrap().1.clone();
        assert_eq!(curves.len(), 3);
        assert_eq!(of("a polled"), [(8, 1.0), (32, 1.5), (64, 2.0)]);
        assert_eq!((of("a polled, window 64"), of("b polled")), (vec![(16, 7.0)], vec![(8, 9.0)]));
    }

    #[test]
    fn half_power_is_interpolated() {
        let curve = [(64, 0.1), (1024, 1.0), (65_536, 4.0), (1 << 20, 4.0)];
        let half = half_power_bytes(&curve).unwrap();
        assert!(half > 1024.0 && half < 65_536.0, "{half}");
        assert_eq!(half_power_bytes(&[(64, 1.0), (128, 1.0)]), Some(64.0));
        assert_eq!(half_power_bytes(&[]), None);
    }
}
