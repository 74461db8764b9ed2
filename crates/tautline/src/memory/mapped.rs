//! Memory of a peer on this host, mapped: loads and stores instead of requests, and other promises.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tautline_node::link::Death;
use tautline_node::{ApertureMemory, Liveness};

use super::holder::Holder;
use super::{Aperture, Rights, Test};
use crate::core::Core;
use crate::memory::ring::lost;
use crate::{Down, Endpoint, Error, Rank, Result, SendError};

/// In the page that goes with a share: its secret, whether it is revoked, the memory's number, whether it may be written, how long it is, whose it is, then a word for each rank
/// that has it mapped.
const SECRET: usize = 0;
const REVOKED: usize = 16;
const INODE: usize = 24;
const WRITABLE: usize = 32;
const LENGTH: usize = 40;
const OWNER: usize = 48;
const RANKS: usize = 64;

/// What a peer on this host needs to map an aperture. It can be sent in any message, and is of use to processes of the same user alone.
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
    /// Bytes of one in a message.
    pub const LEN: usize = 48;

    /// For a message.
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

    /// Out of a message. Any bytes make one; only one that was given maps anything.
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

/// An aperture that peers on this host may map, until it is dropped or revoked: then every further access through [`Mapped`] fails, and the revocation is complete
/// when those who have it mapped have let go ([`Share::is_over`]). It outlives the aperture, if that is closed before.
#[derive(Debug)]
pub struct Share {
    /// Kept, so that its descriptor stays what it is.
    _memory: Arc<ApertureMemory>,
    page: ApertureMemory,
    cookie: MapCookie,
}

fn system(error: std::io::Error) -> Error {
    Error::other(error)
}

/// A descriptor of another process of this user, opened here.
fn descriptor(process: u32, number: u32, writable: bool) -> Result<File> {
    let path = format!("/proc/{process}/fd/{number}");
    OpenOptions::new().read(true).write(writable).open(path).map_err(|error| {
        Error::other(format!("cannot open the memory of process {process}, which shared it: {error}"))
    })
}

impl Aperture {
    /// Lets peers on this host map this aperture, all of it: to read, and with [`Rights::WRITE`] to write. Only memory that was allocated, not adopted. What they do is not
    /// requests: no tripwire sees it, no counter counts it.
    pub fn share(&self, rights: Rights) -> Result<Share> {
        let core = self.core().clone();
        let memory = self.memory().clone();
        let Some(fd) = memory.fd() else {
            return Err(Error::other(
                "only an aperture that was allocated can be shared, and this was adopted",
            ));
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
    /// What peers need.
    pub fn cookie(&self) -> &MapCookie {
        &self.cookie
    }

    /// No access through it is begun any more, and nobody can map it any more.
    pub fn revoke(&self) {
        let _ = self.page.write_u64(REVOKED, 1);
    }

    /// The ranks that have it mapped. A process that has ended has not, whether or not its rank was started again.
    pub fn mapped_by(&self) -> Vec<Rank> {
        let holds = |rank: &Rank| self.page.read_u64(RANKS + 8 * *rank as usize).is_ok_and(Holder::holds);
        (0..self.cookie.ranks).filter(holds).collect()
    }

    /// Whether it is revoked and nobody has it mapped any more: from now on nobody can touch the memory.
    pub fn is_over(&self) -> bool {
        self.page.read_u64(REVOKED) != Ok(0) && self.mapped_by().is_empty()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.revoke();
    }
}

/// Memory of a peer on this host, mapped into this process: a put of eight bytes is a store. Its promises are its own: rights are those of whole mappings, nobody is told of an access,
/// conditions are polled, and what is revoked is over when it is dropped here. Words are never torn.
///
/// When the owner is gone, every access is an error ([`Error::PeerGone`]), as soon as this node knows: it looks whenever it polls, and its watchdog does while the program computes, so that takes some
/// milliseconds. What is written until then goes to memory that nobody looks at any more; what is read is what was there last. An owner that is started again has other memory, and has to share it anew.
#[derive(Debug)]
pub struct Mapped {
    core: Rc<Core>,
    /// There until it is dropped.
    memory: Option<ApertureMemory>,
    page: ApertureMemory,
    writable: bool,
    owner: Rank,
    /// Whether the owner lives.
    life: Arc<Liveness>,
    /// Where in the page it is said that this process has it.
    place: usize,
    holder: Holder,
}

impl Endpoint {
    /// Maps an aperture of a peer on this host. An error if the peer is elsewhere, of another user, gone, or has revoked it, or if the cookie says more than the owner
    /// granted. Rights bind whoever maps through this library; another process of the same user could open the owner's memory without it.
    pub fn map(&self, cookie: &MapCookie) -> Result<Mapped> {
        if cookie.ranks != self.size() || self.rank() >= cookie.ranks {
            return Err(Error::NoShare("it is of a job of another size"));
        }
        // Looked at before the memory is: whoever lives then is whose memory it is. And there has to be a channel, or nobody would be told of its end.
        let life = self.core.node.liveness(cookie.owner).map_err(|error| match error {
            SendError::PeerGone(peer, why) => Error::PeerGone(peer, why),
            other => other.into(),
        })?;
        self.connect(cookie.owner)?;
        let page = descriptor(cookie.process, cookie.page, true)?;
        let page = ApertureMemory::attach(page.into(), RANKS + 8 * cookie.ranks as usize).map_err(system)?;
        let mut secret = [0; 16];
        page.read(SECRET, &mut secret).map_err(|_| Error::OutOfRange)?;
        // The process may be another one by now, which has something else by this number.
        if std::hint::black_box(u128::from_ne_bytes(secret) ^ u128::from_ne_bytes(cookie.secret)) != 0 {
            return Err(Error::NoShare("its secret is not the share's"));
        }
        // What is allowed is what the owner says, not what the cookie does.
        if cookie.writable && page.read_u64(WRITABLE) != Ok(1) {
            return Err(Error::NoShare("it says more than was granted: to write"));
        }
        if page.read_u64(LENGTH) != Ok(cookie.len) {
            return Err(Error::NoShare("it says another length than the share has"));
        }
        // With whose end the mapping ends.
        if page.read_u64(OWNER) != Ok(cookie.owner.into()) {
            return Err(Error::NoShare("it says another owner than the share has"));
        }
        let file = descriptor(cookie.process, cookie.memory, cookie.writable)?;
        if page.read_u64(INODE) != Ok(file.metadata().map_err(system)?.ino()) {
            return Err(Error::NoShare("what it names is not the share's memory"));
        }
        let len = usize::try_from(cookie.len).map_err(Error::other)?;
        let memory = if cookie.writable {
            ApertureMemory::attach(file.into(), len)
        } else {
            ApertureMemory::attach_read_only(file.into(), len)
        };
        let memory = memory.map_err(system)?;
        let (place, holder) = (RANKS + 8 * self.rank() as usize, Holder::me()?);
        holder.enter(&page, place)?;
        let (core, memory) = (self.core.clone(), Some(memory));
        let (writable, owner) = (cookie.writable, cookie.owner);
        let mapped = Mapped { core, memory, page, writable, owner, life, place, holder };
        // Said before it is looked at: a revocation either sees the mapping, or is seen.
        mapped.check()?;
        Ok(mapped)
    }
}

impl Mapped {
    #[inline]
    fn memory(&self) -> &ApertureMemory {
        self.memory.as_ref().expect("it is there until it is dropped")
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.page.read_u64(REVOKED) == Ok(0) && !self.life.is_over() { Ok(()) } else { Err(self.over()) }
    }

    /// Why it is over.
    #[cold]
    fn over(&self) -> Error {
        if !self.life.is_over() {
            return Error::Revoked;
        }
        // Whoever can be reached by now is its successor.
        let restarted = || Error::PeerGone(self.owner, Down::Died(Death::Restarted));
        lost(&self.core, self.owner, None).unwrap_or_else(restarted)
    }

    #[inline]
    fn check_write(&self) -> Result<()> {
        if self.writable { self.check() } else { Err(Error::ReadOnly) }
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.memory().len() as u64
    }

    /// Whether it has no bytes at all.
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

    /// Writes an aligned word of eight bytes, after everything that was written before.
    #[inline]
    pub fn write_u64(&self, at: u64, value: u64) -> Result<()> {
        self.check_write()?;
        self.memory().write_u64(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Changes an aligned word if it holds `expected`; returns what it held.
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.check_write()?;
        self.memory().compare_exchange(at as usize, expected, new).map_err(|_| Error::OutOfRange)
    }

    /// Adds to an aligned word, wrapping around; returns what it held.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.check_write()?;
        self.memory().fetch_add(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Polls an aligned word of eight bytes until it passes; false if it did not in time. It spins: nobody rings for a mapping.
    pub fn poll_until(&self, at: u64, test: Test, limit: Duration) -> Result<bool> {
        // A limit beyond all time is none.
        let until = Instant::now().checked_add(limit);
        loop {
            for _ in 0..256 {
                let value = self.read_u64(at)?;
                let passes = match test {
                    Test::Equal(it) => value == it,
                    Test::NotEqual(it) => value != it,
                    Test::AtLeast(it) => value >= it,
                    Test::Masked(mask, it) => value & mask == it & mask,
                };
                if passes {
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
        // Not before: when the owner sees this, nobody can touch the memory any more. A forked child has nothing mapped, and the page neither.
        if self.holder.is_me() {
            self.holder.leave(&self.page, self.place);
        }
    }
}
