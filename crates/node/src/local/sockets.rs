//! Processes of a real host connect through Unix sockets in their user's folder (S-5).

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use tautline_device::shm::{
    self, Accepted, Contribution, Dial, GREETING_LEN, Greeting, Handover, Incoming, Listener, PeerHandles,
    Shm,
};
use tautline_link::JobKey;

use super::transport::{Greet, IncomingDial, LocalTransport, NextDial, OutgoingDial, Prove, Refuse};
use crate::{Member, Rank};

/// How many directories of the job's own are tried, where other users take the first ones.
const PRIVATE_DIRS: u8 = 3;

/// Where the listeners of a job are: in the user's directory or, where another user has made that one, in a
/// directory whose name nobody outside the job can know (S-5).
#[derive(Clone, Debug)]
pub(super) struct ListenerPaths {
    dir: PathBuf,
    private: Vec<PathBuf>,
    job: u64,
}

impl ListenerPaths {
    pub(super) fn new(key: &JobKey, members: &[Member]) -> ListenerPaths {
        let job = job_name(key, members);
        let private = (0..PRIVATE_DIRS).map(|number| {
            let secret = key.prove("listener directory", &[&job.to_le_bytes()[..], &[number]].concat());
            shm::private_dir(u64::from_le_bytes(secret[..8].try_into().expect("eight bytes")))
        });
        ListenerPaths { dir: shm::discovery_dir(), private: private.collect(), job }
    }

    /// Where a rank's listener may be.
    fn of(&self, rank: Rank) -> impl Iterator<Item = PathBuf> {
        std::iter::once(&self.dir)
            .chain(&self.private)
            .map(move |dir| shm::listener_path(dir, self.job, rank))
    }

    /// Binds a rank's listener in the first directory that this user can have.
    fn bind(&self, rank: Rank) -> io::Result<Listener> {
        let mut bound = Listener::bind(&shm::listener_path(&self.dir, self.job, rank));
        for dir in &self.private {
            match &bound {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(%error, "another directory is used for the listener");
                }
                _ => break,
            }
            bound = Listener::bind_private(&shm::listener_path(dir, self.job, rank));
        }
        bound
    }

    /// Connects to a rank's listener, wherever it is.
    fn dial(&self, rank: Rank, greet: Greet<'_>) -> io::Result<Dial> {
        let mut failed = None;
        for path in self.of(rank) {
            match Dial::new(&path, greet) {
                Ok(dial) => return Ok(dial),
                // A directory that is not ours: nobody of this job listens there.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::ACCESS | Errno::NOTDIR)) => {
                }
                // What was found counts, not where there is nothing.
                Err(error) if failed.is_none() || error.kind() != io::ErrorKind::NotFound => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Unlinks a rank's listener if its process is dead. Returns whether there is none any more.
    fn unlink_stale(&self, rank: Rank) -> bool {
        let mut none = true;
        for path in self.of(rank) {
            none &= shm::unlink_stale_listener(&path) || !path.exists();
        }
        for dir in &self.private {
            // Only an empty one is removed.
            let _ = std::fs::remove_dir(dir);
        }
        none
    }
}

/// Unlinks the listeners that ranks of a job on this host left behind when they were killed: for launchers.
/// `members` are those that the job began with, and `joined` is the number of those that came later.
pub fn unlink_stale_listeners(key: &JobKey, members: &[Member], joined: u32) {
    let listeners = ListenerPaths::new(key, members);
    for rank in 0..members.len() as Rank + joined {
        listeners.unlink_stale(rank);
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
        Ok(Sockets { listener: listeners.bind(rank)?, listeners })
    }
}

impl LocalTransport for Sockets {
    fn dial(&self, to: Rank, greet: Greet<'_>) -> io::Result<Box<dyn OutgoingDial>> {
        Ok(Box::new(SocketDial { dial: self.listeners.dial(to, greet)?, peer: None }))
    }

    fn accept(&self, refuse: Refuse<'_>) -> NextDial {
        match self.listener.accept(refuse) {
            Accepted::Connection(incoming) => {
                NextDial::Dial(Box::new(SocketIncoming { incoming, handover: None }))
            }
            Accepted::None => NextDial::None,
            Accepted::Refused(error) => NextDial::Refused(error),
            Accepted::Waiting(error) => NextDial::Waiting(error),
        }
    }

    fn listener_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.fd())
    }

    fn unlink_listener(&self, of: Rank) -> bool {
        self.listeners.unlink_stale(of)
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

    fn is_open(&self) -> bool {
        self.dial.is_open()
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

    fn take_error(&mut self) -> Option<io::Error> {
        self.handover.take_if(|handover| handover.is_unusable())?.into_error()
    }

    fn refuse(self: Box<Self>, refusal: &[u8; GREETING_LEN]) {
        self.incoming.refuse(refusal);
    }

    fn accept(
        self: Box<Self>,
        answer: &[u8; GREETING_LEN],
        own: Contribution,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// S-5: whoever makes the user's directory first, or one of the job's own, does not keep processes from
    /// finding each other; nothing is left behind.
    #[test]
    fn directories_that_others_took() {
        let base = std::env::temp_dir().join(format!("tautline-taken-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let paths = |taken: usize| {
            let [dir, first, second] = ["user", "first", "second"].map(|name| base.join(name));
            let private = vec![first, second];
            let all: Vec<PathBuf> = std::iter::once(&dir).chain(&private).cloned().collect();
            for dir in &all[..taken] {
                std::fs::write(dir, b"").unwrap();
            }
            (ListenerPaths { dir, private, job: 7 }, all)
        };
        let greet = || {
            let number = shm::LanePages::create()?.take_number().unwrap();
            Ok(([0; GREETING_LEN], Contribution { pool: None, number }))
        };
        let refuse = |_: &io::Error| [0; GREETING_LEN];
        for taken in 0..=2 {
            let (paths, all) = paths(taken);
            let absent = paths.dial(0, &greet).unwrap_err();
            assert_eq!(absent.kind(), io::ErrorKind::NotFound, "{absent}");
            let sockets = Sockets::bind(0, paths.clone()).unwrap();
            let dialled = Sockets::bind(1, paths.clone()).unwrap().dial(0, &greet);
            assert!(dialled.is_ok(), "{taken} directories are taken: {dialled:?}");
            assert!(matches!(sockets.accept(&refuse), NextDial::Dial(_)));
            drop((sockets, dialled));
            assert!(paths.unlink_stale(0));
            all[..taken].iter().for_each(|file| std::fs::remove_file(file).unwrap());
            let left = all[1..].iter().filter(|dir| dir.exists()).count();
            assert_eq!(left, 0, "private directories");
            let _ = std::fs::remove_dir_all(&all[0]);
        }
        let (paths, _) = paths(3);
        let refused = Sockets::bind(0, paths).unwrap_err();
        assert!(refused.to_string().contains("not a directory; remove it: rm "), "{refused}");
        std::fs::remove_dir_all(&base).unwrap();
    }

    /// S-5: the names of a job's own directories follow from its key alone.
    #[test]
    fn private_directories_are_secret() {
        let members = vec![Member::new("127.0.0.1:7000".parse().unwrap())];
        let of = |key: u8| ListenerPaths::new(&JobKey::new([key; 32]), &members).private;
        assert_eq!(of(1), of(1));
        assert!(of(1).iter().all(|dir| !of(2).contains(dir)));
        assert!(of(1)[0] != of(1)[1]);
    }
}
