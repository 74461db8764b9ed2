//! Ranks that join a running job (J-22): through the command, and through the library.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::joins::{check_ends_are_told, check_joins};
use common::{PATIENCE, RunningJob, as_program, is_running, kill, launcher_of, read_line, tautline, until};

/// The program of the jobs.
#[test]
#[ignore = "a program of these tests"]
fn greet_whoever_joins() {
    common::joins::greet_whoever_joins();
}

/// A program of the jobs.
#[test]
#[ignore = "a program of these tests"]
fn wait_for_an_end() {
    common::joins::wait_for_an_end();
}

/// A program of the jobs.
#[test]
#[ignore = "a program of these tests"]
fn ignore_whoever_joins() {
    common::joins::ignore_whoever_joins();
}

/// A program of the jobs.
#[test]
#[ignore = "a program of these tests"]
fn be_refused() {
    common::joins::be_refused();
}

/// J-23: members that do not watch members refuse a rank that joins, by listener and by datagram, and say
/// why. Without an answer the rank would say after 10 s that they cannot be reached.
#[test]
fn members_that_do_not_watch_refuse() {
    for options in [&[][..], &["--device", "shm"], &["--device", "udp"]] {
        let mut job = tautline();
        job.args(["run", "-n", "2"]).args(options).stdin(Stdio::null()).stdout(Stdio::piped());
        let job = as_program(&mut job, "ignore_whoever_joins").spawn().unwrap();
        let RunningJob(job) = &mut RunningJob(job);
        let mut out = BufReader::new(job.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert_eq!(out.by_ref().filter(|line| line.ends_with("begins")).take(2).count(), 2);
        let mut join = tautline();
        join.args(["run", "-n", "1", "--join", &job.id().to_string()]);
        let joined = as_program(&mut join, "be_refused").output().unwrap();
        let text = String::from_utf8_lossy(&joined.stdout);
        let refused = text.lines().filter(|line| line.starts_with("refused: ")).count();
        assert!(joined.status.success() && refused == 2 && text.contains("watch_members"), "{joined:?}");
        kill(job.id(), "INT");
        job.wait().unwrap();
    }
}

/// What cannot be combined with --join is named, with what to do instead.
#[test]
fn options_that_joining_does_not_have() {
    let refusal = |options: &[&str], program: &[&str]| {
        let mut join = tautline();
        join.args(["run", "-n", "1", "--join", "1"]).args(options).args(program);
        let output = join.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = refusal(&["--tag"], &["true"]);
    assert!(text.contains("leave out --tag") && text.contains("a command of its own"), "{text}");
    let text = refusal(&[], &["true", ":", "-n", "1", "true"]);
    assert!(text.contains("--join starts one program") && text.contains("a command of its own"), "{text}");
    for option in ["--timeout=1", "--keep-going", "--device=udp", "--ppn=1"] {
        let text = refusal(&[option], &["true"]);
        let name = option.split('=').next().unwrap();
        assert!(text.contains("cannot be used with") && text.contains(name), "{text}");
    }
    let text = refusal(&["--hostfile", "/no/such/file"], &["true"]);
    assert!(text.contains("cannot read the host file /no/such/file"), "{text}");
}

/// The hosts of a file are asked for, as those of --hosts: this job is on one host, which says so.
#[test]
fn hosts_of_a_file_are_asked_for() {
    let mut job = tautline();
    job.args(["run", "-n", "1", "--keep-going", "sh", "-c", "echo up; exec sleep 1000"]);
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(read_line(job.stdout.as_mut().unwrap()), "up");
    let file = std::env::temp_dir().join(format!("tautline-join-hosts-{}", std::process::id()));
    std::fs::write(&file, "a slots=1\n").unwrap();
    let mut join = tautline();
    join.args(["run", "--join", &job.id().to_string(), "--hostfile"]).arg(&file).arg("true");
    let refused = join.output().unwrap();
    std::fs::remove_file(&file).unwrap();
    kill(job.id(), "INT");
    job.wait().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && text.contains("leave out --hosts and --hostfile"), "{text}");
}

/// `crates/tautline/examples/spawn.rs`: a program that starts further ranks of its job.
#[test]
fn the_example_that_spawns() {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_tautline")).parent().unwrap();
    let program = folder.join("examples/spawn");
    assert!(program.exists(), "{} is not built; `cargo test` builds it", program.display());
    for device in ["shm", "udp"] {
        let mut job = tautline();
        let output = job.args(["run", "-n", "1", "--device", device]).arg(&program).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let said = ["rank 1 says: 1", "rank 2 says: 4", "rank 3 says: 9", "all have ended"];
        assert_eq!(text.lines().collect::<Vec<_>>(), [&["started ranks 1 to 3"][..], &said].concat());
    }
}

/// J-22, J-23: those that join get the next ranks, members are told, and messages flow both ways.
#[test]
fn ranks_join_a_running_job() {
    for (device, local) in [("shm", [4; 5]), ("udp", [0; 5])] {
        let mut job = tautline();
        job.args(["run", "-n", "2", "--device", device]);
        let join = |job: u32| {
            let mut join = tautline();
            join.args(["run", "-n", "2", "--join", &job.to_string()]);
            join
        };
        check_joins(job, join, local);
    }
}

/// A job of one rank shares memory with those that join.
#[test]
fn a_single_rank_shares_memory_with_those_that_join() {
    let mut job = tautline();
    job.args(["run", "-n", "1"]);
    let join = |job: u32| {
        let mut join = tautline();
        join.args(["run", "-n", "3", "--join", &job.to_string()]);
        join
    };
    check_joins(job, join, [4; 5]);
}

/// N-26: those that join are told of the ranks that had ended.
#[test]
fn ends_before_a_join_are_told() {
    let mut job = tautline();
    job.arg("run");
    let join = |job: u32| {
        let mut join = tautline();
        join.args(["run", "-n", "1", "--join", &job.to_string()]);
        join
    };
    check_ends_are_told(job, join);
}

/// J-22, J-24: the output and the exit code of a rank that joined are those of the command, and it ends with
/// the command.
#[test]
fn joined_ranks_belong_to_the_command() {
    let mut job = tautline();
    job.args(["run", "-n", "1", "--keep-going", "--grace", "0.2"]).stdout(Stdio::piped());
    job.args(["sh", "-c", "echo up; exec sleep 1000"]);
    let mut job = job.stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(read_line(job.stdout.as_mut().unwrap()), "up");
    let number = job.id().to_string();
    let join = |script: &str| {
        let mut command = tautline();
        command.args(["run", "-n", "1", "--join", &number, "--env", "WORD=here"]);
        command.args(["--wdir", "/", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let ended = join("echo $WORD; pwd; exit 7").output().unwrap();
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(7), &b"here\n/\n"[..]));
    let mut command = join("echo $$; exec sleep 1000").spawn().unwrap();
    let rank = read_line(command.stdout.as_mut().unwrap());
    command.kill().unwrap();
    command.wait().unwrap();
    until(PATIENCE, || !is_running(&rank));
    // Also if it ignores SIGTERM.
    let mut command = join("trap '' TERM; echo $$; exec sleep 1000").spawn().unwrap();
    let rank = read_line(command.stdout.as_mut().unwrap());
    command.kill().unwrap();
    command.wait().unwrap();
    until(PATIENCE, || !is_running(&rank));
    assert!(job.try_wait().unwrap().is_none());
    kill(job.id(), "INT");
    job.wait().unwrap();
    let late = join("true").output().unwrap();
    let text = String::from_utf8_lossy(&late.stderr);
    assert!(late.status.code() == Some(2) && text.contains("there is no job"), "{text}");
}

/// J-22: what is no job, and what is no job of this user, is named.
#[test]
fn jobs_that_cannot_be_joined() {
    let refusal = |job: &str| {
        let output = tautline().args(["run", "-n", "1", "--join", job, "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refusal("x").contains("not a process number"));
    assert!(refusal("0").contains("not a process number"));
    assert!(refusal(&std::process::id().to_string()).contains("no job that can be joined"));
    let mut other = Command::new("sleep");
    if rustix::process::geteuid().is_root() {
        other.uid(12_345);
    }
    let mut other = other.arg("1000").spawn().unwrap();
    let theirs = if rustix::process::geteuid().is_root() { other.id() } else { 1 };
    let text = refusal(&theirs.to_string());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(text.contains("belongs to user"), "{text}");
}

/// J-25: a launcher that is killed leaves neither a socket nor a rank, also none that joined.
#[test]
fn a_killed_launcher_leaves_no_rank() {
    let program = ["sh", "-c", "echo $$; exec sleep 1000"];
    let mut job = tautline().args(["run", "-n", "1"]).args(program).stdout(Stdio::piped()).spawn().unwrap();
    let first = read_line(job.stdout.as_mut().unwrap());
    let mut join = tautline();
    join.args(["run", "-n", "1", "--join", &job.id().to_string()]).args(program);
    let mut join = join.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let second = read_line(join.stdout.as_mut().unwrap());
    kill(launcher_of(job.id()), "KILL");
    assert_eq!(job.wait().unwrap().code(), Some(137));
    until(PATIENCE, || [&first, &second].iter().all(|pid| !is_running(pid)));
    assert_eq!(join.wait().unwrap().code(), Some(2));
    let socket = format!("/tmp/tautline-{}/job-{}", rustix::process::geteuid().as_raw(), job.id());
    assert!(!std::path::Path::new(&socket).exists());
}
