//! `bench --compare A.json B.json`: what changed between two runs, and whether that exceeds their spread.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::machine::Run;
use super::table::{short, size};

/// A row of an earlier run, as `--json` wrote it.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    #[serde(flatten)]
    key: Key,
    unit: String,
    median: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    rounds: usize,
    run: Option<Run>,
}

/// What must be equal for two rows to be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    path: String,
    test: String,
    device: String,
    system: String,
    bytes: usize,
    window: Option<u64>,
    many: Option<u64>,
    load: String,
    policy: String,
    security: Option<String>,
    warm: bool,
}

/// Two figures of the same row.
#[derive(Debug, Serialize)]
struct Change {
    #[serde(flatten)]
    key: Key,
    unit: String,
    /// Median, lowest and highest round of either run.
    before: [f64; 3],
    after: [f64; 3],
    /// How much higher the second median is, in percent of the first.
    percent: f64,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// Every round of the second run is worse than every round of the first.
    Worse,
    /// The reverse.
    Better,
    /// The rounds of the two runs overlap.
    WithinSpread,
    /// There are fewer than three rounds of one, which have no spread to speak of.
    TooFewRounds,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Worse => "worse",
            Verdict::Better => "better",
            Verdict::WithinSpread => "within spread",
            Verdict::TooFewRounds => "too few rounds",
        }
    }
}

/// Rounds of a run, at least, for its spread to mean something.
const ROUNDS: usize = 3;

/// Compares two files; returns a table, or one JSON object per row and line.
pub fn compare(before: &Path, after: &Path, json: bool) -> Result<String> {
    let (old, new) = (read(before)?, read(after)?);
    let mut changes: Vec<Change> =
        new.iter().filter_map(|(key, row)| change(old.get(key)?, row, key)).collect();
    if changes.is_empty() {
        bail!(
            "{} and {} have no row in common\nmake both by: tautline bench --json > FILE",
            before.display(),
            after.display()
        );
    }
    changes.sort_by(|a, b| {
        a.verdict.cmp(&b.verdict).then(b.percent.abs().total_cmp(&a.percent.abs())).then(a.key.cmp(&b.key))
    });
    let mut text = String::new();
    if json {
        for change in &changes {
            let _ = writeln!(text, "{}", serde_json::to_string(change)?);
        }
        return Ok(text);
    }
    let of = |verdict| changes.iter().filter(|change| change.verdict == verdict).count();
    let _ = writeln!(
        text,
        "{} rows compared: {} better, {} worse, {} within the spread of the rounds, {} with too few rounds",
        changes.len(),
        of(Verdict::Better),
        of(Verdict::Worse),
        of(Verdict::WithinSpread),
        of(Verdict::TooFewRounds)
    );
    let machine =
        |rows: &BTreeMap<Key, Row>| rows.values().find_map(|row| row.run.as_ref()).map(Run::machine);
    if let Some((first, second)) = machine(&old).zip(machine(&new))
        && first != second
    {
        let _ = writeln!(
            text,
            "the machines differ, so compare ratios inside each run instead; first: {first}; second: {second}"
        );
    }
    for (name, one, other) in [("first", &old, &new), ("second", &new, &old)] {
        let alone = one.keys().filter(|key| !other.contains_key(key)).count();
        if alone > 0 {
            let _ = writeln!(text, "{alone} rows are in the {name} run only");
        }
    }
    let failed = new
        .iter()
        .filter(|(key, row)| row.median.is_none() && old.get(*key).is_some_and(|row| row.median.is_some()));
    for (key, _) in failed {
        let _ = writeln!(
            text,
            "failed in the second run only: {} {} {} B, {}",
            key.test, key.system, key.bytes, key.path
        );
    }
    let moved = |change: &&Change| matches!(change.verdict, Verdict::Worse | Verdict::Better);
    let others = changes.iter().filter(moved).filter(|change| change.key.security.is_none()).count();
    if others > 0 {
        let _ = writeln!(
            text,
            "{others} of the rows that changed are not ours: the machine may have changed, not the program"
        );
    }
    let _ = writeln!(
        text,
        "\n{:14} {:11} {:11} {:>8} {:24} {:14} {:>5} {:>26} {:>26} {:>8}",
        "change",
        "test",
        "path",
        "size",
        "system",
        "policy",
        "unit",
        "before (low – high)",
        "after",
        "percent"
    );
    for change in &changes {
        line(&mut text, change);
    }
    Ok(text)
}

fn line(text: &mut String, change: &Change) {
    let key = &change.key;
    let mut name = key.system.clone();
    if let Some(security) = &key.security {
        let _ = write!(name, " {} {security}", key.device);
    }
    if let Some(window) = key.window {
        let _ = write!(name, ", window {window}");
    }
    if key.load != "idle" {
        let _ = write!(name, ", {}", key.load);
    }
    let figures =
        |[median, low, high]: [f64; 3]| format!("{} ({} – {})", short(median), short(low), short(high));
    let _ = writeln!(
        text,
        "{:14} {:11} {:11} {:>8} {:24} {:14} {:>5} {:>26} {:>26} {:>+8.1}",
        change.verdict.name(),
        key.test,
        key.path,
        key.many.map_or_else(|| size(key.bytes), |many| many.to_string()),
        name,
        key.policy,
        change.unit,
        figures(change.before),
        figures(change.after),
        change.percent
    );
}

fn change(before: &Row, after: &Row, key: &Key) -> Option<Change> {
    let figures = |row: &Row| Some([row.median?, row.low?, row.high?]);
    let (old, new) = (figures(before)?, figures(after)?);
    let more_is_better = ["M/s", "k/s", "GB/s"].contains(&after.unit.as_str());
    let verdict = if before.rounds.min(after.rounds) < ROUNDS {
        Verdict::TooFewRounds
    } else if new[1] > old[2] {
        if more_is_better { Verdict::Better } else { Verdict::Worse }
    } else if new[2] < old[1] {
        if more_is_better { Verdict::Worse } else { Verdict::Better }
    } else {
        Verdict::WithinSpread
    };
    let percent = if old[0] > 0.0 { (new[0] / old[0] - 1.0) * 100.0 } else { 0.0 };
    Some(Change { key: key.clone(), unit: after.unit.clone(), before: old, after: new, percent, verdict })
}

fn read(file: &Path) -> Result<BTreeMap<Key, Row>> {
    let text = std::fs::read_to_string(file).with_context(|| {
        format!("cannot read {}\nmake it by: tautline bench --json > FILE; the reason was", file.display())
    })?;
    let rows = text.lines().enumerate().map(|(number, line)| {
        let row: Row = serde_json::from_str(line).with_context(|| {
            format!(
                "line {} of {} is no row of a bench\nmake the file by: tautline bench --json > FILE; the reason was",
                number + 1,
                file.display()
            )
        })?;
        Ok((row.key.clone(), row))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: &str, [median, low, high]: [f64; 3], rounds: usize) -> Row {
        let key = Key {
            path: "loopback".into(),
            test: "latency".into(),
            device: "udp".into(),
            system: "tautline".into(),
            bytes: 8,
            window: None,
            many: None,
            load: "idle".into(),
            policy: "spin".into(),
            security: None,
            warm: false,
        };
        Row {
            key,
            unit: unit.into(),
            median: Some(median),
            low: Some(low),
            high: Some(high),
            rounds,
            run: None,
        }
    }

    fn verdict(unit: &str, before: [f64; 3], after: [f64; 3], rounds: usize) -> Verdict {
        let (before, after) = (row(unit, before, 5), row(unit, after, rounds));
        change(&before, &after, &after.key).unwrap().verdict
    }

    #[test]
    fn a_change_counts_if_no_round_of_one_run_is_within_the_other() {
        let before = [2.0, 1.8, 2.2];
        assert_eq!(verdict("us", before, [2.3, 2.1, 2.5], 5), Verdict::WithinSpread);
        assert_eq!(verdict("us", before, [2.5, 2.3, 2.6], 5), Verdict::Worse);
        assert_eq!(verdict("us", before, [1.5, 1.4, 1.7], 5), Verdict::Better);
        assert_eq!(verdict("GB/s", before, [2.5, 2.3, 2.6], 5), Verdict::Better);
        assert_eq!(verdict("GB/s", before, [1.5, 1.4, 1.7], 5), Verdict::Worse);
        assert_eq!(verdict("us", before, [9.0, 9.0, 9.0], 2), Verdict::TooFewRounds);
    }
}
