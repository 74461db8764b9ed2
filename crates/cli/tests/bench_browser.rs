//! The report of `tautline bench` in a real browser, headless: the first screen fits the window, every plot
//! is drawn within its frame, and the console is silent.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::tautline;
use serde_json::Value;

/// Looks at the page once it is drawn, and leaves what it saw in the page. The report itself has no script.
const LOOK: &str = r#"<script>addEventListener("load", () => {
  console.log("the console is read");
  const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom].map(Math.round); };
  const within = (a, b) => a[0] >= b[0] - 1 && a[1] >= b[1] - 1 && a[2] <= b[2] + 1 && a[3] <= b[3] + 1;
  const end = document.querySelector(".rest");
  const isFirst = e => !!(e.compareDocumentPosition(end) & Node.DOCUMENT_POSITION_FOLLOWING);
  const plots = [...document.querySelectorAll("svg")].map(svg => {
    const lines = [...svg.querySelectorAll("polyline")], bars = [...svg.querySelectorAll("rect")];
    const seen = e => getComputedStyle(e).stroke != "none" && e.getTotalLength() > 0;
    const texts = [...svg.querySelectorAll("text")];
    return {
      first: isFirst(svg), box: box(svg), title: svg.getAttribute("aria-label"),
      lines: lines.length, points: lines.map(l => l.points.numberOfItems), seen: lines.filter(seen).length,
      dots: [...svg.querySelectorAll("circle")].filter(c => c.getBoundingClientRect().width >= 1).length,
      bars: bars.filter(b => b.getBoundingClientRect().width >= 1).length,
      outside: [...lines, ...bars, ...texts].filter(e => !within(box(e), box(svg))).map(e => e.textContent || e.tagName),
    };
  });
  const tables = [...document.querySelectorAll("table")].map(t => ({ first: isFirst(t), box: box(t), rows: t.rows.length }));
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = JSON.stringify({ width: innerWidth, height: innerHeight, wide: document.documentElement.scrollWidth, plots, tables });
  document.body.append(pre);
});</script>"#;

/// Opens a report; returns what the script saw, and what the console said.
fn open(report: &Path) -> (Value, Vec<String>) {
    let folder = report.parent().unwrap();
    let page = std::fs::read_to_string(report).unwrap();
    let observed = folder.join("observed.html");
    std::fs::write(&observed, page.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    // The outer time limit only keeps a browser that hangs from hanging the test.
    let mut browser = Command::new("timeout");
    browser.args(["--kill-after=5", "120", "chromium", "--headless=new", "--disable-gpu"]);
    browser.args(["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]);
    browser.args(["--enable-logging=stderr", "--log-level=0", "--window-size=1920,1080", "--dump-dom"]);
    if rustix::process::geteuid().is_root() {
        browser.arg("--no-sandbox");
    }
    browser.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    browser.arg(format!("file://{}", observed.display())).env("HOME", folder).stdin(Stdio::null());
    let out = browser.output().unwrap();
    let (dom, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}");
    let seen = dom.split_once("<pre id=\"seen\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (seen, _) = seen.unwrap_or_else(|| panic!("the page was not drawn: {said}"));
    let seen = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let console = said.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    (serde_json::from_str(&seen).unwrap(), console)
}

/// Measures a few messages of what the first screen and the plots show, and opens the report.
fn check(name: &str, args: &[&str], tables_expected: usize) {
    let folder = common::folder(name);
    let report = folder.join("report.html");
    let mut command = tautline();
    command.args(["bench", "--smoke", "--html", report.to_str().unwrap()]).args(args);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let (seen, console) = open(&report);
    // What the test itself said shows that the console is read; nothing else may be there.
    assert!(console.len() == 1 && console[0].contains("the console is read"), "{console:#?}");
    let list = |key: &str| seen[key].as_array().unwrap().clone();
    let side = |one: &Value, side: usize| one["box"][side].as_f64().unwrap();
    let (plots, tables) = (list("plots"), list("tables"));
    let first =
        |all: &[Value]| -> Vec<Value> { all.iter().filter(|one| one["first"] == true).cloned().collect() };
    let (first_tables, first_plots) = (first(&tables), first(&plots));
    assert_eq!((first_tables.len(), first_plots.len()), (tables_expected, 2), "{seen:#}");
    for one in first_tables.iter().chain(&first_plots) {
        assert!(side(one, 3) <= seen["height"].as_f64().unwrap(), "below the first screen: {one:#}");
        assert!(side(one, 0) < side(one, 2) && side(one, 1) < side(one, 3), "empty: {one:#}");
    }
    assert!(first_tables.iter().all(|table| table["rows"].as_u64() > Some(2)), "{first_tables:#?}");
    for plot in &plots {
        assert_eq!(plot["outside"], Value::Array(Vec::new()), "outside of its frame: {plot:#}");
        // A line of one point is a dot.
        let drawn = plot["dots"].as_u64().unwrap() + plot["bars"].as_u64().unwrap();
        let lines = plot["points"].as_array().unwrap().iter().filter(|n| n.as_u64() > Some(1)).count();
        assert!(drawn > 0 && plot["seen"].as_u64() >= Some(lines as u64), "not drawn: {plot:#}");
    }
    assert!(plots.len() > 2, "only the first screen has plots");
    assert!(seen["wide"].as_f64() <= seen["width"].as_f64(), "wider than the window: {seen:#}");
}

fn lacks_browser() -> Option<&'static str> {
    let here = Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!here.is_ok_and(|status| status.success())).then_some("chromium is not installed")
}

/// Some of every kind of plot.
const SHOWN: &str =
    "latency,bandwidth,paced,guarantees,endpoints,calls,copies,8,64,64K,tautline,unix,tcp,server,rpc";

#[test]
fn a_report_of_one_host_is_drawn() {
    if let Some(why) = lacks_browser() {
        return tautline_skips::skip("a_report_of_one_host_is_drawn", why);
    }
    check("browser-host", &["--only", SHOWN], 1);
}

/// With two network namespaces there are two tables, and the plots are those between hosts.
#[test]
fn a_report_between_hosts_is_drawn() {
    if let Some(why) = lacks_browser().or_else(tautline_skips::lacks_namespaces) {
        return tautline_skips::skip("a_report_between_hosts_is_drawn", why);
    }
    check("browser-hosts", &["--everywhere", "--only", "latency,bandwidth,64,64K,tautline,tcp,unix"], 2);
}
