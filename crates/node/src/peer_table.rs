//! A table of what is kept of each peer, sparse by rank and lane.

use crate::{Address, Rank};

/// In place of a place: there is no value.
const NOWHERE: u16 = u16::MAX;

/// Values by the peer's number. A value is found by two loads. A rank without one costs two bytes, and so do
/// its lanes, once some peer's lane of that number has a value.
#[derive(Clone, Debug)]
pub struct PeerTable<T> {
    /// The place of lane 0 of each rank; [`NOWHERE`] without a value.
    ranks: Vec<u16>,
    /// The same of further lanes, by lane, less one, and rank.
    lanes: Vec<Vec<u16>>,
    values: Vec<T>,
}

impl<T> Default for PeerTable<T> {
    fn default() -> PeerTable<T> {
        PeerTable { ranks: Vec::new(), lanes: Vec::new(), values: Vec::new() }
    }
}

impl<T> PeerTable<T> {
    /// How many values there may be.
    pub const MAX: usize = u16::MAX as usize;

    /// The place of a peer's value, which stays the same; one that nobody has without a value.
    #[inline(always)]
    fn find(&self, peer: Rank) -> usize {
        match self.ranks.get(peer as usize) {
            Some(place) => usize::from(*place),
            None => self.find_lane(peer),
        }
    }

    #[cold]
    fn find_lane(&self, peer: Rank) -> usize {
        let row = usize::from(Address::from(peer).lane).checked_sub(1).and_then(|lane| self.lanes.get(lane));
        usize::from(row.and_then(|row| row.get(column(peer))).copied().unwrap_or(NOWHERE))
    }

    /// The place of a peer's value, if it has one.
    pub(crate) fn place(&self, peer: Rank) -> Option<usize> {
        Some(self.find(peer)).filter(|place| *place < self.values.len())
    }

    /// The value of a peer, if it has one.
    #[inline]
    pub fn get(&self, peer: Rank) -> Option<&T> {
        self.values.get(self.find(peer))
    }

    /// The value of a peer, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, peer: Rank) -> Option<&mut T> {
        let place = self.find(peer);
        self.values.get_mut(place)
    }

    /// The value at a place, to be changed.
    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.values.get_mut(place)
    }

    /// The value of a peer, which `make` makes unless there is one.
    ///
    /// # Panics
    /// If there are [`PeerTable::MAX`] values.
    #[inline]
    pub fn get_or_insert_with(&mut self, peer: Rank, make: impl FnOnce() -> T) -> &mut T {
        let place = match self.place(peer) {
            Some(place) => place,
            None => self.insert(peer, make()),
        };
        &mut self.values[place]
    }

    #[cold]
    fn insert(&mut self, peer: Rank, value: T) -> usize {
        let row = match usize::from(Address::from(peer).lane) {
            0 => &mut self.ranks,
            lane => {
                self.lanes.resize_with(self.lanes.len().max(lane), Vec::new);
                &mut self.lanes[lane - 1]
            }
        };
        let (at, place) = (column(peer), self.values.len());
        if row.len() <= at {
            row.resize(at + 1, NOWHERE);
        }
        let place_here = u16::try_from(place).ok().filter(|place| *place != NOWHERE);
        row[at] = place_here.expect("no lane has met more peers");
        if place == self.values.capacity() {
            // Values are large, and peers rarely added: little room is left unused.
            self.values.reserve_exact(place / 8 + 2);
        }
        self.values.push(value);
        place
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// All values, in the order in which they were inserted.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }

    /// All values, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut()
    }
}

fn column(peer: Rank) -> usize {
    Address::from(peer).rank as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_rank_and_lane() {
        let mut table = PeerTable::default();
        let peers = [0, 7, Address::new(0, 1).into(), Address::new(7, 3).into(), Address::new(9, 3).into()];
        for (value, peer) in peers.into_iter().enumerate() {
            assert!(table.get(peer).is_none() && table.get_mut(peer).is_none());
            assert_eq!(*table.get_or_insert_with(peer, || value), value);
            assert_eq!(*table.get_or_insert_with(peer, || 99), value);
        }
        for (value, peer) in peers.into_iter().enumerate() {
            assert_eq!(table.get(peer), Some(&value));
            assert_eq!(table.get_mut(peer).copied(), Some(value));
            assert_eq!((table.place(peer), table.at_mut(value).copied()), (Some(value), Some(value)));
        }
        let absent = [1, 8, Address::new(7, 1).into(), Address::new(7, 2).into(), Address::new(0, 9).into()];
        assert!(absent.iter().all(|peer| table.get(*peer).is_none()));
        assert!(table.iter().copied().eq(0..peers.len()));
    }
}
