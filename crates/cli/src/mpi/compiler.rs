//! Compilers that find the header and the library: `mpicc`, `mpicxx`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// What is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C,
    Cxx,
}

impl Language {
    /// The compiler: what a variable names, or the usual one.
    fn compiler(self) -> OsString {
        let (variable, usual) = match self {
            Language::C => ("TAUTLINE_MPI_CC", "cc"),
            Language::Cxx => ("TAUTLINE_MPI_CXX", "c++"),
        };
        std::env::var_os(variable).filter(|name| !name.is_empty()).unwrap_or_else(|| usual.into())
    }
}

/// Options that end before the linker.
const NO_LINKING: [&str; 6] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"];

/// Compiles, links, or shows how. The options that show it are those of MPICH (`-show`, `-compile_info`,
/// `-link_info`) and of Open MPI (`-showme`, `-showme:compile`, `-showme:link`), which build systems try.
pub fn compile(language: Language, args: Vec<OsString>) -> Result<ExitCode> {
    let folder = super::installed()?;
    let compiling = [OsString::from("-I"), folder.join("include").into()];
    let lib = folder.join("lib");
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(&lib);
    let linking = [OsString::from("-L"), lib.into(), rpath, OsString::from("-lmpi_abi")];

    let is = |names: &[&str]| args.iter().any(|arg| names.iter().any(|name| arg == name));
    let shows = is(&["-show", "-showme", "--showme"]);
    let shown: Option<Vec<OsString>> = if is(&["-showme:compile", "--showme:compile"]) {
        Some(compiling.to_vec())
    } else if is(&["-showme:link", "--showme:link"]) {
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
    let asks = args.iter().all(|arg| arg.as_encoded_bytes().starts_with(b"-v") || arg == "--version");
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
        format!("cannot run the compiler {name}\ninstall it, or name another one in TAUTLINE_MPI_CC or TAUTLINE_MPI_CXX")
    })
}

fn print(words: &[OsString]) -> Result<ExitCode> {
    println!("{}", words.join(OsStr::new(" ")).to_string_lossy());
    Ok(ExitCode::SUCCESS)
}
