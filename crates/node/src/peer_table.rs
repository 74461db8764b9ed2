//! A table of what is kept of each peer, sparse by lane.

use crate::{Address, Rank};

/// Values by the peer's number. Lane 0 of every rank is found by one load; a further lane takes room only if
/// some peer's lane of that number has a value.
#[derive(Clone, Debug)]
pub struct PeerTable<T> {
    ranks: Vec<Option<T>>,
    /// By lane, less one, and rank.
    lanes: Vec<Vec<Option<T>>>,
}

impl<T> Default for PeerTable<T> {
    fn default() -> PeerTable<T> {
        PeerTable { ranks: Vec::new(), lanes: Vec::new() }
    }
}

impl<T> PeerTable<T> {
    /// The value of a peer, if it has one.
    #[inline]
    pub fn get(&self, peer: Rank) -> Option<&T> {
        match self.ranks.get(peer as usize) {
            Some(value) => value.as_ref(),
            None => self.row(peer)?.get(column(peer))?.as_ref(),
        }
    }

    /// The value of a peer, to be changed.
    #[inline]
    pub fn get_mut(&mut self, peer: Rank) -> Option<&mut T> {
        if (peer as usize) < self.ranks.len() {
            return self.ranks[peer as usize].as_mut();
        }
        let lane = Address::from(peer).lane.checked_sub(1)?;
        self.lanes.get_mut(usize::from(lane))?.get_mut(column(peer))?.as_mut()
    }

    #[cold]
    fn row(&self, peer: Rank) -> Option<&Vec<Option<T>>> {
        self.lanes.get(usize::from(Address::from(peer).lane.checked_sub(1)?))
    }

    /// The place of a peer's value.
    pub fn entry(&mut self, peer: Rank) -> &mut Option<T> {
        let row = match Address::from(peer).lane {
            0 => &mut self.ranks,
            lane => {
                let lane = usize::from(lane);
                self.lanes.resize_with(self.lanes.len().max(lane), Vec::new);
                &mut self.lanes[lane - 1]
            }
        };
        let at = column(peer);
        row.resize_with(row.len().max(at + 1), || None);
        &mut row[at]
    }

    /// All values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.ranks.iter_mut().chain(self.lanes.iter_mut().flatten()).filter_map(Option::as_mut)
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
            *table.entry(peer) = Some(value);
        }
        for (value, peer) in peers.into_iter().enumerate() {
            assert_eq!(table.get(peer), Some(&value));
            assert_eq!(table.get_mut(peer).copied(), Some(value));
        }
        let absent = [1, 8, Address::new(7, 1).into(), Address::new(7, 2).into(), Address::new(0, 9).into()];
        assert!(absent.iter().all(|peer| table.get(*peer).is_none()));
        assert_eq!(table.iter_mut().count(), peers.len());
    }
}
