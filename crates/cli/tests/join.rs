//! Ranks that join a running job (J-22): through the command, and through the library.

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::joins::{check_ends_are_told, check_joins};
use common::{PATIENCE, is_running, kill, launcher_of, read_line, tautline, until};

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
