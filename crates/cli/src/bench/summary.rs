//! The first screen of the report: how fast it is here, and against what one would use instead. At most two
//! tables and two plots; one between hosts, if that was measured, and one on this host.

use super::pair::Path;
use super::plan::Test;
use super::rows::Row;
use super::svg::{self, Line};
use super::table::{curves, short, size};
use super::{Part, Report};

/// A table: one line for each system.
pub struct Summary {
    pub title: String,
    pub columns: Vec<String>,
    pub lines: Vec<SummaryLine>,
}

pub struct SummaryLine {
    pub name: String,
    pub ours: bool,
    pub values: Vec<Option<Figure>>,
}

/// A figure of a table.
#[derive(Clone, Copy)]
pub struct Figure {
    median: f64,
    /// Its rounds differ by more than [`SPREAD`].
    varies: bool,
}

/// Rounds that differ by more than this part of their median are marked.
const SPREAD: f64 = 0.25;

/// What the mark means.
pub const MARK: &str = "~: the rounds differ by more than a quarter; the details have the lowest and highest";

impl Figure {
    /// With three significant digits, and a mark if its rounds differ.
    pub fn text(self) -> String {
        format!("{}{}", if self.varies { "~" } else { "" }, short(self.median))
    }
}

impl Summary {
    /// Whether a figure is marked.
    pub fn has_marks(&self) -> bool {
        self.lines.iter().flat_map(|line| &line.values).flatten().any(|figure| figure.varies)
    }
}

/// A system of a table: how it is called there, and its rows.
struct Entry {
    name: &'static str,
    system: &'static str,
    device: Option<&'static str>,
    security: Option<&'static str>,
    policy: &'static str,
}

const fn entry(name: &'static str, system: &'static str, policy: &'static str) -> Entry {
    Entry { name, system, device: None, security: None, policy }
}

const fn ours(name: &'static str, device: &'static str, policy: &'static str) -> Entry {
    Entry { name, system: "tautline", device: Some(device), security: Some("fabric"), policy }
}

const BETWEEN_HOSTS: [Entry; 10] = [
    ours("Tautline, UDP, polling", "udp", "spin"),
    ours("Tautline, UDP, sleeping", "udp", "park"),
    ours("Tautline, AF_XDP", "xdp", "spin"),
    entry("TCP, polling", "tcp", "polled"),
    entry("TCP, sleeping", "tcp", "blocking"),
    entry("raw UDP, polling", "udp", "polled"),
    entry("raw UDP, sleeping", "udp", "blocking"),
    entry("bare AF_XDP", "xdp-generic", "polled"),
    entry("Open MPI over TCP", "openmpi-tcp", "polled"),
    entry("UCX over TCP", "ucx-tcp", "polled"),
];

const ON_ONE_HOST: [Entry; 12] = [
    ours("Tautline, polling", "shm", "spin"),
    ours("Tautline, default", "shm", "spin-then-park"),
    ours("Tautline, UDP", "udp", "spin"),
    entry("Unix socket, polling", "unix", "polled"),
    entry("Unix socket, sleeping", "unix", "blocking"),
    entry("pipe, polling", "pipe", "polled"),
    entry("TCP, polling", "tcp", "polled"),
    entry("Open MPI", "openmpi", "polled"),
    entry("MPICH", "mpich", "polled"),
    entry("UCX", "ucx", "polled"),
    entry("iceoryx2", "iceoryx2", "polled"),
    entry("ZeroMQ", "zeromq", "blocking"),
];

/// What a column shows: a test, a size, and how the heading begins.
const COLUMNS: [(Test, usize, &str); 6] = [
    (Test::Latency, 8, "µs, "),
    (Test::Latency, 4 << 10, "µs, "),
    (Test::Latency, 64 << 10, "µs, "),
    (Test::Rate, 8, "M/s, "),
    (Test::Bandwidth, 64 << 10, "GB/s, "),
    (Test::Bandwidth, 1 << 20, "GB/s, "),
];

/// The tables of the first screen.
pub fn tables(report: &Report) -> Vec<Summary> {
    let (far, near) = two_parts(report);
    let mut tables = Vec::new();
    if let Some(part) = far {
        tables.extend(table(part, &BETWEEN_HOSTS));
    }
    if let Some(part) = near {
        tables.extend(table(part, &ON_ONE_HOST));
    }
    tables
}

/// The part between hosts to show first, and the one on this host.
fn two_parts(report: &Report) -> (Option<&Part>, Option<&Part>) {
    let of = |wanted: fn(&Path) -> bool| report.parts.iter().find(|part| wanted(&part.path));
    (of(|path| path.is_veth()), of(|path| !path.is_veth()))
}

fn table(part: &Part, entries: &[Entry]) -> Option<Summary> {
    let mut lines: Vec<_> = entries.iter().map(|entry| line(&part.rows, entry)).collect();
    lines.retain(|line| line.values.iter().any(Option::is_some));
    // A column that nobody fills is left out.
    let filled: Vec<bool> =
        (0..COLUMNS.len()).map(|i| lines.iter().any(|line| line.values[i].is_some())).collect();
    for line in &mut lines {
        let mut kept = filled.iter();
        line.values.retain(|_| *kept.next().unwrap_or(&false));
    }
    let names = COLUMNS.iter().map(|(_, bytes, unit)| format!("{unit}{}", size(*bytes)));
    let columns = names.zip(&filled).filter(|(_, filled)| **filled).map(|(name, _)| name).collect();
    let title = format!(
        "How fast, {}: one-way latency (µs), messages in windows of 64 (M/s), streams (GB/s)",
        part.path.describe()
    );
    (!lines.is_empty()).then_some(Summary { title, columns, lines })
}

fn line(rows: &[Row], entry: &Entry) -> SummaryLine {
    let values = COLUMNS.iter().map(|(test, bytes, _)| value(rows, entry, *test, *bytes)).collect();
    SummaryLine { name: entry.name.into(), ours: entry.system == "tautline", values }
}

fn value(rows: &[Row], entry: &Entry, test: Test, bytes: usize) -> Option<Figure> {
    let row = rows.iter().find(|row| {
        (row.test, row.bytes, row.system.as_str(), row.policy)
            == (test.name(), bytes, entry.system, entry.policy)
            && entry.device.is_none_or(|device| row.device == device)
            && (entry.security.is_none() || row.security == entry.security)
            && (test != Test::Rate || row.window == Some(64))
            && (row.load == "idle" && !row.warm)
    });
    let row = row?;
    let median = row.median?;
    let varies = row.low.zip(row.high).is_some_and(|(low, high)| high - low > SPREAD * median);
    Some(Figure { median, varies })
}

/// The plots of the first screen: latency and bandwidth, between hosts if that was measured.
pub fn plots(report: &Report) -> Vec<String> {
    let (far, near) = two_parts(report);
    let Some(part) = far.or(near) else { return Vec::new() };
    let names: &[&str] = if far.is_some() {
        &[
            "tautline fabric spin",
            "tautline xdp fabric spin",
            "tcp polled",
            "udp polled",
            "openmpi-tcp polled",
        ]
    } else {
        &["tautline shm fabric spin", "tautline fabric spin", "unix polled", "tcp polled", "openmpi polled"]
    };
    let place = part.path.describe();
    [
        (Test::Latency, "Latency, one way, against message size", "µs"),
        (Test::Bandwidth, "Bandwidth against message size", "GB/s"),
    ]
    .map(|(test, what, unit)| svg::lines(&format!("{what}, {place}"), unit, &chosen(&part.rows, test, names)))
    .into_iter()
    .filter(|plot| !plot.is_empty())
    .collect()
}

/// Lines that a reader can distinguish; the tables have everything.
pub fn chosen(rows: &[Row], test: Test, names: &[&str]) -> Vec<Line> {
    let curves = curves(rows, test);
    let pick = |name: &&str| {
        let (_, points) = curves.iter().find(|curve| curve.0 == *name)?;
        let points = points.iter().map(|(bytes, value)| (*bytes as f64, *value)).collect();
        let ours = rows.iter().any(|row| row.ours && name.starts_with(row.system.as_str()));
        Some(Line { name: (*name).to_owned(), points, ours })
    };
    names.iter().filter_map(pick).collect()
}
