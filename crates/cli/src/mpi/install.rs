//! Header, libraries and commands in one folder.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::PREFIX;

/// The libraries: as cargo names them, as programs name them, and other names.
const LIBRARIES: [(&str, &str, &[&str]); 2] = [
    ("libmpi_abi.so", "libmpi_abi.so.1", &["libmpi_abi.so"]),
    ("libmpi.so", "libmpi.so.12", &["libmpi.so", "libmpich.so.12"]),
];

/// The commands, and what each runs.
const COMMANDS: [(&str, &str); 6] = [
    ("mpicc", "mpicc"),
    ("mpicxx", "mpicxx"),
    ("mpic++", "mpicxx"),
    ("mpiCC", "mpicxx"),
    ("mpiexec", "mpiexec"),
    ("mpirun", "mpiexec"),
];

const FOLDERS: [&str; 3] = ["bin", "include", "lib"];

/// All files, by their path in the folder.
fn files() -> Vec<PathBuf> {
    let commands = COMMANDS.iter().map(|(name, _)| Path::new("bin").join(name));
    let libraries = LIBRARIES.iter().flat_map(|(_, name, links)| {
        std::iter::once(name).chain(links.iter()).map(|name| Path::new("lib").join(name))
    });
    commands.chain(libraries).chain([PathBuf::from("include/mpi.h")]).collect()
}

/// Installs everything, or replaces what is there.
pub fn install(folder: &Path) -> Result<()> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let sources = LIBRARIES.iter().map(|(file, name, _)| find(&program, file, name));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    for part in FOLDERS {
        let part = folder.join(part);
        fs::create_dir_all(&part).with_context(|| {
            format!(
                "cannot make the directory {}\ngive another one by --prefix; the reason was",
                part.display()
            )
        })?;
    }
    put(&folder.join("include/mpi.h"), |path| fs::write(path, tautline_mpi::HEADER))?;
    for ((_, name, links), source) in LIBRARIES.iter().zip(sources) {
        put(&folder.join("lib").join(name), |path| fs::copy(&source, path).map(drop))?;
        for link in *links {
            put(&folder.join("lib").join(link), |path| symlink(name, path))?;
        }
    }
    for (name, command) in COMMANDS {
        let text =
            format!("#!/bin/sh\n{PREFIX}={} exec {} {command} \"$@\"\n", quoted(folder), quoted(&program));
        put(&folder.join("bin").join(name), |path| {
            fs::write(path, &text)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        })?;
    }
    println!("installed in {}", folder.display());
    Ok(())
}

/// Makes a file beside its place and moves it there, so that programs that run keep the old one.
fn put(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let made = make(&beside).and_then(|()| fs::rename(&beside, path));
    if made.is_err() {
        let _ = fs::remove_file(&beside);
    }
    made.with_context(|| format!("cannot write {}", path.display()))
}

/// The library beside this program: in the folder of a build, or installed in `lib`.
fn find(program: &Path, file: &str, name: &str) -> Result<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("."));
    // A build of tests makes those in `deps` only, so these are the newer ones.
    let places =
        [folder.join("../lib/tautline"), folder.join("../lib"), folder.join("deps"), folder.to_owned()];
    let found =
        places.iter().flat_map(|place| [place.join(name), place.join(file)]).find(|path| path.is_file());
    let package = if file == "libmpi.so" { "tautline-mpi-mpich" } else { "tautline-mpi-abi" };
    match found {
        Some(found) => Ok(found),
        None => bail!(
            "there is no {file} beside {}\nbuild it into the same folder: cargo build --release -p {package}",
            program.display()
        ),
    }
}

/// Removes what [`install`] made, and folders that are empty then.
pub fn remove(folder: &Path) -> Result<()> {
    let mut removed = 0;
    for file in files() {
        match fs::remove_file(folder.join(&file)) {
            Ok(()) => removed += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot remove {}", folder.join(file).display()));
            }
        }
    }
    for part in FOLDERS {
        let _ = fs::remove_dir(folder.join(part));
    }
    let _ = fs::remove_dir(folder);
    println!("removed {removed} files from {}", folder.display());
    Ok(())
}

/// Prints commands of a shell that make programs find MPI.
pub fn print_env(folder: &Path) -> Result<()> {
    if !folder.join("include/mpi.h").is_file() {
        bail!("MPI is not installed in {}\ninstall it first: tautline mpi install", folder.display());
    }
    println!("export {PREFIX}={}", quoted(folder));
    println!("export PATH={}:\"$PATH\"", quoted(&folder.join("bin")));
    let lib = quoted(&folder.join("lib"));
    println!("export LD_LIBRARY_PATH={lib}\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"");
    Ok(())
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}
