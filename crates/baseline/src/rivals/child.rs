//! Foreign programs run with a time bound, and leave neither processes nor files behind.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Runs a program to its end and returns its output, or the failure.
pub(super) fn run(command: &mut Command, time: Duration) -> Result<String, String> {
    run_unless(command, time, &mut || false)
}

/// The same, unless `stop` returns true meanwhile.
pub(super) fn run_unless(
    command: &mut Command,
    time: Duration,
    stop: &mut dyn FnMut() -> bool,
) -> Result<String, String> {
    command.stdout(Stdio::piped());
    let mut child = Background::spawn(command, Stdio::piped())?;
    let output = read(child.0.stdout.take().ok_or("no output")?);
    let complaints = read(child.0.stderr.take().ok_or("no output")?);
    let started = Instant::now();
    let status = loop {
        match child.0.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if started.elapsed() > time => return Err(format!("not done after {time:?}")),
            None if stop() => return Err("stopped on request".to_owned()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // Its own children must not hold the pipe open.
    drop(child);
    let [text, complaints] = [output, complaints].map(|reader| reader.join().unwrap_or_default());
    if status.success() {
        Ok(text)
    } else {
        Err(format!("it ended with {status}{}", last_complaint(&complaints)))
    }
}

fn read(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that were read before an error are all there is.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The last line of `complaints` with words in it, as the end of a sentence.
pub(super) fn last_complaint(complaints: &str) -> String {
    let mut lines = complaints.lines().rev().map(str::trim);
    lines.find(|line| line.chars().any(char::is_alphabetic)).map_or(String::new(), |line| format!(": {line}"))
}

/// How long a program may take to end by itself when it is asked to.
const TERM_TIME: Duration = Duration::from_secs(10);

/// A program in a process group of its own, ended with all its children when dropped.
pub(super) struct Background(Child);

impl Background {
    /// Starts it; `complaints` gets its standard error.
    pub(super) fn start(command: &mut Command, complaints: impl Into<Stdio>) -> Result<Self, String> {
        Self::spawn(command.stdout(Stdio::null()), complaints)
    }

    fn spawn(command: &mut Command, complaints: impl Into<Stdio>) -> Result<Self, String> {
        command.stdin(Stdio::null()).stderr(complaints).process_group(0);
        command.spawn().map(Self).map_err(|e| format!("it cannot be started: {e}"))
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            if self.ended().is_none() {
                // A launcher that is killed leaves the files of its ranks behind.
                let _ = kill_process(group, Signal::TERM);
                let until = Instant::now() + TERM_TIME;
                while self.ended().is_none() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            // The group may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// A directory that is removed when dropped.
pub(super) struct TempDir(PathBuf);

impl TempDir {
    pub(super) fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tautline-baseline-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_failure_and_timeout_are_distinguished() {
        let shell = |script: &str, limit| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(&mut command, limit)
        };
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo hello", long).as_deref(), Ok("hello\n"));
        assert!(shell("exit 3", long).unwrap_err().contains('3'));
        assert!(shell("echo why >&2; echo --- >&2; exit 3", long).unwrap_err().ends_with(": why"));
        assert!(shell("sleep 600", Duration::from_millis(300)).unwrap_err().contains("not done"));
        assert!(run(&mut Command::new("/no/such/program"), Duration::from_secs(1)).is_err());
    }
}
