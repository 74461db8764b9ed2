//! What `tautline bench` reports: the first screen, what could not be measured, two runs compared, and the
//! papers' tables. No test depends on a figure.
mod common;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use common::tautline;
use serde_json::Value;

fn text_of(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).unwrap()
}

fn smoke(args: &[&str]) -> Output {
    tautline().args(["bench", "--smoke"]).args(args).output().unwrap()
}

/// At most two tables and two plots answer the first question; everything else comes below them.
#[test]
fn the_first_screen_has_two_tables_and_two_plots_at_most() {
    let folder = common::folder("first-screen");
    let file = folder.join("report.html");
    let text = text_of(&smoke(&[
        "--only",
        "latency,bandwidth,8,64K,tautline,unix,tcp,udp",
        "--html",
        file.to_str().unwrap(),
    ]));
    let (first, rest) = text.split_once("== details ==").expect("a first screen");
    // A busy machine is mentioned before any figure.
    let tables =
        first.strip_prefix("THE MACHINE IS BUSY").map_or(first, |rest| rest.split_once("\n\n").unwrap().1);
    assert!(tables.starts_with("How fast, "), "{first}");
    assert!(first.contains("Tautline, polling") && first.contains("Unix socket"), "{first}");
    assert!((1..=2).contains(&first.matches("How fast, ").count()), "{first}");
    assert!(rest.contains("latency: one way") && rest.contains("bandwidth: one way"), "{rest}");
    let page = std::fs::read_to_string(&file).unwrap();
    let (first, _) = page.split_once("<h2>The machine</h2>").expect("a first screen");
    for what in ["<table", "<svg"] {
        assert!((1..=2).contains(&first.matches(what).count()), "{what}: {}", first.matches(what).count());
    }
}

/// Without rivals and without a compiler the run ends well, and says what is missing.
#[test]
fn a_machine_without_tools_is_measured_and_what_is_missing_is_said() {
    let out = tautline()
        .args(["bench", "--smoke", "--only", "latency,rate,calls,copies,64,8,tautline,rpc,memcpy"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let text = text_of(&out);
    let (_, missing) = text.split_once("not measured:").expect("a list");
    for what in ["between hosts", "Open MPI", "apt-get install", "openmpi-bin", "no C compiler"] {
        assert!(missing.contains(what), "{what}: {text}");
    }
    assert!(text.contains("FAILED: no CPU burner"), "{text}");
    if !cfg!(feature = "iceoryx2") {
        assert!(missing.contains("cargo run --release --features iceoryx2 -- bench"), "{text}");
    }
}

#[test]
fn one_core_is_enough() {
    let mut one = rustix::thread::CpuSet::new();
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|core| all.is_set(*core)).unwrap();
    one.set(core);
    // The children of this thread inherit it.
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let out = smoke(&["--only", "latency,rate,calls,copies,64,8,tautline,unix,rpc,memcpy"]);
    rustix::thread::sched_setaffinity(None, &all).unwrap();
    let text = text_of(&out);
    assert!(text.contains("two cores: both processes share one"), "{text}");
}

/// As an ordinary user. A test that is run as root becomes one; the program must be readable by everybody.
#[test]
fn a_user_without_privileges_can_measure() {
    let program = Path::new(env!("CARGO_BIN_EXE_tautline"));
    let folder = common::folder("user");
    let copy = folder.join("tautline");
    // Another process does it: a file that is open for writing cannot be executed, and processes that other
    // threads start have it open for a moment if this one has.
    assert!(std::process::Command::new("cp").arg(program).arg(&copy).status().unwrap().success());
    let mut command = std::process::Command::new(&copy);
    let only = "latency,rate,calls,copies,64,8,tautline,rpc,memcpy,readv,pinned";
    command.args(["bench", "--smoke", "--only", only]).current_dir("/");
    if rustix::process::geteuid().is_root() {
        // Only a folder that this user may enter will do.
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&*folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(65_534).gid(65_534);
    }
    let out = command.output();
    let denied = out.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    if denied {
        let why = "the user nobody cannot read this folder";
        return tautline_skips::skip("a_user_without_privileges_can_measure", why);
    }
    let text = text_of(&out.unwrap());
    assert!(text.contains("How fast, on one host"), "{text}");
    let (_, missing) = text.split_once("not measured:").expect("a list");
    assert!(missing.contains("between hosts: "), "{text}");
}

#[test]
fn two_runs_are_compared() {
    let folder = common::folder("compare");
    let [before, after, broken] = ["before", "after", "broken"].map(|name| folder.join(name));
    let run = || smoke(&["--json", "--rounds", "3", "--only", "latency,64,unix,pipe"]).stdout;
    let rows = run();
    std::fs::write(&before, &rows).unwrap();
    std::fs::write(&after, &rows).unwrap();
    std::fs::write(&broken, "nonsense\n").unwrap();
    let compare = |one: &Path, other: &Path, args: &[&str]| {
        tautline().args(["bench", "--compare"]).args([one, other]).args(args).output().unwrap()
    };
    let text = text_of(&compare(&before, &after, &[]));
    let count = String::from_utf8(rows.clone()).unwrap().lines().count();
    assert!(text.starts_with(&format!("{count} rows compared: 0 better, 0 worse, {count} within")), "{text}");
    // Ten times as slow in every round is a change.
    let slower: Vec<String> = String::from_utf8(rows)
        .unwrap()
        .lines()
        .map(|line| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            for key in ["median", "low", "high"] {
                // Medians of a few messages may differ tenfold between rounds.
                row[key] = (row["high"].as_f64().unwrap() * 10.0).into();
            }
            row.to_string()
        })
        .collect();
    std::fs::write(&after, slower.join("\n")).unwrap();
    let lines = text_of(&compare(&before, &after, &["--json"]));
    for line in lines.lines() {
        let change: Value = serde_json::from_str(line).unwrap();
        assert!(change["verdict"] == "worse" && change["percent"].as_f64() > Some(0.0), "{change}");
    }
    assert_eq!(lines.lines().count(), count);
    let text = text_of(&compare(&before, &after, &[]));
    assert!(text.contains(&format!("{count} of the rows that changed are not ours")), "{text}");
    // Runs of different machines are told apart.
    let elsewhere: Vec<String> = slower
        .iter()
        .map(|line| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            assert!(row["run"]["began"].as_u64() > Some(1_700_000_000), "{row}");
            row["run"]["processor"] = "another".into();
            row.to_string()
        })
        .collect();
    assert!(!text.contains("the machines differ"), "{text}");
    std::fs::write(&after, elsewhere.join("\n")).unwrap();
    let text = text_of(&compare(&before, &after, &[]));
    assert!(text.contains("the machines differ") && text.contains("another"), "{text}");
    // A row that failed is named.
    let mut failed: Value = serde_json::from_str(&slower[0]).unwrap();
    failed["median"] = Value::Null;
    std::fs::write(&after, [&[failed.to_string()], &slower[1..]].concat().join("\n")).unwrap();
    let text = text_of(&compare(&before, &after, &[]));
    assert_eq!(text.matches("failed in the second run only").count(), 1, "{text}");
    let out = compare(&before, &broken, &[]);
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && error.contains("line 1") && error.contains("--json"), "{error}");
}

#[test]
fn a_paper_can_be_narrowed() {
    let ours = |args: &[&str]| -> Vec<bool> {
        let out = text_of(&smoke(&[&["--paper", "003", "--json"], args].concat()));
        out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["ours"].is_number()).collect()
    };
    let (all, few) = (ours(&["--quick"]), ours(&["--quick", "--only", "latency"]));
    let count = |measured: &[bool]| measured.iter().filter(|is| **is).count();
    assert_eq!(all.len(), few.len());
    assert!(count(&few) > 0 && count(&few) < count(&all), "{all:?} {few:?}");
}

#[test]
fn a_papers_figures_are_beside_ours() {
    let text = text_of(&smoke(&["--quick", "--paper", "003"]));
    for word in ["003: ", "FIFO", "System V", "semaphores", "6.9"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for paper in ["001", "002", "004"] {
        let lines = text_of(&smoke(&["--quick", "--paper", paper, "--json"]));
        assert!(lines.lines().count() > 8, "{lines}");
        for line in lines.lines() {
            let figure: Value = serde_json::from_str(line).unwrap();
            assert!(figure["paper"] == paper && figure["ours"].is_number(), "{figure}");
        }
    }
    assert!(!smoke(&["--paper", "005"]).status.success());
}

/// Two papers measure between hosts, too.
#[test]
fn a_papers_figures_between_hosts_are_beside_ours() {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("a_papers_figures_between_hosts_are_beside_ours", why);
    }
    for paper in ["000", "003"] {
        let lines = text_of(&smoke(&["--everywhere", "--quick", "--paper", paper, "--json"]));
        for line in lines.lines() {
            let figure: Value = serde_json::from_str(line).unwrap();
            assert!(figure["paper"] == paper && figure["ours"].is_number(), "{figure}");
        }
    }
}
