//! C programs with MPI, built with our compilers and run as jobs of several ranks.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::{folder, tautline};

/// MPI in a folder of its own, with the program of the tests. Removed by the last test that uses it.
struct Installed {
    prefix: PathBuf,
    program: PathBuf,
}

fn command(prefix: &Path) -> Command {
    let mut command = tautline();
    command.env("TAUTLINE_MPI", prefix).env_remove("LD_LIBRARY_PATH");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Installs MPI and compiles `ranks.c`, once for all tests of this process.
fn installed(test: &str) -> Option<&'static Installed> {
    static INSTALLED: OnceLock<Option<Installed>> = OnceLock::new();
    let made = INSTALLED.get_or_init(|| {
        let found = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
        if !found {
            return None;
        }
        let prefix = folder("mpi");
        let output = command(&prefix).args(["mpi", "install"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mpi/abi/tests/ranks.c");
        let program = prefix.join("ranks");
        let mut compile = Command::new(prefix.join("bin/mpicc"));
        let output = compile
            .args(["-O1", "-Wall", "-Werror", "-pthread"])
            .arg(source)
            .arg("-o")
            .arg(&program)
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output));
        Some(Installed { prefix, program })
    });
    if made.is_none() {
        tautline_skips::skip(test, "there is no C compiler (cc)");
    }
    made.as_ref()
}

fn mpiexec(installed: &Installed, args: &[&str], program_args: &[&str]) -> Output {
    let mut command = Command::new(installed.prefix.join("bin/mpiexec"));
    command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
    command.args(["-timeout", "100"]).args(args).arg(&installed.program).args(program_args).output().unwrap()
}

fn assert_passed(output: &Output) {
    assert!(output.status.success() && output.stdout == b"passed\n", "{}", text(output));
}

#[test]
fn a_program_runs_with_one_to_four_ranks() {
    let Some(installed) = installed("a_program_runs_with_one_to_four_ranks") else { return };
    assert_passed(&Command::new(&installed.program).output().unwrap());
    for ranks in ["1", "2", "3", "4"] {
        assert_passed(&mpiexec(installed, &["-n", ranks], &[]));
    }
}

#[test]
fn a_program_runs_over_udp() {
    let Some(installed) = installed("a_program_runs_over_udp") else { return };
    for ranks in ["2", "3"] {
        assert_passed(&mpiexec(installed, &["--device", "udp", "-n", ranks], &[]));
    }
}

#[test]
fn abort_ends_the_job_with_its_code() {
    let Some(installed) = installed("abort_ends_the_job_with_its_code") else { return };
    let output = mpiexec(installed, &["-n", "3"], &["abort"]);
    assert_eq!(output.status.code(), Some(42), "{}", text(&output));
    assert!(text(&output).contains("rank 2: MPI_Abort was called with the code 42"), "{}", text(&output));
}

/// A receive from any source fails when a rank of its communicator is lost.
#[test]
fn the_death_of_a_rank_ends_the_calls_of_the_others() {
    let Some(installed) = installed("the_death_of_a_rank_ends_the_calls_of_the_others") else { return };
    for device in ["shm", "udp"] {
        let output = mpiexec(installed, &["--device", device, "-n", "3"], &["death"]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(128 + 6), "{text}");
        for part in ["rank 0", "MPI_Recv failed", "MPI_ERR_PROC_ABORTED", "rank 2", "MPI_COMM_WORLD"] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    }
}

#[test]
fn calls_before_init_and_after_finalize_are_refused() {
    let Some(installed) = installed("calls_before_init_and_after_finalize_are_refused") else { return };
    for (when, word) in [("early", "before MPI_Init"), ("late", "after MPI_Finalize")] {
        let output = mpiexec(installed, &["-n", "1"], &[when]);
        assert!(!output.status.success(), "{}", text(&output));
        assert!(text(&output).contains(&format!("MPI_Comm_size was called {word}")), "{}", text(&output));
    }
}

/// `cargo xtask suites --only abi` installs the library of MPICH, with which the output is the same.
#[test]
fn the_output_is_that_of_mpich() {
    let test = "the_output_is_that_of_mpich";
    let Some(installed) = installed(test) else { return };
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let theirs = target.join("suites/mpich-abi/mpich-5.0.2.data/data");
    if !theirs.join("bin/mpiexec").is_file() {
        tautline_skips::skip(test, "MPICH's library is missing (cargo xtask suites --only abi)");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mpi/abi/tests/same_output.c");
    let program = installed.prefix.join("same_output");
    let mut compile = Command::new(installed.prefix.join("bin/mpicc"));
    let output = compile.args(["-O1", "-Wall", "-Werror"]).arg(source).arg("-o").arg(&program).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for ranks in ["1", "2", "3"] {
        let [ours, theirs] = [&installed.prefix, &theirs].map(|prefix| {
            let mut command = Command::new(prefix.join("bin/mpiexec"));
            command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
            command.args(["-n", ranks]).arg(&program).env("LD_LIBRARY_PATH", prefix.join("lib"));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            String::from_utf8(output.stdout).unwrap()
        });
        assert!(ours.lines().count() > 200, "{ours}");
        assert_eq!(ours, theirs);
    }
}

#[test]
fn what_is_installed_is_found_and_removed() {
    let prefix = folder("mpi-remove");
    let output = command(&prefix).args(["mpi", "env"]).output().unwrap();
    assert!(text(&output).contains("tautline mpi install"), "{}", text(&output));
    let output = command(&prefix).args(["mpi", "install"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let output = command(&prefix).args(["mpi", "env"]).output().unwrap();
    assert!(text(&output).contains(&format!("PATH='{}'", prefix.join("bin").display())), "{}", text(&output));
    let output = command(&prefix).args(["mpicc", "-show", "a.c"]).output().unwrap();
    for part in ["a.c", "-lmpi_abi", "include"] {
        assert!(text(&output).contains(part), "{part} is missing: {}", text(&output));
    }
    let output = command(&prefix).args(["mpicc", "-show", "-c", "a.c"]).output().unwrap();
    assert!(!text(&output).contains("-lmpi_abi"), "{}", text(&output));
    let output = command(&prefix).args(["mpi", "remove"]).output().unwrap();
    assert!(output.status.success() && !prefix.exists(), "{}", text(&output));
}
