//! Skipped tests. The tests report each skip in a file (`crates/skips`). xtask/expected-skips.txt lists the
//! skips that are expected, with a command that decides where. A skip that is not expected fails the run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::run;

const EXPECTED: &str = "xtask/expected-skips.txt";

/// Runs tests with `command`. Returns a line for each that was skipped; an unexpected one is an error.
pub fn run_tests(command: &mut Command) -> Result<Vec<String>> {
    collect(|(name, file)| run::check(command.env(name, file)))
}

/// Runs tests with an environment variable that names a file for skips; otherwise as [`run_tests`].
pub fn collect(tests: impl FnOnce((&str, &Path)) -> Result<()>) -> Result<Vec<String>> {
    let file = reported();
    let _ = std::fs::remove_file(&file);
    let ran = tests((tautline_skips::FILE, &file));
    // Without skips there is no file.
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    ran?;
    judge_by_list(&text)
}

/// Returns the line for a part of a run that was skipped, "stage" or "feature", or an error if that is not
/// expected here.
pub fn skipped_part(part: &str, name: &str, why: &str) -> Result<Vec<String>> {
    // Reasons of several lines name a command to run in the last one.
    judge_by_list(&format!("{part}::{name}: {}", why.lines().collect::<Vec<_>>().join(" ")))
}

fn judge_by_list(reported: &str) -> Result<Vec<String>> {
    let list = std::fs::read_to_string(run::root().join(EXPECTED)).context(EXPECTED)?;
    judge(reported, &parse(&list)?, present)
}

fn reported() -> PathBuf {
    run::target_dir().join(run::unique_name("skips"))
}

/// Tests that are skipped where `command` fails.
#[derive(Debug, PartialEq)]
struct Need<'a> {
    command: &'a str,
    /// Either `file::test`, or a file: then any test in it; `stage::name` and `feature::name` are parts of
    /// the whole run.
    tests: Vec<&'a str>,
}

/// Groups begin with `needs: command`; the tests follow, indented. `#` begins a comment.
fn parse(list: &str) -> Result<Vec<Need<'_>>> {
    let mut needs: Vec<Need<'_>> = Vec::new();
    for (number, line) in (1..).zip(list.lines()) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match (line.strip_prefix("needs: "), line.strip_prefix("  "), needs.last_mut()) {
            (Some(command), ..) => needs.push(Need { command, tests: Vec::new() }),
            (None, Some(test), Some(need)) => need.tests.push(test.trim()),
            _ => bail!("{EXPECTED}:{number}: neither `needs: command` nor an indented test below one"),
        }
    }
    Ok(needs)
}

/// The reported skips, sorted; an error names those for which no command of the list fails.
fn judge(reported: &str, needs: &[Need<'_>], present: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut skips: Vec<&str> = reported.lines().collect();
    skips.sort_unstable();
    skips.dedup();
    let lacking: Vec<_> = needs.iter().filter(|need| !skips.is_empty() && !present(need.command)).collect();
    let unexpected: Vec<_> = skips
        .iter()
        .filter(|skip| !lacking.iter().any(|need| need.tests.iter().any(|test| names(test, skip))))
        .map(|skip| format!("\n  {skip}"))
        .collect();
    if !unexpected.is_empty() {
        bail!(
            "skipped, although this machine has what {EXPECTED} says is needed, or not listed there:{}",
            unexpected.concat()
        );
    }
    Ok(skips.into_iter().map(str::to_owned).collect())
}

/// Whether an entry of the list is the test of a reported skip, or its file.
fn names(entry: &str, skip: &str) -> bool {
    let Some((file, rest)) = skip.split_once("::") else { return false };
    let test = rest.split_once(": ").map_or(rest, |(test, _)| test);
    entry.split_once("::").map_or(entry == file, |entry| entry == (file, test))
}

/// Whether this machine has what a shell command asks for.
fn present(command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.current_dir(run::root());
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# why\nneeds: false\n  tests/a.rs\n  tests/b.rs::one\n\nneeds: true\n  tests/c.rs\n";

    fn judged(reported: &str) -> Result<Vec<String>> {
        judge(reported, &parse(LIST).unwrap(), present)
    }

    #[test]
    fn expected_skips_are_listed_once() {
        let skips = judged("tests/b.rs::one: no: root\ntests/a.rs::x: why\ntests/a.rs::x: why\n").unwrap();
        assert_eq!(skips, ["tests/a.rs::x: why", "tests/b.rs::one: no: root"]);
        assert!(judged("").unwrap().is_empty());
    }

    #[test]
    fn unexpected_skips_are_an_error() {
        for skip in ["tests/b.rs::two: why", "tests/c.rs::x: why", "tests/d.rs::one: why", "nonsense"] {
            let error = judged(&format!("tests/a.rs::x: why\n{skip}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("\n  {skip}")) && !error.contains("a.rs"), "{error}");
        }
    }

    #[test]
    fn a_malformed_list_is_an_error() {
        assert!(parse("  tests/a.rs\n").unwrap_err().to_string().contains(":1: neither"));
        assert!(parse("needs: true\ntests/a.rs\n").unwrap_err().to_string().contains(":2: neither"));
    }

    #[test]
    fn reported_skips_are_collected() {
        let report = |line: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo \"$0\" >>\"$TAUTLINE_SKIPS\"", line]);
            run_tests(&mut command)
        };
        let error = report("crates/link/src/lib.rs::never: why").unwrap_err().to_string();
        assert!(error.contains("never: why"), "{error}");
        assert!(run_tests(&mut Command::new("true")).unwrap().is_empty(), "the file was removed");
        assert!(run_tests(&mut Command::new("false")).is_err());
    }

    /// Entries of the list exist, so that a renamed test does not leave a rule behind.
    #[test]
    fn listed_tests_exist() {
        let list = std::fs::read_to_string(run::root().join(EXPECTED)).unwrap();
        let needs = parse(&list).unwrap();
        assert!(!needs.is_empty());
        for entry in needs.iter().flat_map(|need| &need.tests) {
            let (file, test) = entry.split_once("::").unwrap_or((entry, ""));
            if matches!(file, "stage" | "feature") {
                assert!(crate::test::has_part(file, test), "{entry}");
                continue;
            }
            let code =
                std::fs::read_to_string(run::root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert!(code.contains("tautline_skips") || code.contains("spaces"), "{file} skips nothing");
            assert!(test.is_empty() || code.contains(&format!("fn {test}(")), "{entry}");
        }
    }

    /// Files below a folder that may have tests of their own; modules that tests share have none.
    fn files_with_tests(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                let is_shared = path.parent().is_some_and(|parent| parent.ends_with("tests"));
                if !is_shared && !path.ends_with("examples") && !path.ends_with("crates/skips") {
                    files_with_tests(&path, found);
                }
            } else if path.extension().is_some_and(|name| name == "rs") {
                found.push(path);
            }
        }
    }

    /// A test that can be skipped is in the list; otherwise the run fails where it is.
    #[test]
    fn files_that_skip_are_listed() {
        let list = std::fs::read_to_string(run::root().join(EXPECTED)).unwrap();
        let needs = parse(&list).unwrap();
        let mut files = Vec::new();
        files_with_tests(&run::root().join("crates"), &mut files);
        let mut skipping = 0;
        for path in files {
            let code = std::fs::read_to_string(&path).unwrap();
            // The last two are helpers that skip in the name of their caller.
            if ["tautline_skips::skip(", "= spaces(", "in_namespaces("].iter().any(|call| code.contains(call))
            {
                let file = path.strip_prefix(run::root()).unwrap().to_str().unwrap();
                let is_entry = |entry: &&str| entry.split_once("::").map_or(*entry, |(file, _)| file) == file;
                assert!(
                    needs.iter().flat_map(|need| &need.tests).any(is_entry),
                    "{file} is not in {EXPECTED}"
                );
                skipping += 1;
            }
        }
        assert!(skipping > 30, "{skipping} files");
    }
}
