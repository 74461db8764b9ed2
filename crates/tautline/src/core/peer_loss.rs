//! Peers that went down, and what is still to be done about it.

use std::cell::{Cell, RefCell};

use tautline_node::PeerId;

use crate::{Down, Error};

/// A peer that went down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostPeer {
    pub(crate) peer: PeerId,
    pub(crate) why: Down,
}

impl From<LostPeer> for Error {
    fn from(lost: LostPeer) -> Error {
        Error::PeerGone(lost.peer.rank, lost.why)
    }
}

#[derive(Default)]
pub(crate) struct PeerLoss {
    /// Peers whose unfinished messages are still to be ended.
    unfinished: RefCell<Vec<LostPeer>>,
    /// The last reachable peer, if it went down and the program has not been told.
    unreported: Cell<Option<LostPeer>>,
    /// The last reachable peer, when it went down most recently.
    latest: Cell<Option<LostPeer>>,
    /// How often the last reachable peer went down.
    count: Cell<u64>,
}

impl PeerLoss {
    pub(super) fn push(&self, lost: LostPeer) {
        self.unfinished.borrow_mut().push(lost);
    }

    /// Whether unfinished messages of lost peers are to be ended.
    #[inline]
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.unfinished.borrow().is_empty()
    }

    /// Takes the peers whose unfinished messages are to be ended.
    pub(crate) fn take_unfinished(&self) -> Vec<LostPeer> {
        self.unfinished.take()
    }

    /// The last reachable peer went down.
    pub(super) fn last_peer_lost(&self, lost: LostPeer) {
        self.unreported.set(Some(lost));
        self.latest.set(Some(lost));
        self.count.set(self.count.get() + 1);
    }

    /// A peer is reachable again.
    pub(super) fn peer_up(&self) {
        self.unreported.set(None);
    }

    /// The last reachable peer, if it went down and the program has not been told.
    #[inline]
    pub(crate) fn unreported(&self) -> Option<LostPeer> {
        self.unreported.get()
    }

    /// As [`PeerLoss::unreported`]; the caller tells the program.
    pub(crate) fn take_unreported(&self) -> Option<LostPeer> {
        self.unreported.take()
    }

    /// How often the last reachable peer went down.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    /// The last reachable peer, if it went down after [`PeerLoss::count`] was `before`, or the program has
    /// not been told.
    pub(crate) fn since(&self, before: u64) -> Option<LostPeer> {
        self.latest.get().filter(|_| self.count.get() != before || self.unreported.get().is_some())
    }
}
