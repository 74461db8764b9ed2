//! The distributed queue of the CLAN paper, as bytes: a ring in the receiver's memory, and two counters of which each side has its own and a lazily
//! updated copy of the other's. All that crosses the network are writes. Queues and streams are made of it.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::tripwire::wait_on;
use super::{Aperture, Cookie, Remote, Rights, Tripwire};
use crate::core::Core;
use crate::{Endpoint, Error, PeerState, Rank, Result};

/// In the receiver's memory: bytes ever written, whether no more will come, the sender's cookie, then the ring.
const WRITTEN: u64 = 0;
const ENDED: u64 = 8;
const RETURN: u64 = 16;
const BYTES: u64 = 64;
const _: () = assert!(RETURN + Cookie::LEN as u64 <= BYTES);

/// In the sender's memory: bytes ever read, whether no more will be.
const READ: u64 = 0;
const GONE: u64 = 8;

/// How soon a reader that waits tries again to tell what it has read.
const RETRY: std::time::Duration = std::time::Duration::from_millis(1);

/// The end of a ring that reads.
#[derive(Debug)]
pub(crate) struct RingReader {
    core: Rc<Core>,
    aperture: Aperture,
    capacity: u64,
    wire: Tripwire,
    read: u64,
    told: u64,
    back: Option<Remote>,
}

/// The end of a ring that writes.
#[derive(Debug)]
pub(crate) struct RingWriter {
    core: Rc<Core>,
    remote: Remote,
    capacity: u64,
    aperture: Aperture,
    wire: Tripwire,
    written: u64,
    ended: bool,
}

fn gone(core: &Core, peer: Rank) -> Option<Error> {
    match core.node.peer_state(peer) {
        Some(PeerState::Down(why)) => Some(Error::PeerGone(peer, why)),
        _ => None,
    }
}

impl RingReader {
    /// A ring of so many bytes, rounded up to a multiple of eight, and the cookie for whoever shall write.
    pub(crate) fn new(ep: &Endpoint, capacity: usize) -> Result<(RingReader, Cookie)> {
        let capacity = (capacity.max(64) as u64).next_multiple_of(8);
        let aperture = ep.aperture((BYTES + capacity) as usize)?;
        let wire = aperture.tripwire(WRITTEN..RETURN).arm()?;
        let cookie = aperture.cookie(.., Rights::WRITE)?;
        let core = ep.core.clone();
        Ok((RingReader { core, aperture, capacity, wire, read: 0, told: 0, back: None }, cookie))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn written(&self) -> Result<u64> {
        let written = self.aperture.read_u64(WRITTEN)?;
        // The sender's word is not to be trusted: more than fits is nonsense.
        if written.wrapping_sub(self.read) > self.capacity { Err(Error::Stale) } else { Ok(written) }
    }

    /// Bytes that can be read now.
    pub(crate) fn available(&self) -> Result<u64> {
        Ok(self.written()?.wrapping_sub(self.read))
    }

    /// Whether nothing more will come, and all that came has been read.
    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.aperture.read_u64(ENDED)? != 0 && self.available()? == 0)
    }

    /// Copies bytes out that are available, from `skip` on, without taking them.
    pub(crate) fn peek(&self, skip: u64, out: &mut [u8]) -> Result<()> {
        let at = self.read.wrapping_add(skip) % self.capacity;
        let first = (self.capacity - at).min(out.len() as u64) as usize;
        let (a, b) = out.split_at_mut(first);
        self.aperture.read(BYTES + at, a)?;
        self.aperture.read(BYTES, b)
    }

    /// Takes bytes that are available. The sender is told when a quarter of the ring is free again, or all of it.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        self.read = self.read.wrapping_add(bytes);
        let untold = self.read.wrapping_sub(self.told);
        if untold >= self.capacity / 4 || untold > 0 && self.available()? == 0 { self.tell() } else { Ok(()) }
    }

    fn tell(&mut self) -> Result<()> {
        if self.back.is_none() {
            let mut bytes = [0; Cookie::LEN];
            self.aperture.read(RETURN, &mut bytes)?;
            self.back = Some(Remote::new(self.core.clone(), Cookie::from_bytes(&bytes)));
        }
        let back = self.back.as_ref().expect("made above");
        match back.try_put(READ, &self.read.to_le_bytes()) {
            Ok(()) => self.told = self.read,
            // Told with the next bytes that are taken, or when the reader waits.
            Err(error) if error.is_would_block() => {}
            // Whoever is gone needs no telling.
            Err(Error::Send(_)) => self.told = self.read,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Who writes, once it has begun.
    fn writer(&self) -> Option<Rank> {
        let mut bytes = [0; Cookie::LEN];
        self.aperture.read(RETURN, &mut bytes).ok()?;
        let cookie = Cookie::from_bytes(&bytes);
        (bytes != [0; Cookie::LEN]).then(|| cookie.owner())
    }

    /// Whether it is worth looking: there are so many bytes, or nothing more will come. If the writer is gone with fewer, that is an error.
    fn ready(&mut self, bytes: u64) -> Result<bool> {
        if self.available()? >= bytes || self.aperture.read_u64(ENDED)? != 0 {
            return Ok(true);
        }
        if self.told != self.read {
            self.tell()?;
        }
        match self.writer().and_then(|writer| gone(&self.core, writer)) {
            Some(error) => Err(error),
            None => Ok(false),
        }
    }

    /// Extracts and waits until so many bytes are there, or the end.
    pub(crate) fn wait(&mut self, bytes: u64) -> Result<()> {
        loop {
            // Looked at first: the watchdog may change it at any time, and then there is nothing to wait for.
            let before = self.aperture.read_u64(WRITTEN)?;
            if self.ready(bytes)? {
                return Ok(());
            }
            let memory = self.aperture.memory().clone();
            let done = || {
                memory.read_u64(WRITTEN as usize) != Ok(before) || memory.read_u64(ENDED as usize) != Ok(0)
            };
            let over = || self.writer().is_some_and(|writer| gone(&self.core, writer).is_some());
            // What could not be told is tried again.
            let limit = (self.told != self.read).then_some(RETRY);
            wait_on(&self.core, limit, done, over)?;
        }
    }

    /// As [`RingReader::wait`], for futures.
    pub(crate) fn poll_wait(&mut self, context: &Context<'_>, bytes: u64) -> Poll<Result<()>> {
        match self.ready(bytes) {
            Ok(false) => {}
            result => return Poll::Ready(result.map(|_| ())),
        }
        if let Err(error) = self.wire.register(context) {
            return Poll::Ready(Err(error));
        }
        if self.told != self.read {
            // What could not be told is tried again when something has happened.
            let Ok(seen) = self.core.node.with(|i| i.activity()) else { return Poll::Pending };
            self.core.tried(seen);
            self.core.blocked.borrow_mut().push(context.waker().clone());
        }
        // It may have come just before.
        match self.ready(bytes) {
            Ok(false) => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        if let Some(back) = &self.back {
            let _ = back.try_put(GONE, &1u64.to_le_bytes());
        }
    }
}

impl RingWriter {
    /// Writes to the ring that a cookie opens.
    pub(crate) fn new(ep: &Endpoint, cookie: &Cookie) -> Result<RingWriter> {
        let capacity = cookie.len().checked_sub(BYTES).filter(|left| *left > 0).ok_or(Error::OutOfRange)?;
        let aperture = ep.aperture(16)?;
        let wire = aperture.tripwire(..).arm()?;
        let remote = ep.remote(cookie);
        let mine = aperture.cookie(.., Rights::WRITE)?;
        remote.put(RETURN, &mine.to_bytes())?;
        Ok(RingWriter { core: ep.core.clone(), remote, capacity, aperture, wire, written: 0, ended: false })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that can be written now.
    pub(crate) fn room(&self) -> Result<u64> {
        if let Some(error) = gone(&self.core, self.remote.owner()) {
            return Err(error);
        }
        if self.ended || self.aperture.read_u64(GONE)? != 0 {
            return Err(Error::Aborted);
        }
        let under_way = self.written.wrapping_sub(self.aperture.read_u64(READ)?);
        self.capacity.checked_sub(under_way).ok_or(Error::Stale)
    }

    /// Writes pieces one behind the other, for all of which there is room, and then says so; in as few frames as it takes.
    pub(crate) fn write(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let ep = Endpoint::inner(self.core.clone());
        let _together = ep.batch();
        for piece in pieces {
            let at = self.written % self.capacity;
            let (a, b) = piece.split_at((self.capacity - at).min(piece.len() as u64) as usize);
            self.remote.put(BYTES + at, a)?;
            if !b.is_empty() {
                self.remote.put(BYTES, b)?;
            }
            self.written = self.written.wrapping_add(piece.len() as u64);
        }
        self.remote.put(WRITTEN, &self.written.to_le_bytes())
    }

    /// Extracts and waits until there is room for so many bytes.
    pub(crate) fn wait(&mut self, bytes: u64) -> Result<()> {
        loop {
            // Looked at first, as above.
            let before = self.aperture.read_u64(READ)?;
            if self.room()? >= bytes {
                return Ok(());
            }
            let memory = self.aperture.memory().clone();
            let done =
                || memory.read_u64(READ as usize) != Ok(before) || memory.read_u64(GONE as usize) != Ok(0);
            wait_on(&self.core, None, done, || gone(&self.core, self.remote.owner()).is_some())?;
        }
    }

    /// As [`RingWriter::wait`], for futures.
    pub(crate) fn poll_wait(&mut self, context: &Context<'_>, bytes: u64) -> Poll<Result<()>> {
        match self.room() {
            Ok(room) if room < bytes => {}
            result => return Poll::Ready(result.map(|_| ())),
        }
        if let Err(error) = self.wire.register(context) {
            return Poll::Ready(Err(error));
        }
        match self.room() {
            Ok(room) if room < bytes => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }

    /// Says that nothing more will come.
    pub(crate) fn end(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.ended, true) {
            self.remote.put(ENDED, &1u64.to_le_bytes())?;
        }
        Ok(())
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.remote.try_put(ENDED, &2u64.to_le_bytes());
        }
    }
}
