//! Every example, run as real processes of one job.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::Duration;

use crate::common::launch::{Launcher, example};

/// Runs `n` processes of an example and returns their output.
fn run(name: &str, n: u32) -> Vec<Vec<String>> {
    let launcher = Launcher::new(n as usize);
    let mut members: Vec<_> = (0..n).map(|rank| launcher.start(rank, example(name))).collect();
    members
        .iter_mut()
        .map(|member| {
            let (code, lines) = member.finish(Duration::from_secs(30));
            assert_eq!(code, Some(0), "{name}, rank {}: {lines:?}", member.rank);
            lines
        })
        .collect()
}

#[test]
fn hello() {
    for n in [1, 2, 4] {
        let out = run("hello", n);
        assert!(out[0].is_empty());
        for lines in &out[1..] {
            assert_eq!(lines, &["rank 0 says: hello"]);
        }
    }
}

#[test]
fn scatter() {
    let out = run("scatter", 3);
    assert_eq!(out[0], ["sums of the rows: [0, 100000, 200000]"]);
}

#[test]
fn all_reduce() {
    for (n, line) in [
        (1, "1 ranks, sum 1, greatest even rank 0"),
        (2, "2 ranks, sum 3, greatest even rank 0"),
        (5, "5 ranks, sum 15, greatest even rank 4"),
    ] {
        assert_eq!(run("all_reduce", n)[0], [line]);
    }
}

#[test]
fn farm() {
    assert_eq!(run("farm", 3)[0], ["2 workers: the squares add up to 328350"]);
}

/// Several senders to one, through shared memory: every message arrives, and nobody is taken for dead.
#[test]
fn incast() {
    let lines = &run("incast", 4)[0];
    assert!(lines[0].starts_with("messages of 1024 bytes") && lines[2].starts_with("3 senders"), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "peers reported dead 0");
}

/// G-9: the last rank ends halfway, and the others go on.
#[test]
fn survive() {
    let launcher = Launcher::new(4);
    let mut members: Vec<_> = (0..4).map(|rank| launcher.start(rank, example("survive"))).collect();
    let ends: Vec<_> = members.iter_mut().map(|member| member.finish(Duration::from_secs(60))).collect();
    assert_eq!(ends[0], (Some(0), vec!["100 steps, the first by 4 ranks, the last by 3".to_owned()]));
    assert!(ends.iter().map(|(code, _)| *code).eq([Some(0), Some(0), Some(0), Some(3)]), "{ends:?}");
}

/// M-9: 8 MiB, read in place.
#[test]
fn loan() {
    let out = run("loan", 3);
    for lines in &out[1..] {
        assert_eq!(lines[0], "8388608 bytes, not copied on the way");
        assert!(lines[1].ends_with("as expected: true"), "{lines:?}");
    }
}

/// M-8: the sender is held back, and every message arrives.
#[test]
fn pacing() {
    let out = run("pacing", 2);
    let sent = &out[0][0];
    assert!(sent.starts_with("sent 20000 messages"), "{sent}");
    assert!(!sent.ends_with("held back 0 times"), "{sent}");
    assert!(out[1][0].starts_with("took 20000 messages"), "{:?}", out[1]);
}

#[test]
fn wait() {
    for n in [1, 2, 4] {
        for (rank, lines) in run("wait", n).iter().enumerate() {
            assert!(lines[0].starts_with(&format!("rank {rank} uses udp: ")), "{lines:?}");
            assert!(lines[1].starts_with(&format!("rank {rank}: the word came home")), "{lines:?}");
        }
    }
}

#[test]
fn tokio() {
    for (rank, mut lines) in run("tokio", 3).into_iter().enumerate() {
        lines.sort();
        let others = (0..3).filter(|r| *r != rank).map(|r| format!("rank {r} says: hello from tokio"));
        assert_eq!(lines, others.collect::<Vec<_>>());
    }
}

/// T-1: only the awaited access fires, and everything that was put before it is in place.
#[test]
fn tripwire() {
    let out = run("tripwire", 4);
    assert_eq!(out[0], ["rank 1 put 1", "rank 2 put 4", "rank 3 put 9"]);
}

#[test]
fn queue() {
    assert_eq!(run("queue", 2)[0], ["took 1000 entries with 53500 bytes"]);
}

#[test]
fn rpc() {
    let out = run("rpc", 3);
    for (rank, lines) in out.iter().enumerate().skip(1) {
        let shouted = format!("rank {rank}: HELLO");
        assert_eq!(lines, &["17 / 5 = 3, rest 2", "1 / 0: division by zero", &shouted]);
    }
}

/// Threads that send, beside the endpoint's.
#[test]
fn handle() {
    for (rank, lines) in run("handle", 3).iter().enumerate() {
        assert_eq!(lines, &[format!("rank {rank}: the sum is 20")]);
    }
}

/// Tasks of several threads that call.
#[test]
fn tokio_threads() {
    for lines in &run("tokio_threads", 3)[1..] {
        assert_eq!(lines, &["the sum is 338350"]);
    }
}

/// Answers of a pool of threads.
#[test]
fn pool() {
    for lines in &run("pool", 3)[1..] {
        let counts = ["4 primes below 10", "168 primes below 1000", "9592 primes below 100000"];
        assert_eq!(lines[..3], counts);
        assert_eq!(lines[3..], ["10000000: that takes too long"]);
    }
}

/// Calls to the lanes of a server with a thread per core.
#[test]
fn lanes() {
    let ranks = run("lanes", 5);
    let sum: u64 = (0..1000).map(|number| number * number).sum();
    for lines in &ranks[1..] {
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let rest = format!(" squared 1000 numbers, and their sum is {sum}");
        assert!(line.starts_with("rank 0") && line.ends_with(&rest), "{line}");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let used: std::collections::HashSet<_> = ranks[1..].iter().map(|lines| &lines[0]).collect();
    assert_eq!(used.len(), cores.min(4), "the clients spread over all lanes: {used:?}");
}

#[test]
fn stream() {
    assert_eq!(run("stream", 2)[1], ["TRIPWIRES NEED NO HELP OF THE SENDER'S"]);
}

/// J-15: a program that nobody launched is a job of one.
#[test]
fn without_a_job() {
    let output = example("hello").env_remove("TAUTLINE_JOB_FD").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// J-15: one of several processes without a key says how to start the job.
#[test]
fn one_of_many_without_a_key() {
    let mut hello = example("hello");
    let output = hello.env_remove("TAUTLINE_JOB_FD").env("SLURM_STEP_NUM_TASKS", "4").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("srun --mpi=pmi2") && said.contains("TAUTLINE_JOB_FILE"), "{said}");
}

/// The recipes of docs/THREADS.md are examples, word for word.
#[test]
fn the_threads_page_shows_examples() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let page = std::fs::read_to_string(format!("{root}/docs/THREADS.md")).unwrap();
    for name in ["hello", "handle", "pool", "tokio_threads", "lanes"] {
        let example = std::fs::read_to_string(format!("{root}/examples/{name}.rs")).unwrap();
        let program = example.split_once("\n\n").unwrap().1.trim();
        assert!(page.contains(program), "docs/THREADS.md does not show examples/{name}.rs");
    }
}

/// The README's program is the example, word for word.
#[test]
fn readme_shows_hello() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    let hello = std::fs::read_to_string(format!("{root}/examples/hello.rs")).unwrap();
    let program = hello.split_once("\n\n").unwrap().1.trim();
    assert!(hello.lines().count() < 30);
    assert!(readme.contains(program), "the README's first program is not examples/hello.rs");
}
