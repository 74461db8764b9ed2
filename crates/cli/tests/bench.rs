//! `tautline bench`, `doctor` and `sim` as other programs read them: every key is there, and nothing is left
//! behind. The hidden `--smoke` moves a few messages each; no test depends on a figure.

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;

use common::{PATIENCE, children_of, kill, tautline, until};
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
        assert!(row["path"].as_str().unwrap().starts_with(path), "{row}");
    }
}

#[test]
fn latency_rows_have_every_key() {
    let rows = rows(&["--quick", "--only", "latency"]);
    check(&rows, "loopback");
    let systems = [
        "fifo",
        "hand-over",
        "line",
        "loans",
        "mapped",
        "pipe",
        "pipelined",
        "put",
        "put-early",
        "queue",
        "semaphores",
        "single-copy",
        "stream",
        "sysv",
        "tag",
        "tag-queues",
        "tautline",
        "tcp",
        "tcp-nagle",
        "udp",
        "unix",
        "write-flag-copy",
    ];
    assert_eq!(words(&rows, "system"), systems.map(str::to_owned).into());
    assert_eq!(words(&rows, "security"), ["fabric", "open", "sealed"].map(str::to_owned).into());
    let policies = ["blocking", "park", "polled", "spin", "spin-then-park"];
    assert_eq!(words(&rows, "policy"), policies.map(str::to_owned).into());
    assert_eq!(words(&rows, "load"), ["burner", "idle", "one-core"].map(str::to_owned).into());
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
    let expected = [
        "bandwidth",
        "calls",
        "clients",
        "cpu",
        "endpoints",
        "idle",
        "latency",
        "matching",
        "paced",
        "polls",
        "rate",
    ];
    assert_eq!(tests, expected.map(str::to_owned).into());
    for limit in ["line", "hand-over", "pipelined", "write-flag-copy", "memcpy", "two-copy-stream", "ring"] {
        assert!(rows.iter().any(|row| row["system"] == limit && row["device"] == "shm"), "{limit}");
    }
}

/// Memory and the styles above it, as the CLAN paper measured them: every curve has more than one point.
#[test]
fn memory_has_rows_of_its_own() {
    let mut rows = rows(&["--only", "memory"]);
    // Messages are there to compare puts with; the systems that messages are compared with are not.
    rows.retain(|row| !row["system"].as_str().unwrap().starts_with("tautline"));
    check(&rows, "loopback");
    let points = |test: &str, system: &str, device: &str, key: &str| -> BTreeSet<u64> {
        let mine = rows
            .iter()
            .filter(|row| row["test"] == test && row["system"] == system && row["device"] == device);
        mine.filter_map(|row| row[key].as_u64()).collect()
    };
    for device in ["shm", "udp"] {
        assert_eq!(points("latency", "put", device, "bytes"), [8, 64, 64 << 10, 1 << 20].into(), "{device}");
        assert_eq!(points("latency", "put-early", device, "bytes"), [64 << 10, 1 << 20].into(), "{device}");
        for system in ["queue", "stream"] {
            assert_eq!(
                points("latency", system, device, "bytes"),
                [8, 64, 4 << 10].into(),
                "{system} {device}"
            );
        }
        for system in ["put", "queue", "stream"] {
            let sizes = [8, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
            assert_eq!(points("bandwidth", system, device, "bytes"), sizes.into(), "{system} {device}");
        }
        for system in ["put-in-place", "put-unread"] {
            let sizes = [64 << 10, 1 << 20];
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
        let many = points("matching", system, "shm", "many");
        assert!(many.is_superset(&[1, 100].into()), "{system}");
    }
}

/// What something costs, as the papers measured it: copies by kind, lost frames, foreign datagrams, shared
/// cores, and receives in pieces.
#[test]
fn costs_have_rows_of_their_own() {
    let rows = rows(&["--only", "copies,loss,flood"]);
    // The row without loss is compared with a stream.
    let these = |test: &str| rows.iter().filter(|row| row["test"] == test).cloned().collect::<Vec<_>>();
    check(&rows, "loopback");
    let mut kinds = vec!["loans", "memcpy", "pinned", "readv", "slot"];
    if cfg!(target_arch = "x86_64") {
        kinds.push("non-temporal");
    }
    assert_eq!(words(&these("copies"), "system"), kinds.into_iter().map(str::to_owned).collect());
    let expected = ["tautline", "tautline-go-back-n"].map(str::to_owned);
    assert_eq!(words(&these("loss"), "system"), expected.into());
    assert_eq!(words(&these("flood"), "system"), ["tautline", "tcp"].map(str::to_owned).into());
    for (test, many) in [("loss", [0, 1, 10, 50]), ("flood", [0, 1, 4, 16])] {
        let found: BTreeSet<_> = these(test).iter().filter_map(|row| row["many"].as_u64()).collect();
        assert_eq!(found, many.into(), "{test}");
    }
    assert!(these("flood").iter().all(|row| row["mean"].is_number()), "the receiver's CPU time");
}

#[test]
fn shared_cores_and_pieces_have_rows_of_their_own() {
    let rows = rows(&["--only", "bandwidth,cpu,64K,burner,tautline-scattered"]);
    check(&rows, "loopback");
    let busy: BTreeSet<_> = rows
        .iter()
        .filter(|row| row["load"] == "burner")
        .map(|row| format!("{} {}", row["test"], row["system"]).replace('"', ""))
        .collect();
    for test in ["bandwidth", "cpu"] {
        for system in ["tautline", "tcp", "unix"] {
            assert!(busy.contains(&format!("{test} {system}")), "{busy:?}");
        }
    }
    let pieces = rows.iter().filter(|row| row["system"] == "tautline-scattered");
    assert!(pieces.clone().count() == 2 && pieces.clone().all(|row| row["ratio"].is_number()));
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

/// Every experiment of jobs of two and three ranks; the ranks check what they exchange.
#[test]
fn jobs_of_many_ranks_have_rows_of_their_own() {
    let rows = rows(&["--only", "many"]);
    check(&rows, "loopback");
    let tests = words(&rows, "test");
    for test in [
        "start",
        "first",
        "beside",
        "halo",
        "asleep",
        "barrier",
        "all-reduce",
        "all-to-all",
        "scan",
        "exclusive-scan",
        "gather-varied",
        "scatter-varied",
        "all-gather-varied",
        "all-to-all-varied",
        "neighbours",
        "multicast",
        "overlap",
    ] {
        assert!(tests.contains(test), "{test}");
    }
    assert_eq!(tests.len(), 25);
    let ranks = |row: &Value| row["many"].as_u64().unwrap();
    assert_eq!(rows.iter().map(ranks).collect::<BTreeSet<_>>(), BTreeSet::from([2, 3]));
    let collectives = self::rows(&["--only", "collectives"]);
    assert_eq!(words(&collectives, "test").len(), 20);
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

/// Between two network namespaces.
#[test]
fn veth_between_namespaces() {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("veth_between_namespaces", why);
    }
    let rows = rows(&["--netns", "--only", "latency,64,idle"]);
    check(&rows, "veth");
    assert_eq!(words(&rows, "path"), ["veth-1500", "veth-9000"].map(str::to_owned).into());
    assert!(
        !words(&rows, "system").contains("pipe") && !words(&rows, "device").contains("shm"),
        "systems without a network are not measured over it"
    );
}

/// TCP with and without Nagle's delay and offloads, each compared with ours; UDP that busy-polls.
#[test]
fn variants_of_tcp_between_namespaces() {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("variants_of_tcp_between_namespaces", why);
    }
    let rows =
        rows(&["--netns", "--only", "latency,bandwidth,64,tcp-nagle,tcp-bare,tcp-bare-nagle,udp-busy"]);
    check(&rows, "veth");
    for system in ["tcp-nagle", "tcp-bare", "tcp-bare-nagle"] {
        let these: Vec<_> = rows.iter().filter(|row| row["system"] == system).collect();
        assert_eq!(these.len(), 4, "latency and bandwidth with two sizes of frames: {system}");
        assert!(these.iter().all(|row| row["limit"] == "tautline fabric park"), "{these:#?}");
    }
    assert!(words(&rows, "system").contains("udp-busy"));
}

/// Memory and everything above it over AF_XDP.
#[test]
fn memory_over_xdp_between_namespaces() {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("memory_over_xdp_between_namespaces", why);
    }
    let only = "memory,8,64,64K,put,put-one,queue,stream,server,rpc";
    let rows = rows(&["--netns", "--only", only]);
    check(&rows, "veth");
    let ours: Vec<_> = rows
        .iter()
        .filter(|row| row["device"] == "xdp" && row["ours"] == true && row["system"] != "tautline")
        .collect();
    let found: BTreeSet<_> =
        ours.iter().map(|row| format!("{} {}", row["test"], row["system"]).replace('"', "")).collect();
    for each in [
        "latency put",
        "latency queue",
        "latency stream",
        "bandwidth put",
        "bandwidth put-one",
        "bandwidth queue",
        "bandwidth stream",
        "endpoints server",
        "clients server",
        "calls rpc",
    ] {
        assert!(found.contains(each), "{each}: {found:?}");
    }
    assert!(ours.iter().all(|row| row["ratio"].is_number()), "{ours:#?}");
}

/// The bare limits of AF_XDP in every mode, and our messages in both framings.
#[test]
fn bare_xdp_between_namespaces() {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("bare_xdp_between_namespaces", why);
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

/// A job file that programs could not read is named, with what is wrong and what to do.
#[test]
fn doctor_examines_the_job_file() {
    let path = std::env::temp_dir().join(format!("tautline-doctor-job-{}", std::process::id()));
    let launcher = |text: Option<&str>, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let _ = std::fs::remove_file(&path);
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let out = tautline().args(["doctor", "--json"]).env("TAUTLINE_JOB_FILE", &path).output().unwrap();
        let _ = std::fs::remove_file(&path);
        let text = String::from_utf8(out.stdout).unwrap();
        let mut findings = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        findings.find(|finding| finding["name"] == "launcher").unwrap()
    };
    let key = "ab".repeat(32);
    let good = format!("tautline-job 1\nrank 0\nkey {key}\nmember 0 127.0.0.1:7000\n");
    let found = launcher(Some(&good), 0o600);
    assert!(found["status"] == "ok" && found["reason"].as_str().unwrap().ends_with("rank 0 of 1"), "{found}");
    for (text, mode, word) in [
        (None, 0, "No such file"),
        (Some(&*good), 0o644, "chmod 600"),
        (Some("nonsense\n"), 0o600, "the first line must be"),
        (Some(&*good.replace("rank 0", "rank 7")), 0o600, "not among"),
    ] {
        let found = launcher(text, mode);
        let reason = found["reason"].as_str().unwrap();
        assert!(found["status"] == "no" && reason.contains(word), "{found}");
        assert!(reason.contains("tautline-doctor-job"), "{found}");
        assert!(found["next"].as_str().unwrap().contains("unset TAUTLINE_JOB_FILE"), "{found}");
        assert!(!reason.contains("abab"), "the key is shown: {found}");
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

/// The size of a cluster changes its memory, and nothing else is left to chance.
#[test]
fn many_nodes_on_a_switch() {
    let run = |args: &[&str]| tautline().args(["sim", "--nodes", "300"]).args(args).output().unwrap();
    let out = run(&["--pattern", "barrier", "--rounds", "2", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&report["messages"], &report["deaths"]), (&(300 * 9 * 2).into(), &0.into()), "{report}");
    assert!(report["p99_ns"].as_u64() >= report["median_ns"].as_u64(), "{report}");
    assert!(report["memory_per_node"].as_u64() > Some(10_000), "{report}");
    let slow = run(&["--pattern", "barrier", "--rounds", "2", "--json", "--network", "latency_ns=50000"]);
    let slow: Value = serde_json::from_slice(&slow.stdout).unwrap();
    assert!(slow["virtual_ns"].as_u64() > report["virtual_ns"].as_u64(), "{slow}");
    for (args, why) in [(["--peers", "300"], "300 peers"), (["--network", "speed=1"], "\"speed\"")] {
        let out = run(&args);
        assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains(why), "{out:?}");
    }
}

/// The same for collectives and multicasts, with the bound of the network beside their times.
#[test]
fn collectives_of_many_nodes() {
    for pattern in ["group-barrier", "allreduce", "broadcast", "multicast"] {
        let args = ["sim", "--nodes", "64", "--pattern", pattern, "--rounds", "3", "--bytes", "8", "--json"];
        let out = tautline().args(args).output().unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&report["pattern"], &report["deaths"]), (&pattern.into(), &0.into()), "{report}");
        assert!(report["round_ns"].as_u64() > Some(0) && report["bound_ns"].as_u64() > Some(0), "{report}");
    }
}

/// The table of the fastest algorithms is one that groups take, and `doctor` shows it.
#[test]
fn collectives_are_tuned() {
    let tuned = tautline().args(["bench", "--tune", "--smoke"]).output().unwrap();
    let table = String::from_utf8(tuned.stdout).unwrap();
    let lines = table.lines().filter(|line| !line.starts_with('#')).count();
    assert!(tuned.status.success() && lines >= 10, "{table}");
    let doctor = |table: &str, args: &[&str]| {
        let out = tautline().arg("doctor").args(args).env("TAUTLINE_CHOICES", table).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(doctor(&table, &[]).contains(&format!("{lines} lines of TAUTLINE_CHOICES")));
    let unknown = doctor("broadcast 8 2 magic", &[]);
    assert!(unknown.contains("an algorithm that broadcast does not have (binomial"), "{unknown}");
    // All lines, in the order in which they apply, as the variable takes them.
    let all = doctor("barrier all 4 dissemination", &["--choices"]);
    assert!(all.starts_with("barrier all 4 dissemination\nbarrier all all shared\n"), "{all}");
    assert!(doctor(&all, &["--choices"]).starts_with(&all));
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
