//! Header, libraries and commands in one folder.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use super::{Language, PREFIX};

/// The libraries: as cargo names them, as programs name them, and other names.
const LIBRARIES: [(&str, &str, &[&str]); 2] = [
    ("libmpi_abi.so", "libmpi_abi.so.1", &["libmpi_abi.so"]),
    ("libmpi.so", "libmpi.so.12", &["libmpi.so", "libmpich.so.12"]),
];

/// The commands, and what each runs.
const COMMANDS: [(&str, &str); 9] = [
    ("mpicc", "mpicc"),
    ("mpicxx", "mpicxx"),
    ("mpic++", "mpicxx"),
    ("mpiCC", "mpicxx"),
    ("mpifort", "mpifort"),
    ("mpif77", "mpifort"),
    ("mpif90", "mpifort"),
    ("mpiexec", "mpiexec"),
    ("mpirun", "mpiexec"),
];

/// The headers with their texts.
const HEADERS: [(&str, &str); 3] = [
    ("mpi.h", tautline_mpi::HEADER),
    ("mpif.h", tautline_mpi::FORTRAN_HEADER),
    ("mpi.f90", tautline_mpi::FORTRAN_MODULE),
];

/// The module for Fortran, which its compiler makes.
const MODULE: &str = "mpi.mod";

const FOLDERS: [&str; 3] = ["bin", "include", "lib"];

/// All files, by their path in the folder.
fn files() -> Vec<PathBuf> {
    let commands = COMMANDS.iter().map(|(name, _)| Path::new("bin").join(name));
    let libraries = LIBRARIES.iter().flat_map(|(_, name, links)| {
        std::iter::once(name).chain(links.iter()).map(|name| Path::new("lib").join(name))
    });
    let headers = HEADERS.iter().map(|(name, _)| *name).chain([MODULE]);
    commands.chain(libraries).chain(headers.map(|name| Path::new("include").join(name))).collect()
}

/// Installs everything, or replaces what is there, and says so.
pub fn install(folder: &Path) -> Result<()> {
    let module = install_quietly(folder)?;
    println!("installed in {}", folder.display());
    if let Err(why) = module {
        println!("without the Fortran module mpi, since {why}; programs may still include mpif.h");
    }
    Ok(())
}

/// As [`install`], without a word; why there is no module for Fortran, if there is none.
pub fn install_quietly(folder: &Path) -> Result<std::result::Result<(), String>> {
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
    for (name, text) in HEADERS {
        put(&folder.join("include").join(name), |path| fs::write(path, text))?;
    }
    let module = make_module(&folder.join("include"));
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
    Ok(module)
}

/// Has the compiler of Fortran make the module `mpi`, whose file only that compiler can read.
fn make_module(include: &Path) -> std::result::Result<(), String> {
    let compiler = Language::Fortran.compiler();
    let name = compiler.shown();
    // gfortran writes modules even if it makes no program.
    let mut command = compiler.command();
    command.arg("-fsyntax-only").arg("-J").arg(include).arg("-I").arg(include).arg(include.join("mpi.f90"));
    match command.stdout(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name} failed: {}", text.lines().last().unwrap_or_default()))
        }
        Err(error) => Err(format!("{name} cannot be run ({error})")),
    }
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
    // This user's folder of tautline's data was made for it. It stays if anything else is there.
    if super::data_folder().is_some_and(|data| folder == data.join("mpi")) {
        let _ = folder.parent().map(fs::remove_dir);
    }
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
