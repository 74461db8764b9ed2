//! Jobs of one and the same program under any launcher: the program, what it says, and how it is run.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;

use tautline::{Down, Endpoint, Event, Short};

use super::read_line;

/// The program of the jobs: every rank greets every other, and says how many it has heard.
pub fn greet_all() {
    let heard = Rc::new(Cell::new(0));
    let count = heard.clone();
    let ep =
        Endpoint::builder().on_short("greet", move |_: Short<'_>| count.set(count.get() + 1)).join().unwrap();
    for peer in (0..ep.size()).filter(|peer| *peer != ep.rank()) {
        ep.send(peer, "greet", b"").unwrap();
    }
    ep.run_until(|| heard.get() + 1 == ep.size()).unwrap();
    let mut shared = HashSet::new();
    while let Some(event) = ep.poll_event() {
        if let Event::Transport { peer, device: "shm", .. } = event {
            shared.insert(peer);
        }
    }
    let local = shared.len();
    let line = format!("\nrank {} of {} heard {} others\nlocal {local}\n", ep.rank(), ep.size(), heard.get());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    ep.barrier().unwrap();
    ep.close().unwrap();
}

/// What the program says, in order of rank.
pub fn said(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    lines(output, "rank ")
}

pub fn lines(output: &Output, start: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<_> = text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect();
    lines.sort();
    lines
}

pub fn expected(n: u32) -> Vec<String> {
    (0..n).map(|rank| format!("rank {rank} of {n} heard {} others", n - 1)).collect()
}

pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|folder| folder.join(program).is_file())
}

/// Whether a library that programs load is installed.
pub fn has_pmix() -> bool {
    let known = Command::new("ldconfig").arg("-p").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&known).contains("libpmix.so.2")
}

/// A command without the variables of a launcher under which the tests may run.
pub fn clean(command: &mut Command) -> &mut Command {
    ["TAUTLINE_JOB_FD", "TAUTLINE_JOB_FILE", "PMI_FD", "PMI_JOBID", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"]
        .iter()
        .fold(command, |c, name| c.env_remove(name))
}

pub fn run(command: &mut Command) -> Output {
    clean(command).stdin(Stdio::null()).output().unwrap()
}

/// A process in a network namespace of its own, which lives as long.
pub fn hold_namespace() -> Child {
    let mut holder = Command::new("unshare");
    holder.args(["--net", "sh", "-c", "echo up; exec sleep 1000"]).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    assert_eq!(read_line(holder.stdout.as_mut().unwrap()), "up");
    holder
}

/// Names a file that exists from the first life of rank 1 on.
pub const LIVES: &str = "TAUTLINE_TEST_LIVES";

/// A program of three ranks: rank 1 dies once it has talked with rank 0, and talks with it again in its
/// second life. Rank 2 talks with nobody, and is told of both (N-26, J-20).
pub fn die_once() {
    let heard = Rc::new(Cell::new(0));
    let count = heard.clone();
    let ep = Endpoint::builder().watch_members();
    let ep = ep.on_short("word", move |_: Short<'_>| count.set(count.get() + 1)).join().unwrap();
    match ep.rank() {
        0 => {
            for life in 1..=2 {
                // Rank 2 may have left while rank 1 is gone: then a wait ends once because nobody is left.
                while let Err(error) = ep.run_until(|| heard.get() == life) {
                    assert!(matches!(error, tautline::Error::PeerGone(..)), "{error}");
                }
                ep.send(1, "word", b"").unwrap();
            }
        }
        1 => {
            let first = std::fs::File::create_new(std::env::var_os(LIVES).unwrap()).is_ok();
            ep.send(0, "word", b"").unwrap();
            ep.run_until(|| heard.get() == 1).unwrap();
            if first {
                std::process::abort();
            }
        }
        _ => {
            let mut told = Vec::new();
            let last = Event::MemberStarted { member: 1 };
            ep.run_until(|| {
                told.extend(std::iter::from_fn(|| ep.poll_event()));
                told.contains(&last)
            })
            .unwrap();
            let death = Event::PeerDown { peer: 1, incarnation: 0, why: Down::Reported };
            assert!(told.contains(&death), "{told:?}");
        }
    }
    let line = format!("\nrank {} is done\n", ep.rank());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    ep.close().unwrap();
}

/// Runs the program with `command`, which sets [`LIVES`], and checks what became of the ranks.
pub fn check_restart(command: &mut Command, lives: &std::path::Path) {
    let output = run(super::as_program(command, "die_once"));
    let _ = std::fs::remove_file(lives);
    assert_eq!(said(&output), ["rank 0 is done", "rank 1 is done", "rank 2 is done"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("rank 1 is started again (restarts left: 2): killed by signal 6"), "{text}");
}
