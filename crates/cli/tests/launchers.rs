//! Jobs under launchers that people have: the same program with the same output under each. The hosts of
//! Slurm are network namespaces.

mod common;

use std::process::{Child, Command, Output, Stdio};

use common::jobs::{clean, expected, has, has_pmix, lines, run, said};
use common::slurm::{self, Slurm};
use common::{as_program, folder};

/// The program of the jobs.
#[test]
#[ignore = "a program of jobs"]
fn greet_all() {
    common::jobs::greet_all();
}

/// J-15: started alone, the program is a job of one.
#[test]
fn alone() {
    let mut command = Command::new("env");
    assert_eq!(said(&run(as_program(&mut command, "greet_all"))), expected(1));
}

/// J-12, J-13: under hydra, the launcher of MPICH.
#[test]
fn under_hydra() {
    if !has("mpiexec.hydra") {
        return tautline_skips::skip("under_hydra", "mpiexec.hydra (mpich) is not installed");
    }
    let output = run(as_program(Command::new("mpiexec.hydra").args(["-n", "4"]), "greet_all"));
    assert_eq!(said(&output), expected(4));
    assert_eq!(lines(&output, "local "), ["local 3"; 4], "{output:?}");
}

/// J-12, J-13, J-18: under Open MPI's mpirun; without the library of PMIx, the error says what to install.
#[test]
fn under_openmpi() {
    let missing = (!has("mpirun.openmpi")).then_some("mpirun.openmpi (openmpi-bin) is not installed");
    if let Some(why) = missing.or((!has_pmix()).then_some("libpmix.so.2 (libpmix2) is not installed")) {
        return tautline_skips::skip("under_openmpi", why);
    }
    let mpirun = |n: &str| {
        let mut command = Command::new("mpirun.openmpi");
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", n]);
        command
    };
    let output = run(as_program(&mut mpirun("4"), "greet_all"));
    assert_eq!(said(&output), expected(4));
    assert_eq!(lines(&output, "local "), ["local 3"; 4], "{output:?}");
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("under_openmpi", why);
    }
    let hide = "for f in $(ldconfig -p | sed -n 's/.*libpmix.so.2.* => //p'); do \
                mount -t tmpfs none $(dirname $(readlink -f $f)); done; exec \"$@\"";
    let mut command = mpirun("2");
    let output = run(as_program(command.args(["unshare", "--mount", "sh", "-c", hide, "sh"]), "greet_all"));
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert!(!output.status.success() && text.contains("install the package"), "{text}");
}

/// J-13: with a key file, whose mode is checked.
#[test]
fn a_key_file_under_hydra() {
    if !has("mpiexec.hydra") {
        return tautline_skips::skip("a_key_file_under_hydra", "mpiexec.hydra (mpich) is not installed");
    }
    let folder = folder("key-file");
    let file = folder.join("key");
    std::fs::write(&file, "0123456789abcdef".repeat(4)).unwrap();
    let start = |mode: &str| {
        assert!(Command::new("chmod").arg(mode).arg(&file).status().unwrap().success());
        let mut command = Command::new("mpiexec.hydra");
        command.args(["-n", "2"]).env("TAUTLINE_KEY_FILE", &file);
        run(as_program(&mut command, "greet_all"))
    };
    assert_eq!(said(&start("600")), expected(2));
    let refused = start("644");
    let text = String::from_utf8([&refused.stdout[..], &refused.stderr].concat()).unwrap();
    assert!(!refused.status.success() && text.contains("chmod 600"), "{refused:?}");
}

/// J-9, J-10: with a static list of members, the same file for all.
#[test]
fn a_static_list() {
    let folder = folder("static-list");
    let file = folder.join("job");
    // An address of this test's own: nobody else takes a port of it before its rank does.
    let [.., high, low] = std::process::id().to_be_bytes();
    let mut text = format!("tautline-job 1\nkey {}\nrank $TEST_RANK\n", "ab".repeat(32));
    for rank in 0..3 {
        text += &format!("member {rank} 127.77.{high}.{low}:{}\n", 7_700 + rank);
    }
    std::fs::write(&file, text).unwrap();
    assert!(Command::new("chmod").arg("600").arg(&file).status().unwrap().success());
    let start = |rank: u32| {
        let mut command = Command::new("env");
        as_program(&mut command, "greet_all");
        clean(&mut command).env("TAUTLINE_JOB_FILE", &file).env("TEST_RANK", format!("pod-{rank}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<Child> = (0..3).map(start).collect();
    let all: Vec<_> =
        started.into_iter().flat_map(|child| said(&child.wait_with_output().unwrap())).collect();
    assert_eq!(all, expected(3));
}

fn greet(slurm: &Slurm, options: &[&str]) -> Output {
    run(as_program(slurm.controller("srun").args(options), "greet_all"))
}

/// J-12, J-13, J-18: under Slurm with PMI-2 and with PMIx, on two hosts; J-15: without it, the error says
/// what to do.
#[test]
fn under_slurm() {
    if let Some(why) = slurm::lacks() {
        return tautline_skips::skip("under_slurm", why);
    }
    let slurm = Slurm::new("slurm");
    for mpi in ["--mpi=pmi2", "--mpi=pmix"] {
        if mpi == "--mpi=pmix" && !slurm.has_pmix() {
            tautline_skips::skip("under_slurm", slurm::NO_PMIX);
            continue;
        }
        let output = greet(&slurm, &[mpi, "-N2", "-n4"]);
        assert_eq!(said(&output), expected(4), "{mpi}");
        assert_eq!(lines(&output, "local "), ["local 1"; 4], "{mpi}");
    }
    // J-21: our own launcher inside an allocation.
    for launcher in ["run", "mpiexec"] {
        let mut command = slurm.controller("salloc");
        command.args(["--quiet", "-N2", "-n4", env!("CARGO_BIN_EXE_tautline"), launcher]);
        let output = run(as_program(&mut command, "greet_all"));
        assert_eq!(said(&output), expected(4), "{launcher}");
        assert_eq!(lines(&output, "local "), ["local 1"; 4], "{launcher}");
    }
    let output = greet(&slurm, &["--mpi=none", "-N2", "-n2"]);
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert!(!output.status.success() && text.contains("use srun --mpi=pmi2 or srun --mpi=pmix"), "{text}");
}
