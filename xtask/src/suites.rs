//! Programs and test suites of other projects, run with our MPI: what they need is installed below the target
//! folder, or as Debian packages.

mod abi;
mod binaries;
mod mpi4py;
mod mpich;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::run;

/// Where MPI is installed, and where suites put what they need.
struct Place {
    root: PathBuf,
    folder: PathBuf,
    prefix: PathBuf,
}

/// Runs a suite and tells in a few words what it did.
type Suite = fn(&Place) -> Result<String>;

const SUITES: [(&str, Suite); 7] = [
    ("kernels", binaries::kernels),
    ("netpipe", binaries::netpipe),
    ("imb", binaries::imb),
    ("scalapack", binaries::scalapack),
    ("mpi4py", mpi4py::run),
    ("mpich", mpich::run),
    ("abi", abi::run),
];

/// The suites with these names, or all.
fn chosen(names: &[&str]) -> Result<Vec<(&'static str, Suite)>> {
    let all = || SUITES.map(|(name, _)| name).join(", ");
    for name in names {
        if !SUITES.iter().any(|(known, _)| known == name) {
            bail!("there is no suite `{name}`; there are {}", all());
        }
    }
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    Ok(SUITES.into_iter().filter(|(name, _)| wanted(name)).collect())
}

/// Builds and installs MPI, runs all suites or those that are named, and prints a table. A suite that fails
/// does not stop the others.
pub fn run(names: &[&str]) -> Result<()> {
    let suites = chosen(names)?;
    let place = install()?;
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for (name, suite) in suites {
        println!("suite {name}");
        let begin = Instant::now();
        let (word, text) = match suite(&place) {
            Ok(text) => ("passed", text),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                failed.push(name);
                ("FAILED", format!("{error:#}").lines().next().unwrap_or_default().to_owned())
            }
        };
        lines.push(format!("{name:<10} {word:<7} {:>6} s  {text}", begin.elapsed().as_secs()));
    }
    println!("\n{}", lines.join("\n"));
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn install() -> Result<Place> {
    let root = run::root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let packages = ["-p", "tautline-mpi-abi", "-p", "tautline-mpi-mpich", "-p", "tautline-cli"];
    call(Command::new("cargo").args(["build", "--release"]).args(packages).current_dir(&root))?;
    let folder = target.join("suites");
    let prefix = folder.join("mpi");
    let mut install = Command::new(target.join("release/tautline"));
    call(install.args(["mpi", "install", "--prefix"]).arg(&prefix))?;
    Ok(Place { root, folder, prefix })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_chosen_by_name() {
        let names = |names: &[&str]| -> Result<Vec<&str>> {
            Ok(chosen(names)?.into_iter().map(|(name, _)| name).collect())
        };
        assert_eq!(names(&[]).unwrap().len(), SUITES.len());
        assert_eq!(names(&["mpi4py", "netpipe"]).unwrap(), ["netpipe", "mpi4py"]);
        assert!(names(&["netpip"]).unwrap_err().to_string().contains("there are kernels, netpipe"));
    }
}
