//! Processes of this host: how they find each other, in which order their rings are polled, and what peers
//! that are gone had lent.
//!
//! Every node has a listener where the processes of its user meet (N-12). A node that wants a channel dials
//! there first; one that gets a hello by datagram dials, too, before it answers, so that it does not matter
//! who was there first (N-16). What is shared needs no progress while the program computes, so the watchdog
//! has nothing to do here but to accept (N-13).

mod directory;
mod discovery;
mod poll;
pub(crate) mod simulated;
mod sockets;
mod start;
mod transport;

pub(crate) use directory::{Directory, Mailbox};
pub(crate) use discovery::{Dialled, Discovery, Hello};
pub(crate) use poll::ShmPoll;
pub use simulated::SimulatedHost;
pub use sockets::unlink_stale_listeners;
pub(crate) use start::{Reopen, explain, start, unavailable};
pub(crate) use transport::IncomingDial;

use std::sync::Arc;

use tautline_device::shm::PoolView;
use tautline_link::Nanos;

use crate::PeerId;
use crate::channel::{BorrowedLoan, Offer, ShmChannel};

/// What a lane keeps of processes on its host, beside their channels.
#[derive(Debug, Default)]
pub(crate) struct LocalPeers {
    /// How they are found; none if shared memory is not used.
    pub(crate) discovery: Option<Box<Discovery>>,
    /// Why shared memory is not used, although it was wanted.
    pub(crate) unavailable: Option<String>,
    /// Opens the listener that could not be opened when the node joined.
    pub(crate) reopen: Option<Box<Reopen>>,
    pub(crate) poll: ShmPoll,
    /// When the newest channel with a local peer came up.
    pub(crate) connected_at: Option<Nanos>,
    pub(crate) former: FormerLoans,
    /// The lanes of this node.
    pub(crate) directory: Arc<Directory>,
    /// What other lanes of this node hand over to this one.
    pub(crate) mailbox: Arc<Mailbox>,
}

impl LocalPeers {
    /// Whether slots that wait for the program may lend bytes.
    #[inline]
    pub(crate) fn may_lend(&self) -> bool {
        !self.poll.is_empty() || !self.former.is_empty()
    }

    /// When to poll at the latest although nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let mail = self.mailbox.is_filled().then_some(0);
        mail.or_else(|| self.discovery.as_ref()?.next_deadline())
    }
}

/// Loans of peers that are gone: what they lent, until the program has handled all that they sent, and which
/// offers of this node they read.
#[derive(Debug, Default)]
pub(crate) struct FormerLoans {
    lent: Vec<(PeerId, Arc<PoolView>)>,
    read: Vec<Offer>,
}

impl FormerLoans {
    /// Keeps the loans of a peer that is gone.
    pub(crate) fn keep(&mut self, peer: PeerId, shm: &mut ShmChannel) {
        self.read.extend(shm.read_offers().into_iter().map(|number| Offer { peer, number }));
        self.lent.extend(shm.loan_memory().map(|view| (peer, view)));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    /// The program has handled all that former peers sent.
    pub(crate) fn clear(&mut self) {
        self.lent.clear();
    }

    /// A loan of a peer that is gone; none if there is no such loan.
    pub(crate) fn borrow(&self, lender: PeerId, number: u32, at: u64, len: u64) -> Option<BorrowedLoan> {
        let (_, view) = self.lent.iter().find(|(peer, _)| *peer == lender)?;
        BorrowedLoan::of_former(lender, number, view, at, len)
    }

    /// Whether a peer read an offer before it went; it can be asked once.
    pub(crate) fn take_read(&mut self, offer: &Offer) -> bool {
        let at = self.read.iter().position(|read| read == offer);
        at.map(|at| self.read.swap_remove(at)).is_some()
    }
}
