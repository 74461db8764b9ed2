//! What there is to see of a node: states, counters, ways.

use tautline_device::Datagram;

use super::Interface;
use crate::counters::add;
use crate::peer::PeerState;
use crate::{Counters, Rank};

impl Interface {
    /// How things stand with a peer.
    pub fn peer_state(&self, rank: Rank) -> Option<PeerState> {
        self.peers.get(rank as usize).map(|p| p.state)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.device = self.device.counters();
        for near in self.peers.iter().filter_map(|p| p.near.as_ref()) {
            counters.near.add(near.shm.counts());
        }
        for link in self.peers.iter().filter_map(|p| p.peering.link()) {
            add(&mut counters.links, link.counters());
        }
        counters
    }

    /// The live link to a peer, to look at.
    pub fn link(&self, rank: Rank) -> Option<&tautline_link::Link> {
        self.peers.get(rank as usize)?.peering.link()
    }

    /// Which incarnation of a peer can be reached now, if any.
    pub fn incarnation(&self, rank: Rank) -> Option<u32> {
        self.peers.get(rank as usize).filter(|peer| peer.is_up()).map(|peer| peer.incarnation)
    }

    /// The way that frames for a peer go now, where the device has several, and why.
    pub fn transport(&self, rank: Rank) -> (Option<tautline_device::Transport>, &str) {
        match self.peers.get(rank as usize) {
            Some(peer) => (self.device.transport(peer.route), self.device.why(peer.route)),
            None => (None, "there is no such rank"),
        }
    }

    /// Asks that frames for a peer go another way, where the device has several; `None` for the best. Whatever becomes of it is an
    /// event.
    pub fn prefer_transport(&mut self, rank: Rank, transport: Option<tautline_device::Transport>) {
        if let Some(peer) = self.peers.get(rank as usize) {
            self.device.prefer_transport(peer.route, transport);
        }
    }

    /// The device.
    pub fn device(&self) -> &dyn Datagram {
        &*self.device
    }
}
