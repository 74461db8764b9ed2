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
    table: PeerTable<Entry>,
}

#[derive(Debug)]
enum Entry {
    /// Neither side has accessed memory of the other: its incarnation, and why requests fail, if they do.
    Unused(PeerId, Option<Failure>),
    Used(Box<PeerMemory>),
}

impl Entry {
    #[inline]
    fn used(&mut self) -> &mut PeerMemory {
        if let Entry::Unused(id, ended) = *self {
            *self = Entry::make(id, ended);
        }
        let Entry::Used(peer) = self else { unreachable!("it was made") };
        peer
    }

    #[cold]
    fn make(id: PeerId, ended: Option<Failure>) -> Entry {
        let (requests, served) = Default::default();
        Entry::Used(Box::new(PeerMemory { id, ended, busy: false, requests, served }))
    }
}

impl Peers {
    /// Returns what is kept of a peer, if there was a request on its channel.
    #[inline]
    pub(super) fn get(&self, rank: Rank) -> Option<&PeerMemory> {
        match self.table.get(rank)? {
            Entry::Used(peer) => Some(peer),
            Entry::Unused(..) => None,
        }
    }

    /// Returns what is kept of a peer, for a request.
    #[inline]
    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut PeerMemory> {
        self.table.get_mut(rank).map(Entry::used)
    }

    /// Returns whether there ever was a channel to a peer.
    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.table.get(rank).is_some()
    }

    /// Enters a channel to an incarnation of a peer. Returns whether there may be requests of a former one.
    pub(super) fn start(&mut self, id: PeerId) -> bool {
        match self.table.get_or_insert_with(id.rank, || Entry::Unused(id, None)) {
            Entry::Unused(known, ended) => {
                (*known, *ended) = (id, None);
                false
            }
            Entry::Used(_) => true,
        }
    }

    /// Further requests to a peer fail, with the first reason. Returns whether there may be requests of the
    /// channel.
    pub(super) fn end(&mut self, rank: Rank, why: Failure) -> bool {
        match self.table.get_mut(rank) {
            Some(Entry::Used(peer)) => {
                peer.ended.get_or_insert(why);
                true
            }
            Some(Entry::Unused(_, ended)) => {
                ended.get_or_insert(why);
                false
            }
            None => false,
        }
    }

    /// Returns whether answers or requests wait to be sent to a peer.
    pub(super) fn has_waiting(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| !peer.served.answers.is_empty() || !peer.requests.queue.is_empty())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PeerMemory> {
        self.table.iter_mut().filter_map(|peer| match peer {
            Entry::Used(peer) => Some(&mut **peer),
            Entry::Unused(..) => None,
        })
    }
}
