//! MPI programs of others and a kernel of our own under the launchers that people have, and over UDP between
//! two hosts, which are network namespaces. The programs of others are those that `cargo xtask suites` has
//! installed; what is not there is skipped.

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

/// What runs with two ranks under each launcher.
fn programs(others: &Others) -> Vec<Program> {
    let python = |args: &[&str]| words(Path::new("python3"), &[&["-m", "mpi4py.bench"], args].concat());
    // Built once: a program that runs cannot be replaced.
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    let kernel = KERNEL.get_or_init(|| compile("mpicc", &["examples/mpi/cg.c"], &["-O1"]));
    vec![
        Program { words: words(kernel, &[]), check: |text| text.lines().any(|line| line == "passed") },
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

/// Sets where programs find our libraries and mpi4py.
fn environment<'a>(command: &'a mut Command, others: &Others) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", prefix().join("lib")).env("PYTHONPATH", &others.python)
}

/// Runs all programs by `start`, which is given a program and its arguments.
fn check_all(others: &Others, start: impl Fn(&[String]) -> Output) {
    for Program { words, check } in programs(others) {
        let output = start(&words);
        assert!(output.status.success() && check(&text(&output)), "{words:?}: {}", text(&output));
    }
}

/// Under hydra, the launcher of MPICH, through shared memory.
#[test]
fn programs_run_under_hydra() {
    let skip = |why: &str| tautline_skips::skip("programs_run_under_hydra", why);
    if !has("mpiexec.hydra") {
        return skip("mpiexec.hydra (mpich) is not installed");
    }
    let others = match others() {
        Ok(others) => others,
        Err(why) => return skip(why),
    };
    check_all(&others, |words| {
        let mut command = Command::new("mpiexec.hydra");
        run(environment(command.args(["-n", "2"]).args(words), &others))
    });
}

/// By `srun --mpi=pmix` on two hosts.
#[test]
fn programs_run_under_slurm() {
    let skip = |why: &str| tautline_skips::skip("programs_run_under_slurm", why);
    if let Some(why) = slurm::lacks() {
        return skip(why);
    }
    let others = match others() {
        Ok(others) => others,
        Err(why) => return skip(why),
    };
    let slurm = Slurm::new("slurm-mpi");
    if !slurm.has_pmix() {
        return skip(slurm::NO_PMIX);
    }
    check_all(&others, |words| {
        let mut command = slurm.controller("srun");
        run(environment(command.args(["--mpi=pmix", "-N2", "-n2"]).args(words), &others))
    });
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
#[test]
fn programs_run_over_udp_between_hosts() {
    let skip = |why: &str| tautline_skips::skip("programs_run_over_udp_between_hosts", why);
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return skip(why);
    }
    let others = match others() {
        Ok(others) => others,
        Err(why) => return skip(why),
    };
    let (pair, folder) = (Pair::new(), folder("mpi-udp"));
    let job = folder.join("job");
    let text = format!(
        "tautline-job 1\nkey {}\nrank $TEST_RANK\ndevice udp\nmember 0 10.216.0.1:9000\nmember 1 10.216.0.2:9000\n",
        "ab".repeat(32)
    );
    std::fs::write(&job, text).unwrap();
    assert!(Command::new("chmod").arg("600").arg(&job).status().unwrap().success());
    check_all(&others, |words| {
        let started = [0, 1].map(|rank: usize| {
            let mut command = pair.command(rank, words);
            environment(&mut command, &others).env("TAUTLINE_JOB_FILE", &job);
            command.env("TEST_RANK", rank.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let [mut first, second] = started.map(|child| child.wait_with_output().unwrap());
        assert!(second.status.success(), "{words:?}: {second:?}");
        first.stdout.extend(second.stdout);
        first
    });
}
