//! The distributed queue of the CLAN paper, as bytes: a ring in the receiver's memory, and two counters of which each side has its own and a lazily
//! updated copy of the other's. All that crosses the network are writes. Queues and streams are made of it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::tripwire::wait_on;
use super::{Aperture, Completion, Cookie, Remote, Rights, Tripwire};
use crate::core::Core;
use crate::later;
use crate::{Endpoint, Error, PeerState, Rank, Result, SendError};

/// In the receiver's memory: bytes ever written, whether no more will come, the sender's cookie, then the ring.
const WRITTEN: u64 = 0;
const ENDED: u64 = 8;
const RETURN: u64 = 16;
const BYTES: u64 = 64;
const _: () = assert!(RETURN + Cookie::LEN as u64 <= BYTES);

/// In the sender's memory: bytes ever read, whether no more will be.
const READ: u64 = 0;
const GONE: u64 = 8;

/// How soon a writer that waits looks again whether its cookie was accepted, until it knows.
const RETRY: std::time::Duration = std::time::Duration::from_millis(1);

/// The end of a ring that reads.
#[derive(Debug)]
pub(crate) struct RingReader {
    core: Rc<Core>,
    aperture: Aperture,
    capacity: u64,
    wire: Tripwire,
    counts: Rc<Counts>,
    /// Where the writer wants to be told, and which life it is in.
    back: Option<(Cookie, Option<u32>)>,
}

/// What has been read. Whatever tells the writer later looks at it, too.
#[derive(Debug, Default)]
struct Counts {
    read: Cell<u64>,
    told: Cell<u64>,
    /// It will be told as soon as there is room.
    telling: Cell<bool>,
}

/// The end of a ring that writes.
#[derive(Debug)]
pub(crate) struct RingWriter {
    core: Rc<Core>,
    remote: Remote,
    /// Which life the reader is in.
    life: Option<u32>,
    /// Whether the reader knows where to tell what it has read, while that is not known.
    hello: Option<Completion>,
    capacity: u64,
    aperture: Aperture,
    wire: Tripwire,
    written: u64,
    ended: bool,
}

/// A word is put when there is room, and nobody waits for it. Whoever is gone needs no telling.
fn put_later(core: &Rc<Core>, cookie: Cookie, at: u64, word: u64) {
    let put = move |core: &Rc<Core>| Remote::new(core.clone(), cookie).try_put(at, &word.to_le_bytes());
    if !later::is_over(&put(core)) {
        later::add(core, cookie.owner(), move |core| later::is_over(&put(core)));
    }
}

/// Which life a peer is in, if it can be reached.
pub(crate) fn life(core: &Core, peer: Rank) -> Option<u32> {
    core.node.with(|i| i.incarnation(peer)).ok().flatten()
}

/// As [`gone`], also of a peer whose life is not known.
pub(crate) fn lost(core: &Core, peer: Rank, life: Option<u32>) -> Option<Error> {
    match (life, core.node.peer_state(peer)) {
        (Some(life), _) => gone(core, peer, life),
        (None, Some(PeerState::Down(why))) => Some(Error::PeerGone(peer, why)),
        _ => None,
    }
}

/// Why nothing comes any more from a peer that was in this life, if so.
fn gone(core: &Core, peer: Rank, life: u32) -> Option<Error> {
    if peer == core.node.rank() {
        return None;
    }
    match core.node.with(|i| i.check(peer, life)) {
        Ok(Err(SendError::PeerGone(peer, why))) => Some(Error::PeerGone(peer, why)),
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
        Ok((RingReader { core, aperture, capacity, wire, counts: Rc::default(), back: None }, cookie))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn written(&self) -> Result<u64> {
        let written = self.aperture.read_u64(WRITTEN)?;
        // The sender's word is not to be trusted: more than fits is nonsense.
        if written.wrapping_sub(self.counts.read.get()) > self.capacity {
            Err(Error::Stale)
        } else {
            Ok(written)
        }
    }

    /// Bytes that can be read now.
    pub(crate) fn available(&self) -> Result<u64> {
        Ok(self.written()?.wrapping_sub(self.counts.read.get()))
    }

    /// Whether nothing more will come, and all that came has been read.
    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.aperture.read_u64(ENDED)? != 0 && self.available()? == 0)
    }

    /// Copies bytes out that are available, from `skip` on, without taking them.
    pub(crate) fn peek(&self, skip: u64, out: &mut [u8]) -> Result<()> {
        let at = self.counts.read.get().wrapping_add(skip) % self.capacity;
        let first = (self.capacity - at).min(out.len() as u64) as usize;
        let (a, b) = out.split_at_mut(first);
        self.aperture.read(BYTES + at, a)?;
        self.aperture.read(BYTES, b)
    }

    /// Takes bytes that are available. The sender is told when a quarter of the ring is free again, or all of it.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        self.counts.read.set(self.counts.read.get().wrapping_add(bytes));
        let untold = self.untold();
        if untold >= self.capacity / 4 || untold > 0 && self.available()? == 0 {
            self.tell();
        }
        Ok(())
    }

    fn untold(&self) -> u64 {
        self.counts.read.get().wrapping_sub(self.counts.told.get())
    }

    fn tell(&mut self) {
        let Some((cookie, _)) = self.meet().filter(|_| !self.counts.telling.get()) else { return };
        let counts = self.counts.clone();
        let tell = move |core: &Rc<Core>| {
            let read = counts.read.get();
            let back = Remote::new(core.clone(), cookie);
            let over = later::is_over(&back.try_put(READ, &read.to_le_bytes()));
            if over {
                // Whoever is gone needs no telling.
                counts.told.set(read);
            }
            counts.telling.set(!over);
            over
        };
        if !tell(&self.core) {
            later::add(&self.core, cookie.owner(), tell);
        }
    }

    /// Who writes, once it has begun, and in which life.
    fn meet(&mut self) -> Option<(Cookie, Option<u32>)> {
        if self.back.is_none() {
            let mut bytes = [0; Cookie::LEN];
            self.aperture.read(RETURN, &mut bytes).ok().filter(|()| bytes != [0; Cookie::LEN])?;
            self.back = Some((Cookie::from_bytes(&bytes), None));
        }
        let (cookie, known) = self.back.as_mut()?;
        *known = known.or_else(|| life(&self.core, cookie.owner()));
        self.back
    }

    /// Why the writer writes no more, if it is gone.
    fn lost(&self) -> Option<Error> {
        let (cookie, life) = self.back?;
        lost(&self.core, cookie.owner(), life)
    }

    /// Whether it is worth looking: there are so many bytes, or nothing more will come. If the writer is gone with fewer, that is an error.
    fn ready(&mut self, bytes: u64) -> Result<bool> {
        self.meet();
        if self.available()? >= bytes || self.aperture.read_u64(ENDED)? != 0 {
            return Ok(true);
        }
        if self.untold() > 0 {
            self.tell();
        }
        self.lost().map_or(Ok(false), Err)
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
            wait_on(&self.core, None, done, || self.lost().is_some())?;
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
        self.core.blocked_on_peers(context);
        // It may have come just before.
        match self.ready(bytes) {
            Ok(false) => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        if let Some((cookie, _)) = self.meet() {
            put_later(&self.core, cookie, GONE, 1);
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
        let hello = Some(remote.put_told(RETURN, &mine.to_bytes())?);
        let core = ep.core.clone();
        let life = life(&core, cookie.owner());
        Ok(RingWriter { core, remote, life, hello, capacity, aperture, wire, written: 0, ended: false })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that can be written now.
    pub(crate) fn room(&mut self) -> Result<u64> {
        if let Some(error) = lost(&self.core, self.remote.owner(), self.life) {
            return Err(error);
        }
        if let Some(result) = self.hello.as_mut().and_then(Completion::try_take) {
            self.hello = None;
            // A reader that is gone before it was met is refused, and stays so.
            self.ended |= result.is_err();
            result?;
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
            let over = || lost(&self.core, self.remote.owner(), self.life).is_some();
            wait_on(&self.core, self.hello.as_ref().map(|_| RETRY), done, over)?;
        }
    }

    /// As [`RingWriter::wait`], for futures.
    pub(crate) fn poll_wait(&mut self, context: &mut Context<'_>, bytes: u64) -> Poll<Result<()>> {
        match self.room() {
            Ok(room) if room < bytes => {}
            result => return Poll::Ready(result.map(|_| ())),
        }
        if let Err(error) = self.wire.register(context) {
            return Poll::Ready(Err(error));
        }
        self.core.blocked_on_peers(context);
        if let Some(hello) = &mut self.hello
            && let Poll::Ready(result) = Pin::new(hello).poll(context)
        {
            self.hello = None;
            self.ended |= result.is_err();
            if let Err(error) = result {
                return Poll::Ready(Err(error));
            }
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
            put_later(&self.core, *self.remote.cookie(), ENDED, 2);
        }
    }
}
