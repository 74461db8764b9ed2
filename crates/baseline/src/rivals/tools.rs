//! Where the rivals' programs and libraries are, and what they report of themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::child::run;

/// The time for a tool to print its version.
const ASK_TIME: Duration = Duration::from_secs(5);
/// The time to read a header, on a busy machine.
const COMPILE_TIME: Duration = Duration::from_secs(60);

/// The first line of a tool's output that contains a word.
pub(super) fn line_with(tool: &Path, argument: &str, word: &str) -> Option<String> {
    let mut command = Command::new(tool);
    if !argument.is_empty() {
        command.arg(argument);
    }
    let text = run(&mut command, ASK_TIME).ok()?;
    let line = text.lines().find(|line| line.contains(word))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

pub(super) fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The two programs that an MPI needs: a launcher and a compiler.
#[derive(Clone, Debug)]
pub(super) struct Mpi {
    pub(super) mpirun: PathBuf,
    pub(super) mpicc: PathBuf,
}

/// Several MPIs may be installed side by side, so each tool is asked for its name.
pub(super) fn open_mpi() -> Option<Mpi> {
    Some(Mpi {
        mpirun: first(&["mpirun.openmpi", "mpirun"], "--version", "Open MPI")?,
        mpicc: first(&["mpicc.openmpi", "mpicc"], "--showme:version", "Open MPI").filter(has_header)?,
    })
}

/// MPICH's launcher is Hydra, and its compiler says whose it is.
pub(super) fn mpich() -> Option<Mpi> {
    Some(Mpi {
        mpirun: first(&["mpirun.mpich", "mpiexec.hydra", "mpirun"], "--version", "HYDRA")?,
        mpicc: first(&["mpicc.mpich", "mpicc"], "-v", "MPICH").filter(has_header)?,
    })
}

static TAUTLINE_MPI: OnceLock<PathBuf> = OnceLock::new();

/// Says in which folder our own MPI is installed, once.
pub fn set_tautline_mpi(prefix: PathBuf) {
    let _ = TAUTLINE_MPI.set(prefix);
}

/// The folder with our own libraries.
pub(super) fn tautline_libraries() -> Option<PathBuf> {
    Some(TAUTLINE_MPI.get()?.join("lib"))
}

pub(super) fn tautline_mpi() -> Option<Mpi> {
    let commands = TAUTLINE_MPI.get()?.join("bin");
    let mpi = Mpi { mpirun: commands.join("mpiexec"), mpicc: commands.join("mpicc") };
    Some(mpi).filter(|mpi| has_header(&mpi.mpicc))
}

/// Whether an MPI's compiler finds its header, which is in a package of its own.
fn has_header(mpicc: &PathBuf) -> bool {
    let mut command = Command::new(mpicc);
    command.args(["-fsyntax-only", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    run(&mut command, COMPILE_TIME).is_ok()
}

/// The C compiler, if it would find UCX's headers.
pub(super) fn ucx() -> Option<PathBuf> {
    let folders = ["/usr/include", "/usr/local/include"];
    let has_headers = folders.iter().any(|folder| Path::new(folder).join("ucp/api/ucp.h").is_file());
    has_headers.then(compiler)?
}

/// A C compiler.
pub(super) fn compiler() -> Option<PathBuf> {
    ["cc", "gcc", "clang"].iter().find_map(|name| find_tool(name))
}

fn first(names: &[&str], argument: &str, word: &str) -> Option<PathBuf> {
    let found = names.iter().filter_map(|name| find_tool(name));
    found.into_iter().find(|tool| line_with(tool, argument, word).is_some())
}

/// The file name of a library, with the longest version.
pub(super) fn find_library(name: &str) -> Option<String> {
    let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [arch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|found| found.starts_with(name)).max_by_key(String::len)
}
