//! The writing end of a ring: it claims the ring, then puts.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use tautline_node::memory::{Atomic, Cookie, Operation, Rights, Ticket, Wakeup};

use super::{BYTES, CLAIM, ENDED, GONE, READ, RETURN, WRITTEN, put_later};
use crate::async_endpoint::AsyncEndpoint;
use crate::core::{Core, is_settled};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::aperture::Aperture;
use crate::memory::operations::put_copied;
use crate::memory::remote::Remote;
use crate::memory::tripwire::Tripwire;
use crate::waiters::Waiter;
use crate::waiting::{block_until_served, poll_room, wait_until};
use crate::{PeerId, SendError};

/// The writing end of a ring.
#[derive(Debug)]
pub(crate) struct RingWriter {
    core: Rc<Core>,
    remote: Remote,
    /// The incarnation of the reader, once it is known.
    reader: Option<PeerId>,
    state: State,
    capacity: u64,
    aperture: Aperture,
    wire: Tripwire,
    written: u64,
    ended: bool,
    waiter: Waiter,
}

/// How far a writer has come with its reader.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was requested.
    New,
    /// The ring is being claimed.
    Claiming(Ticket),
    /// It is claimed; the reader needs the cookie for this writer's memory.
    Claimed,
    /// The cookie was put, but may not be in place yet.
    SendingCookie(Ticket),
    /// The cookie is in place.
    Ready,
    /// The ring has another writer.
    Occupied,
}

impl RingWriter {
    /// Writes to the ring of a cookie; extracts and waits until the ring is claimed.
    pub(crate) fn new(ep: &Endpoint, cookie: &Cookie) -> Result<RingWriter> {
        ep.core.check_not_in_handler()?;
        let mut writer = RingWriter::begin(ep, cookie)?;
        if !writer.core.node.is_virtual() {
            writer.wait(0)?;
        }
        Ok(writer)
    }

    /// As [`RingWriter::new`], for handlers and tasks.
    pub(crate) async fn open(ep: &AsyncEndpoint, cookie: &Cookie) -> Result<RingWriter> {
        let mut writer = RingWriter::begin(ep.plain(), cookie)?;
        poll_fn(|context| writer.poll_wait(context, 0)).await?;
        Ok(writer)
    }

    /// Requests to write to the ring of a cookie, without waiting. The first write waits until the ring is
    /// claimed, and reports if it was not.
    pub(crate) fn begin(ep: &Endpoint, cookie: &Cookie) -> Result<RingWriter> {
        let capacity = cookie.len().checked_sub(BYTES).filter(|left| *left > 0).ok_or(Error::OutOfRange)?;
        let aperture = ep.aperture(16)?;
        let wire = aperture.tripwire(..).arm()?;
        let mut writer = RingWriter {
            core: ep.core.clone(),
            remote: ep.remote(cookie),
            reader: ep.core.peer_id(cookie.owner()),
            state: State::New,
            capacity,
            aperture,
            wire,
            written: 0,
            ended: false,
            waiter: Waiter::default(),
        };
        writer.claim()?;
        Ok(writer)
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The result of a request, once it is there.
    fn poll_result(&self, ticket: Ticket) -> Result<Option<u64>> {
        let result = self.core.node.poll_operation(ticket, true)?;
        Ok(result.transpose()?)
    }

    /// Claims the ring, then sends the reader the cookie for this writer's memory. True when the ring
    /// is claimed and the cookie is on its way.
    fn claim(&mut self) -> Result<bool> {
        loop {
            self.state = match self.state {
                State::Ready => return Ok(true),
                State::Occupied => return Err(Error::TooMany("writers of this queue or stream")),
                State::New => {
                    let claim = Operation::Atomic(Atomic::CompareSwap(0, 1));
                    match self.core.node.submit((self.remote.cookie(), CLAIM), claim, None, None) {
                        Err(SendError::WouldBlock) => return Ok(false),
                        requested => State::Claiming(requested?),
                    }
                }
                State::Claiming(ticket) => match self.poll_result(ticket) {
                    Ok(None) => return Ok(false),
                    Ok(Some(0)) => State::Claimed,
                    Ok(Some(_)) => State::Occupied,
                    // If the reader was lost before the claim, it stays lost.
                    Err(error) => return self.fail(error),
                },
                State::Claimed => {
                    self.reader = self.reader.or_else(|| self.core.peer_id(self.remote.owner()));
                    let mine = self.aperture.cookie(.., Rights::WRITE)?;
                    let put = put_copied(mine.to_bytes().to_vec())?;
                    match self.core.node.submit((self.remote.cookie(), RETURN), put, None, None) {
                        Ok(requested) => State::SendingCookie(requested),
                        Err(error) => {
                            self.aperture.revoke(&mine)?;
                            let blocked = error == SendError::WouldBlock;
                            return if blocked { Ok(false) } else { Err(error.into()) };
                        }
                    }
                }
                State::SendingCookie(ticket) => match self.poll_result(ticket) {
                    Ok(None) => return Ok(true),
                    Ok(Some(_)) => State::Ready,
                    Err(error) => return self.fail(error),
                },
            };
        }
    }

    fn fail(&mut self, error: Error) -> Result<bool> {
        (self.state, self.ended) = (State::Ready, true);
        Err(error)
    }

    /// Bytes that can be written now; nothing while the ring is not claimed.
    pub(crate) fn room(&mut self) -> Result<Option<u64>> {
        if let Some(error) = self.reader_error() {
            return Err(error);
        }
        let claimed = self.claim()?;
        if self.ended || self.aperture.read_u64(GONE)? != 0 {
            return Err(Error::Aborted);
        }
        let unread = self.written.wrapping_sub(self.aperture.read_u64(READ)?);
        let room = self.capacity.checked_sub(unread);
        let room = room.ok_or(Error::Violation("more was read than was written"))?;
        Ok(claimed.then_some(room))
    }

    /// Writes pieces one behind the other, for all of which there is room, and then the new count, in as few
    /// frames as possible. `wait`: waits for room in the network if necessary. Otherwise bytes that find none
    /// are copied and sent later, or all are refused ([`SendError::WouldBlock`]).
    pub(crate) fn write(&mut self, pieces: &[&[u8]], wait: bool) -> Result<()> {
        let ep = Endpoint::view(self.core.clone());
        let _batch = ep.batch();
        let mut written = self.written;
        for piece in pieces {
            let at = written % self.capacity;
            let (a, b) = piece.split_at((self.capacity - at).min(piece.len() as u64) as usize);
            self.put(BYTES + at, a, wait)?;
            if !b.is_empty() {
                self.put(BYTES, b, wait)?;
            }
            written = written.wrapping_add(piece.len() as u64);
        }
        self.put(WRITTEN, &written.to_le_bytes(), wait)?;
        // Only now: bytes that are not counted are overwritten by the next attempt.
        self.written = written;
        Ok(())
    }

    /// As [`RingWriter::write`]; waits, unless it is called in a handler.
    pub(crate) fn write_now(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let wait = !self.core.extraction.is_running();
        self.write(pieces, wait)
    }

    /// As [`RingWriter::write`]; never waits.
    pub(crate) fn write_at_once(&mut self, pieces: &[&[u8]]) -> Result<()> {
        self.write(pieces, false)
    }

    /// Puts bytes behind all earlier ones.
    fn put(&self, at: u64, bytes: &[u8], wait: bool) -> Result<()> {
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
                if wait { block_until_served(&self.core, self.remote.owner(), later) } else { later() }
            }
            result => result,
        }
    }

    /// As [`RingWriter::write`], for futures: `context` is woken when there is room in the network.
    pub(crate) fn poll_write(&mut self, context: &Context<'_>, pieces: &[&[u8]]) -> Poll<Result<()>> {
        self.poll_room(context, |it| it.write(pieces, false))
    }

    fn poll_room(
        &mut self,
        context: &Context<'_>,
        attempt: impl FnOnce(&mut RingWriter) -> Result<()>,
    ) -> Poll<Result<()>> {
        let core = self.core.clone();
        let waiter = std::mem::take(&mut self.waiter);
        let polled = poll_room(&core, &waiter, context, || attempt(self));
        self.waiter = waiter;
        polled
    }

    /// Extracts and waits until there is room for `bytes` bytes.
    pub(crate) fn wait(&mut self, bytes: u64) -> Result<()> {
        loop {
            // Read first: the watchdog may change it at any time, and then there is nothing to wait for.
            let before = self.aperture.read_u64(READ)?;
            let seen = self.core.node.activity()?;
            if self.room()?.is_some_and(|room| room >= bytes) {
                return Ok(());
            }
            if let State::New | State::Claimed = self.state {
                // There is no connection yet, or no room in the network.
                self.core.check_not_in_handler()?;
                self.core.extract(usize::MAX)?;
                self.core.node.wait_for_activity(seen, None)?;
                continue;
            }
            let memory = self.aperture.memory().clone();
            let done =
                || memory.read_u64(READ as usize) != Ok(before) || memory.read_u64(GONE as usize) != Ok(0);
            // A request may have completed.
            let requested = !matches!(self.state, State::Ready);
            wait_until(&self.core, None, done, || requested || self.reader_error().is_some())?;
        }
    }

    fn reader_error(&self) -> Option<Error> {
        self.core.peer_error(self.remote.owner(), self.reader)
    }

    /// As [`RingWriter::wait`], for futures.
    pub(crate) fn poll_wait(&mut self, context: &Context<'_>, bytes: u64) -> Poll<Result<()>> {
        let has_room = |it: &mut RingWriter| it.room().map(|room| room.is_some_and(|room| room >= bytes));
        match has_room(self) {
            Ok(false) => {}
            result => return Poll::Ready(result.map(|_| ())),
        }
        if let Err(error) = self.wire.register(context) {
            return Poll::Ready(Err(error));
        }
        match self.state {
            State::Claiming(ticket) | State::SendingCookie(ticket) => {
                self.core.waits.register_memory(Wakeup::Op(ticket), context);
            }
            State::New | State::Claimed => {
                let blocked = self.poll_room(context, |it| {
                    it.claim()?;
                    match it.state {
                        State::New | State::Claimed => Err(SendError::WouldBlock.into()),
                        _ => Ok(()),
                    }
                });
                return match blocked {
                    // The next state waits for something else.
                    Poll::Ready(Ok(())) => self.poll_wait(context, bytes),
                    other => other,
                };
            }
            State::Ready | State::Occupied => {}
        }
        match has_room(self) {
            Ok(false) => Poll::Pending,
            result => Poll::Ready(result.map(|_| ())),
        }
    }

    /// Ends the ring behind everything that was written; later, if there is no room now.
    pub(crate) fn end(&mut self) -> Result<()> {
        if !self.ended {
            if self.claim()? {
                put_later(&self.core, *self.remote.cookie(), ENDED, 1);
            } else {
                self.end_once_claimed();
            }
            self.ended = true;
        }
        Ok(())
    }

    /// Ends the ring if the claim that is in progress succeeds.
    fn end_once_claimed(&self) {
        let State::Claiming(ticket) = self.state else { return };
        let cookie = *self.remote.cookie();
        let mut claimed = false;
        self.core.post(cookie.owner(), Some(8), move |core| {
            if !claimed {
                match core.node.poll_operation(ticket, true) {
                    Ok(None) => return false,
                    Ok(Some(Ok(0))) => claimed = true,
                    _ => return true,
                }
            }
            let end = Remote::new(core.clone(), cookie).try_put(ENDED, &2u64.to_le_bytes());
            is_settled(&end)
        });
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        self.core.waits.room.remove(&self.waiter);
        if let State::SendingCookie(ticket) = self.state {
            let _ = self.core.node.detach_operation(ticket);
        }
        match self.state {
            _ if self.ended => {}
            State::New | State::Occupied => {}
            State::Claiming(_) => self.end_once_claimed(),
            State::Claimed | State::SendingCookie(_) | State::Ready => {
                put_later(&self.core, *self.remote.cookie(), ENDED, 2);
            }
        }
    }
}
