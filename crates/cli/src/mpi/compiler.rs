//! Compilers that find the headers and the library: `mpicc`, `mpicxx`, `mpifort`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
    /// The variables that name the compiler, ours and those of MPICH and Open MPI, in the order in which they
    /// are asked; and the usual compiler.
    fn names(self) -> (&'static [&'static str], &'static str) {
        match self {
            Language::C => (&["TAUTLINE_MPI_CC", "MPICH_CC", "OMPI_CC"], "cc"),
            Language::Cxx => (&["TAUTLINE_MPI_CXX", "MPICH_CXX", "OMPI_CXX"], "c++"),
            Language::Fortran => {
                let variables =
                    &["TAUTLINE_MPI_FC", "MPICH_FC", "OMPI_FC", "MPICH_F90", "MPICH_F77", "OMPI_F77"];
                (variables, "gfortran")
            }
        }
    }

    /// The options that name the compiler, as those of MPICH's wrappers do.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Language::C => &["-cc="],
            Language::Cxx => &["-cxx=", "-CC="],
            Language::Fortran => &["-fc=", "-f90=", "-f77="],
        }
    }

    /// The compiler: what a variable names, or the usual one.
    pub fn compiler(self) -> Compiler {
        let (variables, usual) = self.names();
        let named = variables.iter().filter_map(std::env::var_os).find(|name| !name.is_empty());
        Compiler::named(&named.unwrap_or_else(|| usual.into()))
    }

    /// Takes the options that name the compiler out of `args`, and returns the last one.
    fn take_compiler(self, args: &mut Vec<OsString>) -> Option<Compiler> {
        let name = |arg: &OsString| {
            let rest = self.flags().iter().find_map(|flag| arg.as_bytes().strip_prefix(flag.as_bytes()))?;
            Some(OsString::from_vec(rest.to_vec())).filter(|name| !name.is_empty())
        };
        let named = args.iter().rev().find_map(name);
        args.retain(|arg| name(arg).is_none());
        named.map(|named| Compiler::named(&named))
    }

    /// What a compiler needs beyond the folder of the headers.
    fn options(self, compiler: &Compiler) -> Vec<OsString> {
        if self != Language::Fortran || !takes_mismatches(compiler) {
            return Vec::new();
        }
        vec!["-fallow-argument-mismatch".into()]
    }
}

/// A compiler, with arguments of its own if there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    words: Vec<OsString>,
}

impl Compiler {
    /// Reads `ccache gcc`. A file may have spaces in its name.
    fn named(text: &OsStr) -> Compiler {
        let parts = text.as_bytes().split(u8::is_ascii_whitespace).filter(|part| !part.is_empty());
        let words: Vec<_> = parts.map(|part| OsString::from_vec(part.to_vec())).collect();
        let is_one = words.len() < 2 || Path::new(text).is_file();
        Compiler { words: if is_one { vec![text.to_owned()] } else { words } }
    }

    /// The command that runs it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }

    /// Its name, for people.
    pub fn shown(&self) -> String {
        self.words.join(OsStr::new(" ")).to_string_lossy().into_owned()
    }

    /// The compiler, and what is given to it.
    fn with(&self, rest: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        self.words.iter().cloned().chain(rest).collect()
    }
}

/// Whether a compiler is a gfortran that refuses two calls of one function with buffers of different types
/// unless it is told otherwise, as programs with `mpif.h` have them.
fn takes_mismatches(compiler: &Compiler) -> bool {
    let is_one = |word: &OsString| {
        Path::new(word).file_name().is_some_and(|name| name.to_string_lossy().contains("gfortran"))
    };
    if !compiler.words.iter().any(is_one) {
        return false;
    }
    let output = compiler.command().arg("-dumpversion").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let major = version.ok().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 10)
}

/// Options that end before the linker.
const NO_LINKING: [&str; 6] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"];

/// Compiles, links, or shows how. The options that show it are those of MPICH (`-show`, `-compile_info`,
/// `-link_info`) and of Open MPI (`-showme`, `-showme:compile` and the like), which build systems try.
pub fn compile(language: Language, mut args: Vec<OsString>) -> Result<ExitCode> {
    let compiler = language.take_compiler(&mut args).unwrap_or_else(|| language.compiler());
    let folder = super::installed()?;
    let mut include = OsString::from("-I");
    include.push(folder.join("include"));
    let compiling: Vec<OsString> = std::iter::once(include).chain(language.options(&compiler)).collect();
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
        Some(compiler.with([]))
    } else if named("link") {
        Some(linking.to_vec())
    } else if is(&["-compile_info"]) {
        Some(compiler.with(compiling.clone()))
    } else if is(&["-link_info"]) {
        Some(compiler.with(linking.clone()))
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
    if shows {
        return print(&compiler.with(words));
    }
    let error = compiler.command().args(words).exec();
    Err(error).with_context(|| {
        let (name, variable) = (compiler.shown(), language.names().0[0]);
        format!("cannot run the compiler {name}\ninstall it, or name another one in {variable}")
    })
}

fn print(words: &[OsString]) -> Result<ExitCode> {
    println!("{}", words.join(OsStr::new(" ")).to_string_lossy());
    Ok(ExitCode::SUCCESS)
}
