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

use crate::limits::{MAX_LANE_PEERS, MAX_LANES};
use crate::{Address, Job, Rank};
use roster::Roster;

/// In place of a place: no such peer was added.
const NOWHERE: u16 = u16::MAX;

/// The peers of a lane, by number. Lane 0 of every rank is there from the start; further lanes are added when
/// they are first used.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Lane 0 of each rank, then the other lanes in the order in which they were added.
    all: Vec<Peer>,
    /// The number of ranks.
    ranks: usize,
    /// Places in `all` of lanes other than lane 0, by lane, less one, and rank.
    places: Vec<u16>,
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
        let all: Vec<Peer> =
            roster.ranks().map(|rank| roster.peer(device, config, rank)).collect::<io::Result<_>>()?;
        let mut peers = Peers { ranks: all.len(), all, places: Vec::new(), roster };
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
        self.all.get(self.find(rank)?)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        let place = self.find(rank)?;
        self.all.get_mut(place)
    }

    /// The place of a peer; none, or one that nobody has, if it has not been added.
    #[inline(always)]
    fn find(&self, rank: Rank) -> Option<usize> {
        let place = rank as usize;
        if place < self.ranks {
            Some(place)
        } else {
            self.places.get(self.index(rank)?).map(|p| usize::from(*p))
        }
    }

    /// Where the place of a lane other than lane 0 is kept.
    #[inline]
    fn index(&self, number: Rank) -> Option<usize> {
        let Address { rank, lane } = number.into();
        let exists = (rank as usize) < self.ranks && lane > 0;
        exists.then(|| (usize::from(lane) - 1) * self.ranks + rank as usize)
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
        self.all.get_mut(place)
    }

    /// The place of a peer that is there.
    pub(crate) fn place(&self, rank: Rank) -> usize {
        self.find(rank).unwrap_or(usize::from(NOWHERE))
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
        if !self.may_contain(rank) || self.all.len() >= MAX_LANE_PEERS {
            return false;
        }
        let Some(index) = self.index(rank) else { return false };
        let Ok(peer) = self.roster.peer(device, config, rank) else { return false };
        // A full row for each lane that some peer has.
        let rows = (index / self.ranks + 1) * self.ranks;
        self.places.resize(self.places.len().max(rows), NOWHERE);
        self.places[index] = self.all.len() as u16;
        self.all.push(peer);
        true
    }

    /// Whether the peer has been added.
    pub(crate) fn contains(&self, rank: Rank) -> bool {
        self.get(rank).is_some()
    }

    /// Whether the job has the rank of a peer, added or not, and ranks may have its lane.
    pub(crate) fn may_contain(&self, number: Rank) -> bool {
        let Address { rank, lane } = number.into();
        (rank as usize) < self.ranks && usize::from(lane) < MAX_LANES
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.all.iter_mut()
    }

    /// The numbers of all peers.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let lanes: Vec<Rank> = self.all.iter().skip(self.ranks).map(|peer| peer.rank).collect();
        (0..self.ranks as Rank).chain(lanes)
    }
}
