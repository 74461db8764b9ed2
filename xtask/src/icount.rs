//! Instructions per frame, the speed figure that does not depend on the machine's mood.
//!
//! The example `icount` of the node crate takes a scenario and a number of frames, and prints nothing. Callgrind counts
//! it for few and for many frames; the difference over the frames between them is the cost of one, free of start-up.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::run;

const GOLDEN: &str = "xtask/golden/icount.txt";
const BUILD: &str = "cargo build --quiet --release -p tautline-node --example icount";
const FRAMES_FEW: u64 = 1_000;
const FRAMES_MANY: u64 = 11_000;
const TOLERANCE_PERCENT: f64 = 3.0;

#[derive(Clone, Debug, PartialEq)]
struct Count {
    scenario: String,
    instructions: f64,
}

/// Counts every scenario of the golden file and fails when one is off by more than the tolerance, either way.
pub fn check() -> Result<()> {
    let golden = golden()?;
    if golden.is_empty() {
        bail!("{GOLDEN} names no scenario; `cargo xtask icount --bless <scenario>` adds one");
    }
    run::check(&mut run::command(BUILD))?;
    let mut off = Vec::new();
    for expected in &golden {
        let counted = count(&expected.scenario)?;
        let verdict = verdict(expected.instructions, counted);
        println!("{:<24} {counted:>10.1} instructions per frame, {}", expected.scenario, verdict.text);
        if !verdict.within {
            off.push(expected.scenario.as_str());
        }
    }
    if !off.is_empty() {
        bail!(
            "{} left the tolerance; mend it, or accept it with `cargo xtask icount --bless`",
            off.join(", ")
        );
    }
    Ok(())
}

/// Counts every scenario of the golden file and the `added` ones, and writes what it found there.
pub fn bless(added: &[&str]) -> Result<()> {
    let mut scenarios: Vec<String> = golden()?.into_iter().map(|count| count.scenario).collect();
    for name in added {
        if !scenarios.iter().any(|scenario| scenario == name) {
            scenarios.push((*name).to_owned());
        }
    }
    if scenarios.is_empty() {
        bail!("no scenario to count; name one: cargo xtask icount --bless <scenario>");
    }
    run::check(&mut run::command(BUILD))?;
    let mut text = String::from(HEAD);
    for scenario in scenarios {
        let counted = count(&scenario)?;
        println!("{scenario:<24} {counted:>10.1} instructions per frame");
        writeln!(text, "{scenario} {counted:.1}")?;
    }
    fs::write(run::root().join(GOLDEN), text).with_context(|| format!("could not write {GOLDEN}"))
}

const HEAD: &str = "\
# Instructions per frame, counted by callgrind; a line a scenario. Rewritten by `cargo xtask icount --bless`.
";

fn golden() -> Result<Vec<Count>> {
    let text =
        fs::read_to_string(run::root().join(GOLDEN)).with_context(|| format!("could not read {GOLDEN}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Count>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let counts = lines.map(|line| {
        let (scenario, count) =
            line.split_once(' ').with_context(|| format!("{GOLDEN}: no count in `{line}`"))?;
        let instructions: f64 = count.parse().with_context(|| format!("{GOLDEN}: no count in `{line}`"))?;
        if !(instructions.is_finite() && instructions > 0.0) {
            bail!("{GOLDEN}: not a count in `{line}`");
        }
        Ok(Count { scenario: scenario.to_owned(), instructions })
    });
    counts.collect()
}

struct Verdict {
    within: bool,
    text: String,
}

fn verdict(expected: f64, counted: f64) -> Verdict {
    let percent = (counted - expected) / expected * 100.0;
    let within = percent.abs() <= TOLERANCE_PERCENT;
    let word = if within { "as expected" } else { "OFF" };
    Verdict { within, text: format!("golden {expected:.1}, {percent:+.1} %: {word}") }
}

fn count(scenario: &str) -> Result<f64> {
    let few = instructions(scenario, FRAMES_FEW)?;
    let many = instructions(scenario, FRAMES_MANY)?;
    if many <= few {
        bail!(
            "scenario {scenario}: {FRAMES_MANY} frames cost no more than {FRAMES_FEW}; does it do its frames?"
        );
    }
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    Ok((many - few) as f64 / (FRAMES_MANY - FRAMES_FEW) as f64)
}

fn instructions(scenario: &str, frames: u64) -> Result<u64> {
    let built = run::target_dir().join("release/examples/icount");
    let out = run::target_dir().join(format!("callgrind.{scenario}.{frames}.out"));
    let mut valgrind = run::command("valgrind --quiet --error-exitcode=1 --tool=callgrind");
    valgrind.arg(format!("--callgrind-out-file={}", out.display())).arg(built);
    run::check(valgrind.args([scenario, &frames.to_string()]))?;
    total(&out)
}

fn total(callgrind_out: &Path) -> Result<u64> {
    let text = fs::read_to_string(callgrind_out).context("callgrind left no result")?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let count = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    count.with_context(|| format!("no total in {}", callgrind_out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_file_is_read_and_nonsense_refused() {
        let counts = parse("# head\n\nsend-8 512.5\n").unwrap();
        assert_eq!(counts, [Count { scenario: "send-8".into(), instructions: 512.5 }]);
        for bad in ["send-8", "send-8 many", "send-8 -1", "send-8 inf"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_tolerance_holds_both_ways() {
        assert!(verdict(1000.0, 1029.0).within && verdict(1000.0, 971.0).within);
        assert!(!verdict(1000.0, 1031.0).within && !verdict(1000.0, 969.0).within);
    }

    #[test]
    fn the_total_is_read_from_callgrinds_file() {
        let file = std::env::temp_dir().join(format!("tautline-icount-{}", std::process::id()));
        fs::write(&file, "events: Ir\nfn=main\n1 20\ntotals: 123456\n").unwrap();
        let found = total(&file);
        fs::write(&file, "events: Ir\n").unwrap();
        let missing = total(&file);
        fs::remove_file(&file).unwrap();
        assert_eq!(found.unwrap(), 123_456);
        assert!(missing.is_err());
    }
}
