//! The end of a ring that writes: it claims the ring, then puts.

use std::rc::Rc;
use std::task::{Context, Poll};

use tautline_node::memory::{Atomic, Operation, Ticket, Wakeup};

use super::{BYTES, CLAIM, ENDED, GONE, READ, RETURN, WRITTEN, life, lost, put_later};
use crate::core::Core;
use crate::endpoint::asking;
use crate::later;
use crate::memory::awaited::copied;
use crate::memory::completion::wait_for;
use crate::memory::{Aperture, Cookie, Remote, Rights, Tripwire, wait_on};
use crate::waits::Place;
use crate::{Endpoint, Error, Result, SendError};

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
    blocked: Place,
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
    FrameBatch,
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
        let mut writer = RingWriter {
            core,
            remote,
            life,
            hello,
            capacity,
            aperture,
            wire,
            written: 0,
            ended: false,
            blocked: Place::default(),
        };
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
        let result = self.core.node.poll_operation(ticket, true)?;
        Ok(result.transpose()?)
    }

    /// Claims the ring, then tells the reader where to tell what it has read. True when the first is done, and the second on its way.
    fn greet(&mut self) -> Result<bool> {
        loop {
            self.hello = match self.hello {
                Hello::Met => return Ok(true),
                Hello::FrameBatch => return Err(Error::TooMany("writers of this queue or stream")),
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
                    Ok(Some(_)) => Hello::FrameBatch,
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
        let seen = match self.core.node.activity() {
            Ok(seen) => seen,
            Err(error) => return Poll::Ready(Err(error.into())),
        };
        match attempt(self) {
            Err(error) if error.is_would_block() => {
                self.core.tried(seen);
                self.core.blocked.register(&self.blocked, context);
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
            let seen = self.core.node.activity()?;
            if self.room()?.is_some_and(|room| room >= bytes) {
                return Ok(());
            }
            if let Hello::New | Hello::Claimed = self.hello {
                // The connection, or room in the network, is waited for.
                if self.core.extracting.get() {
                    return Err(Error::Reentrant);
                }
                Endpoint::inner(self.core.clone()).extract(usize::MAX)?;
                self.core.node.wait_for_activity(seen)?;
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
                wait_for(&self.core, Wakeup::Op(ticket), context);
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
            Hello::Met | Hello::FrameBatch => {}
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
                match core.node.poll_operation(ticket, true) {
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
        self.core.blocked.leave(&self.blocked);
        if let Hello::Greeting(ticket) = self.hello {
            let _ = self.core.node.let_go(ticket);
        }
        match self.hello {
            _ if self.ended => {}
            Hello::New | Hello::FrameBatch => {}
            Hello::Claiming(_) => self.end_later(),
            Hello::Claimed | Hello::Greeting(_) | Hello::Met => {
                put_later(&self.core, *self.remote.cookie(), ENDED, 2);
            }
        }
    }
}
