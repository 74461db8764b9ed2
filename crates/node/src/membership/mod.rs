//! Who belongs to the job, and how things stand with each: state, incarnation, handlers, channel.
//!
//! [`Peers`] is the one way to reach a peer. What does not live here: how channels are opened and end
//! (`lane`).

mod handlers;
mod peer;
mod roster;

pub use handlers::Key;
pub(crate) use handlers::{HandlerNames, SHORT_ONLY, UNKNOWN};
pub(crate) use peer::Peer;
pub use peer::{Liveness, PeerState};

use std::io;

use tautline_device::{Datagram, RouteId};

use crate::limits::MAX_LANE_PEERS;
use crate::{Address, Job, PeerTable, Rank};
use roster::Roster;

/// The peers of a lane, by number. Lane 0 of every rank is there from the start; further lanes are added when
/// they are first used.
#[derive(Debug)]
pub(crate) struct Peers {
    ranks: Vec<Peer>,
    lanes: Vec<Peer>,
    /// Places in `lanes`.
    places: PeerTable<u16>,
    roster: Roster,
}

impl Peers {
    /// The peers of a lane of `job`.
    pub(crate) fn new(
        job: &Job,
        lane: u16,
        device: &mut dyn Datagram,
        config: &tautline_link::Config,
    ) -> io::Result<Peers> {
        let mut roster = Roster::new(job, lane, device.local_addr());
        let ranks =
            roster.ranks().map(|rank| roster.peer(device, config, rank)).collect::<io::Result<_>>()?;
        let mut peers = Peers { ranks, lanes: Vec::new(), places: PeerTable::default(), roster };
        let me = peers.roster.me();
        peers.add(device, config, me);
        Ok(peers)
    }

    /// The number of this lane.
    pub(crate) fn me(&self) -> Rank {
        self.roster.me()
    }

    /// The route to a peer whose lane has this port; to lane 0 of its rank if that is zero.
    pub(crate) fn route(&mut self, device: &mut dyn Datagram, rank: Rank, port: u16) -> io::Result<RouteId> {
        self.roster.route(device, rank, port)
    }

    /// A peer by its number; none if it has not been added.
    #[inline]
    pub(crate) fn get(&self, rank: Rank) -> Option<&Peer> {
        match self.ranks.get(rank as usize) {
            Some(peer) => Some(peer),
            None => self.lanes.get(usize::from(*self.places.get(rank)?)),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        match self.ranks.get_mut(rank as usize) {
            Some(peer) => Some(peer),
            None => self.lanes.get_mut(usize::from(*self.places.get(rank)?)),
        }
    }

    /// A peer that is known to be there.
    ///
    /// # Panics
    /// If it is not.
    #[inline]
    pub(crate) fn member(&self, rank: Rank) -> &Peer {
        self.get(rank).expect("the peer is there")
    }

    /// A peer that is known to be there, to be changed.
    ///
    /// # Panics
    /// If it is not.
    #[inline]
    pub(crate) fn member_mut(&mut self, rank: Rank) -> &mut Peer {
        self.get_mut(rank).expect("the peer is there")
    }

    /// The peer at a place, which frames of its channel name.
    #[inline]
    pub(crate) fn at_place(&mut self, place: usize) -> Option<&mut Peer> {
        let ranks = self.ranks.len();
        if place < ranks { Some(&mut self.ranks[place]) } else { self.lanes.get_mut(place - ranks) }
    }

    /// The place of a peer that is there.
    pub(crate) fn place(&self, rank: Rank) -> usize {
        match self.places.get(rank) {
            Some(place) => self.ranks.len() + usize::from(*place),
            None => rank as usize,
        }
    }

    /// Adds a lane of a rank unless it is there. False if the job has no such rank, or there is no place
    /// left.
    pub(crate) fn add(
        &mut self,
        device: &mut dyn Datagram,
        config: &tautline_link::Config,
        rank: Rank,
    ) -> bool {
        if self.contains(rank) {
            return true;
        }
        if !self.may_contain(rank) || self.ranks.len() + self.lanes.len() >= MAX_LANE_PEERS {
            return false;
        }
        let Ok(peer) = self.roster.peer(device, config, rank) else { return false };
        *self.places.entry(rank) = Some(self.lanes.len() as u16);
        self.lanes.push(peer);
        true
    }

    /// Whether the peer has been added.
    pub(crate) fn contains(&self, rank: Rank) -> bool {
        self.get(rank).is_some()
    }

    /// Whether the job has the rank of a peer, added or not.
    pub(crate) fn may_contain(&self, rank: Rank) -> bool {
        (Address::from(rank).rank as usize) < self.ranks.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.ranks.iter().chain(&self.lanes)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.ranks.iter_mut().chain(&mut self.lanes)
    }

    /// The numbers of all peers.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let lanes: Vec<Rank> = self.lanes.iter().map(|peer| peer.rank).collect();
        (0..self.ranks.len() as Rank).chain(lanes)
    }
}
