//! One program with the standard ABI, run with our library and with that of MPICH: the output is the same.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Place, call, pip};

/// The published package with `libmpi_abi.so.1`.
const MPICH: &str = "mpich==5.0.2";
/// Where the package has its files.
const DATA: &str = "mpich-5.0.2.data/data";
const PROGRAM: &str = "crates/mpi/abi/tests/same_output.c";

/// Unpacks the published package, and returns its folder.
fn install(folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join("mpich-abi");
    let data = unpacked.join(DATA);
    if data.join("bin/mpiexec").is_file() {
        return Ok(data);
    }
    call(pip().args(["download", "--no-deps", "-d"]).arg(folder).arg(MPICH))?;
    let wheel = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("mpich-") && path.extension().is_some_and(|extension| extension == "whl")
    });
    let wheel = wheel.context("pip has fetched no package of mpich")?;
    call(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    // The module that unpacks does not set permissions.
    for entry in std::fs::read_dir(data.join("bin"))? {
        std::fs::set_permissions(entry?.path(), std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(data)
}

/// Installs MPICH, builds the program with our compiler, runs it with both libraries and compares.
pub fn run(place: &Place) -> Result<String> {
    let theirs = install(&place.folder)?;
    let program = place.folder.join("same_output");
    let mut compile = Command::new(place.prefix.join("bin/mpicc"));
    call(compile.arg("-O1").arg(place.root.join(PROGRAM)).arg("-o").arg(&program))?;
    for ranks in ["1", "2", "3", "4"] {
        let output = |prefix: &Path| -> Result<String> {
            let mut command = Command::new(prefix.join("bin/mpiexec"));
            command.args(["-n", ranks]).arg(&program).env("LD_LIBRARY_PATH", prefix.join("lib"));
            let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
            if !output.status.success() {
                bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(String::from_utf8(output.stdout)?)
        };
        let (ours, theirs) = (output(&place.prefix)?, output(&theirs)?);
        if ours != theirs {
            let first = ours.lines().zip(theirs.lines()).find(|(one, other)| one != other);
            bail!("with {ranks} ranks the libraries differ, first here: {first:?}");
        }
        println!("abi: {ranks} ranks: {} lines, the same with both libraries", ours.lines().count());
    }
    Ok("1 to 4 ranks, the same output with both libraries".into())
}
