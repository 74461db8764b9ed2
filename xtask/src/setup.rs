//! Optional Debian packages: what needs them, and how to install them without a prompt.
//!
//! Tautline builds and runs without them. A test whose program is missing is skipped, with a message.

use anyhow::{Context, Result, bail};

use crate::run;

struct Package {
    name: &'static str,
    /// If it is on the path, or is a file with this path, the package is installed.
    program: &'static str,
    needed_by: &'static str,
}

const PACKAGES: &[Package] = &[
    Package {
        name: "iproute2",
        program: "ip",
        needed_by: "tests and `tautline bench --netns` between network namespaces",
    },
    Package {
        name: "valgrind",
        program: "valgrind",
        needed_by: "`cargo xtask icount`: instructions per frame against the golden file",
    },
    Package {
        name: "tshark",
        program: "tshark",
        needed_by: "the tests that open a capture with Wireshark and dissect its frames",
    },
    Package {
        name: "chromium",
        program: "chromium",
        needed_by: "the test that opens the report of `tautline bench` in a browser",
    },
    Package {
        name: "openssh-server",
        program: "/usr/sbin/sshd",
        needed_by: "the test of `tautline run --hosts` between network namespaces",
    },
    Package {
        name: "openssh-client",
        program: "ssh",
        needed_by: "`tautline run --hosts`, and its test between network namespaces",
    },
    Package {
        name: "mpich",
        program: "mpiexec.hydra",
        needed_by: "the tests of jobs that hydra, the launcher of MPICH, starts",
    },
    Package { name: "gfortran", program: "gfortran", needed_by: "the tests of MPI programs in Fortran" },
    Package { name: "cmake", program: "cmake", needed_by: "the test that CMake finds the installed MPI" },
    Package {
        name: "libmpich-dev",
        program: "mpicc.mpich",
        needed_by: "`cargo xtask suites --only mpich`: builds MPICH's own tests",
    },
    Package {
        name: "slurm-wlm",
        program: "slurmctld",
        needed_by: "the test of jobs that srun starts on nodes in network namespaces",
    },
    Package {
        name: "munge",
        program: "munged",
        needed_by: "the same test: Slurm's daemons authenticate each other with it",
    },
    Package {
        name: "openmpi-bin",
        program: "mpirun.openmpi",
        needed_by: "the test of jobs that Open MPI's mpirun starts; it brings libpmix.so.2",
    },
    Package {
        name: "libpmix-dev",
        program: "/usr/share/doc/libpmix-dev/copyright",
        needed_by: "the test of srun --mpi=pmix: Slurm's plugin loads libpmix.so, which is in this package",
    },
];

/// A mirror that does not answer must not stop a test run.
const INSTALL_LIMIT_S: u32 = 300;

pub fn list() {
    for package in PACKAGES {
        let state = if run::find_program(package.program).is_some() { "installed" } else { "missing" };
        println!("{:<10} {:<10} {}", package.name, state, package.needed_by);
    }
    match install_line(&missing()) {
        None => println!("No package is missing."),
        Some(line) => {
            println!("To install the missing packages, run `cargo xtask setup --yes` as root, or\n  {line}");
        }
    }
}

/// Installs the missing packages. Without root, the error holds the command to run.
pub fn install_all() -> Result<()> {
    let missing = missing();
    let Some(line) = install_line(&missing) else {
        println!("No package is missing.");
        return Ok(());
    };
    if !run::is_root() {
        bail!("installing packages needs root; run\n  {line}");
    }
    apt_get("update").context("could not update the package lists")?;
    apt_get(&format!("install --yes --no-install-recommends {}", missing.join(" ")))?;
    Ok(())
}

/// Installs a package unless its program is there. Without root, the error holds the command to run.
pub fn install_package(name: &'static str, program: &str) -> Result<()> {
    if run::find_program(program).is_some() {
        return Ok(());
    }
    if !run::is_root() {
        bail!("{name} is not installed; run\n  {}", install_line(&[name]).unwrap_or_default());
    }
    apt_get("update").context("could not update the package lists")?;
    apt_get(&format!("install --yes --no-install-recommends {name}"))
}

/// The packages whose program is not on the path.
pub fn missing() -> Vec<&'static str> {
    let absent = PACKAGES.iter().filter(|package| run::find_program(package.program).is_none());
    absent.map(|package| package.name).collect()
}

fn install_line(missing: &[&str]) -> Option<String> {
    (!missing.is_empty()).then(|| {
        format!("sudo apt-get update && sudo apt-get install --no-install-recommends {}", missing.join(" "))
    })
}

fn apt_get(arguments: &str) -> Result<()> {
    let options = "-q -o Acquire::http::Timeout=20 -o Acquire::Retries=2 -o DPkg::Lock::Timeout=60";
    let line = format!("timeout --kill-after=10 {INSTALL_LIMIT_S} apt-get {options} {arguments}");
    // At this run level no package starts a service.
    run::check(run::command(&line).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_every_missing_package_and_nothing_else() {
        let line = install_line(&["valgrind", "tshark"]).unwrap();
        assert!(line.ends_with("--no-install-recommends valgrind tshark"), "{line}");
        assert_eq!(install_line(&[]), None);
    }

    #[test]
    fn every_package_says_who_needs_it() {
        for package in PACKAGES {
            assert!(package.needed_by.len() > 20, "{} has no reason", package.name);
        }
    }
}
