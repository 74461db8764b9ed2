//! What somebody else knows of the members: a launcher, which sees processes end and starts them again
//! (N-26), or the other members (N-29).

use std::sync::{Arc, Weak};

use super::{Endpoint, Owner};
use crate::{Down, Event, Member, PeerState, Rank, SendError};

/// Tells a node what becomes of the members of its job. It does not keep the node open.
#[derive(Clone, Debug)]
pub struct Members(Weak<Owner>);

impl Members {
    pub(super) fn new(endpoint: &Endpoint) -> Members {
        Members(Arc::downgrade(&endpoint.owner))
    }

    fn endpoint(&self) -> Option<Endpoint> {
        self.0.upgrade().map(|owner| Endpoint { shared: owner.shared.clone(), owner })
    }

    /// A member has ended. If there is a channel to it, that reports the end itself, after all that the
    /// member has sent; a quiet link asks the member at once (L-45). Otherwise the program is told now. An
    /// error if this node is closed.
    pub fn ended(&self, rank: Rank, why: Down) -> Result<(), SendError> {
        let endpoint = self.endpoint().ok_or(SendError::Closed)?;
        let own = endpoint.rank();
        endpoint.with(|lane| {
            let Some(peer) = lane.peer(rank).filter(|_| rank != own) else { return };
            if peer.state == PeerState::Unknown {
                // As if a channel was being opened: what waits for the member fails, too.
                peer.state = PeerState::Connecting;
            }
            if peer.state == PeerState::Connecting {
                lane.teardown(rank, why);
            }
        })?;
        endpoint.owner.node.probe(rank);
        endpoint.waker().wake();
        Ok(())
    }

    /// A member that had ended was started again: it can be connected to, once a channel that it still has is
    /// over. An error if this node is closed.
    pub fn started(&self, rank: Rank) -> Result<(), SendError> {
        let endpoint = self.endpoint().ok_or(SendError::Closed)?;
        let own = endpoint.rank();
        endpoint.with(|lane| {
            if lane.peer(rank).is_some() && rank != own {
                lane.member_started(rank);
            }
        })?;
        endpoint.waker().wake();
        Ok(())
    }

    /// A process joins the running job, with the next rank (J-23). All lanes can reach it from now on. An
    /// error if this node is closed.
    pub fn joined(&self, rank: Rank, member: &Member) -> Result<(), SendError> {
        let endpoint = self.endpoint().ok_or(SendError::Closed)?;
        if endpoint.owner.node.join(rank, member) {
            endpoint.with(|lane| lane.push_event(Event::MemberJoined { member: rank }))?;
        }
        endpoint.waker().wake();
        Ok(())
    }

    /// Others took this process for dead. An error if this node is closed.
    pub fn fenced(&self, incarnation: u32) -> Result<(), SendError> {
        let endpoint = self.endpoint().ok_or(SendError::Closed)?;
        endpoint.with(|lane| lane.push_event(Event::Fenced { incarnation }))?;
        endpoint.waker().wake();
        Ok(())
    }
}
