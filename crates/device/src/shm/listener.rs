//! How two processes of one host find each other: a socket in a directory of their user (S-5).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tautline_mem::pool::{MAX_POOL, POOL_UNIT, Pool, PoolView};
use tautline_mem::{PeerPages, RingNumber, Segment};

use super::greeting::{GREETING_LEN, Greeting, Refusal};
use super::{Shm, Side, attach_segment, close_handed_over, create_segment};
use crate::sys::local;

/// The most entries of the directory that one sweep checks.
const ENTRIES_MAX: usize = 256;
/// The shortest time between sweeps: each check connects to a listener, which wakes its process.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// The age at which a temporary name belongs to a process that died before it finished.
const BIND_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the directory by which processes of this user find each other.
pub fn discovery_dir() -> PathBuf {
    PathBuf::from(format!("/tmp/tautline-{}", rustix::process::geteuid().as_raw()))
}

/// Returns the directory to use where another user has taken [`discovery_dir`]. Its name contains a number
/// that only members of the job can compute, so nobody else can have made it before.
pub fn private_dir(secret: u64) -> PathBuf {
    PathBuf::from(format!("{}.{secret:016x}", discovery_dir().display()))
}

/// Returns the path of a rank's listener.
pub fn listener_path(dir: &Path, job: u64, rank: u32) -> PathBuf {
    dir.join(format!("{job:016x}.{rank}"))
}

/// A socket that other ranks of the job connect to. Its file is unlinked when it is dropped by the process
/// that created it.
#[derive(Debug)]
pub struct Listener {
    listener: OwnedFd,
    path: PathBuf,
    pid: u32,
    /// The directory is removed with the last listener in it.
    private: bool,
    /// A descriptor that is given up to accept, and refuse, a connection when there is no other left (S-33).
    spare: Mutex<Option<OwnedFd>>,
}

/// What became of a connection to a listener.
#[derive(Debug)]
pub enum Accepted {
    /// It can be greeted.
    Connection(Incoming),
    /// There is none.
    None,
    /// It was closed: its process belongs to another user or is gone, or this process lacks something.
    Refused(io::Error),
    /// It waits, and would be found again at once: this process lacks descriptors or memory.
    Waiting(io::Error),
}

fn open_spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

impl Listener {
    /// Binds a listener, and unlinks those of dead processes.
    ///
    /// # Errors
    /// If a living process has a listener of that name.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        Listener::bind_with(path, false)
    }

    /// As [`Listener::bind`], in a directory of this job alone, which is removed with the last listener.
    pub fn bind_private(path: &Path) -> io::Result<Listener> {
        Listener::bind_with(path, true)
    }

    fn bind_with(path: &Path, private: bool) -> io::Result<Listener> {
        let dir = path.parent().unwrap_or(Path::new("."));
        prepare_dir(dir)?;
        if !private {
            unlink_stale_listeners_if_due(dir);
        }
        if owner_of(path) == Owner::Alive {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another process of this rank is running: {}", path.display()),
            ));
        }
        // It gets its name when it accepts connections, so that no process takes it for a dead one.
        let pid = std::process::id();
        let temporary =
            dir.join(format!(".{pid}.{}", path.file_name().unwrap_or_default().to_string_lossy()));
        let _ = std::fs::remove_file(&temporary);
        let listener = local::listen(&temporary)?;
        std::fs::rename(&temporary, path)?;
        Ok(Listener { listener, path: path.to_owned(), pid, private, spare: Mutex::new(open_spare()) })
    }

    /// Returns the next connection, if there is one. A connection that cannot be used for want of something
    /// is sent what `refusal` returns for that error.
    pub fn accept(&self, refusal: impl Fn(&io::Error) -> [u8; GREETING_LEN]) -> Accepted {
        let refuse = |socket: &OwnedFd, error: io::Error| {
            // Whether or not that arrives, the end of the connection does.
            let _ = local::send(socket, &refusal(&error), &[]);
            Accepted::Refused(error)
        };
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let error = match local::accept(&self.listener) {
            Ok(None) => return Accepted::None,
            Ok(Some(socket)) => match local::peer_process(&socket) {
                Ok(process) => {
                    *spare = spare.take().or_else(open_spare);
                    return Accepted::Connection(Incoming { socket, process });
                }
                Err(error) => return refuse(&socket, error),
            },
            Err(error) => error,
        };
        drop(spare.take());
        let accepted = match local::accept(&self.listener) {
            Ok(None) => Accepted::None,
            Ok(Some(socket)) => refuse(&socket, error),
            Err(_) => Accepted::Waiting(error),
        };
        *spare = open_spare();
        accepted
    }

    /// Returns a descriptor that becomes readable when a process connects.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            let _ = std::fs::remove_file(&self.path);
            if let Some(dir) = self.path.parent().filter(|_| self.private) {
                let _ = std::fs::remove_dir(dir);
            }
        }
    }
}

/// Creates the directory if needed, and checks that only this user can access it.
pub fn prepare_dir(dir: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(dir);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let meta = std::fs::symlink_metadata(dir)?;
    let (me, owner, dir) = (rustix::process::geteuid().as_raw(), meta.uid(), dir.display());
    let why = if owner != me {
        format!("{dir} belongs to user {owner}, who or root has to remove it")
    } else if !meta.is_dir() {
        format!("{dir} is not a directory; remove it: rm {dir}")
    } else if meta.mode() & 0o077 != 0 {
        format!("others may access the directory {dir}; close it to them: chmod 700 {dir}")
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The state of the process that created a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Alive,
    /// A forked child may still have the socket; it does not count.
    Dead,
    /// There is no listener, or its process cannot be determined.
    Unknown,
}

fn owner_of(listener: &Path) -> Owner {
    match local::connect(listener).map(|socket| local::peer_process(&socket)) {
        Ok(Ok(process)) if local::is_readable(process.as_fd()) => Owner::Dead,
        Ok(Ok(_)) => Owner::Alive,
        Ok(Err(error)) if error.raw_os_error() == Some(libc::ESRCH) => Owner::Dead,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Owner::Dead,
        // The backlog is full: the process may be slow, but is alive.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Owner::Alive,
        Ok(Err(_)) | Err(_) => Owner::Unknown,
    }
}

/// Unlinks a listener if its process is dead (S-18). Returns whether it did.
pub fn unlink_stale_listener(listener: &Path) -> bool {
    owner_of(listener) == Owner::Dead && std::fs::remove_file(listener).is_ok()
}

fn is_older(meta: &std::fs::Metadata, than: Duration) -> bool {
    meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > than))
}

/// Unlinks the listeners of dead processes, at most once a minute.
pub(crate) fn unlink_stale_listeners_if_due(dir: &Path) {
    let mark = dir.join(".swept");
    if std::fs::metadata(&mark).is_ok_and(|meta| !is_older(&meta, SWEEP_INTERVAL)) {
        return;
    }
    let _ = std::fs::write(&mark, b"");
    unlink_stale_listeners(dir);
}

/// Unlinks the listeners of dead processes.
pub fn unlink_stale_listeners(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().take(ENTRIES_MAX) {
        let path = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.file_type().is_socket() {
            continue;
        }
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden || is_older(&meta, BIND_TIMEOUT) {
            unlink_stale_listener(&path);
        }
    }
}

/// A process that connected and was not answered yet.
#[derive(Debug)]
pub struct Incoming {
    socket: OwnedFd,
    process: OwnedFd,
}

/// What a process hands over with its greeting.
#[derive(Debug)]
pub struct Handover(io::Result<(Segment, PeerHandles)>);

impl Handover {
    fn new(segment: Option<OwnedFd>, handles: Handles, greeting: &Greeting) -> io::Result<Handover> {
        let segment = attach_segment(segment.ok_or_else(bad_greeting)?)?;
        Ok(Handover(Ok((segment, PeerHandles::new(handles, greeting)?))))
    }

    /// Whether it cannot be used: the connection is to be refused.
    pub fn is_unusable(&self) -> bool {
        self.0.is_err()
    }

    /// Returns why it cannot be used, if so.
    pub fn into_error(self) -> Option<io::Error> {
        self.0.err()
    }
}

/// What a lane contributes to a channel beside the segment.
#[derive(Debug)]
pub struct Contribution {
    /// The memory that it lends from.
    pub pool: Option<Pool>,
    /// The number of the channel's ring among those of the lane, whose pages the other side gets.
    pub number: RingNumber,
}

/// The descriptors that come with a greeting: both pages, and the pool.
type Handles = [Option<OwnedFd>; 3];

/// The pages of the other side's lane, and a view of its pool.
#[derive(Debug)]
pub struct PeerHandles {
    pub(super) pages: PeerPages,
    pub(super) view: Option<PoolView>,
}

impl PeerHandles {
    fn new([sleep, bits, pool]: Handles, greeting: &Greeting) -> io::Result<PeerHandles> {
        let (sleep, bits) = (sleep.ok_or_else(bad_greeting)?, bits.ok_or_else(bad_greeting)?);
        let pages = PeerPages::attach(sleep, bits, greeting.ring)?;
        let len = greeting.pool as usize * POOL_UNIT;
        let view = match (pool, len) {
            (None, 0) => None,
            (Some(pool), 1..=MAX_POOL) => Some(PoolView::attach(&pool, len)?),
            _ => return Err(bad_greeting()),
        };
        Ok(PeerHandles { pages, view })
    }
}

/// Sends a greeting, with the descriptors that the other side needs.
fn send_greeting(
    socket: &OwnedFd,
    greeting: &[u8; GREETING_LEN],
    segment: Option<&Segment>,
    own: &Contribution,
) -> io::Result<()> {
    let [sleep, bits] = own.number.pages().fds();
    match (segment.map(Segment::fd), own.pool.as_ref().map(Pool::fd)) {
        (Some(segment), Some(pool)) => local::send(socket, greeting, &[segment, sleep, bits, pool]),
        (Some(segment), None) => local::send(socket, greeting, &[segment, sleep, bits]),
        (None, Some(pool)) => local::send(socket, greeting, &[sleep, bits, pool]),
        (None, None) => local::send(socket, greeting, &[sleep, bits]),
    }
}

impl Incoming {
    /// Returns the greeting, once it has arrived.
    ///
    /// # Errors
    /// If it is malformed, or the process has disconnected.
    pub fn poll_greeting(
        &self,
        prove: impl FnOnce(&[u8]) -> [u8; 16],
    ) -> io::Result<Option<(Greeting, Handover)>> {
        let mut bytes = [0; GREETING_LEN];
        let Some((len, [segment, sleep, bits, pool], missing)) = local::receive(&self.socket, &mut bytes)?
        else {
            return Ok(None);
        };
        let greeting = Greeting::parse(&bytes[..len], prove).ok_or_else(bad_greeting)?;
        let handover = match Handover::new(segment, [sleep, bits, pool], &greeting) {
            Ok(handover) if !missing => handover,
            Err(error) if !missing => Handover(Err(error)),
            _ => Handover(Err(no_descriptors())),
        };
        Ok(Some((greeting, handover)))
    }

    /// Refuses the connection, with the bytes of a [`Refusal`].
    pub fn refuse(self, refusal: &[u8; GREETING_LEN]) {
        let _ = local::send(&self.socket, refusal, &[]);
    }

    /// Accepts the connection. The answer contains the size of our pool and the number of our ring.
    pub fn accept(
        self,
        handover: Handover,
        answer: &[u8; GREETING_LEN],
        own: Contribution,
        asymmetric: bool,
    ) -> io::Result<Shm> {
        let (segment, peer) = handover.0?;
        send_greeting(&self.socket, answer, None, &own)?;
        let fds = (self.socket, self.process);
        Ok(Shm::new(segment, Side::Callee, fds, (peer, own), asymmetric))
    }

    /// Returns a descriptor that becomes readable when the greeting arrives or the process disconnects.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn no_descriptors() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}

fn bad_greeting() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a greeting of this job")
}

/// Our connection to a listener.
#[derive(Debug)]
pub struct Dial {
    socket: OwnedFd,
    process: OwnedFd,
    segment: Segment,
    own: Contribution,
}

impl Dial {
    /// Connects and sends our greeting. `greet` is called once a living process is found: it creates what our
    /// lane contributes, and the greeting, which describes it.
    ///
    /// # Errors
    /// If no process listens there, or one of another user.
    pub fn new(
        listener: &Path,
        greet: impl FnOnce() -> io::Result<([u8; GREETING_LEN], Contribution)>,
    ) -> io::Result<Dial> {
        let socket = local::connect(listener)?;
        let process = local::peer_process(&socket)?;
        if local::is_readable(process.as_fd()) {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "its process has exited"));
        }
        let mut segment = create_segment()?;
        let (greeting, mut own) = greet()?;
        match send_greeting(&socket, &greeting, Some(&segment), &own) {
            // It may have said why, before it closed the connection.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        close_handed_over(&mut segment, own.pool.as_mut());
        Ok(Dial { socket, process, segment, own })
    }

    /// Returns the answer, once it has arrived.
    ///
    /// # Errors
    /// If it is malformed or a refusal, or the process has disconnected.
    pub fn poll_greeting(
        &self,
        prove: impl Fn(&[u8]) -> [u8; 16],
    ) -> io::Result<Option<(Greeting, PeerHandles)>> {
        let mut bytes = [0; GREETING_LEN];
        let Some((len, handles, missing)) = local::receive(&self.socket, &mut bytes)? else {
            return Ok(None);
        };
        if let Some(refusal) = Refusal::parse(&bytes[..len], &prove) {
            return Err(refusal.into());
        }
        let greeting = Greeting::parse(&bytes[..len], prove).ok_or_else(bad_greeting)?;
        if missing {
            return Err(no_descriptors());
        }
        let peer = PeerHandles::new(handles, &greeting)?;
        Ok(Some((greeting, peer)))
    }

    /// Whether an answer may still come, or has come: the process lives, and has not disconnected.
    pub fn is_open(&self) -> bool {
        !local::is_readable(self.process.as_fd()) && !local::has_ended(&self.socket)
    }

    /// Establishes the channel with the handles from the answer.
    pub fn establish(self, peer: PeerHandles, asymmetric: bool) -> Shm {
        let fds = (self.socket, self.process);
        Shm::new(self.segment, Side::Caller, fds, (peer, self.own), asymmetric)
    }

    /// Returns a descriptor that becomes readable when the answer arrives or the process disconnects.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::print_stderr)]
mod tests {
    use super::*;
    use crate::shm::LanePages;

    /// S-34: a pool that takes more address space than any correct peer lends from is not mapped. The memory
    /// itself is sparse, so that a peer can claim any amount.
    #[test]
    fn oversized_pools_are_refused() {
        let handles = |len: usize| {
            let pool = Pool::create(len)?;
            let (from, to, epoch, answers, window, beacon, ring, asymmetric) = (0, 1, 1, 0, 1, 0, 0, false);
            let units = (pool.size() / POOL_UNIT) as u32;
            let greeting =
                Greeting { from, to, epoch, answers, window, pool: units, beacon, ring, asymmetric };
            let fd = pool.fd().try_clone_to_owned()?;
            let [sleep, bits] = LanePages::create()?.fds().map(|fd| fd.try_clone_to_owned().ok());
            Ok::<_, io::Error>(PeerHandles::new([sleep, bits, Some(fd)], &greeting))
        };
        assert!(handles(1 << 20).unwrap().is_ok());
        match handles(MAX_POOL) {
            Ok(attached) => assert!(attached.is_err(), "a pool of more than {MAX_POOL} bytes was mapped"),
            // A limit of the system on files or address space.
            Err(error) => tautline_skips::skip(
                "oversized_pools_are_refused",
                format!("no sparse memory of {MAX_POOL} bytes: {error}"),
            ),
        }
    }
}
