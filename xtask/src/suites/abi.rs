//! One program with the standard ABI, run with our library and with that of MPICH: the output is the same.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Place, call, pip};

/// The published package with `libmpi_abi.so.1`.
const MPICH: &str = "mpich==5.0.2";
const PROGRAM: &str = "crates/mpi/abi/tests/same_output.c";

/// Installs MPICH, builds the program with our compiler, runs it with both libraries and compares.
pub fn run(place: &Place) -> Result<()> {
    let theirs = place.folder.join("mpich-abi");
    if !theirs.join("bin/mpiexec").is_file() {
        call(pip().args(["install", "--no-deps", "--ignore-installed", "--prefix"]).arg(&theirs).arg(MPICH))?;
    }
    let program = place.folder.join("same_output");
    let mut compile = Command::new(place.prefix.join("bin/mpicc"));
    call(compile.arg("-O1").arg(place.root.join(PROGRAM)).arg("-o").arg(&program))?;
    for ranks in ["1", "2", "3", "4"] {
        let output = |prefix: &std::path::Path| -> Result<String> {
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
    Ok(())
}
