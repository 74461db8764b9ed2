//! Jobs of member processes, which are this program again; ended when dropped.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Member, Security, job_file};

/// The descriptors of a child's job and socket.
const JOB: i32 = 3;
const SOCKET: i32 = 4;
/// Far longer than any answer takes: a member that has not answered by then hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The members of a job. Their sockets stay open here, so that a member can be started again.
pub struct Members {
    sockets: Vec<UdpSocket>,
    pub addresses: Vec<SocketAddr>,
    pub device: Option<DeviceName>,
    pub security: Security,
}

impl Members {
    /// A job of `n` members on loopback. For `shm` no device is named, so that a fall back to UDP shows.
    pub fn new(n: usize, device: &str, security: Security) -> std::io::Result<Members> {
        let sockets = (0..n).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let addresses = sockets.iter().map(UdpSocket::local_addr).collect::<Result<_, _>>()?;
        let device = (device == "udp").then_some(DeviceName::Udp);
        Ok(Members { sockets, addresses, device, security })
    }

    /// Starts the member of `rank`, which sees the others at these addresses, if any are given.
    pub fn start(
        &self,
        rank: usize,
        seen: Option<&[SocketAddr]>,
        command: Command,
    ) -> std::io::Result<Process> {
        let members: Vec<_> = seen.unwrap_or(&self.addresses).iter().map(|addr| Member::new(*addr)).collect();
        let key = JobKey::new([42; 32]);
        let text =
            job_file::describe(rank as u32, &key, &members, Some(self.security), self.device, Some(SOCKET));
        let (reader, mut writer) = std::io::pipe()?;
        writer.write_all(text.as_bytes())?;
        drop(writer);
        let socket = self.sockets[rank].as_fd().try_clone_to_owned()?;
        let mappings = vec![
            FdMapping { parent_fd: OwnedFd::from(reader), child_fd: JOB },
            FdMapping { parent_fd: socket, child_fd: SOCKET },
        ];
        let mut command = command;
        command.fd_mappings(mappings).map_err(std::io::Error::other)?;
        command.env("TAUTLINE_JOB_FD", JOB.to_string());
        Process::spawn(rank, command)
    }
}

/// This program as a member; `limits` are shell commands that come before it.
pub fn member(role: &str, limits: &str) -> Command {
    let mut command;
    let program = "/proc/self/exe";
    if limits.is_empty() {
        command = Command::new(program);
    } else {
        // The shell's own /proc/self/exe is the shell.
        let program = std::env::current_exe().expect("/proc is mounted");
        command = Command::new("sh");
        command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(program);
    }
    command.args(["--member", role]);
    command
}

/// A running member; killed when dropped.
pub struct Process {
    pub rank: usize,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// Lines that nobody has asked for yet.
    waiting: VecDeque<String>,
    said: Receiver<String>,
}

impl Process {
    pub fn spawn(rank: usize, mut command: Command) -> std::io::Result<Process> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (line, lines) = channel();
        let (word, said) = channel();
        let out = BufReader::new(child.stdout.take().expect("it is redirected"));
        let err = BufReader::new(child.stderr.take().expect("it is redirected"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| line.send(l)));
        std::thread::spawn(move || err.lines().map_while(Result::ok).try_for_each(|l| word.send(l)));
        let stdin = child.stdin.take().expect("it is redirected");
        Ok(Process { rank, child, stdin, lines, waiting: VecDeque::new(), said })
    }

    pub fn signal(&self, signal: Signal) {
        // It is our child and not reaped, so the number is its.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Asks the member for something.
    pub fn ask(&mut self, what: &str) {
        let _ = writeln!(self.stdin, "{what}");
    }

    /// Waits for a line for which `pick` returns something; keeps the others.
    pub fn expect<T>(&mut self, what: &str, mut pick: impl FnMut(&str) -> Option<T>) -> Result<T, String> {
        if let Some((at, found)) =
            self.waiting.iter().enumerate().find_map(|(at, line)| Some((at, pick(line)?)))
        {
            self.waiting.remove(at);
            return Ok(found);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => match pick(&line) {
                    Some(found) => return Ok(found),
                    None => self.waiting.push_back(line),
                },
                Err(RecvTimeoutError::Disconnected) => return Err(self.died(what)),
                Err(RecvTimeoutError::Timeout) => {
                    let last: Vec<_> = self.waiting.iter().rev().take(8).collect();
                    let rank = self.rank;
                    return Err(format!("rank {rank} did not report {what} within {PATIENCE:?}: {last:?}"));
                }
            }
        }
    }

    /// An error if the process has ended, with its last words.
    pub fn check_alive(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(self.died("it was told to")),
        }
    }

    fn died(&mut self, what: &str) -> String {
        let status = self.child.wait();
        let said: Vec<_> = self.said.iter().take(6).collect();
        format!("rank {} ended before {what}: {status:?}: {}", self.rank, said.join(" / "))
    }

    /// Waits for a line that starts with `start`; returns the rest of it.
    pub fn line(&mut self, start: &str) -> Result<String, String> {
        self.expect(start, |line| line.strip_prefix(start).map(|rest| rest.trim().to_owned()))
    }

    /// All lines that start with `start` and have arrived.
    pub fn drain(&mut self, start: &str) -> Vec<String> {
        self.waiting.extend(self.lines.try_iter());
        let (found, kept): (VecDeque<_>, _) =
            self.waiting.drain(..).partition(|line| line.starts_with(start));
        self.waiting = kept;
        found.into()
    }

    /// Keeps lines for later.
    pub fn put_back(&mut self, lines: Vec<String>) {
        self.waiting.extend(lines);
    }

    /// Waits for the end; returns exit code and what it said. None if it does not end.
    pub fn finish(&mut self) -> Option<(std::process::ExitStatus, Vec<String>)> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    let mut said: Vec<_> = self.said.iter().collect();
                    said.extend(self.waiting.drain(..).chain(self.lines.iter()));
                    return Some((status, said));
                }
                _ if Instant::now() > until => return None,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// KiB of memory that the process has in use.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
