//! MPI programs of which a rank is killed at a random step: the calls of the others fail, the job ends, and
//! nothing is left.

#![allow(clippy::print_stdout)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::folder;
use common::mpi::{compile, has, prefix};

/// In the environment of everything that a job starts.
const MARK: &str = "TAUTLINE_TEST_MARK";

/// The jobs of a usual run; a long run sets the variable.
const RUNS: (&str, u64) = ("TAUTLINE_MPI_DEATHS", 30);

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The processes that were started with the mark and still run.
fn marked(mark: &str) -> Vec<u32> {
    let line = format!("{MARK}={mark}");
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ"));
        environment.is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|entry| entry == line.as_bytes()))
    };
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_mark).collect()
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// What outlives processes: files of shared memory, and what is left where programs put temporary files.
fn left_behind(temporary: &Path) -> Vec<PathBuf> {
    let shared =
        names(Path::new("/dev/shm")).into_iter().filter(|path| path.to_string_lossy().contains("tautline"));
    shared.chain(names(temporary)).collect()
}

/// The ranks that survivors say are gone: each says who it is first, and then why its call failed.
fn named(text: &str) -> Vec<u64> {
    let lines = text.lines().filter_map(|line| {
        let (before, _) = line.split_once(" of the job is gone").or_else(|| line.split_once(" is gone: "))?;
        before.rsplit_once("rank ")?.1.parse().ok()
    });
    lines.collect()
}

#[test]
fn a_rank_that_is_killed_at_random_ends_the_job() {
    let test = "a_rank_that_is_killed_at_random_ends_the_job";
    if !has("cc") {
        return tautline_skips::skip(test, "there is no C compiler (cc)");
    }
    let program = compile("mpicc", &["crates/mpi/abi/tests/victim.c"], &["-O1", "-Wall", "-Werror"]);
    let temporary = folder("mpi-deaths");
    let (runs, seed) =
        (tautline_skips::number(RUNS.0, RUNS.1), tautline_skips::number(tautline_skips::SEED, 1));
    let mut random = Random(seed);
    let before = left_behind(&temporary);
    let mut named_right = 0;
    for run in 0..runs {
        let (ranks, returned) = (2 + random.below(3), random.below(2) == 0);
        let (victim, step) = (random.below(ranks), random.below(200));
        let device = if random.below(3) == 0 { "udp" } else { "shm" };
        let mark = format!("{}-{run}", temporary.display());
        let mut command = Command::new(prefix().join("bin/mpiexec"));
        command.args(["-timeout", "60", "--device", device, "-n", &ranks.to_string()]).arg(&program);
        command.args([victim.to_string(), step.to_string()]).args(returned.then_some("return"));
        command.env(MARK, &mark).env("TMPDIR", &*temporary).env("XDG_RUNTIME_DIR", &*temporary);
        command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let about =
            format!("seed {seed}, run {run}: rank {victim} of {ranks} at step {step} over {device}: {text}");
        // 124 says that the time was over; 8 that a rank got an error that tells of nothing.
        assert!(!matches!(output.status.code(), Some(0 | 8 | 124) | None), "{about}");
        assert!(text.contains("killed by signal 9"), "{about}");
        // Ranks that the launcher has ended before their calls failed say nothing.
        let told = if returned { "class" } else { "MPI_ERR_PROC_ABORTED" };
        assert!(text.contains(told) || text.contains("another rank had failed"), "{about}");
        assert!(!text.contains("exit code 8"), "{about}");
        // A survivor may be told of the end of another one first, whose call failed before its own.
        let named = named(&text);
        assert!(named.iter().all(|rank| *rank < ranks), "{about}");
        named_right += u64::from(named.contains(&victim));
        assert_eq!(marked(&mark), [0_u32; 0], "{about}");
        assert_eq!(left_behind(&temporary), before, "{about}");
    }
    println!("survivors named the victim in {named_right} of {runs} runs");
    assert!(4 * named_right >= runs, "survivors named the victim in {named_right} of {runs} runs");
    tautline_skips::did(runs);
}

/// Calls that wait or ask for several ranks, one of which is killed: the others run, and send nothing.
#[test]
fn calls_that_wait_for_others_too_learn_of_a_death() {
    let test = "calls_that_wait_for_others_too_learn_of_a_death";
    if !has("cc") {
        return tautline_skips::skip(test, "there is no C compiler (cc)");
    }
    let program = compile("mpicc", &["crates/mpi/abi/tests/survivor.c"], &["-O1", "-Wall", "-Werror"]);
    for how in ["waitall", "testall", "sendrecv", "test", "testany", "iprobe", "improbe"] {
        for device in ["shm", "udp"] {
            let mut command = common::tautline();
            command.args(["run", "--keep-going", "--timeout", "30", "--device", device, "-n", "3"]);
            command.arg(&program).arg(how);
            command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
            let output = command.output().unwrap();
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(
                stdout.contains("passed") && !stdout.contains("line "),
                "{how}, {device}: {stdout}{stderr}"
            );
            assert!(stderr.contains("killed by signal 9"), "{how}, {device}: {stderr}");
        }
    }
}
