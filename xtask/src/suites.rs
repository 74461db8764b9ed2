//! Programs and test suites of other projects, run with our MPI: what they need is installed below the target
//! folder, or as Debian packages.

mod binaries;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

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

/// Where MPI is installed, and where suites put what they need.
struct Place {
    root: PathBuf,
    folder: PathBuf,
    prefix: PathBuf,
}

/// Runs a suite and tells in a few words what it did.
type Suite = fn(&Place) -> Result<String>;

const SUITES: [(&str, Suite); 5] = [
    ("kernels", binaries::kernels),
    ("netpipe", binaries::netpipe),
    ("imb", binaries::imb),
    ("scalapack", binaries::scalapack),
    ("mpi4py", mpi4py),
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

fn mpi4py(place: &Place) -> Result<String> {
    let Place { root, folder, prefix } = place;
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
    let (modules, tests) = (left_out.modules.len(), left_out.tests.len());
    Ok(format!("1 to 4 ranks, without {modules} modules and {tests} tests"))
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

    #[test]
    fn every_line_of_the_list_has_a_reason() {
        let list = run::root().join("crates/mpi/suites/mpi4py.txt");
        let left_out = Exclusions::parse(&std::fs::read_to_string(list).unwrap()).unwrap();
        // It may only shrink.
        assert!(left_out.modules.len() <= 6 && left_out.tests.len() <= 13, "{left_out:?}");
        assert!(Exclusions::parse("test a").is_err() && Exclusions::parse("tests a # b").is_err());
    }
}
