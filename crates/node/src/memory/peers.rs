//! What memory keeps of each peer. All of it ends with the channel (N-4).

use std::collections::VecDeque;

use super::failure::Failure;
use super::operations::Request;
use super::requests::{Outstanding, Requests};
use super::serve::Served;
use crate::{PeerId, PeerTable, Rank};

/// What memory keeps of one peer.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    /// The incarnation that the channel leads to, or led to last.
    pub(super) id: PeerId,
    /// Why requests to it fail, once the channel has ended.
    pub(super) ended: Option<Failure>,
    /// Whether it is in the queue of peers to be served.
    pub(super) busy: bool,
    /// What this node asks of the peer's memory.
    pub(super) requests: Requests,
    /// What the peer asks of this node's memory.
    pub(super) served: Served,
}

impl PeerMemory {
    /// Forgets the channel, and returns the requests that did not end with it.
    pub(super) fn reset(&mut self) -> (VecDeque<Outstanding>, VecDeque<Request>) {
        self.served = Served::default();
        let requests = std::mem::take(&mut self.requests);
        (requests.outstanding, requests.queue)
    }
}

/// A sparse table of all peers that there ever was a channel to.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    table: PeerTable<Box<PeerMemory>>,
}

impl Peers {
    #[inline]
    pub(super) fn get(&self, rank: Rank) -> Option<&PeerMemory> {
        self.table.get(rank).map(|peer| &**peer)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut PeerMemory> {
        self.table.get_mut(rank).map(|peer| &mut **peer)
    }

    /// Returns whether answers or requests wait to be sent to a peer.
    pub(super) fn has_waiting(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| !peer.served.answers.is_empty() || !peer.requests.queue.is_empty())
    }

    /// Adds a peer unless it is there.
    pub(super) fn add(&mut self, id: PeerId) -> &mut PeerMemory {
        self.table.get_or_insert_with(id.rank, || {
            let (requests, served) = Default::default();
            Box::new(PeerMemory { id, ended: None, busy: false, requests, served })
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PeerMemory> {
        self.table.iter_mut().map(|peer| &mut **peer)
    }
}
