//! The distributed queue of the CLAN paper, as bytes: a ring in the reader's memory, and two counters, of
//! which each side has its own and a lazily updated copy of the other's. Only writes cross the network,
//! except for one word that a writer claims first. Queues and streams consist of it.

mod writer;

pub(crate) use writer::RingWriter;

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use tautline_node::memory::{Cookie, Rights};

use super::aperture::Aperture;
use super::remote::Remote;
use super::tripwire::Tripwire;
use crate::core::{Core, is_settled};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::waiting::wait_until;

/// Offsets in the reader's memory: bytes ever written, whether no more will be, the writer's cookie, whether
/// there is a writer, then the ring.
const WRITTEN: u64 = 0;
const ENDED: u64 = 8;
const RETURN: u64 = 16;
const CLAIM: u64 = 64;
const BYTES: u64 = 128;
const _: () = assert!(RETURN + Cookie::LEN as u64 <= CLAIM);

/// Offsets in the writer's memory: bytes ever read, whether the reader is gone.
const READ: u64 = 0;
const GONE: u64 = 8;

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct RingReader {
    core: Rc<Core>,
    aperture: Aperture,
    capacity: u64,
    wire: Tripwire,
    /// Fires once, when the ring is claimed: it tells which incarnation of which peer writes.
    claimed: Tripwire,
    counts: Rc<Counts>,
    /// The writer's memory, once it is known.
    writer: Cell<Option<Cookie>>,
}

/// How much was read. Shared with the job that reports it to the writer.
#[derive(Debug, Default)]
struct Counts {
    read: Cell<u64>,
    reported: Cell<u64>,
    /// A job to report it is posted.
    posted: Cell<bool>,
}

/// Puts a word when there is room, without waiting. A lost peer need not be told.
fn put_later(core: &Rc<Core>, cookie: Cookie, at: u64, word: u64) {
    let put = move |core: &Rc<Core>| Remote::new(core.clone(), cookie).try_put(at, &word.to_le_bytes());
    if !is_settled(&put(core)) {
        core.post(cookie.owner(), Some(8), move |core| is_settled(&put(core)));
    }
}

impl RingReader {
    /// Makes a ring of `capacity` bytes, rounded up to a multiple of eight, and the cookie for its writer.
    pub(crate) fn new(ep: &Endpoint, capacity: usize) -> Result<(RingReader, Cookie)> {
        let capacity = (capacity.max(64) as u64).checked_next_multiple_of(8).unwrap_or(u64::MAX);
        let bytes = capacity.checked_add(BYTES).filter(|bytes| *bytes <= isize::MAX as u64);
        let Some(bytes) = bytes else {
            let most = isize::MAX as u64 - BYTES;
            return Err(Error::other(format!("a ring has at most {most} bytes")));
        };
        let aperture = ep.aperture(bytes as usize)?;
        let wire = aperture.tripwire(WRITTEN..RETURN).arm()?;
        let claimed = aperture.tripwire(CLAIM..BYTES).once().arm()?;
        let cookie = aperture.cookie(.., Rights::WRITE.and(Rights::ATOMIC))?;
        let (core, counts, writer) = (ep.core.clone(), Rc::default(), Cell::new(None));
        Ok((RingReader { core, aperture, capacity, wire, claimed, counts, writer }, cookie))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that can be read now.
    fn available(&self) -> Result<u64> {
        let available = self.aperture.read_u64(WRITTEN)?.wrapping_sub(self.counts.read.get());
        // The writer is not trusted.
        if available > self.capacity {
            return Err(Error::Violation("more bytes were written than the ring has"));
        }
        Ok(available)
    }

    /// Whether nothing more will be written, and everything was read.
    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.has_ended()? && self.available()? == 0)
    }

    /// Copies available bytes, from offset `skip` on, without taking them.
    pub(crate) fn peek(&self, skip: u64, out: &mut [u8]) -> Result<()> {
        let at = self.counts.read.get().wrapping_add(skip) % self.capacity;
        let first = (self.capacity - at).min(out.len() as u64) as usize;
        let (a, b) = out.split_at_mut(first);
        self.aperture.read(BYTES + at, a)?;
        self.aperture.read(BYTES, b)
    }

    /// Takes available bytes. The writer is told when a quarter of the ring, or all of it, is free again.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        self.counts.read.set(self.counts.read.get().wrapping_add(bytes));
        let unreported = self.unreported();
        if unreported >= self.capacity / 4 || unreported > 0 && self.available()? == 0 {
            self.report();
        }
        Ok(())
    }

    fn unreported(&self) -> u64 {
        self.counts.read.get().wrapping_sub(self.counts.reported.get())
    }

    /// Tells the writer how much was read, now or when there is room.
    fn report(&self) {
        let Some(cookie) = self.writer().filter(|_| !self.counts.posted.get()) else { return };
        let counts = self.counts.clone();
        let report = move |core: &Rc<Core>| {
            let read = counts.read.get();
            let writer = Remote::new(core.clone(), cookie);
            let settled = is_settled(&writer.try_put(READ, &read.to_le_bytes()));
            if settled {
                // A lost writer need not be told.
                counts.reported.set(read);
            }
            counts.posted.set(!settled);
            settled
        };
        if !report(&self.core) {
            self.core.post(cookie.owner(), None, report);
        }
    }

    /// The writer's memory, once the writer has sent its cookie.
    fn writer(&self) -> Option<Cookie> {
        if self.writer.get().is_none() {
            let writer = self.claimed.fired_by()?.rank;
            let mut bytes = [0; Cookie::LEN];
            self.aperture.read(RETURN, &mut bytes).ok().filter(|()| bytes != [0; Cookie::LEN])?;
            // A cookie for another node's memory is ignored.
            self.writer.set(Some(Cookie::from_bytes(&bytes)).filter(|cookie| cookie.owner() == writer));
        }
        self.writer.get()
    }

    /// Why the writer writes no more, if it is gone: the incarnation that claimed the ring.
    fn writer_error(&self) -> Option<Error> {
        self.core.check_open().err().map(Error::from).or_else(|| {
            let writer = self.claimed.fired_by()?;
            self.core.peer_error(writer.rank, Some(writer))
        })
    }

    /// Why nobody will claim the ring, if so: the last reachable peer is gone. Unfinished handlers may still
    /// claim it.
    fn last_peer_lost(&self) -> Option<Error> {
        let core = &self.core;
        let alone = core.extraction.is_running() || core.extraction.unfinished() == 0;
        let lost = core.peer_loss.unreported().filter(|_| alone && self.claimed.fired_by().is_none())?;
        core.node.all_peers_lost().then(|| lost.into())
    }

    fn has_ended(&self) -> Result<bool> {
        Ok(self.aperture.read_u64(ENDED)? != 0)
    }

    /// Bytes that can be read now. If they are fewer than `least`, and the writer is gone, that is an error.
    pub(crate) fn poll_available(&self, least: u64) -> Result<u64> {
        let available = self.available()?;
        if available < least
            && !self.has_ended()?
            && let Some(error) = self.writer_error()
        {
            // It may have written just before it was lost.
            let available = self.available()?;
            return if available >= least || self.has_ended()? { Ok(available) } else { Err(error) };
        }
        Ok(available)
    }

    /// Whether at least `bytes` bytes can be read, or nothing more will be written.
    fn is_ready(&self, bytes: u64) -> Result<bool> {
        if self.poll_available(bytes)? >= bytes || self.has_ended()? {
            return Ok(true);
        }
        if self.unreported() > 0 {
            self.report();
        }
        match self.last_peer_lost() {
            Some(error) => {
                // The program is told once; each handler is told.
                if !self.core.extraction.is_running() {
                    self.core.peer_loss.take_unreported();
                }
                Err(error)
            }
            None => Ok(false),
        }
    }

    /// Extracts and waits until at least `bytes` bytes can be read, or nothing more will be written.
    pub(crate) fn wait(&mut self, bytes: u64) -> Result<()> {
        loop {
            // Read first: the watchdog may change it at any time, and then there is nothing to wait for.
            let before = self.aperture.read_u64(WRITTEN)?;
            if self.is_ready(bytes)? {
                return Ok(());
            }
            let memory = self.aperture.memory().clone();
            let done = || {
                memory.read_u64(WRITTEN as usize) != Ok(before) || memory.read_u64(ENDED as usize) != Ok(0)
            };
            let over = || self.writer_error().is_some() || self.last_peer_lost().is_some();
            wait_until(&self.core, None, done, over)?;
        }
    }

    /// As [`RingReader::wait`], for futures.
    pub(crate) fn poll_wait(&mut self, context: &Context<'_>, bytes: u64) -> Poll<Result<()>> {
        match self.is_ready(bytes) {
            Ok(false) => {}
            result => return Poll::Ready(result.map(|_| ())),
        }
        if let Err(error) = self.wire.register(context) {
            return Poll::Ready(Err(error));
        }
        // They may have been written just before the wire was registered.
        match self.is_ready(bytes) {
            Ok(false) => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        if let Some(cookie) = self.writer() {
            put_later(&self.core, cookie, GONE, 1);
        }
    }
}
