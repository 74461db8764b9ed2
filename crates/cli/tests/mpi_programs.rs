//! Programs in C and Fortran that are built with our compilers: kernels that verify their results, the
//! interface for Fortran, tools between program and library, and build systems that look for MPI.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::mpi::{compile, has, prefix, root, text};

fn mpiexec(args: &[&str], program: &Path) -> Command {
    let mut command = Command::new(prefix().join("bin/mpiexec"));
    command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE").env_remove("LD_LIBRARY_PATH");
    command.args(["-timeout", "100"]).args(args).arg(program);
    command
}

#[track_caller]
fn assert_passes(program: &Path) {
    for args in [&["-n", "1"][..], &["-n", "2"], &["-n", "3"], &["-n", "4"], &["--device", "udp", "-n", "2"]]
    {
        let output = mpiexec(args, program).output().unwrap();
        let passed = output.status.success() && output.stdout == b"passed\n";
        assert!(passed, "{} {args:?}: {}", program.display(), text(&output));
    }
}

#[test]
fn kernels_in_c_verify_their_results() {
    if !has("cc") {
        return tautline_skips::skip("kernels_in_c_verify_their_results", "there is no C compiler (cc)");
    }
    for source in ["examples/mpi/cg.c", "examples/mpi/sort.c", "examples/mpi/workers.c"] {
        assert_passes(&compile("mpicc", &[source], &["-O1", "-Wall", "-Werror"]));
    }
}

#[test]
fn kernels_in_fortran_verify_their_results() {
    if !has("gfortran") {
        return tautline_skips::skip("kernels_in_fortran_verify_their_results", "there is no gfortran");
    }
    for source in ["examples/mpi/mg.f90", "examples/mpi/stencil.f90"] {
        assert_passes(&compile("mpifort", &[source], &["-O1"]));
    }
}

#[test]
fn the_interface_for_fortran() {
    if !has("gfortran") {
        return tautline_skips::skip("the_interface_for_fortran", "there is no gfortran");
    }
    assert_passes(&compile("mpifort", &["crates/mpi/abi/tests/fortran.f90"], &["-Wall", "-O1"]));
    assert_passes(&compile("mpif77", &["crates/mpi/abi/tests/fixed.f"], &[]));
}

/// A tool defines `MPI_Send` and `MPI_Finalize` and calls `PMPI_…`; the program is not changed.
#[test]
fn a_tool_counts_the_messages_of_a_program() {
    if !has("cc") {
        return tautline_skips::skip(
            "a_tool_counts_the_messages_of_a_program",
            "there is no C compiler (cc)",
        );
    }
    let tests = "crates/mpi/abi/tests";
    let (program, tool) = (format!("{tests}/profiled_program.c"), format!("{tests}/profiled.c"));
    let linked = compile("mpicc", &[&program, &tool], &[]);
    let output = mpiexec(&["-n", "3"], &linked).output().unwrap();
    assert_eq!(text(&output), "6 messages, 72 bytes\n");
    // The same as a library that is loaded in front of ours.
    let plain = prefix().join("plain");
    fs::rename(compile("mpicc", &[&program], &[]), &plain).unwrap();
    let library = compile("mpicc", &[&tool], &["-shared", "-fPIC"]);
    let output = mpiexec(&["-n", "2"], &plain).env("LD_PRELOAD", library).output().unwrap();
    assert!(text(&output).ends_with("4 messages, 48 bytes\n"), "{}", text(&output));
}

#[test]
fn calls_are_traced_and_summed_up_on_request() {
    if !has("cc") {
        return tautline_skips::skip(
            "calls_are_traced_and_summed_up_on_request",
            "there is no C compiler (cc)",
        );
    }
    let program = prefix().join("traced");
    let source = root().join("crates/mpi/abi/tests/profiled_program.c");
    let mut command = Command::new(prefix().join("bin/mpicc"));
    let output = command.arg(source).arg("-o").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));

    let (trace, table) = (prefix().join("trace"), prefix().join("table"));
    let mut command = mpiexec(&["-n", "2"], &program);
    command.env("TAUTLINE_MPI_TRACE", &trace).env("TAUTLINE_MPI_SUMMARY", &table);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for rank in ["0", "1"] {
        let lines = fs::read_to_string(trace.with_extension(rank)).unwrap();
        let of = |mark: &str| lines.lines().filter(|line| line.contains(mark)).count();
        assert_eq!((of("> MPI_Send"), of("< MPI_Send"), of("< MPI_Recv")), (2, 2, 2), "{lines}");
        assert!(lines.lines().all(|line| line.starts_with(&format!("rank {rank} "))), "{lines}");

        let table = fs::read_to_string(table.with_extension(rank)).unwrap();
        let words = |first: &str| {
            let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.find(|words| words[0] == first).unwrap_or_else(|| panic!("no {first}: {table}"))
        };
        assert_eq!(words("MPI_Send")[1], "2", "{table}");
        let peer = if rank == "0" { "1" } else { "0" };
        assert_eq!(words(peer), [peer, "2", "24", "2", "24"], "{table}");
    }
    let output =
        mpiexec(&["-n", "1"], &program).env("TAUTLINE_MPI_TRACE", "/nowhere/trace").output().unwrap();
    assert!(!output.status.success() && text(&output).contains("/nowhere/trace.0"), "{}", text(&output));
}

#[test]
fn cmake_finds_mpi() {
    if !has("cmake") || !has("gfortran") {
        return tautline_skips::skip("cmake_finds_mpi", "there is no cmake, or no gfortran");
    }
    let project = prefix().join("project");
    fs::create_dir_all(&project).unwrap();
    let lists = "cmake_minimum_required(VERSION 3.18)\nproject(p C CXX Fortran)\n\
                 find_package(MPI REQUIRED COMPONENTS C CXX Fortran)\n\
                 add_executable(c c.c)\ntarget_link_libraries(c MPI::MPI_C)\n\
                 add_executable(f f.f90)\ntarget_link_libraries(f MPI::MPI_Fortran)\n";
    fs::write(project.join("CMakeLists.txt"), lists).unwrap();
    fs::copy(root().join("crates/mpi/abi/tests/profiled_program.c"), project.join("c.c")).unwrap();
    fs::copy(root().join("examples/mpi/stencil.f90"), project.join("f.f90")).unwrap();
    let path = format!("{}:{}", prefix().join("bin").display(), std::env::var("PATH").unwrap());
    let cmake = |args: &[&str]| {
        let output =
            Command::new("cmake").args(args).current_dir(&project).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let found = cmake(&["-S", ".", "-B", "build"]);
    for part in ["Found MPI_C", "Found MPI_CXX", "Found MPI_Fortran"] {
        assert!(found.contains(part), "{part} is missing: {found}");
    }
    cmake(&["--build", "build"]);
    assert_passes(&project.join("build/f"));
    let output = mpiexec(&["-n", "2"], &project.join("build/c")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// What a configure script does: it compiles and links with `CC=mpicc` and asks for a function.
#[test]
fn a_configure_script_finds_mpi() {
    if !has("cc") {
        return tautline_skips::skip("a_configure_script_finds_mpi", "there is no C compiler (cc)");
    }
    let folder = prefix().join("configure");
    fs::create_dir_all(&folder).unwrap();
    let script = "set -e\nfor CC in mpicc; do command -v $CC; done\n\
                  echo 'char MPI_Init(); int main(void) { return MPI_Init(); }' > conftest.c\n\
                  $CC -o conftest -g -O2 conftest.c\n\
                  echo '#include <mpi.h>' > conftest.c\n$CC -E conftest.c > /dev/null\n\
                  $CC -c -g -O2 conftest.c\n$CC --version > /dev/null\n$CC -v > /dev/null 2>&1\necho found\n";
    let path = format!("{}:{}", prefix().join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    let output = command.args(["-c", script]).current_dir(&folder).env("PATH", path).output().unwrap();
    assert!(output.status.success() && text(&output).ends_with("found\n"), "{}", text(&output));
}
