//! Messages from one member to all others (R-1 … R-8).

use std::sync::Arc;

use tautline_node::TagRequest;
use tautline_node::multicast::{MulticastOptions, MulticastReceiveId, MulticastSendId, Shape};
use tautline_node::tags::{Buffer, Failure};

use super::failure::Cause;
use super::{Group, Inner};
use crate::SendError;
use crate::error::{Error, Result};
use crate::tags::ANY;

/// How a root's message reaches the other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// The members' nodes forward it along a tree, in ⌈log₂ n⌉ steps, also while their programs compute.
    Tree,
    /// The root's node sends one copy of the message to each member.
    MultiSend,
    /// The root's program sends it to one member after the other, as by [`crate::tags::Tags::send`].
    RepeatedSend,
}

/// How the members of a group send multicasts; the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastConfig {
    /// How messages reach the members.
    pub form: Form,
    /// Bytes that a root may send before all members have received them, 256 KiB by default. Every node has
    /// room for as many bytes of each root that may be active at once.
    pub window: usize,
    /// Members that may be roots at once, 4 by default. Others wait for their turn. In a group that has no
    /// more members nobody ever waits.
    pub roots: usize,
}

impl Default for MulticastConfig {
    fn default() -> MulticastConfig {
        MulticastConfig { form: Form::Tree, window: 256 << 10, roots: 4 }
    }
}

/// The number of a collective that fails if any does.
const ANY_COLLECTIVE: u64 = u64::MAX - 1;

/// The tag of messages that are sent repeatedly.
const REPEATED: u32 = 0;

/// A group whose members send messages to all others. Made by [`Group::multicast`]. `Send` and `Sync`.
///
/// Messages of one root arrive in the order in which they were sent, and all of them arrive; those of
/// different roots are not ordered. A root is held back when a member does not receive.
///
/// A member that waits for one particular root takes nothing of the others. If their windows are full, and
/// they are as many as may be roots at once ([`MulticastConfig::roots`]), the root that it waits for gets
/// no turn. So in groups with more roots than that, receive from any.
///
/// If a member is lost, sends and receives fail at all members, as collectives do.
#[derive(Debug)]
pub struct Multicast {
    /// A group of its own.
    group: Group,
    form: Form,
}

impl Group {
    /// Prepares the members to send messages to all others. A collective. Every node sets aside the windows
    /// of [`MulticastConfig::roots`] roots.
    pub fn multicast(&self, config: MulticastConfig) -> Result<Multicast> {
        let group = self.duplicate()?;
        let multicast = Multicast { group, form: config.form };
        let Multicast { group, form } = &multicast;
        let shape = match form {
            Form::Tree => Shape::Binomial,
            Form::MultiSend => Shape::Star,
            Form::RepeatedSend => return Ok(multicast),
        };
        let options = MulticastOptions { shape, window: config.window as u64, roots: config.roots };
        let opened =
            multicast.node().multicast().open(multicast.id(), group.ranks(), group.member(), options)?;
        if !opened {
            return Err(Error::Violation("a multicast with the id of another one"));
        }
        // nobody sends before all members have room.
        group.barrier()?;
        Ok(multicast)
    }
}

impl Multicast {
    fn node(&self) -> &tautline_node::Endpoint {
        self.group.0.tags.node()
    }

    fn id(&self) -> u32 {
        u32::from_le_bytes(self.group.0.id.to_bytes())
    }

    /// The members, as in the group that it was made of.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// How messages reach the members.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Sends a message of at most 64 MiB to all other members. Returns when `bytes` may be used again: they
    /// are in the window or, sent repeatedly, with every member.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        if self.form == Form::RepeatedSend {
            return self.send_repeatedly(bytes);
        }
        self.start_send(bytes.to_vec())?.wait()
    }

    fn send_repeatedly(&self, bytes: &[u8]) -> Result<()> {
        let inner = &*self.group.0;
        for (member, rank) in inner.members.iter().enumerate() {
            if member != inner.me {
                inner.tags.send(*rank, REPEATED, bytes).map_err(|error| inner.fail(0, error))?;
            }
        }
        Ok(())
    }

    /// Begins to send a message of at most 64 MiB to all other members. It goes on by itself.
    pub fn start_send(&self, bytes: Vec<u8>) -> Result<MulticastSend> {
        if self.form == Form::RepeatedSend {
            self.send_repeatedly(&bytes)?;
            return Ok(MulticastSend { inner: self.group.0.clone(), id: None });
        }
        let id = self.node().multicast().start_send(self.id(), Arc::new(bytes))?;
        Ok(MulticastSend { inner: self.group.0.clone(), id: Some(id) })
    }

    /// Receives the next message of a member, or of any without one, into `buffer`, whose length is the
    /// room for it. Returns who has sent it and its length. If it is longer, its first bytes are in the
    /// buffer, and the call fails with [`Error::Truncated`]. After an error of the endpoint it is
    /// empty.
    pub fn receive(&self, from: impl Into<Option<usize>>, buffer: &mut Vec<u8>) -> Result<(usize, usize)> {
        let from = from.into();
        if self.form == Form::RepeatedSend {
            let inner = &*self.group.0;
            let source = match from {
                Some(member) => Some(self.rank(member)?),
                None => ANY,
            };
            let status = inner.tags.receive(source, REPEATED, buffer);
            let status = status.map_err(|error| match error {
                Error::PeerGone(..) => inner.fail(0, error),
                other => other,
            })?;
            return Ok((self.member(status.source), status.len as usize));
        }
        if let Some(member) = from {
            self.rank(member)?;
        }
        let room = std::mem::take(buffer);
        let (result, back) = self.start_receive(from, room)?.end()?;
        *buffer = back;
        let status = result?;
        Ok((self.member(status.source), status.len as usize))
    }

    /// Begins to receive the next message that no earlier receive takes. For [`Form::RepeatedSend`] use the
    /// tags of the group.
    pub fn start_receive(&self, from: impl Into<Option<usize>>, buffer: Vec<u8>) -> Result<MulticastReceive> {
        let from = from.into();
        if let Some(member) = from {
            self.rank(member)?;
        }
        if self.form == Form::RepeatedSend {
            return Err(Error::other("messages that are sent repeatedly are received by `receive`"));
        }
        let id = self.node().multicast().start_receive(self.id(), from, Buffer::Whole(buffer))?;
        Ok(MulticastReceive { inner: self.group.0.clone(), id: Some(id) })
    }

    fn rank(&self, member: usize) -> Result<crate::Rank> {
        let rank = self.group.ranks().get(member).filter(|_| member != self.group.member());
        rank.copied().ok_or_else(|| {
            Error::other(format!("member {member} of {} sends nothing to this one", self.group.size()))
        })
    }

    fn member(&self, rank: crate::Rank) -> usize {
        self.group.ranks().iter().position(|member| *member == rank).unwrap_or_default()
    }

    /// Waits until all members have received all that this one has sent.
    pub fn flush(&self) -> Result<()> {
        if self.form == Form::RepeatedSend {
            return Ok(());
        }
        let inner = &*self.group.0;
        loop {
            inner.check_multicast()?;
            // Also what was put in the window meanwhile.
            self.node().multicast().flush(self.id())?;
            match self.node().multicast().is_settled(self.id())? {
                Ok(true) => return Ok(()),
                Ok(false) if self.node().is_virtual() => return Err(SendError::WouldBlock.into()),
                Ok(false) => self.node().multicast().wait_settled(self.id())?,
                Err(why) => return Err(inner.multicast_failed(why)),
            }
        }
    }

    /// Ends it. A collective: it returns when all members have received everything. Dropping it instead makes
    /// sends of other members fail.
    pub fn close(self) -> Result<()> {
        self.flush()?;
        self.group.barrier()
    }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        if self.form != Form::RepeatedSend {
            let _ = self.node().multicast().close(self.id());
        }
    }
}

impl Inner {
    fn multicast_id(&self) -> u32 {
        u32::from_le_bytes(self.id.to_bytes())
    }

    /// Takes the notices that are here. A failure of the group ends its multicasts, and is the error.
    fn check_multicast(&self) -> Result<()> {
        self.take_notices()?;
        self.failures.check(ANY_COLLECTIVE).inspect_err(|_| {
            let why = match self.failures.cause() {
                Some(Cause::Gone(rank, why)) => Failure::PeerGone(rank, why),
                _ => Failure::Closed,
            };
            let _ = self.tags.node().multicast().fail(self.multicast_id(), why);
        })
    }

    /// A send or receive has failed: tells all members, also those that no tree connects with this one.
    fn multicast_failed(&self, why: Failure) -> Error {
        match why {
            Failure::PeerGone(..) => self.fail(0, why.into()),
            Failure::Closed if self.failures.any() => {
                self.failures.check(ANY_COLLECTIVE).err().unwrap_or_else(|| why.into())
            }
            _ => why.into(),
        }
    }

    /// Waits until a send or receive has ended.
    fn wait_multicast(&self, request: TagRequest) -> Result<()> {
        let tagged = self.tags.node().tagged();
        loop {
            if tagged.has_ended(request)? {
                return Ok(());
            }
            self.check_multicast()?;
            if self.tags.node().is_virtual() {
                tagged.poll()?;
                let ended = tagged.has_ended(request)?;
                return if ended { Ok(()) } else { Err(SendError::WouldBlock.into()) };
            }
            let groups = self.groups();
            let started = groups.started();
            let mut unless: Vec<_> = self.notice_request().into_iter().collect();
            groups.advance_all(None, &mut unless);
            tagged.wait_tagged_unless(&[request], &unless, None, || groups.started() != started)?;
        }
    }

    /// Makes progress; whether a request has ended.
    fn test_multicast(&self, request: TagRequest) -> Result<bool> {
        // A group that has failed ends the request, whose result says why.
        let _ = self.check_multicast();
        let tagged = self.tags.node().tagged();
        tagged.poll()?;
        Ok(tagged.has_ended(request)?)
    }
}

/// A send of a multicast. Dropped, it goes on.
#[derive(Debug)]
#[must_use = "the send goes on, and its failure is not reported"]
pub struct MulticastSend {
    inner: Arc<Inner>,
    id: Option<MulticastSendId>,
}

impl MulticastSend {
    /// Makes progress; whether it has ended. Never blocks.
    pub fn test(&self) -> Result<bool> {
        self.id.map_or(Ok(true), |id| self.inner.test_multicast(TagRequest::MulticastSend(id)))
    }

    /// Waits for its end: all of the message is in the window.
    pub fn wait(mut self) -> Result<()> {
        let Some(id) = self.id else { return Ok(()) };
        self.inner.wait_multicast(TagRequest::MulticastSend(id))?;
        self.id = None;
        match self.inner.tags.node().multicast().take_sent(id)? {
            Some(Ok(())) | None => Ok(()),
            Some(Err(why)) => Err(self.inner.multicast_failed(why)),
        }
    }
}

impl Drop for MulticastSend {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let _ = self.inner.tags.node().multicast().forget_send(id);
        }
    }
}

type Received = (Result<crate::tags::Status>, Vec<u8>);

/// A receive of a multicast. Dropped, it takes no message, or drops the one that it takes.
#[derive(Debug)]
#[must_use = "a receive that is dropped takes no message"]
pub struct MulticastReceive {
    inner: Arc<Inner>,
    id: Option<MulticastReceiveId>,
}

impl MulticastReceive {
    /// Makes progress; whether it has ended. Never blocks.
    pub fn test(&self) -> Result<bool> {
        self.id.map_or(Ok(true), |id| self.inner.test_multicast(TagRequest::MulticastReceive(id)))
    }

    /// Waits for a message. Returns who has sent it, its length and the buffer.
    pub fn wait(self) -> Result<(usize, usize, Vec<u8>)> {
        let inner = self.inner.clone();
        let (result, buffer) = self.end()?;
        let status = result?;
        let member = inner.members.iter().position(|rank| *rank == status.source).unwrap_or_default();
        Ok((member, status.len as usize, buffer))
    }

    fn end(mut self) -> Result<Received> {
        let Some(id) = self.id else { return Err(Error::Stale) };
        self.inner.wait_multicast(TagRequest::MulticastReceive(id))?;
        self.id = None;
        let ended = self.inner.tags.node().multicast().take_received(id)?;
        let (result, buffer) = ended.ok_or(Error::Stale)?;
        let Buffer::Whole(buffer) = buffer else { return Err(Error::Stale) };
        let result = result.map_err(|why| match why {
            Failure::Truncated(_) => why.into(),
            _ => self.inner.multicast_failed(why),
        });
        Ok((result, buffer))
    }
}

impl Drop for MulticastReceive {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let _ = self.inner.tags.node().multicast().forget_receive(id);
        }
    }
}
