//! The distributed queue of the CLAN paper, as bytes: a ring in the receiver's memory, and two counters of which each side has its own and a lazily
//! updated copy of the other's. All that crosses the network are writes, but for one word that whoever comes to write claims first. Queues and streams are made of it.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use tautline_node::memory::{Atomic, Operation, Ticket, Woken};

use super::awaited::copied;
use super::completion::wait_for;
use super::tripwire::wait_on;
use super::{Aperture, Cookie, Remote, Rights, Tripwire};
use crate::core::Core;
use crate::endpoint::asking;
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

/// The end of a ring that writes.
#[derive(Debug)]
pub(crate) struct RingWriter {
    core: Rc<Core>,
    remote: Remote,
    /// Which life the reader is in.
    life: Option<u32>,
    hello: Hello,
    capacity: u64,
    aperture: Aperture,
    wire: Tripwire,
    written: u64,
    ended: bool,
}

/// How far a writer has come with its reader.
#[derive(Clone, Copy, Debug)]
enum Hello {
    /// Nothing has been asked.
    New,
    /// The ring is being claimed.
    Claiming(Ticket),
    /// It is this writer's; the reader is still to be told where to tell what it has read.
    Claimed,
    /// That has been put, and is not known to be in place.
    Greeting(Ticket),
    /// That is done.
    Met,
    /// Somebody else writes.
    Taken,
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
            let (writer, _) = self.claimed.by()?;
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
            let (writer, life) = self.claimed.by()?;
            lost(&self.core, writer, Some(life))
        })
    }

    /// Whether it is worth looking: there are so many bytes, or nothing more will come. If the writer is gone with fewer, that is an error.
    fn ready(&self, bytes: u64) -> Result<bool> {
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

impl RingWriter {
    /// Writes to the ring that a cookie opens. Outside handlers it extracts and waits until that is known to be good; in handlers the first write finds out.
    pub(crate) fn new(ep: &Endpoint, cookie: &Cookie) -> Result<RingWriter> {
        let capacity = cookie.len().checked_sub(BYTES).filter(|left| *left > 0).ok_or(Error::OutOfRange)?;
        let aperture = ep.aperture(16)?;
        let wire = aperture.tripwire(..).arm()?;
        let (core, remote) = (ep.core.clone(), ep.remote(cookie));
        let life = life(&core, cookie.owner());
        let hello = Hello::New;
        let mut writer =
            RingWriter { core, remote, life, hello, capacity, aperture, wire, written: 0, ended: false };
        if writer.core.extracting.get() || writer.core.node.is_virtual() {
            writer.greet()?;
        } else {
            writer.wait(0)?;
        }
        Ok(writer)
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The result of what was asked last, once it is there.
    fn look(&self, ticket: Ticket) -> Result<Option<u64>> {
        let result = self.core.node.look_at(ticket, true)?;
        Ok(result.transpose()?)
    }

    /// Claims the ring, then tells the reader where to tell what it has read. True when the first is done, and the second on its way.
    fn greet(&mut self) -> Result<bool> {
        loop {
            self.hello = match self.hello {
                Hello::Met => return Ok(true),
                Hello::Taken => return Err(Error::TooMany("writers of this queue or stream")),
                Hello::New => {
                    let claim = Operation::Atomic(Atomic::CompareSwap(0, 1));
                    match self.core.node.submit((self.remote.cookie(), CLAIM), claim, None, None) {
                        Err(SendError::WouldBlock) => return Ok(false),
                        asked => Hello::Claiming(asked?),
                    }
                }
                Hello::Claiming(ticket) => match self.look(ticket) {
                    Ok(None) => return Ok(false),
                    Ok(Some(0)) => Hello::Claimed,
                    Ok(Some(_)) => Hello::Taken,
                    // A reader that is gone before it was met stays so.
                    Err(error) => return self.give_up(error),
                },
                Hello::Claimed => {
                    self.life = self.life.or_else(|| life(&self.core, self.remote.owner()));
                    let mine = self.aperture.cookie(.., Rights::WRITE)?;
                    let tell = copied(mine.to_bytes().to_vec())?;
                    match self.core.node.submit((self.remote.cookie(), RETURN), tell, None, None) {
                        Ok(asked) => Hello::Greeting(asked),
                        Err(error) => {
                            self.aperture.revoke(&mine)?;
                            let blocked = error == SendError::WouldBlock;
                            return if blocked { Ok(false) } else { Err(error.into()) };
                        }
                    }
                }
                Hello::Greeting(ticket) => match self.look(ticket) {
                    Ok(None) => return Ok(true),
                    Ok(Some(_)) => Hello::Met,
                    Err(error) => return self.give_up(error),
                },
            };
        }
    }

    fn give_up(&mut self, error: Error) -> Result<bool> {
        (self.hello, self.ended) = (Hello::Met, true);
        Err(error)
    }

    /// Bytes that can be written now; nothing while it is not known whether any may.
    pub(crate) fn room(&mut self) -> Result<Option<u64>> {
        if let Some(error) = lost(&self.core, self.remote.owner(), self.life) {
            return Err(error);
        }
        let met = self.greet()?;
        if self.ended || self.aperture.read_u64(GONE)? != 0 {
            return Err(Error::Aborted);
        }
        let under_way = self.written.wrapping_sub(self.aperture.read_u64(READ)?);
        let room = self.capacity.checked_sub(under_way);
        let room = room.ok_or(Error::Nonsense("more was read than was written"))?;
        Ok(met.then_some(room))
    }

    /// Writes pieces one behind the other, for all of which there is room, and then says so; in as few frames as it takes. `wait`: for room in the network, too, if it must;
    /// otherwise what does not go at once is copied and sent later, or all is refused ([`SendError::WouldBlock`]).
    pub(crate) fn write(&mut self, pieces: &[&[u8]], wait: bool) -> Result<()> {
        let ep = Endpoint::inner(self.core.clone());
        let _together = ep.batch();
        let mut written = self.written;
        for piece in pieces {
            let at = written % self.capacity;
            let (a, b) = piece.split_at((self.capacity - at).min(piece.len() as u64) as usize);
            self.place(BYTES + at, a, wait)?;
            if !b.is_empty() {
                self.place(BYTES, b, wait)?;
            }
            written = written.wrapping_add(piece.len() as u64);
        }
        self.place(WRITTEN, &written.to_le_bytes(), wait)?;
        // Not before: what is not said is written over.
        self.written = written;
        Ok(())
    }

    /// As [`RingWriter::write`]; in handlers without waiting.
    pub(crate) fn write_now(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let wait = !self.core.extracting.get();
        self.write(pieces, wait)
    }

    /// Puts bytes behind all that were before.
    fn place(&self, at: u64, bytes: &[u8], wait: bool) -> Result<()> {
        let put = if wait {
            self.remote.put(at, bytes)
        } else if bytes.len() <= self.core.node.put_limit(self.remote.owner()) {
            self.remote.try_put(at, bytes)
        } else {
            Err(SendError::WouldBlock.into())
        };
        match put {
            Err(Error::Send(SendError::WouldBlock | SendError::Unextracted(_))) => {
                let later = || Ok(self.core.node.put_later((self.remote.cookie(), at), bytes.to_vec())?);
                if wait { asking(&self.core, self.remote.owner(), later) } else { later() }
            }
            result => result,
        }
    }

    /// As [`RingWriter::write`], for futures: whoever polls is woken when there is room in the network.
    pub(crate) fn poll_write(&mut self, context: &Context<'_>, pieces: &[&[u8]]) -> Poll<Result<()>> {
        self.poll_room(context, |it| it.write(pieces, false))
    }

    fn poll_room(
        &mut self,
        context: &Context<'_>,
        attempt: impl FnOnce(&mut RingWriter) -> Result<()>,
    ) -> Poll<Result<()>> {
        let seen = match self.core.node.with(|i| i.activity()) {
            Ok(seen) => seen,
            Err(error) => return Poll::Ready(Err(error.into())),
        };
        match attempt(self) {
            Err(error) if error.is_would_block() => {
                self.core.tried(seen);
                self.core.blocked.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    /// Extracts and waits until there is room for so many bytes.
    pub(crate) fn wait(&mut self, bytes: u64) -> Result<()> {
        loop {
            // Looked at first, as above.
            let before = self.aperture.read_u64(READ)?;
            let seen = self.core.node.with(|i| i.activity())?;
            if self.room()?.is_some_and(|room| room >= bytes) {
                return Ok(());
            }
            if let Hello::New | Hello::Claimed = self.hello {
                // The connection, or room in the network, is waited for.
                if self.core.extracting.get() {
                    return Err(Error::Reentrant);
                }
                Endpoint::inner(self.core.clone()).extract(usize::MAX)?;
                self.core.node.wait_until(None, |i| i.activity() != seen)?;
                continue;
            }
            let memory = self.aperture.memory().clone();
            let done =
                || memory.read_u64(READ as usize) != Ok(before) || memory.read_u64(GONE as usize) != Ok(0);
            let asked = !matches!(self.hello, Hello::Met);
            // What was asked may have ended: there is news then.
            wait_on(&self.core, None, done, || asked || self.lost().is_some())?;
        }
    }

    fn lost(&self) -> Option<Error> {
        lost(&self.core, self.remote.owner(), self.life)
    }

    /// As [`RingWriter::wait`], for futures.
    pub(crate) fn poll_wait(&mut self, context: &Context<'_>, bytes: u64) -> Poll<Result<()>> {
        let enough = |it: &mut RingWriter| it.room().map(|room| room.is_some_and(|room| room >= bytes));
        match enough(self) {
            Ok(false) => {}
            result => return Poll::Ready(result.map(|_| ())),
        }
        if let Err(error) = self.wire.register(context) {
            return Poll::Ready(Err(error));
        }
        match self.hello {
            Hello::Claiming(ticket) | Hello::Greeting(ticket) => {
                wait_for(&self.core, Woken::Op(ticket), context);
            }
            Hello::New | Hello::Claimed => {
                let blocked = self.poll_room(context, |it| {
                    it.greet()?;
                    match it.hello {
                        Hello::New | Hello::Claimed => Err(SendError::WouldBlock.into()),
                        _ => Ok(()),
                    }
                });
                return match blocked {
                    // It has gone a step further: once more.
                    Poll::Ready(Ok(())) => self.poll_wait(context, bytes),
                    other => other,
                };
            }
            Hello::Met | Hello::Taken => {}
        }
        match enough(self) {
            Ok(false) => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }

    /// Says that nothing more will come, behind all that was written; later, if it cannot be said now.
    pub(crate) fn end(&mut self) -> Result<()> {
        if !self.ended {
            if self.greet()? {
                put_later(&self.core, *self.remote.cookie(), ENDED, 1);
            } else {
                self.end_later();
            }
            self.ended = true;
        }
        Ok(())
    }

    /// Whether there is anything to end is known when the ring is claimed.
    fn end_later(&self) {
        let Hello::Claiming(ticket) = self.hello else { return };
        let cookie = *self.remote.cookie();
        let mut claimed = false;
        later::add(&self.core, cookie.owner(), move |core| {
            if !claimed {
                match core.node.look_at(ticket, true) {
                    Ok(None) => return false,
                    Ok(Some(Ok(0))) => claimed = true,
                    _ => return true,
                }
            }
            let end = Remote::new(core.clone(), cookie).try_put(ENDED, &2u64.to_le_bytes());
            later::is_over(&end)
        });
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        if let Hello::Greeting(ticket) = self.hello {
            let _ = self.core.node.let_go(ticket);
        }
        match self.hello {
            _ if self.ended => {}
            Hello::New | Hello::Taken => {}
            Hello::Claiming(_) => self.end_later(),
            Hello::Claimed | Hello::Greeting(_) | Hello::Met => {
                put_later(&self.core, *self.remote.cookie(), ENDED, 2);
            }
        }
    }
}
