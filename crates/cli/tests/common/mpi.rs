//! MPI as it is installed, and programs that are built with its compilers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::tautline;

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The folder that MPI is installed in, once for all tests of this process. It is in the folder of builds,
/// and stays there.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let _ = fs::remove_dir_all(&prefix);
        let output = tautline().args(["mpi", "install", "--prefix"]).arg(&prefix).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        prefix
    })
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles sources of the repository with one of the installed compilers.
pub fn compile(compiler: &str, sources: &[&str], options: &[&str]) -> PathBuf {
    let name = Path::new(sources[0]).file_name().unwrap().to_string_lossy().replace('.', "_");
    let program = prefix().join(name);
    let mut command = Command::new(prefix().join("bin").join(compiler));
    command.args(sources.iter().map(|source| root().join(source)));
    // Modules of a program go where nobody else writes.
    if compiler == "mpifort" {
        let modules = program.with_extension("modules");
        fs::create_dir_all(&modules).unwrap();
        command.arg("-J").arg(modules);
    }
    let output = command.args(options).arg("-o").arg(&program).arg("-lm").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    program
}

/// Programs of others, where `cargo xtask suites` has put them; the reason if they are not there.
pub fn others() -> Result<Others, &'static str> {
    let folder = Path::new(env!("CARGO_BIN_EXE_tautline")).ancestors().nth(2).unwrap().join("suites");
    let (python, imb) = (folder.join("python"), folder.join("imb"));
    if !python.join("mpi4py").is_dir() {
        return Err("mpi4py is not there; `cargo xtask suites --only launchers` installs it");
    }
    let imb = find_below(&imb, "IMB-MPI1");
    let imb = imb.ok_or("IMB-MPI1 is not there; `cargo xtask suites --only launchers` installs it")?;
    Ok(Others { python, imb })
}

/// Programs that others have compiled for the ABI of MPICH.
pub struct Others {
    /// The folder with mpi4py.
    pub python: PathBuf,
    /// IMB-MPI1 of Intel.
    pub imb: PathBuf,
}

/// A file with this name, in a folder or below it.
fn find_below(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.is_file() && path.file_name().is_some_and(|at| at == name));
    let below = || entries.iter().filter(|path| path.is_dir()).find_map(|path| find_below(path, name));
    here.cloned().or_else(below)
}
