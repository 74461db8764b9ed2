//! The live ranks of this host, and the order in which they end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How many ends are reported at a time.
const ENDS_MAX: usize = 64;

/// Refers to a child as long as it is not waited for.
fn open(pid: u32) -> Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).expect("a child's number is positive");
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// The live ranks by their pidfds.
pub struct Alive {
    fds: Vec<Option<OwnedFd>>,
    /// An epoll of the pidfds. It queues those that become readable: the first in the queue ended first, also
    /// if several have ended before the launcher looks. Only ranks that ended before they were added are in
    /// the order in which they were added.
    ends: OwnedFd,
}

impl Alive {
    pub fn new() -> Result<Alive> {
        Ok(Alive { fds: Vec::new(), ends: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds the next rank, which was just started, or one that was started again.
    pub fn add(&mut self, rank: usize, pid: u32) -> Result<()> {
        let fd = open(pid)?;
        epoll::add(&self.ends, &fd, epoll::EventData::new_u64(rank as u64), epoll::EventFlags::IN)?;
        if rank == self.fds.len() {
            self.fds.push(None);
        }
        self.fds[rank] = Some(fd);
        Ok(())
    }

    /// A rank has been waited for.
    pub fn remove(&mut self, rank: usize) {
        if let Some(fd) = self.fds[rank].take() {
            // A process that is just being started may have a copy, with which it would stay in the queue.
            let _ = epoll::delete(&self.ends, &fd);
        }
    }

    /// How many ranks there are, live or not.
    pub fn size(&self) -> usize {
        self.fds.len()
    }

    pub fn has(&self, rank: usize) -> bool {
        self.fds.get(rank).is_some_and(Option::is_some)
    }

    pub fn is_empty(&self) -> bool {
        self.fds.iter().all(Option::is_none)
    }

    /// The descriptor to poll: readable if a rank has ended and was not removed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }

    /// Ranks that have ended, in the order in which they did. Those that remain are reported again, after
    /// others.
    pub fn ended(&self) -> Result<Vec<usize>> {
        let mut events = Vec::with_capacity(ENDS_MAX);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.ends, spare_capacity(&mut events), Some(&now))?;
        Ok(events.iter().map(|event| event.data.u64() as usize).collect())
    }

    /// Sends a signal to a rank, if it lives.
    pub fn signal(&self, rank: usize, signal: Signal) {
        if let Some(fd) = self.fds.get(rank).and_then(Option::as_ref) {
            // It may have ended just now; then there is nothing to do.
            let _ = pidfd_send_signal(fd, signal);
        }
    }

    pub fn signal_all(&self, signal: Signal) {
        (0..self.size()).for_each(|rank| self.signal(rank, signal));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Lets a child that waits for the end of its input end, and returns when it has; it stays a zombie.
    fn end(child: &mut Child) {
        drop(child.stdin.take());
        let id = WaitId::Pid(Pid::from_raw(child.id() as i32).unwrap());
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap().unwrap();
    }

    /// Ranks that have ended before anyone looked are reported in the order in which they ended, whatever
    /// their numbers are, also after a poll; and a rank that was started again is the last again.
    #[test]
    fn the_first_that_ended_is_the_first_reported() {
        let start = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut children: Vec<Child> = (0..4).map(|_| start()).collect();
        let mut alive = Alive::new().unwrap();
        for (rank, child) in children.iter().enumerate() {
            alive.add(rank, child.id()).unwrap();
        }
        assert!(alive.ended().unwrap().is_empty());
        end(&mut children[2]);
        crate::sys::poll_until(&mut [crate::sys::readable(alive.fd())], None).unwrap();
        for rank in [3, 0] {
            end(&mut children[rank]);
        }
        assert_eq!(alive.ended().unwrap(), [2, 3, 0]);
        assert_eq!(alive.ended().unwrap(), [2, 3, 0]);
        assert!(children[2].wait().unwrap().success());
        alive.remove(2);
        assert_eq!(alive.ended().unwrap(), [3, 0]);
        children[2] = start();
        alive.add(2, children[2].id()).unwrap();
        assert_eq!((alive.size(), alive.has(2), alive.is_empty()), (4, true, false));
        for rank in [1, 2] {
            end(&mut children[rank]);
        }
        assert_eq!(alive.ended().unwrap(), [3, 0, 1, 2]);
        for (rank, child) in children.iter_mut().enumerate() {
            assert!(child.wait().unwrap().success());
            alive.remove(rank);
        }
        assert!(alive.is_empty() && alive.ended().unwrap().is_empty());
    }
}
