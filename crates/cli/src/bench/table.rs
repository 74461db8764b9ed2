//! The report as text.

use std::fmt::Write as _;

use super::Report;
use super::plan::Test;
use super::rows::Row;

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

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    about(&mut text, report);
    for test in Test::ALL {
        let rows: Vec<_> = report.rows.iter().filter(|row| row.test == test.name()).collect();
        if !rows.is_empty() {
            section(&mut text, test, &rows);
        }
    }
    half_power(&mut text, report);
    targets(&mut text, report);
    text
}

fn about(text: &mut String, report: &Report) {
    let m = &report.machine;
    let _ = writeln!(
        text,
        "{}, {} cores{}, {}, load {:.2}",
        m.machine.cpu,
        m.machine.cores,
        if m.machine.virtualised { " (virtual)" } else { "" },
        m.machine.kernel,
        m.machine.load
    );
    let _ = writeln!(
        text,
        "side A on core {}, side B on core {}, over {}; governor {}, rmem_max {}",
        m.cores[0],
        m.cores[1],
        report.path.name(),
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
    if m.is_busy() {
        let _ = writeln!(text, "THE MACHINE IS BUSY: figures will vary, and polling systems suffer most");
    }
    if let Some(reason) = &m.no_xdp {
        let _ = writeln!(text, "bare AF_XDP is not measured: {reason}");
    }
    let (here, absent): (Vec<_>, Vec<_>) = m.found.iter().partition(|found| found.version.is_some());
    for found in here {
        let _ = writeln!(text, "rival {found}");
    }
    let (unbuilt, absent): (Vec<_>, Vec<_>) = absent.into_iter().partition(|found| found.rival.is_built_in());
    for (others, why) in [(absent, "not installed"), (unbuilt, "not in this build (--features)")] {
        let names: Vec<_> = others.iter().map(|found| found.rival.name()).collect();
        if !names.is_empty() {
            let _ = writeln!(text, "rivals {why}: {}", names.join(", "));
        }
    }
}

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
        Test::Matching => "matching: a put of 8 B to oneself (ns) against tripwires that it does not trip",
    }
}

fn section(text: &mut String, test: Test, rows: &[&Row]) {
    let _ = writeln!(text, "\n{}", heading(test));
    let _ = writeln!(
        text,
        "{:>8} {:7} {:18} {:7} {:14} {:>9} {:>9} {:>9} {:>19}  ratio to its limit",
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
        if row.drops > 0 {
            let _ = write!(notes, "  ({} losses)", row.drops);
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

/// The curve of each system, by name.
pub fn curves(rows: &[Row], test: Test) -> Vec<(String, Vec<(usize, f64)>)> {
    let mut curves: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for row in rows.iter().filter(|row| row.test == test.name() && !row.warm && row.load == "idle") {
        let Some(median) = row.median else { continue };
        let name = match row.security {
            Some(security) => format!("{} {security} {}", row.name(), row.policy),
            None => format!("{} {}", row.name(), row.policy),
        };
        match curves.iter_mut().find(|curve| curve.0 == name) {
            Some(curve) => curve.1.push((row.place(), median)),
            None => curves.push((name, vec![(row.place(), median)])),
        }
    }
    curves
}

fn half_power(text: &mut String, report: &Report) {
    let curves = curves(&report.rows, Test::Bandwidth);
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

fn targets(text: &mut String, report: &Report) {
    if report.targets.is_empty() {
        return;
    }
    let _ = writeln!(text, "\ngoals");
    for target in &report.targets {
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
    fn half_power_is_interpolated() {
        let curve = [(64, 0.1), (1024, 1.0), (65_536, 4.0), (1 << 20, 4.0)];
        let half = half_power_bytes(&curve).unwrap();
        assert!(half > 1024.0 && half < 65_536.0, "{half}");
        assert_eq!(half_power_bytes(&[(64, 1.0), (128, 1.0)]), Some(64.0));
        assert_eq!(half_power_bytes(&[]), None);
    }
}
