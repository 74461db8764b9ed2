//! Everything that a change must pass, in stages. The first failure ends the run. The end of the run counts
//! and names skipped stages and tests.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{ahead, features, icount, programs, run, setup, skips, soak, tidy};

/// The first kernel with all system calls that the library cannot do without: it watches processes by
/// `pidfd_open`. README.md names it.
const OLDEST_KERNEL: (u32, u32) = (5, 3);

/// The descriptors that the tests take at least, and those that they are allowed if possible.
const FEWEST_DESCRIPTORS: u64 = 2_048;
const DESCRIPTORS: u64 = 65_536;
const FORMAT: &str = "cargo fmt --all -- --check";
const CLIPPY: &str = "cargo clippy --workspace --all-targets -- -D warnings";
/// Names no targets: only then does cargo build the examples, which the tests start as programs.
const TESTS: &str = "cargo test --workspace";
const DOC_TESTS: &str = "cargo test --workspace --doc";
const LOOM: &str = "cargo test -p tautline-mem --lib loom";
/// By the command that the tests have built; `cargo run` would build it again, with other features.
const SIMULATION: &str = "sim --seeds 300 --messages 3000000";
const DOCS: &str = "cargo doc --workspace --no-deps";
const DENY: &str = "cargo deny check bans licenses sources";
const DENY_ADVISORIES: &str = "cargo deny check advisories";
const PACKAGE: &str = "cargo package --quiet --no-verify --workspace --exclude xtask --exclude tautline-attack --exclude tautline-skips --exclude tautline-tests --exclude tautline-model --allow-dirty";
const CHECK_PACKAGES: &str = "cargo check --quiet --workspace";

/// The time for all fuzz targets together, without that for building them.
const FUZZ_SECONDS: u32 = 60;
/// Ends a build that hangs; a busy machine takes minutes.
const FUZZ_BUILD_SECONDS_MAX: u32 = 1_200;
const FUZZ_SCRIPT: &str = "fuzz/smoke.sh";
/// The exit status of the script if it cannot fuzz on this machine; its last line says why.
const EXIT_SKIPPED: i32 = 77;

/// The space that all stages take in the target folder, and the space below which a disk counts as full.
const DISK_MIB: u64 = 4_000;
const DISK_MIB_FULL: u64 = 200;

#[derive(Clone, Copy, PartialEq)]
pub enum Extent {
    Full,
    /// The stages that are quick enough to run after each edit.
    Quick,
}

enum Outcome {
    Passed,
    /// Passed, but these tests were skipped; each with its reason.
    Without(Vec<String>),
    Skipped(String),
}

struct Stage {
    name: &'static str,
    quick: bool,
    run: fn() -> Result<Outcome>,
}

const STAGES: &[Stage] = &[
    Stage { name: "setup", quick: false, run: set_up },
    Stage { name: "format", quick: true, run: || cargo(FORMAT) },
    Stage { name: "clippy", quick: true, run: || cargo(CLIPPY) },
    Stage {
        name: "tidy",
        quick: true,
        run: || tidy::run(&run::root(), tidy::Show::New).map(|()| Outcome::Passed),
    },
    Stage { name: "loom", quick: false, run: loom },
    Stage { name: "tests", quick: true, run: tests },
    Stage { name: "simulation", quick: false, run: simulation },
    Stage { name: "features", quick: false, run: || features::check().map(Outcome::Without) },
    Stage { name: "AddressSanitizer", quick: false, run: sanitizer },
    Stage { name: "instruction counts", quick: false, run: instruction_counts },
    Stage { name: "docs", quick: false, run: docs },
    Stage { name: "fuzz smoke", quick: false, run: fuzz_smoke },
    Stage { name: "deny", quick: false, run: deny },
    Stage { name: "package", quick: false, run: package },
];

pub fn run(extent: Extent) -> Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("this is not Linux")?;
    check_machine(std::env::consts::ARCH, &release)?;
    allow_descriptors()?;
    run_stages(STAGES, extent, judge_skip).map(|summary| println!("{summary}"))
}

/// Whether a stage or a feature has this name.
#[cfg(test)]
pub fn has_part(part: &str, name: &str) -> bool {
    if part == "stage" { STAGES.iter().any(|stage| stage.name == name) } else { features::exists(name) }
}

/// Fails if this machine has what the list of expected skips says that a stage needs.
fn judge_skip(stage: &str, why: &str) -> Result<()> {
    skips::skipped_part("stage", stage, why).map(drop)
}

/// Fails on a machine that the library is not for.
fn check_machine(processor: &str, release: &str) -> Result<()> {
    let (major, minor) = OLDEST_KERNEL;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let kernel = numbers.next().zip(numbers.next());
    ensure!(
        processor == "x86_64" && kernel.is_some_and(|kernel| kernel >= OLDEST_KERNEL),
        "the tests are for x86-64 and Linux {major}.{minor} or newer; this is {processor} and Linux {}",
        release.trim()
    );
    Ok(())
}

/// Lets the programs that are run have many descriptors: a test in which 17 threads are the ranks of a job
/// takes more than the usual limit of 1,024, which is there for programs that call `select`.
fn allow_descriptors() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(
        most >= FEWEST_DESCRIPTORS,
        "the tests take up to {FEWEST_DESCRIPTORS} descriptors, and {most} are allowed (RLIMIT_NOFILE); as root: ulimit -Hn {DESCRIPTORS}"
    );
    if limit.current.is_some_and(|now| now < most.min(DESCRIPTORS)) {
        let current = Some(most.min(DESCRIPTORS));
        setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum })
            .context("could not allow more descriptors")?;
    }
    Ok(())
}

/// Returns a summary, or the error of the stage that failed. Both say what passed and what was skipped.
fn run_stages(stages: &[Stage], extent: Extent, judge_skip: fn(&str, &str) -> Result<()>) -> Result<String> {
    let begin = Instant::now();
    let mut passed = 0;
    let mut skipped: Vec<String> = Vec::new();
    let mut skipped_tests: Vec<String> = Vec::new();
    for (number, stage) in (1..).zip(stages) {
        println!("\n== {number}/{} {}", stages.len(), stage.name);
        let stage_begin = Instant::now();
        let outcome = if extent == Extent::Quick && !stage.quick {
            Ok(Outcome::Skipped("not part of --quick".to_owned()))
        } else {
            (stage.run)().and_then(|outcome| match &outcome {
                Outcome::Skipped(why) => judge_skip(stage.name, why).map(|()| outcome),
                _ => Ok(outcome),
            })
        };
        let seconds = stage_begin.elapsed().as_secs_f64();
        match outcome {
            Ok(outcome @ (Outcome::Passed | Outcome::Without(_))) => {
                passed += 1;
                println!("== {} passed in {seconds:.1} s", stage.name);
                if let Outcome::Without(tests) = outcome {
                    skipped_tests.extend(tests.iter().map(|test| format!("SKIPPED test {test}\n")));
                }
            }
            Ok(Outcome::Skipped(why)) => {
                println!("== {} SKIPPED: {why}", stage.name);
                skipped.push(format!("SKIPPED {}: {why}\n", stage.name));
            }
            Err(error) => {
                let not_run = stages.len() - passed - skipped.len() - 1;
                let tally =
                    format!("{passed} passed, 1 failed, {} skipped, {not_run} not run", skipped.len());
                let name = stage.name;
                let error = error.context(format!("stage {name} FAILED after {seconds:.1} s ({tally})"));
                let full =
                    run::free_mib(&run::target_dir()).and_then(|free| disk_is_full(free, DISK_MIB_FULL));
                return Err(match full {
                    Some(why) => error.context(why),
                    None => error,
                });
            }
        }
    }
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    Ok(format!(
        "\n{}{}{passed} passed, 0 failed, {} skipped, and {} tests skipped in {minutes:.1} minutes",
        skipped_tests.concat(),
        skipped.concat(),
        skipped.len(),
        skipped_tests.len()
    ))
}

fn cargo(line: &str) -> Result<Outcome> {
    println!("{line}");
    run::check(&mut run::command(line)).map(|()| Outcome::Passed)
}

fn tests() -> Result<Outcome> {
    println!("{TESTS}");
    let tests = |(name, file): (&str, &Path)| {
        programs::test(TESTS, (name, file))?;
        println!("{DOC_TESTS}");
        run::check(run::command(DOC_TESTS).env(name, file))
    };
    skips::collect(tests).map(Outcome::Without)
}

/// What to do if `free` MiB on the disk of the target folder are too few.
fn disk_is_full(free: u64, needed: u64) -> Option<String> {
    let target = run::target_dir();
    (free < needed).then(|| {
        format!(
            "{free} MiB are free for {}, and all stages take about {DISK_MIB}: free some, or set CARGO_TARGET_DIR",
            target.display()
        )
    })
}

/// What is built ahead depends on what is installed.
fn set_up() -> Result<Outcome> {
    let installed = install_what_tests_need();
    let builds = [fuzz_builds(), instruction_count_builds(), soak::sanitizer_builds()];
    ahead::start(builds.into_iter().flatten().collect());
    Ok(installed)
}

fn install_what_tests_need() -> Outcome {
    let built = run::target_dir().join("debug/deps").exists();
    if let Some(little) =
        run::free_mib(&run::target_dir()).filter(|_| !built).and_then(|free| disk_is_full(free, DISK_MIB))
    {
        println!("!! {little}");
    }
    let missing = setup::missing();
    if missing.is_empty() {
        return Outcome::Passed;
    }
    match setup::install_all() {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Skipped(format!("without {}: {error:#}", missing.join(", "))),
    }
}

fn loom() -> Result<Outcome> {
    let mut command = run::command(LOOM);
    // With other flags cargo would rebuild everything in the usual target folder.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", run::target_dir().join("loom"));
    println!("{}", run::shown(&command));
    if tests_passed(&run::check_and_capture(&mut command)?) == 0 {
        bail!("the filter of `{LOOM}` matches no test");
    }
    Ok(Outcome::Passed)
}

/// The number of passed tests, from the result lines of the test harness.
fn tests_passed(output: &str) -> u32 {
    let counts = output.lines().filter_map(|line| {
        let (count, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
        count.parse::<u32>().ok()
    });
    counts.sum()
}

fn simulation() -> Result<Outcome> {
    let mut command = Command::new(run::target_dir().join("debug/tautline"));
    command.args(SIMULATION.split(' '));
    println!("{}", run::shown(&command));
    run::check(&mut command).map(|()| Outcome::Passed)
}

fn sanitizer() -> Result<Outcome> {
    Ok(soak::sanitize()?.map_or(Outcome::Passed, Outcome::Skipped))
}

fn instruction_counts() -> Result<Outcome> {
    if run::find_program("valgrind").is_none() {
        return Ok(Outcome::Skipped("valgrind is not installed; see cargo xtask setup".to_owned()));
    }
    Ok(icount::check()?.map_or(Outcome::Passed, Outcome::Skipped))
}

/// What [`instruction_counts`] builds.
fn instruction_count_builds() -> Vec<Command> {
    let counts = run::find_program("valgrind").is_some();
    if counts { icount::builds() } else { Vec::new() }
}

fn docs() -> Result<Outcome> {
    println!("{DOCS}");
    run::check(run::command(DOCS).env("RUSTDOCFLAGS", "-D warnings")).map(|()| Outcome::Passed)
}

/// What [`fuzz_smoke`] builds.
fn fuzz_builds() -> Vec<Command> {
    let mut command = run::command(&format!("bash {FUZZ_SCRIPT}"));
    command.env("FUZZ_SECONDS", "0");
    vec![command]
}

fn fuzz_smoke() -> Result<Outcome> {
    if !run::root().join(FUZZ_SCRIPT).is_file() {
        return Ok(Outcome::Skipped(format!("there is no {FUZZ_SCRIPT}")));
    }
    let limit = FUZZ_SECONDS + FUZZ_BUILD_SECONDS_MAX;
    let mut command = run::command(&format!("timeout --kill-after=10 {limit} bash {FUZZ_SCRIPT}"));
    command.env("FUZZ_SECONDS", FUZZ_SECONDS.to_string()).stderr(Stdio::inherit());
    println!("{}", run::shown(&command));
    let output = command.output().context("could not start the fuzz smoke run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    match output.status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(EXIT_SKIPPED) => {
            Ok(Outcome::Skipped(text.lines().last().unwrap_or("no reason given").to_owned()))
        }
        _ => bail!("{FUZZ_SCRIPT} failed: {}", output.status),
    }
}

fn deny() -> Result<Outcome> {
    let version = run::command("cargo deny --version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Ok(Outcome::Skipped(
            "cargo-deny is not installed (cargo install cargo-deny --locked)".to_owned(),
        ));
    }
    cargo(DENY)?;
    println!("{DENY_ADVISORIES}");
    let output = run::command(DENY_ADVISORIES).output().context("could not start cargo deny")?;
    let text = String::from_utf8_lossy(&output.stderr);
    print!("{text}");
    if output.status.success() {
        Ok(Outcome::Passed)
    } else if text.contains("failed to fetch advisory database") {
        Ok(Outcome::Skipped("could not fetch the advisory database; the rest of deny passed".to_owned()))
    } else {
        bail!("`{DENY_ADVISORIES}` failed: {}", output.status)
    }
}

/// Packages all crates that are published, and checks that they build from nothing but their packages.
/// `cargo package` would do so for each by itself, and build those below it every time.
fn package() -> Result<Outcome> {
    let now = std::time::UNIX_EPOCH.elapsed().context("the clock is before 1970")?;
    let folder = run::target_dir().join(format!("package-{}", now.as_nanos()));
    let checked = check_packages(&folder);
    std::fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    checked.map(|()| Outcome::Passed)
}

fn check_packages(folder: &Path) -> Result<()> {
    let mut command = run::command(PACKAGE);
    command.env("CARGO_TARGET_DIR", folder);
    println!("{}", run::shown(&command));
    run::check(&mut command)?;
    let packages = folder.join("package");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&packages)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "crate") {
            let mut unpack = run::command("tar --extract --gzip --file");
            run::check(unpack.arg(&path).arg("--directory").arg(folder))?;
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    std::fs::write(folder.join("Cargo.toml"), workspace_of(&names, &manifest()?)?)?;
    std::fs::copy(run::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut check = run::command(CHECK_PACKAGES);
    // Crates of others are taken from where clippy has checked them.
    check.current_dir(folder).env("CARGO_TARGET_DIR", run::target_dir());
    println!("{}", run::shown(&check));
    run::check(&mut check)
}

fn manifest() -> Result<String> {
    std::fs::read_to_string(run::root().join("Cargo.toml")).context("could not read Cargo.toml")
}

/// The manifest of a workspace of unpacked crates, with the profiles of ours, which are the last part of
/// `manifest`. A folder's name is that of its crate and the version.
fn workspace_of(folders: &[String], manifest: &str) -> Result<String> {
    let mut text = format!("[workspace]\nresolver = \"3\"\nmembers = {folders:?}\n\n[patch.crates-io]\n");
    for folder in folders {
        let (name, _) = folder.rsplit_once('-').context("a package without a version")?;
        let _ = writeln!(text, "{name} = {{ path = {folder:?} }}");
    }
    let profiles = manifest.find("\n[profile.").map_or("", |at| &manifest[at..]);
    Ok(text + profiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Stage = Stage { name: "good", quick: true, run: || Ok(Outcome::Passed) };
    const SLOW: Stage = Stage { name: "slow", quick: false, run: || Ok(Outcome::Passed) };
    const ABSENT: Stage =
        Stage { name: "absent", quick: true, run: || Ok(Outcome::Skipped("no tool".into())) };
    const BAD: Stage = Stage { name: "bad", quick: true, run: || bail!("it broke") };
    const NEVER: Stage = Stage { name: "never", quick: true, run: || panic!("ran after a failure") };

    #[test]
    fn the_summary_counts_and_names_what_was_skipped() {
        let summary = run_stages(&[GOOD, ABSENT, SLOW], Extent::Full, |_, _| Ok(())).unwrap();
        assert!(summary.contains("SKIPPED absent: no tool\n2 passed, 0 failed, 1 skipped"), "{summary}");
        let tests = || Ok(Outcome::Without(vec!["a.rs::b: no root".into(), "a.rs::c: no tshark".into()]));
        let summary = run_stages(
            &[Stage { name: "tests", quick: true, run: tests }, GOOD],
            Extent::Full,
            |_, _| Ok(()),
        )
        .unwrap();
        assert!(
            summary.contains("SKIPPED test a.rs::b: no root\nSKIPPED test a.rs::c: no tshark\n"),
            "{summary}"
        );
        assert!(summary.contains("2 passed, 0 failed, 0 skipped, and 2 tests skipped"), "{summary}");
    }

    #[test]
    fn the_first_failure_ends_the_run() {
        let error = format!(
            "{:#}",
            run_stages(&[GOOD, ABSENT, BAD, NEVER], Extent::Full, |_, _| Ok(())).unwrap_err()
        );
        assert!(error.contains("stage bad FAILED") && error.contains("it broke"), "{error}");
        assert!(error.contains("1 passed, 1 failed, 1 skipped, 1 not run"), "{error}");
    }

    #[test]
    fn the_machines_of_the_readme_are_tested() {
        for release in ["5.3.0-1-amd64\n", "5.10.0", "6.18.44-v595", "10.0-rc1"] {
            check_machine("x86_64", release).unwrap();
            assert!(check_machine("aarch64", release).is_err());
        }
        for release in ["5.2.21", "4.19.0", "", "none"] {
            assert!(check_machine("x86_64", release).is_err(), "{release}");
        }
        let (major, minor) = OLDEST_KERNEL;
        let readme = std::fs::read_to_string(run::root().join("README.md")).unwrap();
        assert!(readme.contains(&format!("x86-64 with Linux {major}.{minor} or newer")));
    }

    #[test]
    fn a_stage_that_is_skipped_unexpectedly_fails() {
        let judge: fn(&str, &str) -> Result<()> = |stage, why| bail!("{stage} was skipped: {why}");
        let error = format!("{:#}", run_stages(&[GOOD, ABSENT, NEVER], Extent::Full, judge).unwrap_err());
        assert!(error.contains("stage absent FAILED") && error.contains("was skipped: no tool"), "{error}");
        let error = judge_skip("loom", "no reason").unwrap_err().to_string();
        assert!(error.contains("stage::loom: no reason"), "{error}");
    }

    #[test]
    fn unpacked_crates_are_a_workspace() {
        let folders = ["tautline-0.1.0".to_owned(), "tautline-mem-0.1.0".to_owned()];
        let text = workspace_of(&folders, "[workspace]\n\n[profile.dev]\nopt-level = 1\n").unwrap();
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["workspace"]["members"].as_array().unwrap().len(), 2);
        assert_eq!(table["patch"]["crates-io"]["tautline-mem"]["path"].as_str(), Some("tautline-mem-0.1.0"));
        assert_eq!(table["profile"]["dev"]["opt-level"].as_integer(), Some(1));
        assert!(workspace_of(&["nonsense".to_owned()], "").is_err());
    }

    #[test]
    fn a_full_disk_is_an_error_with_advice() {
        let why = disk_is_full(100, DISK_MIB).unwrap();
        assert!(why.contains("100 MiB") && why.contains("CARGO_TARGET_DIR"), "{why}");
        assert_eq!(disk_is_full(DISK_MIB, DISK_MIB), None);
        assert!(run::free_mib(&run::root()).is_some());
    }

    #[test]
    fn quick_skips_the_slow_stages_and_names_them() {
        let summary = run_stages(&[GOOD, SLOW], Extent::Quick, |_, _| Ok(())).unwrap();
        assert!(summary.contains("SKIPPED slow: not part of --quick\n1 passed"), "{summary}");
    }

    #[test]
    fn passed_tests_are_counted() {
        assert_eq!(tests_passed("running 0 tests\n\ntest result: ok. 0 passed; 0 failed\n"), 0);
        assert_eq!(tests_passed("test result: ok. 3 passed; 0 failed\ntest result: ok. 2 passed;\n"), 5);
    }
}
