//! MPI: what is installed, the compilers with what they need for it, and `mpiexec`.
//!
//! What lives here: the commands `mpi`, `mpicc`, `mpicxx`, `mpifort` and `mpiexec`. What does not: MPI
//! itself, which is in two shared libraries, and starting processes, which is `run`'s.

mod compiler;
mod install;
mod mpiexec;
mod options;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

pub use compiler::{Language, compile};
pub use install::install_quietly;
pub use mpiexec::mpiexec;

const EXAMPLES: &str = "\
Examples:
  tautline mpi install
  eval \"$(tautline mpi env)\"
  mpicc -O2 -o solver solver.c && mpiexec -n 4 ./solver
        Installs header, libraries, and compilers for build systems, and builds and runs a program with them.
  mpiexec -n 2 ./program-built-for-mpich
        Programs built for the ABI of MPICH need not be built again: mpiexec has them load this library.
  tautline mpi remove
        Removes what was installed, and nothing else.";

/// The arguments of `tautline mpi`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MpiArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Install header, libraries and compilers
    Install(Place),
    /// Remove them
    Remove(Place),
    /// Print what to set in a shell, so that they are found
    Env(Place),
}

#[derive(Debug, Args)]
struct Place {
    /// The folder; by default $TAUTLINE_MPI, or tautline/mpi in the folder of this user's data
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// The arguments of a command that parses them itself.
#[derive(Debug, Args)]
pub struct RawArgs {
    /// The arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Does what the command line says.
pub fn mpi(args: MpiArgs) -> Result<ExitCode> {
    match args.action {
        Action::Install(place) => install::install(&prefix(place.prefix)?)?,
        Action::Remove(place) => install::remove(&prefix(place.prefix)?)?,
        Action::Env(place) => install::print_env(&prefix(place.prefix)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of the variable that has the folder.
const PREFIX: &str = "TAUTLINE_MPI";

/// The folder of this user's data of tautline.
fn data_folder() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").filter(|text| !text.is_empty()).map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share"));
    data.or_else(home).map(|folder| folder.join("tautline"))
}

/// The folder that MPI is installed in.
fn prefix(given: Option<PathBuf>) -> Result<PathBuf> {
    let named = given.or_else(|| std::env::var_os(PREFIX).filter(|text| !text.is_empty()).map(PathBuf::from));
    let found = named
        .or_else(|| Some(data_folder()?.join("mpi")))
        .context("there is no HOME\nname a folder: --prefix DIR")?;
    Ok(std::path::absolute(found)?)
}

/// The folder, with MPI in it.
fn installed() -> Result<PathBuf> {
    let folder = prefix(None)?;
    let header = folder.join("include/mpi.h");
    if header.is_file() {
        return Ok(folder);
    }
    anyhow::bail!("there is no {}\ninstall MPI first: tautline mpi install", header.display())
}
