//! What a world knows of each pair of nodes: disturbances, and the channels that their events name.

use std::collections::BTreeSet;

use crate::Nanos;
use crate::report::Pairs;

pub(super) struct PairLog {
    nodes: u32,
    /// When a fault that may cause silence last affected a pair.
    disturbed_at: Vec<Nanos>,
    /// Whether the present channel of a node to another goes through shared memory, as its events say.
    over_shm: Vec<bool>,
    /// Pairs that had a channel through shared memory.
    shm: BTreeSet<(u32, u32)>,
    /// Pairs that had a link.
    link: BTreeSet<(u32, u32)>,
}

impl PairLog {
    pub(super) fn new(nodes: u32) -> PairLog {
        let pairs = (nodes * nodes) as usize;
        PairLog {
            nodes,
            disturbed_at: vec![0; pairs],
            over_shm: vec![false; pairs],
            shm: BTreeSet::new(),
            link: BTreeSet::new(),
        }
    }

    fn index(&self, who: u32, peer: u32) -> usize {
        (who * self.nodes + peer) as usize
    }

    /// When a fault that may cause silence last affected the pair; zero for never.
    pub(super) fn disturbed_at(&mut self, a: u32, b: u32) -> &mut Nanos {
        let at = self.index(a.min(b), a.max(b));
        &mut self.disturbed_at[at]
    }

    /// The channel of `who` to `peer` goes through shared memory, or over a link.
    pub(super) fn transport_changed(&mut self, who: u32, peer: u32, shm: bool) {
        let at = self.index(who, peer);
        self.over_shm[at] = shm;
    }

    pub(super) fn peer_up(&mut self, who: u32, peer: u32) {
        let shm = self.over_shm[self.index(who, peer)];
        let met = if shm { &mut self.shm } else { &mut self.link };
        met.insert((who.min(peer), who.max(peer)));
    }

    /// Returns whether the channel that ended went through shared memory.
    pub(super) fn peer_down(&mut self, who: u32, peer: u32) -> bool {
        let at = self.index(who, peer);
        std::mem::take(&mut self.over_shm[at])
    }

    pub(super) fn node_crashed(&mut self, who: u32) {
        let of_node = self.index(who, 0)..self.index(who + 1, 0);
        self.over_shm[of_node].fill(false);
    }

    /// Counts the pairs that had a channel, for the report.
    pub(super) fn count(&self) -> Pairs {
        Pairs { shm: self.shm.len(), link: self.link.len() }
    }
}
