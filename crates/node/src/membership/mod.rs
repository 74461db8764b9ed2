//! Who belongs to the job, and how things stand with each: state, incarnation, handlers, channel.
//!
//! [`Peers`] is the one way to reach a peer. What does not live here: how channels are opened and end
//! (`lane`).

mod handlers;
mod peer;

pub use handlers::Key;
pub(crate) use handlers::{HandlerNames, SHORT_ONLY, UNKNOWN};
pub(crate) use peer::Peer;
pub use peer::{Liveness, PeerState};

use crate::Rank;

/// The peers of a node, by rank.
#[derive(Debug)]
pub(crate) struct Peers(Vec<Peer>);

impl Peers {
    pub(crate) fn new(peers: Vec<Peer>) -> Peers {
        Peers(peers)
    }

    /// The peer of a rank; none if the job has no such rank.
    #[inline]
    pub(crate) fn get(&self, rank: Rank) -> Option<&Peer> {
        self.0.get(rank as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.0.get_mut(rank as usize)
    }

    /// The peer of a rank that is known to be a member.
    ///
    /// # Panics
    /// If the job has no such rank.
    #[inline]
    pub(crate) fn member(&self, rank: Rank) -> &Peer {
        &self.0[rank as usize]
    }

    /// The peer of a rank that is known to be a member, to be changed.
    ///
    /// # Panics
    /// If the job has no such rank.
    #[inline]
    pub(crate) fn member_mut(&mut self, rank: Rank) -> &mut Peer {
        &mut self.0[rank as usize]
    }

    /// Whether the job has this rank.
    pub(crate) fn contains(&self, rank: Rank) -> bool {
        (rank as usize) < self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.0.iter_mut()
    }

    /// All ranks.
    pub(crate) fn ranks(&self) -> std::ops::Range<Rank> {
        0..self.0.len() as Rank
    }
}
