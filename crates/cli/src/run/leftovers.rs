//! Ends the processes that ranks started and left behind (J-6).
//!
//! The launcher is a subreaper: a process whose parent ends becomes its child. So it has no descendants if
//! and only if it has no children, and until then each turn signals whatever it finds.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, wait,
};

/// Time between two turns. New descendants appear only as others fork or end.
const TURN: Duration = Duration::from_millis(5);
/// For this long SIGKILL is repeated. What then still exists is stuck in the kernel, or not ours to signal.
const KILL_FOR: Duration = Duration::from_secs(10);

/// Makes orphans of the ranks, and of all that they start, children of this process.
pub fn adopt() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Ends all descendants: with SIGTERM, and `grace` later with SIGKILL, until none is left. `pause` sleeps for
/// at most the given time, and returns true to have SIGKILL sent at once. Returns the processes that could
/// not be ended.
pub fn end_all(grace: Duration, mut pause: impl FnMut(Duration) -> bool) -> Vec<Pid> {
    let mut asked = HashSet::new();
    let mut kill_at = Instant::now() + grace;
    loop {
        if !reap() {
            return Vec::new();
        }
        let now = Instant::now();
        let descendants = Descendant::all();
        if now >= kill_at + KILL_FOR {
            return descendants.into_iter().map(|found| found.pid).collect();
        }
        for found in descendants {
            if now >= kill_at {
                found.signal(Signal::KILL);
            } else if asked.insert(found) {
                found.signal(Signal::TERM);
            }
        }
        if pause(TURN) {
            kill_at = kill_at.min(Instant::now());
        }
    }
}

/// A pause of [`end_all`] for callers that nothing interrupts.
pub fn sleep(time: Duration) -> bool {
    std::thread::sleep(time);
    false
}

/// Reaps all children that have ended; false if there is no child at all.
fn reap() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// A process below this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Descendant {
    pid: Pid,
    /// Tells it from a later process with the same number.
    started: u64,
}

impl Descendant {
    /// All of them that run, from /proc: the kernel's own list of children is not compiled in everywhere.
    fn all() -> Vec<Descendant> {
        let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut children: HashMap<i32, Vec<Descendant>> = HashMap::new();
        for pid in numbers.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)) {
            if let Some((parent, started)) = parent_and_start(pid) {
                children.entry(parent).or_default().push(Descendant { pid, started });
            }
        }
        let mut found = children.remove(&getpid().as_raw_pid()).unwrap_or_default();
        let mut at = 0;
        while let Some(one) = found.get(at) {
            found.extend(children.remove(&one.pid.as_raw_pid()).unwrap_or_default());
            at += 1;
        }
        found
    }

    /// It may have ended just now; then there is nothing to do.
    fn signal(self, signal: Signal) {
        let Ok(fd) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        // The descriptor is of this process if the process is the same after it was opened.
        if parent_and_start(self.pid).is_some_and(|(_, started)| started == self.started) {
            let _ = pidfd_send_signal(&fd, signal);
        }
    }
}

fn parent_and_start(pid: Pid) -> Option<(i32, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

fn parse_stat(stat: &str) -> Option<(i32, u64)> {
    // The name, in parentheses, may itself contain parentheses and spaces; state and parent follow it.
    // A zombie counts: only its first thread may have ended.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_parsed() {
        let tail = "7 1 1 0 -1 4194560 101 0 0 0 0 0 0 0 20 0 1 0 98765 2928640 224 18446744073709551615";
        assert_eq!(parse_stat(&format!("42 (a) b (c)) S {tail}")), Some((7, 98765)));
        assert_eq!(parse_stat("42 (short) S 7"), None);
        let (_, started) = parent_and_start(getpid()).unwrap();
        assert!(started > 0);
    }
}
