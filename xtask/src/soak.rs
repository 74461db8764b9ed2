//! The long runs, part by part. After each step of a part the record says how far the part is, so that an
//! interrupted run goes on where it ended. The tests and fuzz targets are those of `cargo xtask test`, with
//! larger counts and other seeds.

mod parts;
mod record;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::run;
pub use parts::{Build, sanitize, sanitizer_builds};
use parts::{Part, Step};
use record::{Record, Row};

const RECORD: &str = "docs/SOAK.md";

const HELP: &str = "\
Runs the long tests, and records commit, counts, seeds and results in docs/SOAK.md after each step.

  cargo xtask soak                          run every part, or go on where the record ends
  cargo xtask soak --part mutations         only this part
  cargo xtask soak --part fuzz              only the parts whose names begin so
  cargo xtask soak --part kills --again     begin this part again, from its first seed
  cargo xtask soak --scale 0.01             a hundredth of each count; the record is target/soak.md
  cargo xtask soak --record soak.md         another record
  cargo xtask soak --short                  the builds of the tests and the least counts, from the first seeds
  cargo xtask soak --list                   list the parts, their counts, and the commands behind them

A part that fails ends the run. The record has the seed and the command that repeats the step; the next run
repeats it.
";

/// The share of the counts in a short run.
const SHORT: f64 = 0.000_5;

#[derive(Debug, PartialEq)]
struct Options {
    part: Option<String>,
    scale: f64,
    record: Option<PathBuf>,
    again: bool,
    build: Build,
}

pub fn command(args: &[&str]) -> Result<()> {
    match args {
        ["--help" | "-h"] => print!("{HELP}"),
        ["--list"] => {
            for part in parts::all()? {
                println!("{:<20} {:>11} {:<12} {}", part.name, part.count, part.unit, part.shown());
            }
        }
        _ => {
            let options = parse(args)?;
            let parts: Vec<_> = parts::all()?.into_iter().filter(|part| is_wanted(part, &options)).collect();
            if parts.is_empty() {
                let wanted = options.part.unwrap_or_default();
                bail!("there is no part \"{wanted}\"; see `cargo xtask soak --list`");
            }
            soak(&parts, &options)?;
        }
    }
    Ok(())
}

fn parse(args: &[&str]) -> Result<Options> {
    let mut options = Options { part: None, scale: 1.0, record: None, again: false, build: Build::Soak };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match *arg {
            "--part" => options.part = Some((*value()?).to_owned()),
            "--scale" => {
                let text = value()?;
                let scale = text.parse().ok().filter(|scale| *scale > 0.0 && *scale <= 1_000.0);
                options.scale = scale.with_context(|| format!("--scale {text}: not between 0 and 1000"))?;
            }
            "--record" => options.record = Some(PathBuf::from(value()?)),
            "--again" => options.again = true,
            "--short" => {
                (options.scale, options.build, options.again) = (SHORT, Build::Tests, true);
            }
            other => bail!("unknown option `{other}`; see `cargo xtask soak --help`"),
        }
    }
    Ok(options)
}

fn is_wanted(part: &Part, options: &Options) -> bool {
    match &options.part {
        Some(name) => part.name == *name || part.name.starts_with(&format!("{name}-")),
        None => options.build == Build::Soak || !part.has_own_build,
    }
}

/// Runs parts until each has its count. Returns what was skipped; the error of a step ends the run.
fn soak(parts: &[Part], options: &Options) -> Result<Vec<String>> {
    let path = options.record.clone().unwrap_or_else(|| match options.scale {
        1.0 => run::root().join(RECORD),
        _ => run::target_dir().join("soak.md"),
    });
    let mut record = Record::read(&path)?;
    record.machines.insert(machine());
    let mut skipped = Vec::new();
    for part in parts {
        if options.again {
            record.rows.retain(|row| row.part != part.name);
        }
        let wanted = ((part.count as f64 * options.scale) as u64).max(part.least);
        let row = record.row(part.name.as_str(), part.unit);
        row.wanted = wanted;
        while record.row(&part.name, part.unit).count < wanted {
            let why = step(part, options.build, record.row(&part.name, part.unit));
            record.write(&path)?;
            if let Some(why) = why? {
                skipped.push(format!("of the part {}: {why}", part.name));
                break;
            }
            let row = record.row(&part.name, part.unit);
            println!("== {}: {} of {wanted} {}", part.name, row.count, part.unit);
        }
    }
    println!("the record is in {}", path.display());
    Ok(skipped)
}

/// Runs one step, and adds it to the row. Returns why it was skipped, if it was.
fn step(part: &Part, build: Build, row: &mut Row) -> Result<Option<String>> {
    let begin = Instant::now();
    let step = Step { count: part.step.min(row.wanted - row.count), seed: row.next_seed, build };
    row.add_commit(&commit());
    let done = (part.run)(part, &step);
    row.seconds += begin.elapsed().as_secs_f64().round() as u64;
    match done {
        Ok(done) => {
            if let Some(why) = done.skipped {
                row.result = format!("SKIPPED: {why}");
                return Ok(Some(why));
            }
            if done.count < step.count {
                row.result = format!("FAILED: only {} of {} {}", done.count, step.count, part.unit);
                bail!("part {}, seed {}: {}", part.name, step.seed, row.result);
            }
            row.count += done.count;
            row.next_seed += done.seeds;
            row.add_figures(&done.figures);
            row.result = if row.count < row.wanted { "held so far" } else { "held" }.to_owned();
            Ok(None)
        }
        Err(error) => {
            row.result = format!("FAILED with seed {}: {error:#}", step.seed).replace(['|', '\n'], " ");
            Err(error.context(format!("part {}, seed {}", part.name, step.seed)))
        }
    }
}

/// The commit, and whether files that are in it have changed.
fn commit() -> String {
    let git = |line: &str| {
        let output = run::command(line).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git("git rev-parse --short HEAD") else { return "unknown".to_owned() };
    let changed = git("git status --porcelain --untracked-files=no").unwrap_or_default();
    let changed = changed.lines().any(|line| !line.ends_with(RECORD));
    if changed { format!("{commit} with changes") } else { commit }
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} processors, {model}, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use parts::Done;

    /// A record that is removed when it is dropped.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            let name = format!("tautline-soak-{name}-{}.md", std::process::id());
            Temporary(std::env::temp_dir().join(name))
        }

        fn options(&self, scale: f64) -> Options {
            let record = Some(self.0.clone());
            Options { part: None, scale, record, again: false, build: Build::Tests }
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn part(name: &str, run: fn(&Part, &Step) -> Result<Done>) -> Part {
        let line = String::new();
        Part {
            name: name.into(),
            unit: "things",
            count: 1_000,
            least: 1,
            step: 400,
            has_own_build: false,
            line,
            run,
        }
    }

    fn good(_: &Part, step: &Step) -> Result<Done> {
        Ok(Done { count: step.count, seeds: 1, figures: vec![("runs", 10)], skipped: None })
    }

    fn row(record: &Path, part: &str) -> Row {
        let record = Record::read(record).unwrap();
        record.rows.into_iter().find(|row| row.part == part).unwrap()
    }

    #[test]
    fn parts_are_run_in_steps_with_seeds_of_their_own() {
        let record = Temporary::new("steps");
        soak(&[part("one", good), part("two", good)], &record.options(1.0)).unwrap();
        for name in ["one", "two"] {
            let row = row(&record.0, name);
            assert_eq!((row.count, row.wanted, row.next_seed), (1_000, 1_000, 3), "{row:?}");
            assert_eq!((row.result.as_str(), row.figures.as_str()), ("held", "30 runs"));
        }
    }

    #[test]
    fn a_failed_part_is_recorded_and_goes_on_where_it_failed() {
        let record = Temporary::new("failed");
        let second_fails = |_: &Part, step: &Step| match step.seed {
            0 => good(&part("", good), step),
            _ => bail!("a | broke\nhere"),
        };
        let parts = [part("one", second_fails), part("two", good)];
        let error = format!("{:#}", soak(&parts, &record.options(1.0)).unwrap_err());
        assert!(error.contains("part one, seed 1") && error.contains("broke"), "{error}");
        let failed = row(&record.0, "one");
        assert_eq!((failed.count, failed.next_seed), (400, 1));
        assert_eq!(failed.result, "FAILED with seed 1: a   broke here");
        assert!(!std::fs::read_to_string(&record.0).unwrap().contains("two"), "nothing ran after it");
        // Mended: the rest runs, from the seed that failed.
        soak(&[part("one", good), part("two", good)], &record.options(1.0)).unwrap();
        let mended = row(&record.0, "one");
        assert_eq!((mended.count, mended.next_seed, mended.result.as_str()), (1_000, 3, "held"));
        // Complete: nothing runs.
        soak(&[part("one", |_, _| bail!("it ran"))], &record.options(1.0)).unwrap();
        // Until it is asked for again.
        let again = Options { again: true, ..record.options(1.0) };
        assert!(soak(&[part("one", |_, _| bail!("it ran"))], &again).is_err());
        assert_eq!(row(&record.0, "one").count, 0);
        assert_eq!(row(&record.0, "two").count, 1_000, "other parts are kept");
    }

    #[test]
    fn a_test_that_did_less_than_it_should_fails() {
        let record = Temporary::new("less");
        let less = |_: &Part, step: &Step| {
            Ok(Done { count: step.count - 1, seeds: 1, figures: Vec::new(), skipped: None })
        };
        let error = soak(&[part("one", less)], &record.options(0.1)).unwrap_err().to_string();
        assert!(error.contains("only 99 of 100 things"), "{error}");
        assert!(row(&record.0, "one").result.starts_with("FAILED"));
    }

    #[test]
    fn a_skipped_part_is_named() {
        let record = Temporary::new("skipped");
        let skips = |_: &Part, _: &Step| Ok(Done { skipped: Some("no root".into()), ..Done::default() });
        let skipped = soak(&[part("one", skips), part("two", good)], &record.options(1.0)).unwrap();
        assert_eq!(skipped, ["of the part one: no root"]);
        assert_eq!(row(&record.0, "one").result, "SKIPPED: no root");
        assert_eq!(row(&record.0, "two").result, "held");
    }

    #[test]
    fn options_are_checked() {
        assert_eq!(parse(&["--scale", "0.5", "--part", "kills"]).unwrap().scale, 0.5);
        for (args, word) in [
            (&["--scale", "many"][..], "not between"),
            (&["--scale"], "needs a value"),
            (&["--prat", "kills"], "--prat"),
        ] {
            let error = parse(args).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let error = command(&["--part", "nothing"]).unwrap_err().to_string();
        assert!(error.contains("\"nothing\"") && error.contains("--list"), "{error}");
        command(&["--help"]).unwrap();
        command(&["--list"]).unwrap();
    }
}
