//! Test suites of other projects, run with our MPI: what they need is installed below the target folder.

mod abi;
mod mpi4py;
mod mpich;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// What every suite needs.
struct Place {
    root: PathBuf,
    /// Where suites are installed and built.
    folder: PathBuf,
    /// Where our MPI is installed.
    prefix: PathBuf,
}

type Suite = fn(&Place) -> Result<()>;

const SUITES: [(&str, Suite); 3] = [("mpi4py", mpi4py::run), ("mpich", mpich::run), ("abi", abi::run)];

/// Builds and installs MPI, and runs all suites or one.
pub fn run(args: &[&str]) -> Result<()> {
    let only = match args {
        [] => None,
        ["--only", name] if SUITES.iter().any(|(suite, _)| suite == name) => Some(*name),
        _ => {
            let names = SUITES.map(|(name, _)| name).join(", ");
            bail!("`cargo xtask suites` takes no argument but `--only` and one of {names}");
        }
    };
    let root = run::root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let packages = ["-p", "tautline-mpi-abi", "-p", "tautline-mpi-mpich", "-p", "tautline-cli"];
    call(Command::new("cargo").args(["build", "--release"]).args(packages).current_dir(&root))?;
    let folder = target.join("suites");
    let place = Place { root, prefix: folder.join("mpi"), folder };
    let mut install = Command::new(target.join("release/tautline"));
    call(install.args(["mpi", "install", "--prefix"]).arg(&place.prefix))?;
    for (name, suite) in SUITES {
        if only.is_none_or(|only| only == name) {
            suite(&place).with_context(|| format!("the suite {name}"))?;
        }
    }
    Ok(())
}

fn pip() -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "-q"]);
    pip
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn call(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if status.success() { Ok(()) } else { bail!("{command:?} failed: {status}") }
}
