//! Both ends of a channel inside one process: for simulated hosts, which use no names in the file system.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tautline_mem::pool::PoolView;

use super::listener::{Contribution, PeerHandles};
use super::{Shm, Side, attach_segment, create_segment};

/// What one end of a pair contributes.
#[derive(Debug)]
pub struct PairEnd {
    /// Becomes readable when its process counts as ended.
    pub process: OwnedFd,
    /// What its lane contributes.
    pub own: Contribution,
}

impl PairEnd {
    /// What the other end gets.
    fn handles(&self) -> io::Result<PeerHandles> {
        let view = match &self.own.pool {
            Some(pool) => Some(PoolView::attach(&pool.fd().try_clone_to_owned()?, pool.size())?),
            None => None,
        };
        Ok(PeerHandles { view, pages: self.own.number.peer_pages() })
    }
}

impl Shm {
    /// Makes both ends of a channel. Each end sees the other die as usual: when the other's `process` becomes
    /// readable, or when the other end is dropped.
    pub fn pair(dialler: PairEnd, acceptor: PairEnd) -> io::Result<(Shm, Shm)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let segment = create_segment()?;
        let mapped_again = attach_segment(segment.fd().try_clone_to_owned()?)?;
        let (to_dialler, to_acceptor) = (acceptor.handles()?, dialler.handles()?);
        let fds = (here, acceptor.process.as_fd().try_clone_to_owned()?);
        let first = Shm::new(segment, Side::Caller, fds, (to_dialler, dialler.own), false);
        let fds = (there, dialler.process);
        let second = Shm::new(mapped_again, Side::Callee, fds, (to_acceptor, acceptor.own), false);
        Ok((first, second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channel;
    use crate::shm::{LanePages, Pool};
    use rustix::event::{EventfdFlags, eventfd};

    fn end() -> PairEnd {
        let fd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let number = LanePages::create().unwrap().take_number().unwrap();
        PairEnd { process: fd(), own: Contribution { pool: Pool::create(1 << 20).ok(), number } }
    }

    /// S-6: frames cross in both directions, and an end that is dropped counts as dead, though what it sent
    /// remains.
    #[test]
    fn a_pair_inside_one_process() {
        let (mut a, mut b) = Shm::pair(end(), end()).unwrap();
        let mut out = vec![0; a.max_frame()];
        a.push(b"there", b"").unwrap();
        b.push(b"back", b"").unwrap();
        assert_eq!(a.pop(&mut out), Some(4));
        assert!(!b.is_dead());
        drop(a);
        assert!(b.is_dead() && !b.has_exited());
        assert_eq!(b.pop(&mut out), Some(5));
    }

    /// S-6: a process that counts as ended is seen to have exited.
    #[test]
    fn an_exit_is_visible() {
        let dialler = end();
        let process = dialler.process.try_clone().unwrap();
        let (_a, b) = Shm::pair(dialler, end()).unwrap();
        assert!(!b.has_exited());
        rustix::io::write(&process, &1u64.to_ne_bytes()).unwrap();
        assert!(b.has_exited());
    }
}
