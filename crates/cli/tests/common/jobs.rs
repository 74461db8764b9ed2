//! Jobs of one and the same program under any launcher: the program, what it says, and how it is run.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;

use tautline::{Endpoint, Event, Short};

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
