//! Ranks that join a running job (J-22): through the command, and through the library.
#![allow(clippy::print_stdout)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::rc::Rc;

use common::{PATIENCE, as_program, is_running, kill, launcher_of, read_line, tautline, until};
use tautline::{Endpoint, Event, Short};

/// How many ranks there are in the end.
const ALL: u32 = 5;

/// The program: two ranks begin, two join through the command, and rank 0 adds one. Each greets every other.
#[test]
#[ignore = "a program of these tests"]
fn greet_whoever_joins() {
    let heard = Rc::new(RefCell::new(BTreeSet::new()));
    let hears = heard.clone();
    let builder = Endpoint::builder().watch_members();
    let ep = builder.on_short("greet", move |m: Short<'_>| {
        hears.borrow_mut().insert(m.from());
    });
    let ep = ep.join().unwrap();
    say(&format!("\nrank {} begins\n", ep.rank()));
    let mut known: BTreeSet<u32> = (0..ep.size()).filter(|rank| *rank != ep.rank()).collect();
    known.iter().for_each(|rank| ep.send(*rank, "greet", b"").unwrap());
    let mut spawned = ep.rank() != 0;
    while heard.borrow().len() < ALL as usize - 1 || known.len() < ALL as usize - 1 {
        ep.wait(None).unwrap();
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            if let Event::MemberJoined { member } = event {
                assert!(known.insert(member));
                ep.send(member, "greet", b"").unwrap();
            }
        }
        if !spawned && heard.borrow().len() == ALL as usize - 2 {
            spawned = true;
            let program = std::env::current_exe().unwrap();
            let options = ["greet_whoever_joins", "--exact", "--ignored", "--test-threads=1"];
            assert_eq!(ep.spawn(1, &program, options).unwrap(), ALL - 1..ALL);
            let error = ep.spawn(1, "/no/such/program", options).unwrap_err().to_string();
            assert!(error.contains("/no/such/program"), "{error}");
        }
    }
    say(&format!("\nrank {} heard {:?}\n", ep.rank(), heard.borrow()));
    ep.close().unwrap();
}

fn say(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).unwrap();
}

fn lines(text: &str, with: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// J-22, J-23: those that join get the next ranks, members are told, and messages flow both ways.
#[test]
fn ranks_join_a_running_job() {
    for device in ["shm", "udp"] {
        let mut job = tautline();
        job.args(["run", "-n", "2", "--device", device]).stdout(Stdio::piped());
        let mut job = as_program(&mut job, "greet_whoever_joins").spawn().unwrap();
        let mut out = job.stdout.take().unwrap();
        let mut begun = 0;
        while begun < 2 {
            let mut line = Vec::new();
            let mut byte = [0];
            while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
                line.push(byte[0]);
            }
            begun += usize::from(String::from_utf8_lossy(&line).contains("begins"));
        }
        let mut joins = tautline();
        joins.args(["run", "-n", "2", "--join", &job.id().to_string()]);
        let joined = as_program(&mut joins, "greet_whoever_joins").output().unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let joined_out = String::from_utf8_lossy(&joined.stdout);
        assert!(job.wait().unwrap().success(), "{rest}");
        assert!(joined.status.success(), "{joined:?}");
        assert_eq!(lines(&joined_out, "heard"), ["rank 2 heard {0, 1, 3, 4}", "rank 3 heard {0, 1, 2, 4}"]);
        let expected =
            ["rank 0 heard {1, 2, 3, 4}", "rank 1 heard {0, 2, 3, 4}", "rank 4 heard {0, 1, 2, 3}"];
        assert_eq!(lines(&rest, "heard"), expected);
    }
}

/// J-22, J-24: the output and the exit code of a rank that joined are those of the command, and it ends with
/// the command.
#[test]
fn joined_ranks_belong_to_the_command() {
    let mut job = tautline();
    job.args(["run", "-n", "1", "--keep-going"]).stdout(Stdio::piped());
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

/// J-19, J-22: a launcher that is killed leaves a socket, which the next one unlinks, and no rank, also none
/// that joined.
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
    assert!(tautline().args(["run", "-n", "1", "true"]).status().unwrap().success());
    assert!(!std::path::Path::new(&socket).exists());
}
