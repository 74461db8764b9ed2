//! The parts of the long runs: what each runs, with which count and seed, and how much it did.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{run, skips};

const FUZZ: &str = "fuzz/smoke.sh";
/// What AddressSanitizer is built for.
const SANITIZED: &str = "x86_64-unknown-linux-gnu";
const SANITIZED_TESTS: &[&str] = &[
    "cargo test -p tautline-mem --lib",
    // The test of whole nodes takes minutes to build: it is part of the long runs only.
    "cargo test -p tautline-device --test shm_overwritten",
];
/// Writes of each test in [`SANITIZED_TESTS`].
const SHORT_SCRIBBLES: u64 = 20_000;

/// What is built for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Build {
    /// What `cargo test` has built.
    Tests,
    /// Optimized, with all assertions.
    Soak,
}

impl Build {
    fn options(self) -> &'static str {
        match self {
            Build::Tests => "",
            Build::Soak => "--profile soak",
        }
    }
}

pub struct Part {
    pub name: String,
    /// What is counted.
    pub unit: &'static str,
    /// How many there are in the end.
    pub count: u64,
    /// The least count that makes sense, for short runs.
    pub least: u64,
    /// How many at once: what an interrupted run repeats.
    pub step: u64,
    /// Whether it cannot use what the tests have built.
    pub has_own_build: bool,
    /// The command, in which `BUILD` stands for the options of a [`Build`], and `COUNT` and `SEED` for those
    /// of a [`Step`]. Variables precede it.
    pub line: String,
    pub run: fn(&Part, &Step) -> Result<Done>,
}

impl Part {
    /// The command as typed in a shell; a step sets COUNT and SEED.
    pub fn shown(&self) -> String {
        self.line.replace("BUILD", Build::Soak.options())
    }
}

pub struct Step {
    pub count: u64,
    pub seed: u64,
    pub build: Build,
}

/// What a step did.
#[derive(Debug, Default)]
pub struct Done {
    pub count: u64,
    /// How many seeds it used, from its first one on.
    pub seeds: u64,
    pub figures: Vec<(&'static str, u64)>,
    pub skipped: Option<String>,
}

/// A part that uses what the tests have built. Its sizes are the count, the least count, and the step.
fn part(
    name: &str,
    unit: &'static str,
    (count, least, step): (u64, u64, u64),
    line: &str,
    run: fn(&Part, &Step) -> Result<Done>,
) -> Part {
    let (name, line) = (name.to_owned(), line.to_owned());
    Part { name, unit, count, least, step, has_own_build: false, line, run }
}

/// All parts, in the order in which they run.
pub fn all() -> Result<Vec<Part>> {
    let mut parts = vec![
        part(
            "simulation",
            "messages",
            (200_000_000, 10_000, 5_000_000),
            "cargo run BUILD -p tautline-cli -- sim --json --seeds 1 --messages COUNT --first SEED",
            simulate,
        ),
        part(
            "mutations",
            "frames",
            (100_000_000, 10_000, 5_000_000),
            "TAUTLINE_SEED=SEED TAUTLINE_MUTATIONS=COUNT cargo test BUILD -p tautline-link --test pair \
             -- --exact tampered_frames::mutated_frames_are_dropped",
            test,
        ),
        part(
            "forgeries",
            "requests",
            (100_000_000, 10_000, 5_000_000),
            "TAUTLINE_SEED=SEED TAUTLINE_FORGERIES=COUNT cargo test BUILD -p tautline-node --lib \
             -- --exact memory::tests::forged_requests_touch_nothing",
            test,
        ),
        part(
            "kills",
            "kills",
            (10_000, 8, 500),
            "TAUTLINE_SEED=SEED TAUTLINE_KILLS=COUNT cargo test BUILD -p tautline-tests --test local_deaths \
             -- --exact random_kills",
            test,
        ),
        part(
            "xdp-kills",
            "kills",
            (1_000, 2, 50),
            "TAUTLINE_SEED=SEED TAUTLINE_KILLS=COUNT cargo test BUILD -p tautline-tests --test xdp_kills \
             -- --exact killed_peers_are_replaced",
            test,
        ),
        part(
            "mpi-kills",
            "kills",
            (1_000, 2, 100),
            "TAUTLINE_SEED=SEED TAUTLINE_MPI_DEATHS=COUNT cargo test BUILD -p tautline-cli --test mpi_deaths \
             -- --exact a_rank_that_is_killed_at_random_ends_the_job",
            test,
        ),
        part(
            "group-deaths",
            "jobs",
            (1_000, 2, 250),
            "TAUTLINE_SEED=SEED TAUTLINE_GROUP_DEATHS=COUNT cargo test BUILD -p tautline-tests --test processes \
             -- --exact group_deaths::members_are_killed",
            test,
        ),
        part(
            "host-deaths",
            "jobs",
            (1_000, 6, 100),
            "TAUTLINE_SEED=SEED TAUTLINE_TEST_JOBS=COUNT cargo test BUILD -p tautline-cli --test host_victims \
             -- --exact random_victims",
            test,
        ),
        part(
            "nodes",
            "nodes",
            (10_000, 100, 10_000),
            "TAUTLINE_SEED=SEED TAUTLINE_NODES=COUNT cargo test BUILD -p tautline-sim --test cluster \
             -- --exact many_nodes",
            test,
        ),
    ];
    let mut scribbles = part(
        "scribbles",
        "writes",
        (10_000_000, 20_000, 500_000),
        "RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address TAUTLINE_SEED=SEED TAUTLINE_SCRIBBLES=COUNT cargo test \
         -p tautline-device -p tautline-tests --test shm_overwritten --test corrupted_memory",
        scribble,
    );
    scribbles.has_own_build = true;
    parts.push(scribbles);
    for target in fuzz_targets()? {
        let line = format!("FUZZ_TARGETS={target} FUZZ_SEED=SEED FUZZ_SECONDS=COUNT bash {FUZZ}");
        let mut fuzz = part(&format!("fuzz-{target}"), "seconds", (600, 1, 600), &line, fuzz);
        fuzz.has_own_build = true;
        parts.push(fuzz);
    }
    Ok(parts)
}

/// The command of a step, with its variables.
fn command(part: &Part, step: &Step) -> Command {
    let line = part.line.replace("BUILD", step.build.options());
    let line = line.replace("SEED=SEED", &format!("SEED={}", step.seed));
    let line = line.replace("--first SEED", &format!("--first {}", step.seed));
    let line = line.replace("COUNT", &step.count.to_string());
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let first = words.iter().position(|word| !word.contains('=')).unwrap_or(0);
    let mut command = run::command(&words[first..].join(" "));
    for (name, value) in words[..first].iter().filter_map(|word| word.split_once('=')) {
        command.env(name, value);
    }
    println!("{}", run::shown(&command));
    command
}

fn simulate(part: &Part, step: &Step) -> Result<Done> {
    let said = run::check_and_capture(&mut command(part, step))?;
    let figures = ["frames", "lost", "deaths"].map(|name| Ok((name, number_of(&said, name)?)));
    let figures = figures.into_iter().collect::<Result<_>>()?;
    let (count, seeds) = (number_of(&said, "messages")?, number_of(&said, "seeds")?);
    Ok(Done { count, seeds, figures, skipped: None })
}

/// A number of a flat JSON object.
fn number_of(json: &str, name: &str) -> Result<u64> {
    let value = json.split(&format!("\"{name}\":")).nth(1).with_context(|| format!("no {name}: {json}"))?;
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().with_context(|| format!("{name}: {json}"))
}

/// Runs a test that says how much it did.
fn test(part: &Part, step: &Step) -> Result<Done> {
    counted(&mut command(part, step))
}

/// Runs tests, and adds up what they say that they did.
fn counted(command: &mut Command) -> Result<Done> {
    let file = run::target_dir().join(run::unique_name("counts"));
    let _ = std::fs::remove_file(&file);
    let skipped = skips::run_tests(command.env(tautline_skips::COUNTS, &file));
    // Tests that were skipped wrote none.
    let counts = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    let counts: Result<Vec<u64>, _> = counts.lines().map(str::parse).collect();
    let count = counts.context("tests report plain numbers")?.iter().sum();
    let skipped = skipped?.first().filter(|_| count == 0).cloned();
    Ok(Done { count, seeds: 1, figures: Vec::new(), skipped })
}

/// Where AddressSanitizer's runtime library is not installed, says so.
fn lacks_sanitizer() -> Option<String> {
    let printed = Command::new("rustc").args(["--print", "target-libdir", "--target", SANITIZED]).output();
    let folder = printed.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let libraries = folder.and_then(|folder| std::fs::read_dir(folder).ok())?;
    let mut names = libraries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let found = names.any(|name| name.ends_with("_rt.asan.a"));
    (!found).then(|| format!("this toolchain has no AddressSanitizer for {SANITIZED}"))
}

/// Lets a command of cargo build with AddressSanitizer, in a folder of its own.
fn with_sanitizer(command: &mut Command) -> &mut Command {
    // Sanitizers are unstable; the variable lets the stable compiler use them. With --target, build scripts
    // and macros are built without.
    command
        .args(["--target", SANITIZED])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", run::target_dir().join("asan"))
        // Leaks are counted by tests of their own; this check needs ptrace.
        .env("ASAN_OPTIONS", "detect_leaks=0")
}

/// Runs the tests that overwrite shared memory. Three tests share the count.
fn scribble(part: &Part, step: &Step) -> Result<Done> {
    if let Some(why) = lacks_sanitizer() {
        return Ok(Done { skipped: Some(why), ..Done::default() });
    }
    let step = Step { count: step.count.div_ceil(3), ..*step };
    counted(with_sanitizer(&mut command(part, &step)))
}

/// Runs the tests of the pool and the rings, and those that overwrite them, with AddressSanitizer. Returns
/// why they were skipped, if they were.
pub fn sanitize() -> Result<Option<String>> {
    if let Some(why) = lacks_sanitizer() {
        return Ok(Some(why));
    }
    for line in SANITIZED_TESTS {
        let mut command = sanitized_test(line);
        println!("{}", run::shown(&command));
        run::check(&mut command)?;
    }
    Ok(None)
}

/// What [`sanitize`] builds.
pub fn sanitizer_builds() -> Vec<Command> {
    let tests = if lacks_sanitizer().is_none() { SANITIZED_TESTS } else { &[] };
    let build = |line: &&str| {
        let mut command = sanitized_test(line);
        command.arg("--no-run");
        command
    };
    tests.iter().map(build).collect()
}

fn sanitized_test(line: &str) -> Command {
    let mut command = run::command(line);
    with_sanitizer(&mut command).env("TAUTLINE_SCRIBBLES", SHORT_SCRIBBLES.to_string());
    // Most of the time goes into the build.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    command
}

/// Runs a fuzz target for some seconds.
fn fuzz(part: &Part, step: &Step) -> Result<Done> {
    let output = command(part, step).stderr(Stdio::inherit()).output().context("could not start bash")?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    match output.status.code() {
        Some(0) => {
            let executions = said.lines().find_map(|line| {
                let (_, rest) = line.split_once(": ")?;
                rest.split_once(" executions")?.0.parse().ok()
            });
            let executions = executions.with_context(|| format!("no number of executions: {said}"))?;
            let figures = vec![("executions", executions)];
            Ok(Done { count: step.count, seeds: 1, figures, skipped: None })
        }
        Some(77) => {
            Ok(Done { skipped: Some(said.lines().last().unwrap_or_default().to_owned()), ..Done::default() })
        }
        _ => bail!("{FUZZ} failed: {}", output.status),
    }
}

/// The targets of fuzz/Cargo.toml.
fn fuzz_targets() -> Result<Vec<String>> {
    let manifest = std::fs::read_to_string(run::root().join("fuzz/Cargo.toml")).context("fuzz/Cargo.toml")?;
    let manifest: toml::Table = manifest.parse().context("fuzz/Cargo.toml")?;
    let bins =
        manifest.get("bin").and_then(toml::Value::as_array).context("fuzz/Cargo.toml has no [[bin]]")?;
    let names = bins.iter().filter_map(|bin| bin.get("name")?.as_str().map(str::to_owned));
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Step {
        Step { count: 70, seed: 5, build: Build::Soak }
    }

    #[test]
    fn commands_have_count_and_seed() {
        for part in all().unwrap() {
            let shown = run::shown(&command(&part, &step()));
            assert!(shown.contains("70") && shown.contains('5'), "{shown}");
            for left in ["COUNT", "BUILD", "=SEED", "first SEED"] {
                assert!(!shown.contains(left), "{shown}");
            }
            assert!(part.least <= part.step && part.step <= part.count, "{}", part.name);
        }
    }

    /// A test that was renamed would be skipped by the filter of its part.
    #[test]
    fn tests_of_the_parts_exist() {
        let files = [
            ("tampered_frames::mutated_frames_are_dropped", "crates/link/tests/pair/tampered_frames.rs"),
            ("memory::tests::forged_requests_touch_nothing", "crates/node/src/memory/tests.rs"),
            ("random_kills", "crates/tautline/tests/local_deaths.rs"),
            ("killed_peers_are_replaced", "crates/tautline/tests/xdp_kills.rs"),
            ("a_rank_that_is_killed_at_random_ends_the_job", "crates/cli/tests/mpi_deaths.rs"),
            ("group_deaths::members_are_killed", "crates/tautline/tests/group_deaths.rs"),
            ("random_victims", "crates/cli/tests/host_victims.rs"),
            ("many_nodes", "crates/sim/tests/cluster.rs"),
        ];
        let parts = all().unwrap();
        for (test, file) in files {
            assert!(parts.iter().any(|part| part.line.ends_with(&format!("--exact {test}"))), "{test}");
            let code = std::fs::read_to_string(run::root().join(file)).unwrap();
            let name = test.rsplit("::").next().unwrap();
            assert!(code.contains(&format!("fn {name}()")), "{test}");
        }
        assert_eq!(parts.iter().filter(|part| part.line.contains("--exact")).count(), files.len());
    }

    #[test]
    fn counts_are_those_that_tests_report() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo 30 >>\"$TAUTLINE_COUNTS\"; echo 12 >>\"$TAUTLINE_COUNTS\""]);
        assert_eq!(counted(&mut shell).unwrap().count, 42);
        assert_eq!(counted(&mut Command::new("true")).unwrap().count, 0, "a filter that matches nothing");
        assert!(counted(&mut Command::new("false")).is_err());
    }

    #[test]
    fn numbers_are_found_in_the_summary_of_a_simulation() {
        let json = r#"{"bytes":9,"messages":120,"seeds":3}"#;
        assert_eq!((number_of(json, "messages").unwrap(), number_of(json, "seeds").unwrap()), (120, 3));
        assert!(number_of(json, "frames").is_err());
    }
}
