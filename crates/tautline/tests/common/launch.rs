//! Jobs of real processes: a launcher like `tautline run`, small enough for tests.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Job, Member, job_file};

/// The descriptors of a child's job and socket.
const JOB: i32 = 3;
const SOCKET: i32 = 4;

/// The members of a job; their sockets stay open here, so that a member can be started again at its address.
pub struct Launcher {
    sockets: Vec<UdpSocket>,
    members: Vec<Member>,
    device: Option<DeviceName>,
}

impl Launcher {
    pub fn new(n: usize) -> Launcher {
        let sockets: Vec<_> = (0..n).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let members = sockets.iter().map(|s| Member::new(s.local_addr().unwrap())).collect();
        Launcher { sockets, members, device: None }
    }

    /// As [`Launcher::new`], for a job that uses one device only.
    pub fn over(device: DeviceName, n: usize) -> Launcher {
        Launcher { device: Some(device), ..Launcher::new(n) }
    }

    /// The job for a member in this process.
    pub fn job(&self, rank: u32) -> Job {
        let mut job = job_file::parse(&self.describe(rank)).unwrap();
        job.socket = Some(self.sockets[rank as usize].as_fd().try_clone_to_owned().unwrap());
        job
    }

    fn describe(&self, rank: u32) -> String {
        job_file::describe(rank, &JobKey::new([42; 32]), &self.members, None, self.device, None)
    }

    /// Starts the member of `rank`: the job is passed in a pipe, the socket as a descriptor.
    pub fn start(&self, rank: u32, mut command: Command) -> Process {
        let text = format!("{}socket {SOCKET}\n", self.describe(rank));
        let (reader, writer) = std::io::pipe().unwrap();
        { writer }.write_all(text.as_bytes()).unwrap();
        let socket = self.sockets[rank as usize].as_fd().try_clone_to_owned().unwrap();
        let mappings = vec![
            FdMapping { parent_fd: OwnedFd::from(reader), child_fd: JOB },
            FdMapping { parent_fd: socket, child_fd: SOCKET },
        ];
        command.env("TAUTLINE_JOB_FD", JOB.to_string()).fd_mappings(mappings).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (line, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| line.send(l)));
        Process { rank, child, lines, seen: Vec::new() }
    }
}

/// This test binary again, to run the one test `name` as a member of a job. With one thread, as on one core,
/// the harness would print the name of the test in front of the first line.
pub fn again(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=2"]).env("TAUTLINE_TEST_MEMBER", name);
    command
}

/// Whether this process was started by [`again`]. If so, it dies with its parent.
pub fn is_member(name: &str) -> bool {
    let member = std::env::var("TAUTLINE_TEST_MEMBER").is_ok_and(|n| n == name);
    if member {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    }
    member
}

/// An example's program, built beside this test.
pub fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let program = path.join("examples").join(name);
    assert!(program.exists(), "{} is not built; `cargo test -p tautline` builds it", program.display());
    Command::new(program)
}

/// A running member; killed when dropped.
pub struct Process {
    pub rank: u32,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Process {
    pub fn id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.id(), signal).unwrap();
    }

    /// Waits for the end and returns exit code and output.
    pub fn finish(&mut self, limit: Duration) -> (Option<i32>, Vec<String>) {
        let until = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("rank {} did not end: {:?}", self.rank, self.seen),
            }
        }
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.seen))
    }

    /// Waits for the next line for which `pick` returns something; other lines are skipped.
    pub fn expect<T>(&mut self, what: &str, limit: Duration, mut pick: impl FnMut(&str) -> Option<T>) -> T {
        let until = Instant::now() + limit;
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line =
                line.unwrap_or_else(|e| panic!("rank {}: no {what} ({e}): {:?}", self.rank, self.seen));
            if let Some(found) = pick(&line) {
                return found;
            }
            if self.seen.len() >= 20 {
                self.seen.remove(0);
            }
            self.seen.push(line);
        }
    }

    /// All lines so far.
    pub fn drain(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// `kill -9`, and waits until the process is gone; returns the time of the signal, on the system's
    /// monotonic clock.
    pub fn kill(&mut self) -> u64 {
        let at = now();
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().unwrap();
        at
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nanoseconds on a clock that all processes share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
