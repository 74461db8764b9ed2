//! What the peers' messages may make this rank keep in memory (M-19).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tautline_node::PeerTable;

use crate::error::{Error, Result};
use crate::{Address, Rank};

/// The limits of an endpoint, and how much of them each peer uses.
pub(crate) struct Budgets {
    max_whole: u64,
    max_held: u64,
    /// By rank: a process has one, however many lanes it opens.
    peers: RefCell<PeerTable<Arc<AtomicU64>>>,
}

impl Budgets {
    pub(super) fn new(max_whole: u64, max_held: u64) -> Budgets {
        Budgets { max_whole, max_held, peers: RefCell::default() }
    }

    /// An error if a message is too long to be kept whole.
    pub(crate) fn check_whole(&self, len: u64) -> Result<()> {
        let limit = self.max_whole;
        if len > limit { Err(Error::TooLong { len, limit }) } else { Ok(()) }
    }

    /// Charges a peer for bytes that are kept.
    pub(crate) fn charge(&self, charge: &mut Charge, peer: Rank, bytes: &[u8]) -> Result<()> {
        charge.set(self, peer, bytes.len() as u64)
    }

    /// Bytes that are kept of one process's messages.
    pub(crate) fn max_held(&self) -> u64 {
        self.max_held
    }

    fn used(&self, peer: Rank) -> Arc<AtomicU64> {
        self.peers.borrow_mut().get_or_insert_with(Address::from(peer).rank, Arc::default).clone()
    }
}

/// Bytes that are kept of a peer's messages; no longer when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    bytes: u64,
    used: Option<Arc<AtomicU64>>,
}

impl Charge {
    /// Changes the number of bytes. An error, with nothing changed, if that is more than the peer may have.
    pub(crate) fn set(&mut self, budgets: &Budgets, peer: Rank, bytes: u64) -> Result<()> {
        if bytes <= self.bytes {
            self.reduce(bytes);
            return Ok(());
        }
        let (more, limit) = (bytes - self.bytes, budgets.max_held);
        let used = self.used.get_or_insert_with(|| budgets.used(peer));
        if used.fetch_add(more, Ordering::Relaxed).saturating_add(more) > limit {
            used.fetch_sub(more, Ordering::Relaxed);
            return Err(Error::TooMuchHeld { peer, limit });
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Whether any bytes are charged.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.bytes > 0
    }

    /// Nothing is kept any longer.
    pub(crate) fn clear(&mut self) {
        self.reduce(0);
        self.used = None;
    }

    fn reduce(&mut self, bytes: u64) {
        if let Some(used) = &self.used {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.reduce(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M-19: the lanes of a process share its limit, other processes do not, and what is dropped counts no
    /// more.
    #[test]
    fn processes_have_limits_of_their_own() {
        let budgets = Budgets::new(10, 100);
        assert!(budgets.check_whole(10).is_ok());
        assert!(matches!(budgets.check_whole(11), Err(Error::TooLong { len: 11, limit: 10 })));
        let (mut first, mut lane, mut other) = (Charge::default(), Charge::default(), Charge::default());
        first.set(&budgets, 1, 60).unwrap();
        let peer = Address::new(1, 3).into();
        assert!(matches!(lane.set(&budgets, peer, 41), Err(Error::TooMuchHeld { limit: 100, .. })));
        assert!(!lane.is_any());
        lane.set(&budgets, peer, 40).unwrap();
        other.set(&budgets, 2, 100).unwrap();
        assert!(first.set(&budgets, 1, 61).is_err());
        first.set(&budgets, 1, 20).unwrap();
        lane.set(&budgets, peer, 80).unwrap();
        drop(lane);
        first.clear();
        first.set(&budgets, 1, 100).unwrap();
    }
}
