//! The distributed queue of the CLAN paper, as bytes: a ring in the receiver's memory, and two counters of which each side has its own and a lazily
//! updated copy of the other's. All that crosses the network are writes, but for one word that whoever comes to write claims first. Queues and streams are made of it.

mod writer;

pub(crate) use writer::RingWriter;

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::tripwire::wait_on;
use super::{Aperture, Cookie, Remote, Rights, Tripwire};
use tautline_node::PeerId;

use crate::core::Core;
use crate::later;
use crate::{Endpoint, Error, PeerState, Rank, Result, SendError};

/// In the receiver's memory: bytes ever written, whether no more will come, the sender's cookie, whether there is a sender, then the ring.
const WRITTEN: u64 = 0;
const ENDED: u64 = 8;
const RETURN: u64 = 16;
const CLAIM: u64 = 64;
const BYTES: u64 = 128;
const _: () = assert!(RETURN + Cookie::LEN as u64 <= CLAIM);

/// In the sender's memory: bytes ever read, whether no more will be.
const READ: u64 = 0;
const GONE: u64 = 8;

/// The end of a ring that reads.
#[derive(Debug)]
pub(crate) struct RingReader {
    core: Rc<Core>,
    aperture: Aperture,
    capacity: u64,
    wire: Tripwire,
    /// Fires once, when the ring is claimed: it knows who writes, and in which of its lives.
    claimed: Tripwire,
    counts: Rc<Counts>,
    /// Where the writer wants to be told.
    back: Cell<Option<Cookie>>,
}

/// What has been read. Whatever tells the writer later looks at it, too.
#[derive(Debug, Default)]
struct Counts {
    read: Cell<u64>,
    told: Cell<u64>,
    /// It will be told as soon as there is room.
    telling: Cell<bool>,
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
    core.node.incarnation(peer)
}

/// As [`gone`], also of a peer whose life is not known.
pub(crate) fn lost(core: &Core, peer: Rank, life: Option<u32>) -> Option<Error> {
    if let Err(closed) = core.check_open() {
        return Some(closed.into());
    }
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
    match core.node.check(PeerId::new(peer, life)) {
        Err(SendError::PeerGone(peer, why)) => Some(Error::PeerGone(peer, why)),
        _ => None,
    }
}

impl RingReader {
    /// A ring of so many bytes, rounded up to a multiple of eight, and the cookie for whoever shall write.
    pub(crate) fn new(ep: &Endpoint, capacity: usize) -> Result<(RingReader, Cookie)> {
        let capacity = (capacity.max(64) as u64).checked_next_multiple_of(8).unwrap_or(u64::MAX);
        let bytes = capacity.checked_add(BYTES).filter(|bytes| *bytes <= isize::MAX as u64);
        let Some(bytes) = bytes else {
            let most = isize::MAX as u64 - BYTES;
            return Err(Error::other(format!(
                "a ring has at most {most} bytes, and as many as there is memory"
            )));
        };
        let aperture = ep.aperture(bytes as usize)?;
        let wire = aperture.tripwire(WRITTEN..RETURN).arm()?;
        let claimed = aperture.tripwire(CLAIM..BYTES).once().arm()?;
        let cookie = aperture.cookie(.., Rights::WRITE.and(Rights::ATOMIC))?;
        let (core, counts, back) = (ep.core.clone(), Rc::default(), Cell::new(None));
        Ok((RingReader { core, aperture, capacity, wire, claimed, counts, back }, cookie))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn written(&self) -> Result<u64> {
        let written = self.aperture.read_u64(WRITTEN)?;
        // The sender's word is not to be trusted: more than fits is nonsense.
        if written.wrapping_sub(self.counts.read.get()) > self.capacity {
            Err(Error::Nonsense("more bytes than the ring has"))
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
        Ok(self.has_end()? && self.available()? == 0)
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

    fn tell(&self) {
        let Some(cookie) = self.meet().filter(|_| !self.counts.telling.get()) else { return };
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

    /// Where the writer wants to be told, once it has said so.
    fn meet(&self) -> Option<Cookie> {
        if self.back.get().is_none() {
            let writer = self.claimed.by()?.rank;
            let mut bytes = [0; Cookie::LEN];
            self.aperture.read(RETURN, &mut bytes).ok().filter(|()| bytes != [0; Cookie::LEN])?;
            // Nobody is told on another's behalf.
            self.back.set(Some(Cookie::from_bytes(&bytes)).filter(|cookie| cookie.owner() == writer));
        }
        self.back.get()
    }

    /// Why the writer writes no more, if it is gone: the one that claimed the ring, in the life in which it did.
    fn lost(&self) -> Option<Error> {
        self.core.check_open().err().map(Error::from).or_else(|| {
            let PeerId { rank: writer, incarnation: life } = self.claimed.by()?;
            lost(&self.core, writer, Some(life))
        })
    }

    /// Why nobody will come to write, if so: nobody has yet, and the last reachable peer is gone. Handlers that are under way might.
    fn deserted(&self) -> Option<Error> {
        let core = &self.core;
        let alone = core.extracting.get() || core.live.get() == 0;
        let (peer, why) = core.deserted.get().filter(|_| alone && self.claimed.by().is_none())?;
        core.node.all_peers_lost().then_some(Error::PeerGone(peer, why))
    }

    fn has_end(&self) -> Result<bool> {
        Ok(self.aperture.read_u64(ENDED)? != 0)
    }

    /// Bytes that can be read now; if they are fewer than `least`, and no more will come because the writer is gone, that is an error.
    pub(crate) fn look(&self, least: u64) -> Result<u64> {
        let available = self.available()?;
        if available < least
            && !self.has_end()?
            && let Some(error) = self.lost()
        {
            // It may have written just before it went.
            let available = self.available()?;
            return if available >= least || self.has_end()? { Ok(available) } else { Err(error) };
        }
        Ok(available)
    }

    /// Whether it is worth looking: there are so many bytes, or nothing more will come. If the writer is gone with fewer, that is an error.
    fn ready(&self, bytes: u64) -> Result<bool> {
        if self.look(bytes)? >= bytes || self.has_end()? {
            return Ok(true);
        }
        if self.untold() > 0 {
            self.tell();
        }
        match self.deserted() {
            Some(error) => {
                // The program is told once, and each of its handlers.
                if !self.core.extracting.get() {
                    self.core.deserted.take();
                }
                Err(error)
            }
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
            wait_on(&self.core, None, done, || self.lost().is_some() || self.deserted().is_some())?;
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
        // It may have come just before.
        match self.ready(bytes) {
            Ok(false) => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        if let Some(cookie) = self.meet() {
            put_later(&self.core, cookie, GONE, 1);
        }
    }
}
