//! Places: where an endpoint runs. There is one for each lane of each rank.

use tautline::{Address, Rank};

use crate::rng::Rng;

/// Places that may share a host, at most: every channel has a dozen descriptors and some megabytes.
const MAX_SHARING: usize = 6;

/// The places of a world: first lane 0 of each rank, then lane 1 of each, and so on. So a place is its rank
/// in a world with one lane each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) ranks: u32,
    pub(crate) lanes: u32,
}

impl Places {
    /// Draws how many lanes the ranks have, from a stream of its own; `hosts` is the host of each rank.
    pub(crate) fn draw(seed: u64, hosts: &[u32], wanted: Option<u32>) -> Places {
        let sharing = |host: &u32| hosts.iter().filter(|other| *other == host).count();
        let most = MAX_SHARING / hosts.iter().map(sharing).max().unwrap_or(1);
        let drawn = Rng::new(seed, 0x6c61_6e65).pick(&[1, 1, 2, 2, 3]);
        let lanes = wanted.unwrap_or_else(|| drawn.min(most as u32)).max(1);
        Places { ranks: hosts.len() as u32, lanes }
    }

    /// Ranks with one lane each.
    pub(crate) fn single(ranks: u32) -> Places {
        Places { ranks, lanes: 1 }
    }

    pub(crate) fn count(self) -> u32 {
        self.ranks * self.lanes
    }

    pub(crate) fn rank(self, place: u32) -> Rank {
        place % self.ranks
    }

    pub(crate) fn lane(self, place: u32) -> u16 {
        (place / self.ranks) as u16
    }

    /// What messages to a place are addressed to.
    pub(crate) fn number(self, place: u32) -> Rank {
        Address::new(self.rank(place), self.lane(place)).into()
    }

    /// The place that a number addresses.
    pub(crate) fn at(self, number: Rank) -> u32 {
        let Address { rank, lane } = number.into();
        u32::from(lane) * self.ranks + rank
    }

    /// The places of a rank; lane 0 is the first.
    pub(crate) fn of(self, rank: Rank) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.lanes).map(move |lane| lane * self.ranks + rank)
    }

    /// The places of all other ranks.
    pub(crate) fn beside(self, rank: Rank) -> impl Iterator<Item = u32> {
        (0..self.count()).filter(move |place| self.rank(*place) != rank)
    }
}
