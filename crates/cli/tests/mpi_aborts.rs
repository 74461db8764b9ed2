//! `MPI_Abort` ends all processes of a job with its code, whichever launcher started them and whatever they
//! do, and what the program has written is written. And what launchers say of a job.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::jobs::{self, run};
use common::mpi::{compile, has, prefix, text};
use common::slurm::{self, Slurm};

const WRITTEN: &str = "written before the end\n";

/// The program `launched.c`, compiled once for all tests of this process.
fn launched(test: &str) -> Option<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if !has("cc") {
        tautline_skips::skip(test, "there is no C compiler (cc)");
        return None;
    }
    let options = &["-O1", "-Wall", "-Werror"];
    Some(PROGRAM.get_or_init(|| compile("mpicc", &["crates/mpi/abi/tests/launched.c"], options)))
}

fn mpiexec() -> Command {
    Command::new(prefix().join("bin/mpiexec"))
}

/// The last rank aborts while the others compute.
#[track_caller]
fn assert_aborted(output: &Output) {
    assert_eq!(output.status.code(), Some(42), "{}", text(output));
    assert!(text(output).contains("MPI_Abort was called with the code 42"), "{}", text(output));
}

/// The same, of the program that has written lines.
#[track_caller]
fn assert_aborted_and_written(output: &Output) {
    assert_aborted(output);
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches(WRITTEN).count(), 2500, "lines are lost");
}

/// A function that the program has registered for its end, and that calls `MPI_Finalize`, is not called.
#[test]
fn aborts_end_the_job() {
    let Some(program) = launched("aborts_end_the_job") else { return };
    for ranks in ["1", "3"] {
        assert_aborted_and_written(&run(mpiexec().args(["-n", ranks]).arg(program).arg("abort")));
    }
    // Without a launcher.
    assert_aborted_and_written(&run(Command::new(program).arg("abort")));
}

#[test]
fn what_fortran_has_written_is_written() {
    if !has("gfortran") {
        return tautline_skips::skip("what_fortran_has_written_is_written", "there is no gfortran");
    }
    let program = compile("mpifort", &["crates/mpi/abi/tests/abort.f90"], &[]);
    let file = prefix().join("abort.txt");
    assert_aborted(&run(mpiexec().args(["-n", "1"]).arg(program).arg(&file)));
    assert_eq!(std::fs::read_to_string(file).unwrap(), WRITTEN);
}

/// J-29: hydra learns of it by PMI-1.
#[test]
fn aborts_end_the_job_under_hydra() {
    let test = "aborts_end_the_job_under_hydra";
    if !jobs::has("mpiexec.hydra") {
        return tautline_skips::skip(test, "mpiexec.hydra (mpich) is not installed");
    }
    let Some(program) = launched(test) else { return };
    // Without a wait for hydra's reading, it loses lines in one of four runs.
    for _ in 0..40 {
        let mut command = Command::new("mpiexec.hydra");
        assert_aborted_and_written(&run(command.args(["-n", "3"]).arg(program).arg("abort")));
    }
}

/// Under Open MPI's `mpirun`.
#[test]
fn aborts_end_the_job_under_openmpi() {
    let test = "aborts_end_the_job_under_openmpi";
    if !jobs::has("mpirun.openmpi") {
        return tautline_skips::skip(test, "mpirun.openmpi (openmpi-bin) is not installed");
    }
    if !jobs::has_pmix() {
        return tautline_skips::skip(test, "libpmix.so.2 (libpmix2) is not installed");
    }
    let Some(program) = launched(test) else { return };
    let mut command = Command::new("mpirun.openmpi");
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "3"]);
    assert_aborted_and_written(&run(command.arg(program).arg("abort")));
}

/// J-29: by `srun` with PMI-2, which ends a job without its code, and with PMIx.
#[test]
fn aborts_end_the_job_under_slurm() {
    let test = "aborts_end_the_job_under_slurm";
    if let Some(why) = slurm::lacks() {
        return tautline_skips::skip(test, why);
    }
    let Some(program) = launched(test) else { return };
    let slurm = Slurm::new(test);
    for mpi in ["--mpi=pmi2", "--mpi=pmix"] {
        if mpi == "--mpi=pmix" && !slurm.has_pmix() {
            tautline_skips::skip(test, slurm::NO_PMIX);
            continue;
        }
        let output = run(slurm.controller("srun").args([mpi, "-N2", "-n3"]).arg(program).arg("abort"));
        if mpi == "--mpi=pmix" {
            assert_aborted_and_written(&output);
        } else {
            // The others were killed: the highest code of a task.
            assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output));
            assert!(text(&output).contains("task 2: Exited with exit code 42"), "{}", text(&output));
        }
    }
}

/// J-30: each program of a job has its number, and all know how many processes there are.
#[test]
fn programs_have_their_numbers() {
    let Some(program) = launched("programs_have_their_numbers") else { return };
    let both = |launcher: &mut Command, options: &[&str]| {
        launcher.args(options).args(["-n", "1"]).arg(program).args([":", "-n", "2"]).arg(program);
        let output = run(launcher);
        assert!(output.status.success(), "{}", text(&output));
        jobs::lines(&output, "rank ")
    };
    let expected: Vec<_> = [(0, 0), (1, 1), (2, 1)]
        .map(|(rank, program)| format!("rank {rank} program {program} universe "))
        .into_iter()
        .collect();
    let ours = both(&mut mpiexec(), &[]);
    assert_eq!(ours, expected.iter().map(|line| format!("{line}3")).collect::<Vec<_>>());
    let alone = run(&mut Command::new(program));
    assert_eq!(jobs::lines(&alone, "rank "), ["rank 0 universe 1"]);
    for (launcher, options) in
        [("mpiexec.hydra", &[][..]), ("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"])]
    {
        if !jobs::has(launcher) || launcher == "mpirun.openmpi" && !jobs::has_pmix() {
            tautline_skips::skip(
                "programs_have_their_numbers",
                "MPICH, or Open MPI with libpmix.so.2, is not installed",
            );
            continue;
        }
        let lines = both(&mut Command::new(launcher), options);
        let agree =
            lines.len() == 3 && lines.iter().zip(&expected).all(|(line, start)| line.starts_with(start));
        assert!(agree, "{launcher}: {lines:?}");
    }
}
