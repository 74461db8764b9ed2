//! Compilers that find the headers and the library: `mpicc`, `mpicxx`, `mpifort`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// What is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C,
    Cxx,
    Fortran,
}

impl Language {
    /// The variable that names the compiler, and the usual one.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Language::C => ("TAUTLINE_MPI_CC", "cc"),
            Language::Cxx => ("TAUTLINE_MPI_CXX", "c++"),
            Language::Fortran => ("TAUTLINE_MPI_FC", "gfortran"),
        }
    }

    /// The compiler: what a variable names, or the usual one.
    pub fn compiler(self) -> OsString {
        let (variable, usual) = self.names();
        std::env::var_os(variable).filter(|name| !name.is_empty()).unwrap_or_else(|| usual.into())
    }

    /// What the compiler needs beyond the folder of the headers.
    fn options(self) -> Vec<OsString> {
        if self != Language::Fortran || !takes_mismatches(&self.compiler()) {
            return Vec::new();
        }
        vec!["-fallow-argument-mismatch".into()]
    }
}

/// Whether a compiler is a gfortran that refuses two calls of one function with buffers of different types
/// unless it is told otherwise, as programs with `mpif.h` have them.
fn takes_mismatches(compiler: &OsStr) -> bool {
    let name = Path::new(compiler).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !name.contains("gfortran") {
        return false;
    }
    let output = Command::new(compiler).arg("-dumpversion").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let major = version.ok().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 10)
}

/// Options that end before the linker.
const NO_LINKING: [&str; 6] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"];

/// Compiles, links, or shows how. The options that show it are those of MPICH (`-show`, `-compile_info`,
/// `-link_info`) and of Open MPI (`-showme`, `-showme:compile` and the like), which build systems try.
pub fn compile(language: Language, args: Vec<OsString>) -> Result<ExitCode> {
    let folder = super::installed()?;
    let mut include = OsString::from("-I");
    include.push(folder.join("include"));
    let compiling: Vec<OsString> = std::iter::once(include).chain(language.options()).collect();
    let lib = folder.join("lib");
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(&lib);
    let mut search = OsString::from("-L");
    search.push(&lib);
    let linking = [search, rpath, OsString::from("-lmpi_abi")];

    let is = |names: &[&str]| args.iter().any(|arg| names.iter().any(|name| arg == name));
    let shows = is(&["-show", "-showme", "--showme"]);
    let named = |what: &str| is(&[&format!("-showme:{what}"), &format!("--showme:{what}")]);
    let shown: Option<Vec<OsString>> = if named("compile") {
        Some(compiling.clone())
    } else if named("incdirs") {
        Some(vec![folder.join("include").into()])
    } else if named("libdirs") {
        Some(vec![lib.into()])
    } else if named("libs") {
        Some(vec!["mpi_abi".into()])
    } else if named("command") {
        Some(vec![language.compiler()])
    } else if named("link") {
        Some(linking.to_vec())
    } else if is(&["-compile_info"]) {
        Some(std::iter::once(language.compiler()).chain(compiling.clone()).collect())
    } else if is(&["-link_info"]) {
        Some(std::iter::once(language.compiler()).chain(linking.clone()).collect())
    } else {
        None
    };
    if let Some(words) = shown {
        return print(&words);
    }
    let args: Vec<OsString> = args
        .into_iter()
        .filter(|arg| !["-show", "-showme", "--showme"].iter().any(|name| arg == name))
        .collect();
    let links = !args.iter().any(|arg| NO_LINKING.iter().any(|option| arg == option));
    // A compiler that is only asked about itself does not link.
    let asks = args.iter().all(|arg| {
        let text = arg.as_encoded_bytes();
        text.starts_with(b"-v") || text.starts_with(b"-dump") || text == b"-V" || text == b"--version"
    });
    let mut words: Vec<OsString> = compiling.into_iter().chain(args.iter().cloned()).collect();
    if links && (shows || !asks) {
        words.extend(linking);
    }
    let compiler = language.compiler();
    if shows {
        return print(&std::iter::once(compiler).chain(words).collect::<Vec<_>>());
    }
    let error = Command::new(&compiler).args(words).exec();
    Err(error).with_context(|| {
        let name = compiler.to_string_lossy().into_owned();
        let variable = language.names().0;
        format!("cannot run the compiler {name}\ninstall it, or name another one in {variable}")
    })
}

fn print(words: &[OsString]) -> Result<ExitCode> {
    println!("{}", words.join(OsStr::new(" ")).to_string_lossy());
    Ok(ExitCode::SUCCESS)
}
