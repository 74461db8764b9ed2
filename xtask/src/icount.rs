//! Instructions per frame: a measure of speed that does not depend on the load of the machine.
//!
//! The examples `icount` (of the node crate), `icount_api` (of the tautline crate) and `icount_mpi` (of the
//! package with the standard ABI of MPI) run a scenario for a number of frames. Callgrind counts the
//! instructions for few and for many frames. The difference, divided
//! by the difference in frames, is the cost of one frame without that of starting up.
//!
//! # What is compared with the golden file
//! Counts must not depend on the processor. The total number of instructions does:
//! * libc chooses `memcpy` and `memset` at run time. With other processor features (`GLIBC_TUNABLES`),
//!   `batch` counts up to 1.2 % more, and 10 % more with a processor that prefers `rep movsb`.
//! * The build script of crate `aegis` compiles C with `-mtune=native`, and with clang if it is installed.
//!   Depending on the tuning, gcc's code for a tag of `batch` differs by 2.5 %: 0.8 % of the frame.
//! * Crates `aes`, `polyval`, `blake3` and `ring` choose at run time, too. Valgrind hides most of that: on
//!   every host with AVX2 it emulates the same Haswell processor, and on other hosts an older one.
//!
//! No setting pins all of them. The golden file therefore contains two numbers that depend on rustc alone:
//! the instructions of Rust code that is compiled for the baseline processor, and the number of calls from
//! that code to other code. An additional copy or tag shows in the calls.
//!
//! # What is compared with another checkout
//! With `--against`, both trees are built by the same compilers and counted on the same machine. There the
//! total is compared.

mod callgrind;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use self::callgrind::Cost;
use crate::run;

const GOLDEN: &str = "xtask/golden/icount.txt";
const FRAMES_FEW: u64 = 1_000;
const FRAMES_MANY: u64 = 11_000;
/// How far the instructions may be from the golden number, either way.
const TOLERANCE_PERCENT: f64 = 3.0;
/// The same of library calls. Rare ones, such as a buffer that grows, make fractions of a call per frame.
const TOLERANCE_CALLS: f64 = 0.25;
/// How much more than another checkout a scenario may cost.
const RATIO_MAX: f64 = 1.02;

/// How much more one scenario may cost than another: what several threads on a lane, and several lanes of a
/// thread, may cost each of them.
const LIMITS: [(&str, &str, f64); 3] =
    [("shm-threads", "shm", 2.0), ("shm-lanes", "shm", 1.05), ("mpi-threads", "mpi-8", 1.5)];

/// A program that runs scenarios.
struct Example {
    package: &'static str,
    /// The folder of the package below `crates/`.
    folder: &'static str,
    name: &'static str,
    scenarios: &'static [&'static str],
    /// The files whose code counts.
    objects: &'static [&'static str],
    /// If there are any, only what these functions do counts.
    functions: &'static [&'static str],
}

impl Example {
    fn source(&self) -> String {
        format!("crates/{}/examples/{}.rs", self.folder, self.name)
    }
}

static EXAMPLES: [Example; 3] = [
    Example {
        package: "tautline-node",
        folder: "node",
        name: "icount",
        scenarios: &["open", "fabric", "sealed", "batch", "shm", "shm-threads", "shm-lanes"],
        objects: &["icount"],
        functions: &[],
    },
    Example {
        package: "tautline",
        folder: "tautline",
        name: "icount_api",
        scenarios: &[
            "short-wire",
            "short-shm",
            "async-wire",
            "async-shm",
            "put-wire",
            "put-shm",
            "train-wire",
            "train-open",
            "tag-8",
            "barrier-shm",
            "reduce-shm",
        ],
        objects: &["icount_api"],
        functions: &[],
    },
    Example {
        package: "tautline-mpi-abi",
        folder: "mpi/abi",
        name: "icount_mpi",
        scenarios: &["mpi-8", "mpi-64", "mpi-threads"],
        // A copy of the library for each of two ranks. Their watchdogs do not count.
        objects: &["icount_mpi.0.so", "icount_mpi.1.so"],
        functions: &["MPI_Send", "MPI_Recv"],
    },
];

/// What scenarios were called in older trees.
const FORMER_NAMES: [(&str, &str); 1] = [("shm", "near")];

/// The cost of one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PerFrame {
    total: f64,
    own: f64,
    library_calls: f64,
}

/// A line of the golden file.
#[derive(Clone, Debug, PartialEq)]
struct Golden {
    scenario: String,
    own: f64,
    library_calls: f64,
}

/// Counts every scenario and fails if one is off the golden file by more than the tolerance, either way. If
/// the golden file is of another compiler, nothing is compared, and the reason is returned.
pub fn check() -> Result<Option<String>> {
    let text =
        fs::read_to_string(run::root().join(GOLDEN)).with_context(|| format!("could not read {GOLDEN}"))?;
    let golden = parse(&text)?;
    let rustc = rustc_version()?;
    let other_compiler = !text.lines().any(|line| line.strip_prefix("# ") == Some(rustc.as_str()));
    let mut off = Vec::new();
    println!("{HEADING}  against the golden file");
    let all = count_all(&Tree::this())?;
    let own =
        |name: &str| all.iter().find(|(scenario, _)| *scenario == name).map_or(f64::NAN, |(_, c)| c.own);
    for (scenario, than, most) in LIMITS {
        let ratio = own(scenario) / own(than);
        println!("{scenario} takes {ratio:.3} times the instructions of {than}; at most {most} are allowed");
        if ratio.is_nan() || ratio > most {
            bail!("{scenario} takes {ratio:.3} times the instructions of {than}, and {most} are allowed");
        }
    }
    for &(scenario, counted) in &all {
        let Some(expected) = golden.iter().find(|line| line.scenario == scenario) else {
            bail!("{GOLDEN} has no line for {scenario}; `cargo xtask icount --bless` writes it");
        };
        let (within, verdict) = judge(expected, counted);
        println!("{}  {verdict}", row(scenario, counted));
        if !within {
            off.push(scenario);
        }
    }
    if other_compiler {
        return Ok(Some(format!("{GOLDEN} is not of {rustc}; nothing was compared")));
    }
    if !off.is_empty() {
        bail!(
            "{} changed by more than the tolerance; find the cause, or run `cargo xtask icount --bless`",
            off.join(", ")
        );
    }
    Ok(None)
}

/// Counts every scenario and writes the golden file.
pub fn bless() -> Result<()> {
    let mut text = format!("{HEAD}# {}\n", rustc_version()?);
    println!("{HEADING}");
    for (scenario, counted) in count_all(&Tree::this())? {
        println!("{}", row(scenario, counted));
        // Start-up may call more in the shorter run: then the difference is a small negative number.
        writeln!(text, "{scenario} {:.1} {:.2}", counted.own, counted.library_calls.max(0.0))?;
    }
    fs::write(run::root().join(GOLDEN), text).with_context(|| format!("could not write {GOLDEN}"))
}

const HEAD: &str = "\
# Cost of a frame by scenario: instructions of our Rust code, calls to libraries. Counted by callgrind.
# Written by `cargo xtask icount --bless` with the compiler in the next line.
";

/// Counts every scenario in this tree and in another checkout, and fails if one costs more here than the
/// ratio allows.
pub fn against(folder: &str) -> Result<()> {
    let root = fs::canonicalize(folder).with_context(|| format!("there is no folder {folder}"))?;
    let other = Tree { target: root.join("target"), root };
    let before = count_all(&other)?;
    let now = count_all(&Tree::this())?;
    let table = compare(&before, &now);
    println!("{}", table.text);
    if !table.slower.is_empty() {
        bail!("more than {RATIO_MAX} times the instructions of {folder}: {}", table.slower.join(", "));
    }
    Ok(())
}

struct Table {
    text: String,
    slower: Vec<&'static str>,
}

fn compare(before: &[(&'static str, PerFrame)], now: &[(&'static str, PerFrame)]) -> Table {
    let mut table = Table {
        text: format!("{:<12} {:>10} {:>10} {:>7}", "scenario", "there", "here", "ratio"),
        slower: Vec::new(),
    };
    for (scenario, here) in now {
        let Some((_, there)) = before.iter().find(|(name, _)| name == scenario) else {
            let _ = write!(table.text, "\n{scenario:<12} {:>10} {:>10.1}", "none", here.total);
            continue;
        };
        let ratio = here.total / there.total;
        let _ =
            write!(table.text, "\n{scenario:<12} {:>10.1} {:>10.1} {ratio:>7.4}", there.total, here.total);
        if ratio > RATIO_MAX {
            let _ = write!(table.text, " SLOWER");
            table.slower.push(scenario);
        }
    }
    table
}

/// A checkout and its target folder.
struct Tree {
    root: PathBuf,
    target: PathBuf,
}

impl Tree {
    fn this() -> Tree {
        Tree { root: run::root(), target: run::target_dir() }
    }

    fn examples(&self) -> Vec<&'static Example> {
        EXAMPLES.iter().filter(|example| self.root.join(example.source()).is_file()).collect()
    }

    fn build(&self, examples: &[&Example]) -> Command {
        let mut build = run::command("cargo build --quiet --release");
        for example in examples {
            build.args(["-p", example.package, "--example", example.name]);
        }
        build.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        // Both change the code that rustc generates; incremental builds change the counts by up to 2 %.
        build.env("CARGO_INCREMENTAL", "0").env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        build
    }
}

/// What [`check`] builds.
pub fn builds() -> Vec<Command> {
    let tree = Tree::this();
    vec![tree.build(&tree.examples())]
}

/// Builds the examples of a tree and counts the scenarios that it has, on all processors.
fn count_all(tree: &Tree) -> Result<Vec<(&'static str, PerFrame)>> {
    let examples = tree.examples();
    for example in EXAMPLES.iter().filter(|example| !examples.iter().any(|has| has.name == example.name)) {
        println!("{} has no {}", tree.root.display(), example.source());
    }
    if examples.is_empty() {
        bail!("{} has no scenario to count", tree.root.display());
    }
    run::check(&mut tree.build(&examples))?;
    let mut jobs = Vec::new();
    for example in examples {
        let program = tree.target.join("release/examples").join(example.name);
        jobs.extend(example.scenarios.iter().map(|scenario| (example, program.clone(), *scenario)));
    }
    let counted = in_parallel(&jobs, |(example, program, scenario)| count(example, program, scenario));
    let named = jobs.iter().zip(counted).map(|((_, _, scenario), counted)| Ok((*scenario, counted?)));
    let known = named.filter_map(|counted: Result<_>| match counted {
        Ok((_, None)) => None,
        Ok((scenario, Some(counted))) => Some(Ok((scenario, counted))),
        Err(error) => Some(Err(error)),
    });
    known.collect()
}

/// Calls `work` for each item, one per processor at a time. Returns the results in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The cost of a frame; `None` if the program knows the scenario neither by this name nor by a former one.
fn count(example: &Example, program: &Path, scenario: &str) -> Result<Option<PerFrame>> {
    let former = FORMER_NAMES.iter().filter(|(now, _)| *now == scenario).map(|(_, former)| *former);
    for name in std::iter::once(scenario).chain(former) {
        let few = cost(example, program, name, FRAMES_FEW)?;
        let many = cost(example, program, name, FRAMES_MANY)?;
        if let Some(counted) = per_frame(few, many) {
            return Ok(Some(counted));
        }
    }
    println!("{} has no scenario {scenario}", program.display());
    Ok(None)
}

/// `None` if more frames do not take more instructions: the program printed its usage.
fn per_frame(few: Cost, many: Cost) -> Option<PerFrame> {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let each = |few: u64, many: u64| (many as f64 - few as f64) / (FRAMES_MANY - FRAMES_FEW) as f64;
    let counted = PerFrame {
        total: each(few.total, many.total),
        own: each(few.own, many.own),
        library_calls: each(few.library_calls, many.library_calls),
    };
    (counted.own >= 1.0).then_some(counted)
}

fn cost(example: &Example, program: &Path, scenario: &str, frames: u64) -> Result<Cost> {
    let profile = program.with_extension(format!("{scenario}.{frames}.callgrind"));
    let mut valgrind = run::command("valgrind --quiet --tool=callgrind");
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    valgrind.args(example.functions.iter().map(|function| format!("--toggle-collect={function}")));
    valgrind.arg(program).args([scenario, &frames.to_string()]);
    let ran = run::check(&mut valgrind);
    let text = fs::read_to_string(&profile).context("callgrind wrote no profile")?;
    fs::remove_file(&profile).with_context(|| format!("could not remove {}", profile.display()))?;
    ran?;
    Cost::read(&text, example.objects).with_context(|| format!("scenario {scenario}"))
}

fn rustc_version() -> Result<String> {
    let output = run::command("rustc --version").output().context("could not start rustc")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn parse(text: &str) -> Result<Vec<Golden>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let golden = lines.map(|line| {
        let number =
            |word: &str| word.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        let words: Vec<&str> = line.split(' ').collect();
        let [scenario, own, library_calls] = words[..] else {
            bail!("{GOLDEN}: not a scenario and two numbers: `{line}`");
        };
        let (Some(own), Some(library_calls)) = (number(own), number(library_calls)) else {
            bail!("{GOLDEN}: not a number in `{line}`");
        };
        Ok(Golden { scenario: scenario.to_owned(), own, library_calls })
    });
    golden.collect()
}

/// Whether both numbers are within their tolerances, and a text that says so.
fn judge(expected: &Golden, counted: PerFrame) -> (bool, String) {
    let percent = (counted.own - expected.own) / expected.own * 100.0;
    let calls = counted.library_calls - expected.library_calls;
    let within = percent.abs() <= TOLERANCE_PERCENT && calls.abs() <= TOLERANCE_CALLS;
    let word = if within { "as expected" } else { "OFF" };
    (within, format!("{percent:+.1} %, {calls:+.2} calls: {word}"))
}

const HEADING: &str = "per frame:   own instructions  library calls  all instructions";

fn row(scenario: &str, counted: PerFrame) -> String {
    let PerFrame { total, own, library_calls } = counted;
    format!("{scenario:<12} {own:>16.1}  {library_calls:>13.2}  {total:>16.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(total: f64) -> PerFrame {
        PerFrame { total, own: total, library_calls: 10.0 }
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(
            in_parallel(&items, |item| item * 2),
            items.iter().map(|item| item * 2).collect::<Vec<_>>()
        );
        assert!(in_parallel(&[], |item: &u32| *item).is_empty());
    }

    #[test]
    fn the_golden_file_is_read_and_nonsense_is_an_error() {
        let golden = parse("# head\n\nsend-8 512.5 3.00\n").unwrap();
        assert_eq!(golden, [Golden { scenario: "send-8".into(), own: 512.5, library_calls: 3.0 }]);
        for bad in ["send-8", "send-8 512.5", "send-8 many 3", "send-8 -1 3", "send-8 1 inf", "send-8 1 2 3"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_scenario_is_in_the_golden_file_and_nothing_else() {
        let golden = parse(&fs::read_to_string(run::root().join(GOLDEN)).unwrap()).unwrap();
        let golden: Vec<&str> = golden.iter().map(|line| line.scenario.as_str()).collect();
        let all: Vec<&str> = EXAMPLES.iter().flat_map(|example| example.scenarios).copied().collect();
        assert_eq!(golden, all);
    }

    #[test]
    fn the_tolerance_holds_both_ways_for_both_numbers() {
        let expected = Golden { scenario: "a".into(), own: 1000.0, library_calls: 10.0 };
        let within = |own, library_calls| judge(&expected, PerFrame { total: 0.0, own, library_calls }).0;
        assert!(within(1029.0, 10.0) && within(971.0, 10.0));
        assert!(!within(1031.0, 10.0) && !within(969.0, 10.0));
        assert!(within(1000.0, 10.2) && within(1000.0, 9.8));
        assert!(!within(1000.0, 10.5) && !within(1000.0, 9.5));
    }

    #[test]
    fn a_scenario_that_became_slower_is_named() {
        let before = [("open", cost(1000.0)), ("batch", cost(1000.0))];
        let now = [("open", cost(1019.0)), ("batch", cost(1021.0)), ("put-shm", cost(5.0))];
        let table = compare(&before, &now);
        assert_eq!(table.slower, ["batch"], "{}", table.text);
        assert!(table.text.contains("1.0190\n") && table.text.contains("1.0210 SLOWER"), "{}", table.text);
        assert!(table.text.lines().any(|line| line.starts_with("put-shm") && line.contains("none")));
    }

    #[test]
    fn a_program_that_does_no_frames_counts_as_nothing() {
        let run = |total| Cost { total, own: total / 2, library_calls: 7 };
        assert_eq!(per_frame(run(5000), run(5100)), None);
        let counted = per_frame(run(5000), run(5000 + 10_000 * 40)).unwrap();
        assert_eq!(counted, PerFrame { total: 40.0, own: 20.0, library_calls: 0.0 });
    }
}
