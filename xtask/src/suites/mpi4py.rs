//! The tests of mpi4py, from its source, with the published package, whose ABI is that of MPICH.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Place, call, pip, progress, read};

const MPI4PY: &str = "mpi4py==4.1.2";
const MPI4PY_SOURCE: &str = "mpi4py-4.1.2";
const LIST: &str = "crates/mpi/suites/mpi4py.txt";
const DRIVER: &str = "crates/mpi/suites/run_mpi4py.py";

/// What the file of a suite leaves out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Exclusions {
    modules: Vec<String>,
    tests: Vec<String>,
}

impl Exclusions {
    fn parse(text: &str) -> Result<Exclusions> {
        let mut all = Exclusions::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (what, reason) = line.split_once(" # ").unwrap_or((line, ""));
            if reason.trim().is_empty() {
                bail!("`{line}` has no reason");
            }
            match what.split_once(' ') {
                Some(("module", name)) => all.modules.push(name.trim().to_owned()),
                Some(("test", name)) => all.tests.push(name.trim().to_owned()),
                _ => bail!("`{line}` begins neither with `module` nor with `test`"),
            }
        }
        Ok(all)
    }
}

/// Installs the package and returns the folder for `PYTHONPATH`.
pub fn install(folder: &Path) -> Result<PathBuf> {
    let python = folder.join("python");
    if !python.join("mpi4py").is_dir() {
        call(pip().args(["install", "--no-deps", "--target"]).arg(&python).arg(MPI4PY))?;
    }
    Ok(python)
}

/// Installs the package and runs its tests with 1 to 4 ranks.
pub fn run(place: &Place) -> Result<String> {
    let Place { root, folder, prefix } = place;
    let left_out = Exclusions::parse(&read(&root.join(LIST))?)?;
    let python = install(folder)?;
    let source = folder.join(MPI4PY_SOURCE);
    if !source.is_dir() {
        let options = ["download", "--no-deps", "--no-binary", ":all:", "-d"];
        call(pip().args(options).arg(folder).arg(MPI4PY))?;
        let archive = folder.join(format!("{MPI4PY_SOURCE}.tar.gz"));
        call(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(folder))?;
    }
    let (mut counts, mut failed) = (Vec::new(), Vec::new());
    for ranks in ["1", "2", "3", "4"] {
        progress(&format!("{ranks} ranks"));
        let mut command = Command::new(prefix.join("bin/mpiexec"));
        command.args(["-timeout", "600", "-n", ranks, "python3"]).arg(root.join(DRIVER)).arg("-q");
        command.args(left_out.modules.iter().flat_map(|module| ["-e", module]));
        command.args(left_out.tests.iter().flat_map(|test| ["-x", test]));
        if ranks != "1" {
            // The others need one rank only.
            command.args(["-i", "comm|p2p|cco"]);
        }
        command.current_dir(&source).env("PYTHONPATH", &python);
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        match cases(&text).filter(|_| output.status.success()) {
            Some(count) => counts.push(count.to_string()),
            None => {
                println!("{text}");
                failed.push(ranks);
            }
        }
    }
    if !failed.is_empty() {
        bail!("its tests fail with {} ranks; what they say is above", failed.join(", "));
    }
    let (modules, tests) = (left_out.modules.len(), left_out.tests.len());
    let counts = counts.join(", ");
    Ok(format!("{counts} cases with 1 to 4 ranks, without {modules} modules and {tests} tests"))
}

/// How many cases were run, as Python's unittest tells at the end.
fn cases(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.split_once("Ran ")?.1.split_once(" tests in "))?;
    line.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_counted() {
        assert_eq!(cases("[0@host] OK\nRan 853 tests in 9.1s\n\nOK (skipped=3)\n"), Some(853));
        assert_eq!(cases("Traceback\n"), None);
    }

    #[test]
    fn every_line_of_the_list_has_a_reason() {
        let left_out = Exclusions::parse(&read(&crate::run::root().join(LIST)).unwrap()).unwrap();
        // It may only shrink.
        assert!(left_out.modules.len() <= 4 && left_out.tests.len() <= 5, "{left_out:?}");
        assert!(Exclusions::parse("test a").is_err() && Exclusions::parse("tests a # b").is_err());
    }
}
