//! Shared memory with POSIX semaphores: rings of buffers with two semaphores each. It always sleeps while it
//! waits.

use std::io;
use std::time::SystemTime;

use crate::shm::SharedMapping;
use crate::transport::{Kind, SILENCE, SMALL_WINDOW, Setup, Transport, timed_out};

/// One side: the rings that it fills, and those that it empties.
pub(crate) struct Semaphores {
    into: SharedMapping,
    from: SharedMapping,
    /// For small messages, of which many may be in progress, and for the others.
    rings: [Ring; 2],
    sent: [usize; 2],
    received: [usize; 2],
}

/// Where a ring lies: two semaphores, then its buffers.
#[derive(Clone, Copy)]
struct Ring {
    at: usize,
    bytes: usize,
    slots: usize,
}

/// Messages of up to so many bytes are small.
const SMALL: usize = 1024;
/// Bytes of the ring of others, at most, unless it has two buffers only.
const ROOM: usize = 1 << 20;

/// Where the two semaphores and the buffers of a ring lie. Each has cache lines of its own.
const FILLED: usize = 0;
const EMPTY: usize = 64;
const BUFFERS: usize = 128;

impl Ring {
    fn buffer(&self, number: usize) -> usize {
        self.at + BUFFERS + number % self.slots * self.bytes
    }
}

impl Semaphores {
    /// Opens one side for messages of up to `bytes` bytes.
    pub(crate) fn open(setup: &mut Setup<'_>, bytes: usize) -> io::Result<Self> {
        let small = Ring { at: 0, bytes: SMALL, slots: SMALL_WINDOW };
        let bytes = bytes.max(1).next_multiple_of(64);
        let at = BUFFERS + small.slots * small.bytes;
        let large = Ring { at, bytes, slots: (ROOM / bytes).clamp(2, SMALL_WINDOW) };
        let [into, from] = SharedMapping::pair(setup, 0, large.at + BUFFERS + large.slots * large.bytes)?;
        let mut pair = Self { into, from, rings: [small, large], sent: [0; 2], received: [0; 2] };
        for ring in pair.rings {
            for (at, value) in [(FILLED, 0), (EMPTY, ring.slots as libc::c_uint)] {
                // SAFETY: the memory is shared, zeroed, aligned to a line and as long as the mapping; the
                // other side does not use it before the barrier.
                if unsafe { libc::sem_init(semaphore(&mut pair.into, ring.at + at), 1, value) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        // Without this, one side could post what the other has not yet made.
        setup.barrier()?;
        Ok(pair)
    }

    /// The ring of messages of this length.
    fn ring(&self, len: usize) -> io::Result<(usize, Ring)> {
        let which = usize::from(len > SMALL);
        let ring = self.rings[which];
        if len > ring.bytes { Err(io::ErrorKind::InvalidInput.into()) } else { Ok((which, ring)) }
    }
}

/// A semaphore at this place.
fn semaphore(memory: &mut SharedMapping, at: usize) -> *mut libc::sem_t {
    // SAFETY: only the functions of semaphores touch these bytes, and the slice is gone at once.
    unsafe { memory.area(at, size_of::<libc::sem_t>()) }.as_mut_ptr().cast()
}

fn post(memory: &mut SharedMapping, at: usize) -> io::Result<()> {
    // SAFETY: a semaphore that its owner has made lies there as long as the mapping.
    if unsafe { libc::sem_post(semaphore(memory, at)) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn wait(memory: &mut SharedMapping, at: usize) -> io::Result<()> {
    let semaphore = semaphore(memory, at);
    let mut until = None;
    loop {
        // SAFETY: as for `post`.
        if unsafe { libc::sem_trywait(semaphore) } == 0 {
            return Ok(());
        }
        let until = *until.get_or_insert_with(deadline);
        // SAFETY: as for `post`; the time is a local.
        if unsafe { libc::sem_timedwait(semaphore, &raw const until) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ETIMEDOUT) => return Err(timed_out()),
            _ => return Err(error),
        }
    }
}

fn deadline() -> libc::timespec {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + SILENCE;
    libc::timespec { tv_sec: now.as_secs() as libc::time_t, tv_nsec: now.subsec_nanos().into() }
}

impl Transport for Semaphores {
    fn name(&self) -> &'static str {
        Kind::Semaphores.name()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (which, ring) = self.ring(bytes.len())?;
        wait(&mut self.into, ring.at + EMPTY)?;
        let at = ring.buffer(self.sent[which]);
        self.sent[which] += 1;
        // SAFETY: the semaphore says that the other side has read what was there.
        unsafe { self.into.area(at, bytes.len()) }.copy_from_slice(bytes);
        post(&mut self.into, ring.at + FILLED)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (which, ring) = self.ring(buf.len())?;
        wait(&mut self.from, ring.at + FILLED)?;
        let at = ring.buffer(self.received[which]);
        self.received[which] += 1;
        // SAFETY: the semaphore says that a message is there; the other side writes no more to it until it is
        // counted as empty.
        buf.copy_from_slice(unsafe { self.from.area(at, buf.len()) });
        post(&mut self.from, ring.at + EMPTY)?;
        Ok(buf.len())
    }
}
