//! Every row of `tautline bench` does the work of a user, and a limit that is beaten is reported. Each test
//! injects a fault by the hidden `--sabotage` and requires that it is detected; none depends on a figure.

mod common;

use std::process::Output;

use common::{cores_allowed, tautline};
use serde_json::Value;

fn bench(args: &[&str]) -> (Output, Vec<Value>) {
    let out = tautline().args(["bench", "--smoke", "--json"]).args(args).output().unwrap();
    let text = String::from_utf8(out.stdout.clone()).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!rows.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    (out, rows)
}

/// Rows that promise no user's work: plain copies, messages without content or with an untouched buffer, a
/// process that does nothing, polls that find nothing, and puts to oneself, whose cost alone is measured.
fn promises_nothing(row: &Value) -> bool {
    let is = |key: &str, word: &str| row[key] == word;
    row["bytes"] == 0
        || row["warm"] == true
        || is("system", "memcpy")
        || is("test", "idle")
        || is("test", "matching")
        || (is("test", "copies") && row["ours"] == false)
        || (is("test", "polls") && row["many"] == 0)
}

/// Runs rows of every test with a fault in both processes; returns those that did not notice it.
fn unnoticed(fault: &str) -> Vec<Value> {
    let (_, mut rows) = bench(&["--sabotage", fault, "--only", "8,64,1K,64K"]);
    assert!(rows.len() > 100, "{}", rows.len());
    let (_, jobs) = bench(&["--sabotage", fault, "--only", "many"]);
    assert!(jobs.len() > 40, "{}", jobs.len());
    rows.extend(jobs);
    rows.into_iter().filter(|row| row["error"].is_null() && !promises_nothing(row)).collect()
}

#[test]
fn a_receiver_that_skips_reading_fails_its_row() {
    let mut passed = unnoticed("skip-reading");
    // These say in their names that the receiver does not read.
    passed.retain(|row| !row["system"].as_str().unwrap().ends_with("-unread"));
    assert!(passed.is_empty(), "{passed:#?}");
}

#[test]
fn a_sender_that_skips_rewriting_fails_its_row() {
    let mut passed = unnoticed("skip-writing");
    // Without flow control some frames are lost, so that what was written and what was read have different
    // sums anyway. With it, that happens only if the receiver does not run for long; the row says so.
    let may_lose = |row: &Value| {
        row["system"] == "frames" || row["system"] == "frames+flow" && row["drops"].as_u64() > Some(0)
    };
    passed.retain(|row| !(row["bytes"] == 65_536 && may_lose(row)));
    assert!(passed.is_empty(), "{passed:#?}");
}

#[test]
fn an_honest_run_has_no_unfair_row() {
    let (_, rows) = bench(&["--only", "8,64,64K"]);
    let failed: Vec<_> = rows.iter().filter(|row| row["error"].is_string()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_row_that_beats_its_limit_fails_strict() {
    let only = ["--only", "latency,64,tautline"];
    let (out, rows) = bench(&[&only[..], &["--strict", "--sabotage", "slow-limits"]].concat());
    let wrong: Vec<_> = rows.iter().filter(|row| row["wrong_limit"] == true).collect();
    if cores_allowed() == 1 {
        // Where both processes share a core, nothing that polls is a limit.
        assert!(out.status.success() && wrong.is_empty(), "{wrong:#?}");
        let why = "it needs two cores (in part)";
        return tautline_skips::skip("a_row_that_beats_its_limit_fails_strict", why);
    }
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(!wrong.is_empty() && wrong.iter().all(|row| row["ours"] == true), "{wrong:#?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("which is no limit then"));
    // Without --strict it is reported only.
    let (out, _) = bench(&[&only[..], &["--sabotage", "slow-limits"]].concat());
    assert!(out.status.success());
}

#[test]
fn a_row_that_cannot_be_measured_fails_strict() {
    let (out, _) = bench(&["--only", "latency,64,udp", "--strict", "--sabotage", "skip-reading"]);
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
}
