//! Runs the test programs of the workspace, two at a time. Many tests wait for timers, for processes that
//! they started and for the end of pauses: one program after the other would leave cores idle.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run;

/// Programs that run at a time, where there are so many cores. Each of them starts threads and processes of
/// its own.
const AT_ONCE: usize = 2;

/// A test program that cargo has built.
#[derive(Debug, PartialEq)]
struct Program {
    path: PathBuf,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
    /// The file that its tests are in, for people.
    source: String,
}

/// Builds test programs as `line` says, a `cargo test`, and runs them with the variable set. A failing one
/// ends the run, and its output is printed, as that of all others is.
pub fn test(line: &str, variable: (&str, &Path)) -> Result<()> {
    let mut build = run::command(line);
    build.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = build.output().with_context(|| format!("could not start `{line}`"))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", run::shown(&build), output.status);
    }
    let mut programs = programs(&String::from_utf8_lossy(&output.stdout))?;
    // The largest has the most tests, and would keep one core waiting if it came last.
    programs.sort_by_key(|program| std::cmp::Reverse(size(&program.path)));
    let at_once = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(AT_ONCE));
    println!("{} test programs, {at_once} at a time", programs.len());
    run_all(programs, at_once, variable)
}

/// The programs that cargo names in its messages.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        let (Some(path), true) = (message["executable"].as_str(), message["profile"]["test"] == true) else {
            continue;
        };
        let (manifest, source) = (message["manifest_path"].as_str(), message["target"]["src_path"].as_str());
        let folder = manifest.and_then(|manifest| Path::new(manifest).parent());
        let folder = folder.context("a test program without a package")?;
        let source = Path::new(source.unwrap_or(path));
        let source = source.strip_prefix(run::root()).unwrap_or(source).display().to_string();
        programs.push(Program { path: path.into(), folder: folder.into(), source });
    }
    if programs.is_empty() {
        bail!("cargo has built no test program");
    }
    Ok(programs)
}

fn size(file: &Path) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

fn run_all(programs: Vec<Program>, at_once: usize, variable: (&str, &Path)) -> Result<()> {
    let total = programs.len();
    let (waiting, ended) = (Mutex::new(VecDeque::from(programs)), Mutex::new(0));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let run_next = |output: &Path| -> Result<()> {
        while let Some(program) = next() {
            let begin = Instant::now();
            let status = run_one(&program, output, variable)?;
            let seconds = begin.elapsed().as_secs_f64();
            let said = std::fs::read(output)?;
            // One program's output at a time.
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            *ended += 1;
            println!("\n-- {ended}/{total} {}, {seconds:.1} s", program.source);
            std::io::stdout().write_all(&said)?;
            if !status.success() {
                waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
                bail!("the tests of {} failed: {status}", program.source);
            }
        }
        Ok(())
    };
    let outputs: Vec<PathBuf> = (0..at_once).map(|number| output_file(&number.to_string())).collect();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = outputs.iter().map(|output| scope.spawn(|| run_next(output))).collect();
        let ends = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        ends.map(|end| end.unwrap_or_else(|_| bail!("a thread that runs tests has panicked"))).collect()
    });
    outputs.iter().for_each(|output| drop(std::fs::remove_file(output)));
    results.into_iter().collect()
}

/// Where the output of programs goes until they end.
fn output_file(number: &str) -> PathBuf {
    run::target_dir().join(format!("tests-{}-{number}.txt", std::process::id()))
}

fn run_one(
    program: &Program,
    output: &Path,
    (name, value): (&str, &Path),
) -> Result<std::process::ExitStatus> {
    let file = File::create(output).with_context(|| format!("could not write {}", output.display()))?;
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder).env(name, value);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command.status().with_context(|| format!("could not start {}", program.path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_tests() {
        let root = run::root().display().to_string();
        let artifact = |executable: &str, test: bool| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"{root}/crates/a/Cargo.toml\",\
                 \"target\":{{\"src_path\":\"{root}/crates/a/tests/b.rs\"}},\
                 \"profile\":{{\"test\":{test}}},\"executable\":{executable}}}\n"
            )
        };
        let messages = format!(
            "text\n{}{}{}{{\"reason\":\"build-finished\",\"success\":true}}\n",
            artifact("\"/t/b\"", true),
            artifact("\"/t/example\"", false),
            artifact("null", true)
        );
        let folder = PathBuf::from(format!("{root}/crates/a"));
        let b = Program { path: "/t/b".into(), folder, source: "crates/a/tests/b.rs".into() };
        assert_eq!(programs(&messages).unwrap(), [b]);
        assert!(programs("").unwrap_err().to_string().contains("no test program"));
    }

    /// All programs run with the variable, in the folder of their package. A failure is named, and ends the
    /// run.
    #[test]
    fn a_failure_ends_the_run() {
        let folder = run::target_dir().join(format!("programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let count = folder.join("count");
        let program = |name: &str, text: &str| {
            let path = folder.join(name);
            // Another process does it: a file that is open for writing cannot be executed, and processes that
            // other threads start have it open for a moment if this one has.
            let mut shell = Command::new("sh");
            shell.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\""]);
            assert!(shell.arg(&path).arg(text).status().unwrap().success());
            Program { path, folder: folder.clone(), source: name.to_owned() }
        };
        let good = |number: u32| program(&format!("good{number}"), "echo $PWD >>\"$COUNT\"");
        run_all((0..7).map(good).collect(), 2, ("COUNT", &count)).unwrap();
        let lines = std::fs::read_to_string(&count).unwrap();
        assert_eq!(lines, format!("{}\n", folder.display()).repeat(7));
        let list = vec![good(8), program("bad", "exit 3"), good(9), good(10), good(11)];
        let error = run_all(list, 1, ("COUNT", &count)).unwrap_err().to_string();
        assert!(error.contains("the tests of bad failed") && error.contains('3'), "{error}");
        assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), 8);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
