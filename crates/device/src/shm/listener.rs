//! How two processes of one host find each other: a socket in a folder of their user's (S-5).

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

/// Names in the folder that are looked at when it is swept.
const SWEPT: usize = 256;
/// How often the folder is swept, at most: looking behind a door disturbs whoever lives there.
const SWEEPING: Duration = Duration::from_secs(60);
/// A door that is not hung by then never will be.
const HANGING: Duration = Duration::from_secs(60);

/// The folder in which the processes of this user meet.
pub fn discovery_dir() -> PathBuf {
    PathBuf::from(format!("/tmp/tautline-{}", rustix::process::geteuid().as_raw()))
}

/// The name of a rank's door.
pub fn listener_path(place: &Path, job: u64, rank: u32) -> PathBuf {
    place.join(format!("{job:016x}.{rank}"))
}

/// A door that others of the job may knock at. Taken down when dropped, by the process that hung it.
#[derive(Debug)]
pub struct Listener {
    listener: OwnedFd,
    path: PathBuf,
    pid: u32,
}

impl Listener {
    /// Hangs a door, and sweeps away those of processes that are no more. Refused if somebody lives behind one of that name.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let place = path.parent().unwrap_or(Path::new("."));
        prepare_dir(place)?;
        unlink_stale_listeners_if_due(place);
        if at(path) == Behind::Somebody {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another process of this rank is there: {}", path.display()),
            ));
        }
        // It appears under its name when it can be knocked at, so that nobody takes it for a dead one.
        let pid = std::process::id();
        let unfinished =
            place.join(format!(".{pid}.{}", path.file_name().unwrap_or_default().to_string_lossy()));
        let _ = std::fs::remove_file(&unfinished);
        let listener = local::listen(&unfinished)?;
        std::fs::rename(&unfinished, path)?;
        Ok(Listener { listener, path: path.to_owned(), pid })
    }

    /// The next visitor; nobody if nobody knocked.
    pub fn accept(&self) -> io::Result<Option<Incoming>> {
        let Some(socket) = local::accept(&self.listener)? else { return Ok(None) };
        let process = local::process_behind(&socket)?;
        Ok(Some(Incoming { socket, process }))
    }

    /// Becomes readable when somebody knocks.
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

/// The folder is ours alone, or it is not used.
pub(crate) fn prepare_dir(place: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(place);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let meta = std::fs::symlink_metadata(place)?;
    let mine = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
    if mine {
        return Ok(());
    }
    let why =
        format!("{0} is not a folder of this user's alone; remove it, or: chmod 700 {0}", place.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Who is behind a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Somebody,
    /// The process that hung it is no more. A forked child of it may still have the socket: it does not count.
    Nobody,
    /// There is no door, or it cannot be told.
    Unknown,
}

fn at(listener: &Path) -> Behind {
    match local::connect(listener).map(|socket| local::process_behind(&socket)) {
        Ok(Ok(process)) if local::is_readable(process.as_fd()) => Behind::Nobody,
        Ok(Ok(_)) => Behind::Somebody,
        Ok(Err(error)) if error.raw_os_error() == Some(libc::ESRCH) => Behind::Nobody,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Behind::Nobody,
        // The backlog is full: somebody may be slow, but is there.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Behind::Somebody,
        Ok(Err(_)) | Err(_) => Behind::Unknown,
    }
}

/// Takes a door down if nobody lives behind it. True if it did.
pub fn unlink_stale_listener(listener: &Path) -> bool {
    at(listener) == Behind::Nobody && std::fs::remove_file(listener).is_ok()
}

fn is_older(meta: &std::fs::Metadata, than: Duration) -> bool {
    meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > than))
}

/// Sweeps once in a while.
pub(crate) fn unlink_stale_listeners_if_due(place: &Path) {
    let mark = place.join(".swept");
    if std::fs::metadata(&mark).is_ok_and(|meta| !is_older(&meta, SWEEPING)) {
        return;
    }
    let _ = std::fs::write(&mark, b"");
    unlink_stale_listeners(place);
}

/// Takes down the doors of processes that are no more.
pub fn unlink_stale_listeners(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten().take(SWEPT) {
        let path = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.file_type().is_socket() {
            continue;
        }
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden || is_older(&meta, HANGING) {
            unlink_stale_listener(&path);
        }
    }
}

/// Somebody who knocked and has not said who it is, or has not been answered.
#[derive(Debug)]
pub struct Incoming {
    socket: OwnedFd,
    process: OwnedFd,
}

/// What a visitor brings along.
#[derive(Debug)]
pub struct Handover {
    segment: Segment,
    peer: PeerHandles,
}

/// What the other side gives us: its bell, and what it lends from.
#[derive(Debug)]
pub struct PeerHandles {
    pub(super) bell: OwnedFd,
    pub(super) view: Option<PoolView>,
}

impl PeerHandles {
    fn new(bell: Option<OwnedFd>, pool: Option<OwnedFd>, greeting: &Greeting) -> io::Result<PeerHandles> {
        let Some(bell) = bell else { return Err(nonsense()) };
        let view = match (pool, greeting.pool as usize * POOL_UNIT) {
            (None, 0) => None,
            (Some(pool), len) if len > 0 => Some(PoolView::attach(&pool, len)?),
            _ => return Err(nonsense()),
        };
        Ok(PeerHandles { bell, view })
    }
}

/// Says who we are, and hands over what the other side needs.
fn introduce(
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
    /// What it says, if it has said anything. An error if that makes no sense, or it is gone.
    pub fn poll_greeting(
        &self,
        prove: impl FnOnce(&[u8]) -> [u8; 16],
    ) -> io::Result<Option<(Greeting, Handover)>> {
        let mut bytes = [0; GREETING_LEN];
        let Some((len, [segment, bell, pool])) = local::receive::<3>(&self.socket, &mut bytes)? else {
            return Ok(None);
        };
        let greeting = Greeting::parse(&bytes[..len], prove).ok_or_else(nonsense)?;
        let segment = Segment::attach(segment.ok_or_else(nonsense)?, SEGMENT_LEN)?;
        let peer = PeerHandles::new(bell, pool, &greeting)?;
        Ok(Some((greeting, Handover { segment, peer })))
    }

    /// Lets it in. What we lend comes from `pool`, if there is one; the answer says how large it is.
    pub fn accept(
        self,
        handover: Handover,
        answer: &[u8; GREETING_LEN],
        (bell, pool): (BorrowedFd<'_>, Option<Pool>),
        asymmetric: bool,
    ) -> io::Result<Shm> {
        introduce(&self.socket, answer, &[bell], pool.as_ref())?;
        let fds = (self.socket, self.process);
        Ok(Shm::new(handover.segment, Side::Callee, fds, (handover.peer, pool), asymmetric))
    }

    /// Becomes readable when it says something or leaves.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no greeting of this job")
}

/// Our knock at somebody's door.
#[derive(Debug)]
pub struct Dial {
    socket: OwnedFd,
    process: OwnedFd,
    segment: Segment,
    pool: Option<Pool>,
}

impl Dial {
    /// Knocks, and says who we are. An error if nobody lives there, or somebody of another user. If somebody does, `greet` makes what we lend from, if we do,
    /// and the greeting, which says how large it is.
    pub fn new(
        listener: &Path,
        bell: BorrowedFd<'_>,
        greet: impl FnOnce() -> ([u8; GREETING_LEN], Option<Pool>),
    ) -> io::Result<Dial> {
        let socket = local::connect(listener)?;
        let process = local::process_behind(&socket)?;
        if local::is_readable(process.as_fd()) {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "its process has ended"));
        }
        let segment = Segment::create(SEGMENT_LEN)?;
        let (greeting, pool) = greet();
        introduce(&socket, &greeting, &[segment.fd(), bell], pool.as_ref())?;
        Ok(Dial { socket, process, segment, pool })
    }

    /// The answer, if there is one. An error if it makes no sense, or they are gone.
    pub fn poll_greeting(
        &self,
        prove: impl FnOnce(&[u8]) -> [u8; 16],
    ) -> io::Result<Option<(Greeting, PeerHandles)>> {
        let mut bytes = [0; GREETING_LEN];
        let Some((len, [bell, pool])) = local::receive::<2>(&self.socket, &mut bytes)? else {
            return Ok(None);
        };
        let greeting = Greeting::parse(&bytes[..len], prove).ok_or_else(nonsense)?;
        let peer = PeerHandles::new(bell, pool, &greeting)?;
        Ok(Some((greeting, peer)))
    }

    /// We are in, with what came with the answer.
    pub fn establish(self, peer: PeerHandles, asymmetric: bool) -> Shm {
        let fds = (self.socket, self.process);
        Shm::new(self.segment, Side::Caller, fds, (peer, self.pool), asymmetric)
    }

    /// Becomes readable when there is an answer, or they leave.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
