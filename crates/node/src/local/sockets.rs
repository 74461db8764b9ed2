//! Processes of a real host connect through Unix sockets in their user's folder (S-5).

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use tautline_device::shm::{
    self, Dial, GREETING_LEN, Greeting, Handover, Incoming, Listener, PeerHandles, Pool, Shm,
};
use tautline_link::JobKey;

use super::transport::{Greet, IncomingDial, LocalTransport, OutgoingDial, Prove};
use crate::{Member, Rank};

/// Where the listeners of a job are.
#[derive(Clone, Debug)]
pub(super) struct ListenerPaths {
    dir: PathBuf,
    job: u64,
}

impl ListenerPaths {
    pub(super) fn new(key: &JobKey, members: &[Member]) -> ListenerPaths {
        ListenerPaths { dir: shm::discovery_dir(), job: job_name(key, members) }
    }

    pub(super) fn of(&self, rank: Rank) -> PathBuf {
        shm::listener_path(&self.dir, self.job, rank)
    }
}

/// Unlinks the listeners that ranks of a job on this host left behind when they were killed: for launchers.
pub fn unlink_stale_listeners(key: &JobKey, members: &[Member]) {
    let listeners = ListenerPaths::new(key, members);
    for rank in 0..members.len() as Rank {
        shm::unlink_stale_listener(&listeners.of(rank));
    }
}

/// The listener of this process, and the way to those of others.
#[derive(Debug)]
pub(super) struct Sockets {
    listener: Listener,
    listeners: ListenerPaths,
}

impl Sockets {
    pub(super) fn bind(rank: Rank, listeners: ListenerPaths) -> io::Result<Sockets> {
        Ok(Sockets { listener: Listener::bind(&listeners.of(rank))?, listeners })
    }
}

impl LocalTransport for Sockets {
    fn dial(&self, to: Rank, bell: BorrowedFd<'_>, greet: Greet<'_>) -> io::Result<Box<dyn OutgoingDial>> {
        let dial = Dial::new(&self.listeners.of(to), bell, greet)?;
        Ok(Box::new(SocketDial { dial, peer: None }))
    }

    fn accept(&self) -> io::Result<Option<Box<dyn IncomingDial>>> {
        let incoming = self.listener.accept()?;
        Ok(incoming.map(|incoming| -> Box<dyn IncomingDial> {
            Box::new(SocketIncoming { incoming, handover: None })
        }))
    }

    fn listener_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.fd())
    }

    fn unlink_listener(&self, of: Rank) -> bool {
        let path = self.listeners.of(of);
        shm::unlink_stale_listener(&path) || !path.exists()
    }
}

#[derive(Debug)]
struct SocketDial {
    dial: Dial,
    /// What came with the answer.
    peer: Option<PeerHandles>,
}

impl OutgoingDial for SocketDial {
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>> {
        let answer = self.dial.poll_greeting(prove)?;
        Ok(answer.map(|(greeting, peer)| {
            self.peer = Some(peer);
            greeting
        }))
    }

    fn establish(self: Box<Self>, asymmetric: bool) -> io::Result<Shm> {
        let peer = self.peer.ok_or(io::ErrorKind::NotConnected)?;
        Ok(self.dial.establish(peer, asymmetric))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.dial.fd())
    }
}

#[derive(Debug)]
struct SocketIncoming {
    incoming: Incoming,
    /// What came with the greeting.
    handover: Option<Handover>,
}

impl IncomingDial for SocketIncoming {
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>> {
        let greeted = self.incoming.poll_greeting(prove)?;
        Ok(greeted.map(|(greeting, handover)| {
            self.handover = Some(handover);
            greeting
        }))
    }

    fn accept(
        self: Box<Self>,
        answer: &[u8; GREETING_LEN],
        own: (BorrowedFd<'_>, Option<Pool>),
        asymmetric: bool,
    ) -> io::Result<Shm> {
        let handover = self.handover.ok_or(io::ErrorKind::NotConnected)?;
        self.incoming.accept(handover, answer, own, asymmetric)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.incoming.fd())
    }
}

/// The job's name on this host: processes that know the same key and the same members belong to the same job.
pub(super) fn job_name(key: &JobKey, members: &[Member]) -> u64 {
    let members: String = members.iter().map(|member| format!("{} ", member.addr)).collect();
    let name = key.prove("door", members.as_bytes());
    u64::from_le_bytes(name[..8].try_into().expect("eight bytes"))
}
