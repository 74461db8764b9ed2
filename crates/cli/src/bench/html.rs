//! The report as one HTML file without external resources: no network, no scripts.

use std::fmt::Write as _;

use super::case::Experiment;
use super::plan::Test;
use super::rows::Row;
use super::summary::{self, Figure, MARK, chosen};
use super::svg::{self, Bar, Line, escape};
use super::table::{curves, half_power_bytes, short, size};
use super::{Part, Report};

const STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fff;--text:#1b1f24;--soft:#5b6570;--grid:#e4e7eb;--card:#f6f7f9;--good:#1a7f37;--bad:#c2381c;\
--c0:#0b62c4;--c1:#d9700a;--c2:#0a8f6a;--c3:#b5489a;--c4:#3aa0d8;--c5:#a8402a;--c6:#8a7a10;--c7:#7a828c}\
@media(prefers-color-scheme:dark){:root{--ground:#14171b;--text:#e6e9ec;--soft:#9aa4af;--grid:#2b3138;--card:#1c2026;--good:#57c77a;--bad:#ff8266;\
--c0:#5aa9ff;--c1:#f2a24b;--c2:#3ecf9f;--c3:#e58bcb;--c4:#7fd0f5;--c5:#ef8f78;--c6:#d9c64a;--c7:#8d97a3}}\
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,sans-serif}\
main{max-width:92rem;margin:0 auto;padding:1rem 1rem 4rem}.rest{max-width:62rem;margin:0 auto}h1{font-size:1.4rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}\
p,li{max-width:48rem}.soft{color:var(--soft)}figure{margin:0 0 1.4rem;background:var(--card);border-radius:.6rem;padding:1rem}\
figcaption{font-weight:600;margin-bottom:.5rem}svg{width:100%;height:auto;display:block}\
.grid{stroke:var(--grid)}.tick{fill:var(--soft);font-size:11px}.name{fill:var(--text);font-size:12px}\
.line{fill:none;stroke-width:1.6;stroke-dasharray:5 3}.ours{stroke-width:2.6;stroke-dasharray:none}.pale{opacity:.35}\
.wrap{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;width:100%}\
th,td{padding:.25rem .6rem;text-align:left;border-bottom:1px solid var(--grid);white-space:nowrap}td.n,th.n{text-align:right}\
.first{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(34rem,100%),1fr));gap:0 1.6rem;align-items:end}\
.first>*{min-width:0}.first h2{font-size:1rem;margin:.6rem 0 .4rem}.first th,.first td{padding:.08rem .5rem}.first figure{margin:.8rem 0 0}\
.us td{font-weight:600}h3{font-size:1rem;margin:1.4rem 0 .4rem}.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}details{margin:.6rem 0}summary{cursor:pointer;font-weight:600}";

/// Returns the whole page.
pub fn render(report: &Report) -> String {
    let mut page = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>Tautline bench</title><style>");
    page.push_str(STYLE);
    for colour in 0..8 {
        let _ = write!(
            page,
            ".line.c{colour}{{stroke:var(--c{colour})}}.dot.c{colour},.bar.c{colour}{{fill:var(--c{colour})}}"
        );
    }
    page.push_str("</style></head><body><main>");
    first_screen(&mut page, report);
    page.push_str("<div class=\"rest\">");
    missing(&mut page, report);
    about(&mut page, report);
    for part in &report.parts {
        let _ = write!(page, "<h2>{}</h2>", escape(&capital(&part.path.describe())));
        goals(&mut page, part);
        plots(&mut page, &part.rows);
        half_power(&mut page, &part.rows);
        figures(&mut page, &part.rows);
    }
    page.push_str("</div></main></body></html>\n");
    page
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + chars.as_str())
}

/// How fast it is here, and against what one would use instead: two tables and two plots.
fn first_screen(page: &mut String, report: &Report) {
    page.push_str("<h1>Tautline bench</h1>");
    if report.machine.is_busy() {
        page.push_str(
            "<p class=\"missed\">The machine was busy: figures vary, and polling systems suffer most.</p>",
        );
    }
    page.push_str("<div class=\"first\">");
    for table in summary::tables(report) {
        let _ = write!(
            page,
            "<section><h2>{}</h2><div class=\"wrap\"><table><tr><th></th>",
            escape(&table.title)
        );
        for column in &table.columns {
            let _ = write!(page, "<th class=\"n\">{}</th>", escape(column));
        }
        page.push_str("</tr>");
        for line in &table.lines {
            let class = if line.ours { " class=\"us\"" } else { "" };
            let _ = write!(page, "<tr{class}><td>{}</td>", escape(&line.name));
            for value in &line.values {
                let _ = write!(
                    page,
                    "<td class=\"n\">{}</td>",
                    value.map_or_else(|| "–".to_owned(), Figure::text)
                );
            }
            page.push_str("</tr>");
        }
        page.push_str("</table></div>");
        if table.has_marks() {
            let _ = write!(page, "<p class=\"soft\">{MARK}</p>");
        }
        page.push_str("</section>");
    }
    for plot in summary::plots(report) {
        page.push_str(&plot);
    }
    page.push_str("</div>");
}

fn missing(page: &mut String, report: &Report) {
    if !report.missing.is_empty() {
        let all: Vec<_> = report.missing.iter().map(|what| format!("<li>{}</li>", escape(what))).collect();
        let _ = write!(page, "<p>Not measured:</p><ul class=\"soft\">{}</ul>", all.concat());
    }
}

fn about(page: &mut String, report: &Report) {
    let m = &report.machine;
    let _ = write!(
        page,
        "<h2>The machine</h2><p class=\"soft\">{}, {} cores{}, {}; others used {:.1} cores when it began. Side A on core {}, side B on core {}. \
         A system call {:.0} ns, a clock read {:.0} ns, a cache line {} ns one way, copies {:.0} (64 KiB) and {:.0} GB/s (1 MiB).</p>",
        escape(&m.machine.cpu),
        m.machine.cores,
        if m.machine.virtualised { " (virtual)" } else { "" },
        escape(&m.machine.kernel),
        m.cores_in_use,
        m.cores[0],
        m.cores[1],
        m.system_call_ns,
        m.clock_read_ns,
        m.cache_line_ns.map_or_else(|| "?".into(), short),
        m.copy[0],
        m.copy[1],
    );
    let rivals: Vec<_> = m.found.iter().map(|found| escape(&found.to_string())).collect();
    let _ = write!(page, "<p class=\"soft\">Rivals: {}.</p>", rivals.join("; "));
    if !report.commands.is_empty() {
        let commands: Vec<_> = report.commands.iter().map(|line| escape(line)).collect();
        let _ = write!(page, "<p class=\"soft\">Jobs: {}.</p>", commands.join("; "));
    }
    page.push_str("<p class=\"soft\">Every system does the same work: the sender rewrites its buffer for each message, and the receiver reads every byte. Rows that do less say so in their names. Figures are medians over interleaved rounds; ratios are formed inside a round. Machines drift: only ratios in one run mean anything.</p>");
}

fn goals(page: &mut String, part: &Part) {
    if part.targets.is_empty() {
        return;
    }
    page.push_str("<h3>Goals</h3><div class=\"wrap\"><table><tr><th></th><th>what</th><th class=\"n\">value</th><th>goal</th></tr>");
    for target in &part.targets {
        let class = match target.value {
            None => "soft",
            Some(_) if target.met => "met",
            Some(_) => "missed",
        };
        let word = target.verdict().to_lowercase();
        let _ = write!(
            page,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            escape(&target.what),
            target.value.map_or_else(|| "–".to_owned(), short),
            escape(&target.goal)
        );
    }
    page.push_str("</table></div>");
}

fn plots(page: &mut String, rows: &[Row]) {
    page.push_str("<h3>Plots</h3>");
    let latency = [
        "tautline fabric spin",
        "tautline sealed spin",
        "tautline fabric park",
        "udp polled",
        "udp blocking",
        "tcp polled",
        "unix polled",
        "pipe polled",
    ];
    page.push_str(&svg::lines(
        "Latency, one way, against message size",
        "µs",
        &chosen(rows, Test::Latency, &latency),
    ));
    let bandwidth = [
        "tautline fabric spin",
        "tautline open spin",
        "tautline sealed spin",
        "udp-gso polled",
        "udp-mmsg polled",
        "tcp blocking",
        "unix polled",
        "pipe polled",
    ];
    page.push_str(&svg::lines(
        "Bandwidth against message size",
        "GB/s",
        &chosen(rows, Test::Bandwidth, &bandwidth),
    ));
    one_host(page, rows);
    memory(page, rows);
    costs(page, rows);
    page.push_str(&svg::lines("What each guarantee keeps of the layer below it", "share", &kept(rows)));
    let paced: Vec<_> =
        rows.iter().filter(|row| row.test == Test::Paced.name() && row.median.is_some()).collect();
    let bars: Vec<Bar> = paced
        .iter()
        .map(|row| Bar {
            name: format!(
                "{} {}, {}",
                row.name(),
                row.policy,
                if row.load == "burner" { "cores shared" } else { "cores idle" }
            ),
            value: row.median.unwrap_or(0.0),
            further: row.p99.unwrap_or(0.0),
            ours: row.system.starts_with("tautline"),
        })
        .collect();
    if !bars.is_empty() {
        page.push_str(&svg::bars(
            "One 64 B message per millisecond, one way: median, and p99 (pale)",
            "µs",
            &bars,
        ));
    }
}

/// Shared memory and its limits, beside the kernel's transports between two processes of one host.
fn one_host(page: &mut String, rows: &[Row]) {
    let latency = [
        "tautline shm fabric spin",
        "line polled",
        "hand-over polled",
        "write-flag-copy polled",
        "openmpi polled",
        "mpich polled",
        "iceoryx2 polled",
        "unix polled",
    ];
    page.push_str(&svg::lines(
        "Shared memory: latency, one way, against message size",
        "µs",
        &chosen(rows, Test::Latency, &latency),
    ));
    let bandwidth = [
        "tautline shm fabric spin",
        "two-copy-stream polled",
        "memcpy polled",
        "openmpi polled",
        "mpich polled",
        "iceoryx2 polled",
        "unix polled",
        "pipe polled",
    ];
    page.push_str(&svg::lines(
        "Shared memory: bandwidth against message size",
        "GB/s",
        &chosen(rows, Test::Bandwidth, &bandwidth),
    ));
}

/// Memory and calls, after the CLAN paper's figures.
fn memory(page: &mut String, rows: &[Row]) {
    let bandwidth = ["put shm fabric spin", "queue shm fabric spin", "put fabric spin", "queue fabric spin"];
    page.push_str(&svg::lines(
        "Memory: bandwidth by put and by queue against size",
        "GB/s",
        &chosen(rows, Test::Bandwidth, &bandwidth),
    ));
    let servers = [
        "server shm fabric spin-then-park",
        "server fabric spin-then-park",
        "server-asleep shm fabric spin-then-park",
        "server-asleep fabric spin-then-park",
    ];
    page.push_str(&svg::lines_over_many(
        "Response time, there and back, against the number of endpoints",
        "µs",
        &chosen(rows, Test::Endpoints, &servers),
    ));
    page.push_str(&svg::lines_over_many(
        "Requests per second against the number of clients",
        "k/s",
        &chosen(rows, Test::Clients, &servers),
    ));
    page.push_str(&svg::lines_over_many(
        "Cost of a put against the number of tripwires",
        "ns",
        &chosen(rows, Test::Matching, &["disjoint shm fabric spin", "overlapping shm fabric spin"]),
    ));
    calls(page, rows);
}

/// Ways to copy, lost frames, and foreign datagrams, after the papers' figures.
fn costs(page: &mut String, rows: &[Row]) {
    let copies = [
        "memcpy polled",
        "non-temporal polled",
        "slot polled",
        "readv polled",
        "pinned polled",
        "loans spin",
    ];
    page.push_str(&svg::lines(
        "A buffer moved by one process, and lent, against its size",
        "GB/s",
        &chosen(rows, Test::Copies, &copies),
    ));
    page.push_str(&svg::lines_over_many(
        "Bandwidth of 64 KiB against lost frames of a thousand",
        "GB/s",
        &chosen(rows, Test::Loss, &["tautline fabric spin", "tautline-go-back-n fabric spin"]),
    ));
    page.push_str(&svg::lines_over_many(
        "Messages of 64 B against foreign datagrams for each message",
        "k/s",
        &chosen(rows, Test::Flood, &["tautline fabric spin", "tautline fabric park", "tcp blocking"]),
    ));
}

fn calls(page: &mut String, rows: &[Row]) {
    let of = |window| {
        move |row: &&Row| row.test == Test::Calls.name() && row.window == Some(window) && row.median.is_some()
    };
    let bars: Vec<Bar> = rows
        .iter()
        .filter(of(1))
        .map(|row| {
            let many = rows.iter().filter(of(64)).find(|many| {
                (&many.system, many.device, many.policy) == (&row.system, row.device, row.policy)
            });
            Bar {
                name: format!("{} {}", row.name(), row.policy),
                value: row.median.unwrap_or(0.0),
                further: many.and_then(|many| many.median).unwrap_or(0.0),
                ours: row.security.is_some(),
            }
        })
        .collect();
    if !bars.is_empty() {
        page.push_str(&svg::bars("Calls of 64 B per second: one at a time, and 64 (pale)", "k/s", &bars));
    }
}

fn kept(rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows.iter().filter(|row| row.test == Test::Guarantees.name()) {
        let Some(ratio) = row.ratio else { continue };
        let name = match (row.system.as_str(), row.security) {
            ("frames+flow", _) => "+ flow control",
            (_, Some("open")) => "+ order, recovery",
            (_, Some("fabric")) => "+ tag",
            _ => "+ cipher",
        };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((row.bytes as f64, ratio)),
            None => {
                lines.push(Line { name: name.into(), points: vec![(row.bytes as f64, ratio)], ours: true });
            }
        }
    }
    lines
}

fn half_power(page: &mut String, rows: &[Row]) {
    let curves: Vec<_> =
        curves(rows, Test::Bandwidth).into_iter().filter(|curve| curve.1.len() > 1).collect();
    if curves.is_empty() {
        return;
    }
    page.push_str("<h3>Half-power message size</h3><p class=\"soft\">The size at which the bandwidth is half of its maximum.</p><div class=\"wrap\"><table>");
    for (name, curve) in curves {
        if let Some(bytes) = half_power_bytes(&curve) {
            let _ = write!(page, "<tr><td>{}</td><td class=\"n\">{bytes:.0} B</td></tr>", escape(&name));
        }
    }
    page.push_str("</table></div>");
}

fn figures(page: &mut String, rows: &[Row]) {
    page.push_str("<h3>All figures</h3>");
    for test in Test::ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row.test == test.name()).collect();
        if rows.is_empty() {
            continue;
        }
        let unit = rows[0].unit;
        let _ = write!(
            page,
            "<details><summary>{} ({} rows)</summary><div class=\"wrap\"><table><tr>",
            test.name(),
            rows.len()
        );
        let first = if rows.iter().any(|row| row.many.is_some()) { "many" } else { "size" };
        for name in [first, "load", "system", "mode", "policy", "window"] {
            let _ = write!(page, "<th>{name}</th>");
        }
        for name in ["median", "p99", "p99.9", "low", "high", "ratio"] {
            let _ = write!(page, "<th class=\"n\">{name}</th>");
        }
        let _ = write!(page, "<th>limit ({unit})</th></tr>");
        for row in rows {
            figure(page, row);
        }
        page.push_str("</table></div></details>");
    }
}

/// The number varied, and the size of the messages where that varies too.
fn of_many(row: &Row, many: u64) -> String {
    let sized = Experiment::ALL.iter().any(|one| one.name() == row.test) && row.bytes > 0;
    if sized { format!("{many}, {}", size(row.bytes)) } else { many.to_string() }
}

fn figure(page: &mut String, row: &Row) {
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
    let warm = if row.warm { ", warm" } else { "" };
    let _ = write!(
        page,
        "<tr><td>{}{warm}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        row.many.map_or_else(|| size(row.bytes), |many| of_many(row, many)),
        row.load,
        row.name(),
        row.security.unwrap_or("–"),
        row.policy,
        row.window.map_or_else(|| "–".into(), |w| w.to_string())
    );
    for value in [row.median, row.p99, row.p999, row.low, row.high, row.ratio] {
        let _ = write!(page, "<td class=\"n\">{}</td>", number(value));
    }
    let mut note = row.limit.clone().unwrap_or_default();
    if row.wrong_limit {
        note.push_str(" WRONG LIMIT");
    }
    if let Some(error) = &row.error {
        let _ = write!(note, " failed: {error}");
    }
    let _ = write!(page, "<td>{}</td></tr>", escape(&note));
}
