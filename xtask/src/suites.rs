//! Test suites of other projects, run with our MPI: what they need is installed below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// The published package whose ABI is that of MPICH, and whose tests are in its source.
const MPI4PY: &str = "mpi4py==4.1.2";
const MPI4PY_SOURCE: &str = "mpi4py-4.1.2";

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

/// Builds and installs MPI, and runs the suites with 1 to 4 ranks.
pub fn run() -> Result<()> {
    let root = run::root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let packages = ["-p", "tautline-mpi-abi", "-p", "tautline-mpi-mpich", "-p", "tautline-cli"];
    call(Command::new("cargo").args(["build", "--release"]).args(packages).current_dir(&root))?;
    let folder = target.join("suites");
    let prefix = folder.join("mpi");
    let mut install = Command::new(target.join("release/tautline"));
    call(install.args(["mpi", "install", "--prefix"]).arg(&prefix))?;
    mpi4py(&root, &folder, &prefix)
}

fn mpi4py(root: &Path, folder: &Path, prefix: &Path) -> Result<()> {
    let (python, list) = (folder.join("python"), root.join("crates/mpi/suites/mpi4py.txt"));
    let left_out = Exclusions::parse(&std::fs::read_to_string(list)?)?;
    let pip = || {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "-q"]);
        pip
    };
    if !python.join("mpi4py").is_dir() {
        call(pip().args(["install", "--no-deps", "--target"]).arg(&python).arg(MPI4PY))?;
    }
    let source = folder.join(MPI4PY_SOURCE);
    if !source.is_dir() {
        let options = ["download", "--no-deps", "--no-binary", ":all:", "-d"];
        call(pip().args(options).arg(folder).arg(MPI4PY))?;
        let archive = folder.join(format!("{MPI4PY_SOURCE}.tar.gz"));
        call(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(folder))?;
    }
    for ranks in ["1", "2", "3", "4"] {
        println!("mpi4py: {ranks} ranks");
        let mut command = Command::new(prefix.join("bin/mpiexec"));
        command.args(["-timeout", "600", "-n", ranks, "python3", "test/main.py", "-q"]);
        command.args(left_out.modules.iter().flat_map(|module| ["-e", module]));
        command.args(left_out.tests.iter().flat_map(|test| ["-x", test]));
        if ranks != "1" {
            // The others need one rank only.
            command.args(["-i", "comm|p2p|cco"]);
        }
        call(command.current_dir(&source).env("PYTHONPATH", &python))?;
    }
    Ok(())
}

fn call(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if status.success() { Ok(()) } else { bail!("{command:?} failed: {status}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_has_a_reason() {
        let list = run::root().join("crates/mpi/suites/mpi4py.txt");
        let left_out = Exclusions::parse(&std::fs::read_to_string(list).unwrap()).unwrap();
        // It may only shrink.
        assert!(left_out.modules.len() <= 6 && left_out.tests.len() <= 13, "{left_out:?}");
        assert!(Exclusions::parse("test a").is_err() && Exclusions::parse("tests a # b").is_err());
    }
}
