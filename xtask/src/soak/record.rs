//! The record of the long runs: a page whose table is also what a run goes on from.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

const HEAD: &str = "\
# Record of the long runs

`cargo xtask soak` writes this page, and goes on where it ends; `cargo xtask soak --help` shows how. A count
is what the tests themselves counted. *Held* means that no check failed. Seeds are those of the steps: the
first, and the one after the last; `cargo xtask soak --list` shows the command of each part, in which a step
sets the seed and the count.

";
const TABLE: &str = "\
| part | counted | count | of | seeds | figures | commits | seconds | result |
|---|---|---|---|---|---|---|---|---|
";
const MACHINE: &str = "* Machine: ";

#[derive(Debug, Default)]
pub struct Record {
    pub machines: BTreeSet<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub part: String,
    pub unit: String,
    pub count: u64,
    /// The count at which the part is complete.
    pub wanted: u64,
    /// The seed of the next step; the first one is 0.
    pub next_seed: u64,
    /// Sums of what the steps reported, such as `30 runs, 5 deaths`.
    pub figures: String,
    pub commits: String,
    pub seconds: u64,
    pub result: String,
}

impl Record {
    /// Reads a record. A file that does not exist is an empty one.
    pub fn read(path: &Path) -> Result<Record> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let machines = text.lines().filter_map(|line| line.strip_prefix(MACHINE)).map(str::to_owned);
        let rows = text.lines().filter(|line| line.starts_with('|')).skip(2);
        let rows = rows.map(|line| {
            Row::parse(line).with_context(|| format!("{}: not a row of the record: {line}", path.display()))
        });
        Ok(Record { machines: machines.collect(), rows: rows.collect::<Result<_>>()? })
    }

    /// Replaces the file at once: a run may be ended at any time.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = HEAD.to_owned();
        self.machines.iter().for_each(|machine| text += &format!("{MACHINE}{machine}\n"));
        text += &format!("\n{TABLE}");
        self.rows.iter().for_each(|row| text += &row.line());
        let new = path.with_extension("new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, path))
            .with_context(|| path.display().to_string())
    }

    /// The row of a part, which is added if it is new.
    pub fn row(&mut self, part: &str, unit: &str) -> &mut Row {
        let at = self.rows.iter().position(|row| row.part == part).unwrap_or_else(|| {
            self.rows.push(Row { part: part.to_owned(), unit: unit.to_owned(), ..Row::default() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }
}

impl Row {
    fn parse(line: &str) -> Result<Row> {
        let fields: Vec<_> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        let [part, unit, count, wanted, seeds, figures, commits, seconds, result] = fields[..] else {
            bail!("{} fields", fields.len());
        };
        let number = |text: &str| text.replace(',', "").parse::<u64>().with_context(|| text.to_owned());
        let (_, next_seed) = seeds.split_once(" … ").context("no seeds")?;
        Ok(Row {
            part: part.to_owned(),
            unit: unit.to_owned(),
            count: number(count)?,
            wanted: number(wanted)?,
            next_seed: number(next_seed)?,
            figures: figures.to_owned(),
            commits: commits.to_owned(),
            seconds: number(seconds)?,
            result: result.to_owned(),
        })
    }

    fn line(&self) -> String {
        let Row { part, unit, figures, commits, result, .. } = self;
        format!(
            "| {part} | {unit} | {} | {} | 0 … {} | {figures} | {commits} | {} | {result} |\n",
            grouped(self.count),
            grouped(self.wanted),
            grouped(self.next_seed),
            grouped(self.seconds),
        )
    }

    pub fn add_commit(&mut self, commit: &str) {
        if !self.commits.split(", ").any(|known| known == commit) {
            let between = if self.commits.is_empty() { "" } else { ", " };
            self.commits += &format!("{between}{commit}");
        }
    }

    /// Adds what a step reported to the sums.
    pub fn add_figures(&mut self, figures: &[(&str, u64)]) {
        let sums = figures.iter().map(|(name, more)| {
            let so_far = self.figures.split(", ").find_map(|figure| {
                let (sum, known) = figure.split_once(' ')?;
                (known == *name).then_some(sum.parse::<u64>().ok()?)
            });
            // Without groups: commas separate figures.
            format!("{} {name}", so_far.unwrap_or(0) + more)
        });
        self.figures = sums.collect::<Vec<_>>().join(", ");
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let mut row = Row { part: "kills".into(), unit: "kills".into(), ..Row::default() };
        (row.count, row.wanted, row.next_seed, row.seconds) = (1_234_567, 10_000_000, 12, 999);
        row.add_commit("1890e85");
        row.add_commit("e9445da with changes");
        row.add_commit("1890e85");
        row.add_figures(&[("messages", 5), ("deaths", 7)]);
        row.add_figures(&[("messages", 1_000), ("deaths", 0)]);
        row.result = "held".into();
        assert_eq!((row.figures.as_str(), row.commits.len()), ("1005 messages, 7 deaths", 29));
        let line = row.line();
        assert!(line.contains("| 1,234,567 | 10,000,000 | 0 … 12 |"), "{line}");
        assert_eq!(Row::parse(&line).unwrap(), row);
        let empty = Row { part: "x".into(), unit: "y".into(), ..Row::default() };
        assert_eq!(Row::parse(&empty.line()).unwrap(), empty);
    }

    #[test]
    fn a_malformed_record_is_an_error_and_a_missing_one_is_empty() {
        assert!(Row::parse("| a | b |").is_err());
        assert!(Row::parse("| a | b | many | 1 | 0 … 1 | | c | 1 | held |").is_err());
        assert!(Record::read(Path::new("/nonexistent/soak.md")).unwrap().rows.is_empty());
    }
}
