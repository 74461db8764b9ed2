//! Memory of a peer on this host, mapped: loads and stores instead of requests, with promises of its own
//!

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tautline_node::link::Death;
use tautline_node::memory::{Rights, Test};
use tautline_node::{ApertureMemory, Liveness, open_memory_of};

use super::aperture::Aperture;
use super::holder::Holder;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::{Down, Rank};

/// Offsets in the page that goes with a share: its secret, whether it is revoked, the inode of the memory,
/// whether it may be written, its length, its owner, then a word for each rank that has it mapped.
const SECRET: usize = 0;
const REVOKED: usize = 16;
const INODE: usize = 24;
const WRITABLE: usize = 32;
const LENGTH: usize = 40;
const OWNER: usize = 48;
const RANKS: usize = 64;

/// A capability to map an aperture, for peers on this host. It can be sent in any message, and is of use only
/// to processes of the same user.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MapCookie {
    owner: Rank,
    process: u32,
    memory: u32,
    page: u32,
    ranks: u32,
    writable: bool,
    len: u64,
    secret: [u8; 16],
}

impl std::fmt::Debug for MapCookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapCookie")
            .field("owner", &self.owner)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl MapCookie {
    /// The length of a cookie in a message.
    pub const LEN: usize = 48;

    /// Converts it to bytes for a message.
    pub fn to_bytes(&self) -> [u8; MapCookie::LEN] {
        let mut out = [0; MapCookie::LEN];
        let words = [self.owner, self.process, self.memory, self.page, self.ranks, self.writable.into()];
        for (room, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *room = word.to_le_bytes();
        }
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out[32..].copy_from_slice(&self.secret);
        out
    }

    /// Converts it from bytes of a message. Any bytes make a cookie; only the owner's maps anything.
    pub fn from_bytes(bytes: &[u8; MapCookie::LEN]) -> MapCookie {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        MapCookie {
            owner: word(0),
            process: word(4),
            memory: word(8),
            page: word(12),
            ranks: word(16),
            writable: word(20) != 0,
            len: u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes")),
            secret: bytes[32..].try_into().expect("sixteen bytes"),
        }
    }
}

/// An aperture that peers on this host may map, until this is revoked or dropped. Then every further access
/// through [`Mapped`] fails, and the revocation is complete when all peers have unmapped it
/// ([`Share::is_over`]). Closing the aperture does not end it.
#[derive(Debug)]
pub struct Share {
    /// Keeps the descriptor open that the cookie names.
    _memory: Arc<ApertureMemory>,
    page: ApertureMemory,
    cookie: MapCookie,
}

fn system(error: std::io::Error) -> Error {
    Error::other(error)
}

/// Opens a descriptor of another process of this user.
fn descriptor(process: u32, number: u32, writable: bool) -> Result<File> {
    open_memory_of(process, number, writable).map(File::from).map_err(|error| {
        let hint = "; a process of another PID namespace cannot be reached by its number";
        let hint = if error.kind() == std::io::ErrorKind::NotFound { hint } else { "" };
        Error::other(format!("cannot open the memory that process {process} shared: {error}{hint}"))
    })
}

impl Aperture {
    /// Lets peers on this host map this whole aperture, for reading, and with [`Rights::WRITE`] for writing.
    /// The aperture must be allocated, not adopted. Accesses through a mapping are no requests: they fire no
    /// tripwire and are not counted.
    pub fn share(&self, rights: Rights) -> Result<Share> {
        let core = self.core().clone();
        let memory = self.memory().clone();
        let Some(fd) = memory.fd() else {
            return Err(Error::other("only an allocated aperture can be shared, and this one is adopted"));
        };
        let ranks = core.node.size();
        let page = ApertureMemory::allocate(RANKS + 8 * ranks as usize).map_err(system)?;
        let file = File::from(fd.try_clone_to_owned().map_err(system)?);
        let secret = core.node.fresh_secret()?;
        let inode = file.metadata().map_err(system)?.ino();
        page.write(SECRET, &secret)
            .and_then(|()| page.write_u64(INODE, inode))
            .and_then(|()| page.write_u64(WRITABLE, rights.include(Rights::WRITE).into()))
            .and_then(|()| page.write_u64(LENGTH, memory.len() as u64))
            .and_then(|()| page.write_u64(OWNER, core.node.rank().into()))
            .map_err(|_| Error::OutOfRange)?;
        let number = |fd: i32| u32::try_from(fd).map_err(Error::other);
        let cookie = MapCookie {
            owner: core.node.rank(),
            process: std::process::id(),
            memory: number(fd.as_raw_fd())?,
            page: number(page.fd().expect("it is allocated").as_raw_fd())?,
            ranks,
            writable: rights.include(Rights::WRITE),
            len: memory.len() as u64,
            secret,
        };
        Ok(Share { _memory: memory, page, cookie })
    }
}

impl Share {
    /// The cookie that peers need.
    pub fn cookie(&self) -> &MapCookie {
        &self.cookie
    }

    /// Revokes it: accesses that begin from now on fail, and nobody can map it.
    pub fn revoke(&self) {
        let _ = self.page.write_u64(REVOKED, 1);
    }

    /// The ranks that have it mapped. Mappings of a process that has ended do not count.
    pub fn mapped_by(&self) -> Vec<Rank> {
        let holds = |rank: &Rank| self.page.read_u64(RANKS + 8 * *rank as usize).is_ok_and(Holder::holds);
        (0..self.cookie.ranks).filter(holds).collect()
    }

    /// Whether it is revoked and nobody has it mapped: from now on nobody can access the memory.
    pub fn is_over(&self) -> bool {
        self.page.read_u64(REVOKED) != Ok(0) && self.mapped_by().is_empty()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.revoke();
    }
}

/// Memory of a peer on this host, mapped into this process: a put of eight bytes is a store. Its promises
/// differ from those of a [`super::Remote`]: rights apply to the whole mapping, accesses are not reported,
/// conditions are polled, and revocation is complete only when this is dropped. Words are never torn.
///
/// When the owner is gone, every access is an error ([`Error::PeerGone`], A-29), as soon as this node knows.
/// It checks whenever it polls, and its watchdog checks while the program computes, so this takes a few
/// milliseconds. Until then writes go to memory that nobody reads, and reads return the last content. A
/// restarted owner has other memory, and must share it again.
#[derive(Debug)]
pub struct Mapped {
    core: Rc<Core>,
    /// Nothing only while it is being dropped.
    memory: Option<ApertureMemory>,
    page: ApertureMemory,
    writable: bool,
    owner: Rank,
    /// Whether the owner lives.
    liveness: Arc<Liveness>,
    /// The offset, in the page, of the word that counts this process's mappings.
    place: usize,
    holder: Holder,
}

impl Mapped {
    /// As [`Endpoint::map`].
    pub(super) fn new(ep: &Endpoint, cookie: &MapCookie) -> Result<Mapped> {
        if cookie.ranks != ep.size() || ep.rank() >= cookie.ranks {
            return Err(Error::CannotMap("it is from a job of another size"));
        }
        // Read before the memory: the process that lives now is the one whose memory is mapped. The channel
        // is needed to learn of its end.
        let liveness = ep.core.node.liveness(cookie.owner)?;
        ep.connect(cookie.owner)?;
        let page = descriptor(cookie.process, cookie.page, true)?;
        let page = ApertureMemory::attach(page.into(), RANKS + 8 * cookie.ranks as usize).map_err(system)?;
        let mut secret = [0; 16];
        page.read(SECRET, &mut secret).map_err(|_| Error::OutOfRange)?;
        // Another process may have this number by now, and another file behind the descriptor.
        if std::hint::black_box(u128::from_ne_bytes(secret) ^ u128::from_ne_bytes(cookie.secret)) != 0 {
            return Err(Error::CannotMap("its secret is not the share's"));
        }
        // The owner's word decides, not the cookie's.
        if cookie.writable && page.read_u64(WRITABLE) != Ok(1) {
            return Err(Error::CannotMap("it claims the right to write, which was not granted"));
        }
        if page.read_u64(LENGTH) != Ok(cookie.len) {
            return Err(Error::CannotMap("its length is not the share's"));
        }
        // The mapping ends with its owner.
        if page.read_u64(OWNER) != Ok(cookie.owner.into()) {
            return Err(Error::CannotMap("its owner is not the share's"));
        }
        let file = descriptor(cookie.process, cookie.memory, cookie.writable)?;
        if page.read_u64(INODE) != Ok(file.metadata().map_err(system)?.ino()) {
            return Err(Error::CannotMap("the descriptor it names is not the share's memory"));
        }
        let len = usize::try_from(cookie.len).map_err(Error::other)?;
        let memory = if cookie.writable {
            ApertureMemory::attach(file.into(), len)
        } else {
            ApertureMemory::attach_read_only(file.into(), len)
        };
        let memory = memory.map_err(system)?;
        let (place, holder) = (RANKS + 8 * ep.rank() as usize, Holder::me()?);
        holder.enter(&page, place)?;
        let (core, memory) = (ep.core.clone(), Some(memory));
        let (writable, owner) = (cookie.writable, cookie.owner);
        let mapped = Mapped { core, memory, page, writable, owner, liveness, place, holder };
        // Counted before the check: either the revocation sees the mapping, or this sees the revocation.
        mapped.check()?;
        Ok(mapped)
    }

    #[inline]
    fn memory(&self) -> &ApertureMemory {
        self.memory.as_ref().expect("it is there until it is dropped")
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.page.read_u64(REVOKED) == Ok(0) && !self.liveness.is_over() {
            Ok(())
        } else {
            Err(self.over())
        }
    }

    /// Why it can no longer be accessed.
    #[cold]
    fn over(&self) -> Error {
        if !self.liveness.is_over() {
            return Error::Revoked;
        }
        // If the rank is reachable, it was restarted.
        let restarted = || Error::PeerGone(self.owner, Down::Died(Death::Restarted));
        self.core.peer_error(self.owner, None).unwrap_or_else(restarted)
    }

    #[inline]
    fn check_write(&self) -> Result<()> {
        if self.writable { self.check() } else { Err(Error::ReadOnly) }
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.memory().len() as u64
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory().is_empty()
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check()?;
        self.memory().read(at as usize, out).map_err(|_| Error::OutOfRange)
    }

    /// Copies bytes in.
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.check_write()?;
        self.memory().write(at as usize, bytes).map_err(|_| Error::OutOfRange)
    }

    /// Reads an aligned word of eight bytes.
    #[inline]
    pub fn read_u64(&self, at: u64) -> Result<u64> {
        self.check()?;
        self.memory().read_u64(at as usize).map_err(|_| Error::OutOfRange)
    }

    /// Writes an aligned word of eight bytes; earlier writes are visible before it.
    #[inline]
    pub fn write_u64(&self, at: u64, value: u64) -> Result<()> {
        self.check_write()?;
        self.memory().write_u64(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Writes `new` to an aligned word if it is `expected`; returns its former value.
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.check_write()?;
        self.memory().compare_exchange(at as usize, expected, new).map_err(|_| Error::OutOfRange)
    }

    /// Adds to an aligned word, wrapping around; returns its former value.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.check_write()?;
        self.memory().fetch_add(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Polls an aligned word of eight bytes until it passes the test; false if it did not within `limit`. It
    /// spins, because writes to a mapping wake nobody.
    pub fn poll_until(&self, at: u64, test: Test, limit: Duration) -> Result<bool> {
        // A limit that exceeds the clock's range is none.
        let until = Instant::now().checked_add(limit);
        loop {
            for _ in 0..256 {
                let value = self.read_u64(at)?;
                if test.passes(value) {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.memory = None;
        // Only now: once the owner reads this, nobody can access the memory. In a forked child nothing is
        // mapped, not even the page.
        if self.holder.is_me() {
            self.holder.leave(&self.page, self.place);
        }
    }
}
