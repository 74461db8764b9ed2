//! Programs and test suites of other projects, run with our MPI: what they need is installed below the target
//! folder, or as Debian packages.

mod abi;
mod binaries;
mod mpi4py;
mod mpich;
mod speed;

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

const SUITES: [(&str, Suite); 9] = [
    ("kernels", binaries::kernels),
    ("netpipe", binaries::netpipe),
    ("imb", binaries::imb),
    ("scalapack", binaries::scalapack),
    ("mpi4py", mpi4py::run),
    ("mpich", mpich::run),
    ("abi", abi::run),
    ("launchers", launchers),
    ("speed", speed::run),
];

/// Those that run only if they are named: they need a quiet machine.
const ON_REQUEST: [&str; 1] = ["speed"];

/// Installs mpi4py and IMB, and runs the tests that start them in other ways than by our `mpiexec`.
fn launchers(place: &Place) -> Result<String> {
    mpi4py::install(&place.folder)?;
    binaries::install_imb(&place.folder)?;
    run::check(&mut run::command("cargo test -q -p tautline-cli --test mpi_launchers"))?;
    Ok("hydra, srun --mpi=pmix, UDP between hosts".into())
}

/// The suites with these names, or all.
fn chosen(names: &[&str]) -> Result<Vec<(&'static str, Suite)>> {
    let all = || SUITES.map(|(name, _)| name).join(", ");
    for name in names {
        if !SUITES.iter().any(|(known, _)| known == name) {
            bail!("there is no suite `{name}`; there are {}", all());
        }
    }
    let by_default = |name: &str| names.is_empty() && !ON_REQUEST.contains(&name);
    let wanted = |name: &str| by_default(name) || names.contains(&name);
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

/// Tells what is being done; a line for each step of a suite.
fn progress(text: &str) {
    println!("  {text}");
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
        assert_eq!(names(&[]).unwrap().len(), SUITES.len() - ON_REQUEST.len());
        assert_eq!(names(&["mpi4py", "netpipe"]).unwrap(), ["netpipe", "mpi4py"]);
        assert!(names(&["netpip"]).unwrap_err().to_string().contains("there are kernels, netpipe"));
    }
}
