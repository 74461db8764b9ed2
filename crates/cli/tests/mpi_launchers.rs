//! A kernel of our own and MPI programs of others under the launchers that people have, and over UDP between
//! two hosts, which are network namespaces. The programs of others are those that `cargo xtask suites` has
//! installed; where they are not, their tests are skipped, and those of the kernel are not.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use common::folder;
use common::jobs::{clean, has, hold_namespace, run};
use common::mpi::{Others, compile, others, prefix, text};
use common::slurm::{self, Slurm};

/// Sizes of the measurements: 0 and the powers of two up to 1 KiB.
const SIZES: usize = 12;

/// A program, its arguments, and whether its output is right.
struct Program {
    words: Vec<String>,
    check: fn(&str) -> bool,
}

fn words(program: &Path, args: &[&str]) -> Vec<String> {
    let program = program.to_string_lossy().into_owned();
    std::iter::once(program).chain(args.iter().map(|arg| (*arg).to_owned())).collect()
}

/// The lines that begin with a number: the rows of a table.
fn rows(text: &str) -> usize {
    let first = |line: &str| line.split_whitespace().next().map(str::parse::<u64>);
    text.lines().filter(|line| matches!(first(line), Some(Ok(_)))).count()
}

/// The kernel of our own.
fn kernel() -> Vec<Program> {
    // Built once: a program that runs cannot be replaced.
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    let kernel = KERNEL.get_or_init(|| compile("mpicc", &["examples/mpi/cg.c"], &["-O1"]));
    vec![Program { words: words(kernel, &[]), check: |text| text.lines().any(|line| line == "passed") }]
}

/// The programs of others.
fn programs(others: &Others) -> Vec<Program> {
    let python = |args: &[&str]| words(Path::new("python3"), &[&["-m", "mpi4py.bench"], args].concat());
    vec![
        Program {
            words: words(&others.imb, &["PingPong", "-msglog", "0:10", "-iter", "20"]),
            check: |text| {
                rows(text) == SIZES
                    && text.contains("# Benchmarking PingPong")
                    && text.contains("All processes entering MPI_Finalize")
            },
        },
        Program {
            words: python(&["helloworld"]),
            check: |text| (0..2).all(|rank| text.contains(&format!("I am process {rank} of 2 on"))),
        },
        Program { words: python(&["ringtest", "-l", "5"]), check: |text| text.contains("time for 5 loops") },
        Program {
            words: python(&["pingpong", "-m", "1", "-n", "1024", "--loop", "20", "--array", "none"]),
            check: |text| rows(text) == SIZES - 1,
        },
    ]
}

/// Sets where programs find our libraries, and mpi4py.
fn environment<'a>(command: &'a mut Command, python: Option<&Path>) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", prefix().join("lib")).envs(python.map(|folder| ("PYTHONPATH", folder)))
}

/// What a test is about: programs with two ranks, and the folder with mpi4py. Skips the test if it needs what
/// is not there.
fn what_runs(test: &str, ours: bool) -> Option<(Vec<Program>, Option<PathBuf>)> {
    if ours {
        if has("cc") {
            return Some((kernel(), None));
        }
        tautline_skips::skip(test, "there is no C compiler (cc)");
        return None;
    }
    match others() {
        Ok(others) => Some((programs(&others), Some(others.python))),
        Err(why) => {
            tautline_skips::skip(test, why);
            None
        }
    }
}

/// Runs all programs by `start`, which is given a program and its arguments.
fn check_all(programs: Vec<Program>, start: impl Fn(&[String]) -> Output) {
    for Program { words, check } in programs {
        let output = start(&words);
        assert!(output.status.success() && check(&text(&output)), "{words:?}: {}", text(&output));
    }
}

/// Under hydra, the launcher of MPICH, through shared memory.
fn under_hydra(test: &str, ours: bool) {
    if !has("mpiexec.hydra") {
        return tautline_skips::skip(test, "mpiexec.hydra (mpich) is not installed");
    }
    let Some((programs, python)) = what_runs(test, ours) else { return };
    check_all(programs, |words| {
        let mut command = Command::new("mpiexec.hydra");
        run(environment(command.args(["-n", "2"]).args(words), python.as_deref()))
    });
}

#[test]
fn our_kernel_runs_under_hydra() {
    under_hydra("our_kernel_runs_under_hydra", true);
}

#[test]
fn programs_run_under_hydra() {
    under_hydra("programs_run_under_hydra", false);
}

/// By `srun --mpi=pmix` on two hosts.
fn under_slurm(test: &str, ours: bool) {
    if let Some(why) = slurm::lacks() {
        return tautline_skips::skip(test, why);
    }
    let Some((programs, python)) = what_runs(test, ours) else { return };
    let slurm = Slurm::new(test);
    if !slurm.has_pmix() {
        return tautline_skips::skip(test, slurm::NO_PMIX);
    }
    check_all(programs, |words| {
        let mut command = slurm.controller("srun");
        run(environment(command.args(["--mpi=pmix", "-N2", "-n2"]).args(words), python.as_deref()))
    });
}

#[test]
fn our_kernel_runs_under_slurm() {
    under_slurm("our_kernel_runs_under_slurm", true);
}

#[test]
fn programs_run_under_slurm() {
    under_slurm("programs_run_under_slurm", false);
}

/// Two namespaces with a link between them, which live as long as the processes in them.
struct Pair([Child; 2]);

impl Pair {
    fn new() -> Pair {
        let pair = Pair([hold_namespace(), hold_namespace()]);
        let [a, b] = [0, 1].map(|host: usize| pair.0[host].id());
        let setup = format!(
            "set -e; a='nsenter --net=/proc/{a}/ns/net'; b='nsenter --net=/proc/{b}/ns/net'
             $a ip link add e0 type veth peer name e0 netns {b}
             $a ip address add 10.216.0.1/24 dev e0; $b ip address add 10.216.0.2/24 dev e0
             for n in \"$a\" \"$b\"; do $n ip link set lo up; $n ip link set e0 up; done"
        );
        let done = Command::new("sh").args(["-c", &setup]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        pair
    }

    /// A program on a host.
    fn command(&self, host: usize, words: &[String]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0[host].id())).args(words);
        clean(&mut command);
        command
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for holder in &mut self.0 {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// Over UDP between two hosts, with a static list of members.
fn over_udp_between_hosts(test: &str, ours: bool) {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip(test, why);
    }
    let Some((programs, python)) = what_runs(test, ours) else { return };
    let (pair, folder) = (Pair::new(), folder(test));
    let job = folder.join("job");
    let text = format!(
        "tautline-job 1\nkey {}\nrank $TEST_RANK\ndevice udp\nmember 0 10.216.0.1:9000\nmember 1 10.216.0.2:9000\n",
        "ab".repeat(32)
    );
    std::fs::write(&job, text).unwrap();
    assert!(Command::new("chmod").arg("600").arg(&job).status().unwrap().success());
    check_all(programs, |words| {
        let started = [0, 1].map(|rank: usize| {
            let mut command = pair.command(rank, words);
            environment(&mut command, python.as_deref()).env("TAUTLINE_JOB_FILE", &job);
            command.env("TEST_RANK", rank.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let [mut first, second] = started.map(|child| child.wait_with_output().unwrap());
        assert!(second.status.success(), "{words:?}: {second:?}");
        first.stdout.extend(second.stdout);
        first
    });
}

#[test]
fn our_kernel_runs_over_udp_between_hosts() {
    over_udp_between_hosts("our_kernel_runs_over_udp_between_hosts", true);
}

#[test]
fn programs_run_over_udp_between_hosts() {
    over_udp_between_hosts("programs_run_over_udp_between_hosts", false);
}
