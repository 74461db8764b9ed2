//! How two processes of one host find each other: a socket in a directory of their user (S-5).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tautline_mem::Segment;
use tautline_mem::pool::{POOL_UNIT, Pool, PoolView};

use super::greeting::{GREETING_LEN, Greeting};
use super::{SEGMENT_LEN, Shm, Side};
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
}

impl Listener {
    /// Binds a listener, and unlinks those of dead processes.
    ///
    /// # Errors
    /// If a living process has a listener of that name.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let dir = path.parent().unwrap_or(Path::new("."));
        prepare_dir(dir)?;
        unlink_stale_listeners_if_due(dir);
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
        Ok(Listener { listener, path: path.to_owned(), pid })
    }

    /// Returns the next connection, if there is one.
    pub fn accept(&self) -> io::Result<Option<Incoming>> {
        let Some(socket) = local::accept(&self.listener)? else { return Ok(None) };
        let process = local::peer_process(&socket)?;
        Ok(Some(Incoming { socket, process }))
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
        }
    }
}

/// Creates the directory if needed, and checks that only this user can access it.
pub(crate) fn prepare_dir(dir: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(dir);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let meta = std::fs::symlink_metadata(dir)?;
    let mine = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
    if mine {
        return Ok(());
    }
    let why =
        format!("{0} is not a directory of this user alone; remove it, or: chmod 700 {0}", dir.display());
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
pub struct Handover {
    segment: Segment,
    peer: PeerHandles,
}

/// The other side's bell, and a view of its pool.
#[derive(Debug)]
pub struct PeerHandles {
    pub(super) bell: OwnedFd,
    pub(super) view: Option<PoolView>,
}

impl PeerHandles {
    fn new(bell: Option<OwnedFd>, pool: Option<OwnedFd>, greeting: &Greeting) -> io::Result<PeerHandles> {
        let Some(bell) = bell else { return Err(bad_greeting()) };
        let view = match (pool, greeting.pool as usize * POOL_UNIT) {
            (None, 0) => None,
            (Some(pool), len) if len > 0 => Some(PoolView::attach(&pool, len)?),
            _ => return Err(bad_greeting()),
        };
        Ok(PeerHandles { bell, view })
    }
}

/// Sends a greeting, with the descriptors that the other side needs.
fn send_greeting(
    socket: &OwnedFd,
    greeting: &[u8; GREETING_LEN],
    first: &[BorrowedFd<'_>],
    pool: Option<&Pool>,
) -> io::Result<()> {
    match (first, pool) {
        (&[a, b], Some(pool)) => local::send(socket, greeting, &[a, b, pool.fd()]),
        (&[a], Some(pool)) => local::send(socket, greeting, &[a, pool.fd()]),
        (fds, _) => local::send(socket, greeting, fds),
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
        let Some((len, [segment, bell, pool])) = local::receive::<3>(&self.socket, &mut bytes)? else {
            return Ok(None);
        };
        let greeting = Greeting::parse(&bytes[..len], prove).ok_or_else(bad_greeting)?;
        let segment = Segment::attach(segment.ok_or_else(bad_greeting)?, SEGMENT_LEN)?;
        let peer = PeerHandles::new(bell, pool, &greeting)?;
        Ok(Some((greeting, Handover { segment, peer })))
    }

    /// Accepts the connection. We lend from `pool`, if there is one; the answer contains its size.
    pub fn accept(
        self,
        handover: Handover,
        answer: &[u8; GREETING_LEN],
        (bell, pool): (BorrowedFd<'_>, Option<Pool>),
        asymmetric: bool,
    ) -> io::Result<Shm> {
        send_greeting(&self.socket, answer, &[bell], pool.as_ref())?;
        let fds = (self.socket, self.process);
        Ok(Shm::new(handover.segment, Side::Callee, fds, (handover.peer, pool), asymmetric))
    }

    /// Returns a descriptor that becomes readable when the greeting arrives or the process disconnects.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
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
    pool: Option<Pool>,
}

impl Dial {
    /// Connects and sends our greeting. `greet` is called once a living process is found: it creates the pool
    /// that we lend from, if any, and the greeting, which contains its size.
    ///
    /// # Errors
    /// If no process listens there, or one of another user.
    pub fn new(
        listener: &Path,
        bell: BorrowedFd<'_>,
        greet: impl FnOnce() -> ([u8; GREETING_LEN], Option<Pool>),
    ) -> io::Result<Dial> {
        let socket = local::connect(listener)?;
        let process = local::peer_process(&socket)?;
        if local::is_readable(process.as_fd()) {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "its process has exited"));
        }
        let segment = Segment::create(SEGMENT_LEN)?;
        let (greeting, pool) = greet();
        send_greeting(&socket, &greeting, &[segment.fd(), bell], pool.as_ref())?;
        Ok(Dial { socket, process, segment, pool })
    }

    /// Returns the answer, once it has arrived.
    ///
    /// # Errors
    /// If it is malformed, or the process has disconnected.
    pub fn poll_greeting(
        &self,
        prove: impl FnOnce(&[u8]) -> [u8; 16],
    ) -> io::Result<Option<(Greeting, PeerHandles)>> {
        let mut bytes = [0; GREETING_LEN];
        let Some((len, [bell, pool])) = local::receive::<2>(&self.socket, &mut bytes)? else {
            return Ok(None);
        };
        let greeting = Greeting::parse(&bytes[..len], prove).ok_or_else(bad_greeting)?;
        let peer = PeerHandles::new(bell, pool, &greeting)?;
        Ok(Some((greeting, peer)))
    }

    /// Establishes the channel with the handles from the answer.
    pub fn establish(self, peer: PeerHandles, asymmetric: bool) -> Shm {
        let fds = (self.socket, self.process);
        Shm::new(self.segment, Side::Caller, fds, (peer, self.pool), asymmetric)
    }

    /// Returns a descriptor that becomes readable when the answer arrives or the process disconnects.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
