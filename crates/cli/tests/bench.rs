//! `tautline bench`, `doctor` and `sim` as other programs read them: every key is there, and nothing is left
//! behind. The hidden `--smoke` moves a few messages each; no test depends on a figure.

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;

use common::{PATIENCE, kill, tautline, until};
use serde_json::Value;

const KEYS: [&str; 18] = [
    "test", "path", "device", "system", "bytes", "window", "many", "load", "policy", "security", "warm",
    "unit", "median", "p99", "low", "high", "limit", "ratio",
];

fn rows(args: &[&str]) -> Vec<Value> {
    let out = tautline().args(["bench", "--smoke", "--json"]).args(args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn words(rows: &[Value], key: &str) -> BTreeSet<String> {
    rows.iter().filter_map(|row| row[key].as_str().map(str::to_owned)).collect()
}

fn check(rows: &[Value], path: &str) {
    assert!(!rows.is_empty());
    for row in rows {
        assert!(KEYS.iter().all(|key| row.get(key).is_some()), "{row}");
        assert!(
            row["error"].is_null() && row["median"].as_f64().is_some_and(|median| median >= 0.0),
            "{row}"
        );
        assert!(row["limit"].is_null() == row["ratio"].is_null(), "{row}");
        assert_eq!(row["path"], path);
    }
}

#[test]
fn latency_rows_have_every_key() {
    let rows = rows(&["--quick", "--only", "latency"]);
    check(&rows, "loopback");
    let systems = [
        "hand-over",
        "line",
        "loans",
        "mapped",
        "pipe",
        "put",
        "single-copy",
        "sysv",
        "tautline",
        "tcp",
        "udp",
        "unix",
        "write-flag-copy",
    ];
    assert_eq!(words(&rows, "system"), systems.map(str::to_owned).into());
    assert_eq!(words(&rows, "security"), ["fabric", "open", "sealed"].map(str::to_owned).into());
    let policies = ["blocking", "park", "polled", "spin", "spin-then-park"];
    assert_eq!(words(&rows, "policy"), policies.map(str::to_owned).into());
    assert_eq!(words(&rows, "load"), ["burner", "idle"].map(str::to_owned).into());
}

#[test]
fn every_other_test_runs() {
    let rows = rows(&["--only", "rate,bandwidth,paced,cpu,guarantees,idle,64,8,64K,0"]);
    check(&rows, "loopback");
    let tests = ["bandwidth", "cpu", "guarantees", "idle", "paced", "rate"];
    assert_eq!(words(&rows, "test"), tests.map(str::to_owned).into());
}

/// Shared memory comes with its limits, and every row says so.
#[test]
fn shared_memory_has_rows_of_its_own() {
    let rows = rows(&["--only", "shm"]);
    check(&rows, "loopback");
    let ours = rows.iter().filter(|row| row["security"].is_string());
    assert!(ours.clone().all(|row| row["device"] == "shm" && row["system"] != "udp"));
    let tests: BTreeSet<_> = ours.map(|row| row["test"].as_str().unwrap().to_owned()).collect();
    let expected =
        ["bandwidth", "calls", "clients", "endpoints", "idle", "latency", "matching", "paced", "rate"];
    assert_eq!(tests, expected.map(str::to_owned).into());
    for limit in ["line", "hand-over", "write-flag-copy", "memcpy", "two-copy-stream", "ring"] {
        assert!(rows.iter().any(|row| row["system"] == limit && row["device"] == "shm"), "{limit}");
    }
}

/// Memory and the styles above it, as the CLAN paper measured them: every curve has more than one point.
#[test]
fn memory_has_rows_of_its_own() {
    let mut rows = rows(&["--only", "memory"]);
    // Messages are there to compare puts with; the systems that messages are compared with are not.
    rows.retain(|row| row["system"] != "tautline");
    check(&rows, "loopback");
    let points = |test: &str, system: &str, device: &str, key: &str| -> BTreeSet<u64> {
        let mine = rows
            .iter()
            .filter(|row| row["test"] == test && row["system"] == system && row["device"] == device);
        mine.filter_map(|row| row[key].as_u64()).collect()
    };
    for device in ["shm", "udp"] {
        assert_eq!(points("latency", "put", device, "bytes"), [8, 64].into(), "{device}");
        for system in ["put", "queue"] {
            let sizes = [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
            assert_eq!(points("bandwidth", system, device, "bytes"), sizes.into(), "{system} {device}");
        }
        for system in ["server", "server-asleep"] {
            assert_eq!(points("endpoints", system, device, "many"), [1, 64].into(), "{system} {device}");
        }
        assert_eq!(points("clients", "server", device, "many"), [1, 8].into(), "{device}");
        for system in ["rpc", "rpc-typed"] {
            assert_eq!(points("calls", system, device, "window"), [1, 64].into(), "{system} {device}");
        }
    }
    for system in ["disjoint", "overlapping"] {
        assert_eq!(points("matching", system, "shm", "many"), [1, 100].into(), "{system}");
    }
}

/// Calls are compared with plain requests over sockets, and the report says how to build with tarpc if this
/// build lacks it.
#[test]
fn calls_are_compared() {
    let out = tautline().args(["bench", "--smoke", "--only", "calls"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for name in ["rpc shm", "rpc-typed", "unix", "tcp"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert!(text.contains("64 B, 64 in flight, udp") && text.contains("8 × tarpc over TCP"), "{text}");
    assert_eq!(text.contains("build with --features tarpc"), !cfg!(feature = "tarpc"), "{text}");
}

/// In a build with the feature, its rows are there; any other build says how to get them.
#[test]
fn tarpc_has_rows_of_its_own() {
    if cfg!(feature = "tarpc") {
        let rows = rows(&["--only", "tarpc,tarpc-unix"]);
        check(&rows, "loopback");
        assert_eq!(words(&rows, "system"), ["tarpc", "tarpc-unix"].map(str::to_owned).into());
        assert_eq!(rows.len(), 4, "one call and many calls, over each");
    } else {
        let out = tautline().args(["bench", "--smoke", "--only", "tarpc"]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains("--features tarpc"), "{text}");
    }
}

/// Installed rivals are measured too, and a rival that fails is only a line in the report.
#[test]
fn rivals_have_rows_of_their_own() {
    let rows = rows(&["--strict", "--only", "rivals,line,8,64"]);
    let (rivals, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row["rival"] == true);
    check(&others, "loopback");
    for row in &rivals {
        assert!(row["error"].is_string() != row["median"].is_number(), "{row}");
        assert_eq!(row["warm"] == true, row["system"] == "ucx-perftest", "{row}");
    }
    let host = |name: &str| rivals.iter().filter(|row| row["system"] == name && row["bytes"] == 64).count();
    // Latency at least; paced with idle and with shared cores too.
    assert!([0, 3].contains(&host("openmpi")) && [0, 1].contains(&host("mpich")), "{rivals:?}");
}

/// The report has no external resources.
#[test]
fn the_html_report_has_no_external_resources() {
    let folder = common::folder("html");
    let file = folder.join("report.html");
    rows(&["--only", "latency,paced,tautline", "--html", file.to_str().unwrap()]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(
        page.starts_with("<!doctype html>") && page.contains("<svg") && page.contains("prefers-color-scheme")
    );
    for foreign in ["http://", "https://", "<script", "<link", "@import", "NaN"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_interrupted_bench_leaves_nothing_behind() {
    let mut child = tautline()
        .args(["bench", "--quick", "--only", "paced"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut sides = Vec::new();
    until(PATIENCE, || {
        sides = children_of(child.id());
        sides.len() >= 2
    });
    kill(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(sides.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
}

fn children_of(pid: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|number| {
            let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok())
                == Some(pid)
        })
        .collect()
}

/// Between two network namespaces; without root there is nothing to test.
#[test]
fn veth_between_namespaces() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rows = rows(&["--netns", "--only", "latency,64,idle"]);
    check(&rows, "veth");
    assert!(
        !words(&rows, "system").contains("pipe") && !words(&rows, "device").contains("shm"),
        "systems without a network are not measured over it"
    );
}

/// The bare limits of AF_XDP in every mode, and our messages in both framings; without root there is nothing
/// to test.
#[test]
fn bare_xdp_between_namespaces() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rows = rows(&["--netns", "--only", "xdp,64,8,1472"]);
    check(&rows, "veth");
    let bare: Vec<_> =
        rows.iter().filter(|row| row["device"] == "xdp" && row["security"].is_null()).collect();
    for (test, bytes) in [("latency", 8), ("latency", 64), ("rate", 8), ("cpu", 64), ("bandwidth", 1472)] {
        let ways: BTreeSet<_> = bare
            .iter()
            .filter(|row| row["test"] == test && row["bytes"] == bytes)
            .map(|row| format!("{} {}", row["system"], row["policy"]))
            .collect();
        assert_eq!(ways.len(), 4, "{test}: {ways:?}");
    }
    for device in ["xdp", "xdp-raw"] {
        let ours = rows.iter().filter(|row| row["device"] == device && row["security"] == "fabric");
        let tests: BTreeSet<_> = ours.map(|row| row["test"].as_str().unwrap()).collect();
        assert!(["cpu", "latency", "rate"].iter().all(|test| tests.contains(test)), "{device}: {tests:?}");
    }
}

#[test]
fn mistakes_in_only_are_explained() {
    let out = tautline().args(["bench", "--only", "speed"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("latency") && text.contains("tautline"), "{text}");
}

#[test]
fn doctor_reports_what_works() {
    let out = tautline().args(["doctor", "--json"]).output().unwrap();
    let findings: Vec<Value> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names = words(&findings, "name");
    for name in ["udp ipv4", "udp gso", "shm", "xdp", "receive buffer", "cores", "clock", "namespaces"] {
        assert!(names.contains(name), "{name}");
    }
    for finding in &findings {
        assert!(["ok", "warn", "no"].contains(&finding["status"].as_str().unwrap()), "{finding}");
        assert!(!finding["reason"].as_str().unwrap().is_empty(), "{finding}");
        assert!(finding["status"] == "ok" || finding["next"].is_string(), "what to do? {finding}");
    }
}

#[test]
fn a_few_seeds_keep_the_promises() {
    let out = tautline().args(["sim", "--seeds", "3", "--per-seed", "300", "--json"]).output().unwrap();
    let sum: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(out.status.success() && sum["seeds"].as_u64() >= Some(3), "{sum}");
    assert_eq!(sum["failures"].as_array().map(Vec::len), Some(0), "{sum}");
}

#[test]
fn a_replay_prints_everything_and_is_the_same_run() {
    let hash = |args: &[&str]| {
        let out = tautline()
            .args(["sim", "--seed", "5", "--per-seed", "300", "--json"])
            .args(args)
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        (report["trace_hash"].clone(), out.stderr.len())
    };
    let (once, silent) = hash(&[]);
    let (again, told) = hash(&["--replay"]);
    assert!(once == again && once.is_string() && silent == 0 && told > 0);
}

#[test]
fn help_shows_examples() {
    let out = tautline().output().unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("First steps"));
    for command in ["run", "bench", "doctor", "sim"] {
        let out = tautline().args(["help", command]).output().unwrap();
        assert!(String::from_utf8_lossy(&out.stdout).contains("Examples:"), "{command}");
    }
}
