//! What a thread can ask its node to do with multicasts.

use std::sync::Arc;

use super::Endpoint;
use crate::multicast::{MulticastOptions, MulticastReceiveId, MulticastSendId};
use crate::tags::{Buffer, Ended, Failure, Status};
use crate::{Rank, SendError};

/// The verbs of multicasts. Made by [`Endpoint::multicast`]. Members of a group have numbers, their places in
/// its list of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Multicasts<'a>(pub(super) &'a Endpoint);

impl Multicasts<'_> {
    /// Opens a group, of which this node is member `me`. All members open it with the same options before any
    /// of them sends. False if a group with this id is open.
    pub fn open(
        &self,
        id: u32,
        members: &[Rank],
        me: usize,
        options: MulticastOptions,
    ) -> Result<bool, SendError> {
        let mut lane = self.0.lock()?;
        if lane.port.closed {
            return Err(SendError::Closed);
        }
        Ok(lane.multicast.open(id, members.to_vec(), me as u32, options))
    }

    /// Closes a group. Its sends and receives fail, and those of members that still send to this one.
    pub fn close(&self, id: u32) -> Result<(), SendError> {
        self.0.with(|lane| lane.multicast.close_group(id))
    }

    /// Begins to send a message to all other members. It goes on by itself, and ends when all of it is in the
    /// window.
    pub fn start_send(&self, id: u32, bytes: Arc<Vec<u8>>) -> Result<MulticastSendId, SendError> {
        let (mut lane, now) = self.0.enter()?;
        if lane.port.closed {
            return Err(SendError::Closed);
        }
        let send = lane.multicast.send(id, bytes)?;
        lane.service(now);
        Ok(send)
    }

    /// Takes the result of a send that has ended.
    pub fn take_sent(&self, id: MulticastSendId) -> Result<Option<Result<(), Failure>>, SendError> {
        self.0.with(|lane| lane.multicast.take_sent(id))
    }

    /// Forgets a send, which goes on.
    pub fn forget_send(&self, id: MulticastSendId) -> Result<(), SendError> {
        self.0.with(|lane| lane.multicast.forget_send(id))
    }

    /// Begins to receive the next message of a member, or of any, that no earlier receive takes.
    pub fn start_receive(
        &self,
        id: u32,
        source: Option<usize>,
        buffer: Buffer,
    ) -> Result<MulticastReceiveId, SendError> {
        let (mut lane, now) = self.0.enter()?;
        if lane.port.closed {
            return Err(SendError::Closed);
        }
        let receive = lane.multicast.receive(id, source.map(|member| member as u32), buffer)?;
        if lane.multicast.is_busy() {
            lane.service(now);
        }
        Ok(receive)
    }

    /// Takes the result of a receive that has ended, and its buffer.
    pub fn take_received(&self, id: MulticastReceiveId) -> Result<Option<Ended<Status>>, SendError> {
        self.0.with(|lane| lane.multicast.take_received(id))
    }

    /// Forgets a receive: it takes no message, or drops the rest of the one that it takes.
    pub fn forget_receive(&self, id: MulticastReceiveId) -> Result<(), SendError> {
        self.0.with(|lane| lane.multicast.forget_receive(id))
    }

    /// Makes multicast in a group fail, here and at the members with which this one has exchanged packets.
    pub fn fail(&self, id: u32, why: Failure) -> Result<(), SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.multicast.fail(id, why);
        lane.service(now);
        Ok(())
    }

    /// Asks all members to acknowledge what this one has sent.
    pub fn flush(&self, id: u32) -> Result<(), SendError> {
        let (mut lane, now) = self.0.enter()?;
        lane.multicast.flush(id);
        lane.service(now);
        Ok(())
    }

    /// Returns whether all members have taken what this one has sent. A failure if the group has failed.
    pub fn is_settled(&self, id: u32) -> Result<Result<bool, Failure>, SendError> {
        self.0.with(|lane| match lane.multicast.why_failed(id) {
            Some(why) => Err(why),
            None => Ok(lane.multicast.is_settled(id)),
        })
    }

    /// Polls and waits until [`Multicasts::is_settled`] is true or a failure, or something else may have
    /// happened that its caller waits for.
    pub fn wait_settled(&self, id: u32) -> Result<(), SendError> {
        let mut seen = None;
        self.0.tagged().wait_served(None, |lane| {
            let before = seen.replace(lane.request_activity());
            before.is_some_and(|before| before != lane.request_activity())
                || lane.port.closed
                || lane.multicast.is_settled(id)
        })?;
        Ok(())
    }
}
