//! C programs that are compiled with our header and linked with our library.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with the library under its names, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tautline-mpi-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let tests = std::env::current_exe().unwrap();
        let library = tests.parent().unwrap().join("libmpi_abi.so");
        for name in ["libmpi_abi.so", "libmpi_abi.so.1"] {
            std::os::unix::fs::symlink(&library, path.join(name)).unwrap();
        }
        Folder(path)
    }

    /// Compiles and links a program; fails with what the compiler says.
    fn compile(&self, source: &Path) -> PathBuf {
        let program = self.0.join("program");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
        let mut command = Command::new("cc");
        command.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include).arg(source);
        command.arg("-o").arg(&program).arg("-L").arg(&self.0).arg("-lmpi_abi");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn run(&self, program: &Path, args: &[&str]) -> Output {
        Command::new(program).args(args).env("LD_LIBRARY_PATH", &self.0).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn has_compiler(test: &str) -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        tautline_skips::skip(test, "there is no C compiler (cc)");
    }
    found
}

#[test]
fn a_program_of_one_rank_runs() {
    if !has_compiler("a_program_of_one_rank_runs") {
        return;
    }
    let folder = Folder::new("one-rank");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/one_rank.c");
    let program = folder.compile(&source);
    let output = folder.run(&program, &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout == "passed\n", "{stdout}{stderr}");

    let output = folder.run(&program, &["fatal"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "an error in the world is fatal");
    for part in ["rank 0", "MPI_Send", "MPI_ERR_RANK", "rank 5", "MPI_COMM_WORLD"] {
        assert!(stderr.contains(part), "{part} is missing: {stderr}");
    }
}

/// The table says what exists; a program that takes the address of each function proves that header and
/// library have it.
#[test]
fn header_and_library_have_all_functions_of_the_table() {
    if !has_compiler("header_and_library_have_all_functions_of_the_table") {
        return;
    }
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../table/functions.txt");
    let table = fs::read_to_string(table).unwrap();
    let mut names = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let word = line.split(' ').next().unwrap();
        let name = word.trim_end_matches("/c");
        names.push(name.to_owned());
        if word != name {
            names.push(format!("{name}_c"));
        }
    }
    assert_eq!(names.len(), 664);
    let mut text = "#include <mpi.h>\ntypedef void (*function)(void);\nfunction all[] = {\n".to_owned();
    for name in &names {
        writeln!(text, "(function)MPI_{name}, (function)PMPI_{name},").unwrap();
    }
    text.push_str("};\nint main(void) { return sizeof all / sizeof *all == 1328 ? 0 : 1; }\n");
    let folder = Folder::new("symbols");
    let source = folder.0.join("all.c");
    fs::write(&source, text).unwrap();
    let output = folder.run(&folder.compile(&source), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles a program of one rank, which says that it passed.
fn passes(test: &str, source: &str) {
    if !has_compiler(test) {
        return;
    }
    let folder = Folder::new(source);
    let program = folder.compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{source}.c")));
    let output = folder.run(&program, &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout == "passed\n", "{stdout}{stderr}");
}

#[test]
fn handles_and_statuses_are_shared_with_fortran() {
    passes("handles_and_statuses_are_shared_with_fortran", "fortran_handles");
}

#[test]
fn tools_start_at_any_time() {
    passes("tools_start_at_any_time", "tools");
}

#[test]
fn errors_of_files_are_returned() {
    passes("errors_of_files_are_returned", "files");
}

#[test]
fn freed_communicators_keep_their_error_handlers_and_copies_have_no_hints() {
    passes("freed_communicators_keep_their_error_handlers_and_copies_have_no_hints", "freed");
}

#[test]
fn buffers_are_flushed_without_waiting() {
    passes("buffers_are_flushed_without_waiting", "flush");
}

#[test]
fn the_clock_is_that_of_the_host() {
    passes("the_clock_is_that_of_the_host", "clock");
}

#[test]
fn older_programs_have_the_functions_that_were_removed() {
    if !has_compiler("older_programs_have_the_functions_that_were_removed") {
        return;
    }
    let folder = Folder::new("removed");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/removed.c");
    let output = folder.run(&folder.compile(&source), &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout == "passed\n", "{stdout}{stderr}");
}

#[test]
fn bad_arguments_have_the_classes_of_the_standard() {
    if !has_compiler("bad_arguments_have_the_classes_of_the_standard") {
        return;
    }
    let folder = Folder::new("bad-arguments");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_arguments.c");
    let output = folder.run(&folder.compile(&source), &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout == "passed\n", "{stdout}{stderr}");
}
