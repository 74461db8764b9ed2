//! Starts the command and reads its output. No test depends on timing; time bounds only keep a fault from
//! hanging it.
#![allow(dead_code)]

pub mod hosts;
pub mod jobs;
pub mod joins;
pub mod mpi;
pub mod slurm;

use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The command under test, without the environment of a job in which the tests themselves may run.
pub fn tautline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tautline"));
    command.env_remove("TAUTLINE_JOB_FD").env_remove("TAUTLINE_JOB_FILE");
    command
}

/// Appends this test program, to run only the ignored test of that name.
pub fn as_program<'a>(command: &'a mut Command, test: &str) -> &'a mut Command {
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--ignored", "--test-threads=1"])
}

/// A job that a failing test ends. The supervisor of a killed launcher ends its processes.
pub struct RunningJob(pub Child);

impl Drop for RunningJob {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads one line, byte by byte, so that nothing after it is lost.
pub fn read_line(from: &mut impl Read) -> String {
    let mut line = String::new();
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() && byte[0] != b'\n' {
        line.push(byte[0] as char);
    }
    assert!(!line.is_empty(), "there is no output");
    line
}

/// Sends a signal to a process that a test started.
pub fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// The children of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|number| hosts::parent_of(*number) == Some(pid)).collect()
}

/// The launcher of a job on this host: the only child of the process that a test started, its supervisor.
pub fn launcher_of(supervisor: u32) -> u32 {
    let [launcher] = children_of(supervisor)[..] else { panic!("a supervisor has one child") };
    let program = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(program(launcher), program(supervisor), "a launcher is the same program");
    launcher
}

/// Waits until `so` is true.
pub fn until(patience: Duration, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < patience, "it did not become true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The cores on which this thread may run, and those that it starts. A share of their time that the system
/// grants does not matter.
pub fn cores_allowed() -> u32 {
    rustix::thread::sched_getaffinity(None).unwrap().count()
}

/// Whether a process runs; a zombie does not.
pub fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

/// Writes a program for this test. Another process does it: a file that is open for writing cannot be
/// executed, and processes that other threads start have it open for a moment if this one has.
pub fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(path).arg(text);
    assert!(shell.status().unwrap().success());
}

/// A fresh folder for a test, which goes with it.
pub struct Folder(PathBuf);

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a folder for a test.
pub fn folder(name: &str) -> Folder {
    let folder = std::env::temp_dir().join(format!("tautline-cli-test-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    Folder(folder)
}
