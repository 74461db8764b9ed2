//! The ring of ranks, and who is told of a fact: the first living ranks at a distance of a power of two.

use std::collections::BTreeSet;

use crate::Rank;

/// The ranks below `end` other than `start`, in order, from the one after it.
pub(crate) fn after(start: Rank, end: u32) -> impl Iterator<Item = Rank> {
    (start + 1..end).chain(0..start.min(end))
}

/// Of each distance of a power of two from `me`, the first rank at or after it that `is_living`, without `me`
/// (B-4).
pub(crate) fn fingers(me: Rank, end: u32, is_living: impl Fn(Rank) -> bool) -> BTreeSet<Rank> {
    let distances = (0..u32::BITS).map(|k| 1_u64 << k).take_while(|distance| *distance < u64::from(end));
    let first = |distance: u64| {
        let from = ((u64::from(me) + distance) % u64::from(end)) as Rank;
        std::iter::once(from)
            .chain(after(from, end))
            .take_while(|rank| *rank != me)
            .find(|rank| is_living(*rank))
    };
    distances.filter_map(first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_closes() {
        assert!(after(2, 5).eq([3, 4, 0, 1]));
        assert!(after(0, 1).eq([]));
        assert!(after(7, 3).eq([0, 1, 2]));
    }

    /// B-4: at most ⌈log₂ n⌉ ranks, none of them dead or oneself.
    #[test]
    fn fingers_skip_the_dead() {
        assert!(fingers(6, 10, |_| true).into_iter().eq([0, 4, 7, 8]));
        assert!(fingers(6, 10, |rank| rank != 7).into_iter().eq([0, 4, 8]));
        assert!(fingers(6, 10, |rank| rank == 5).into_iter().eq([5]));
        assert!(fingers(6, 10, |_| false).is_empty() && fingers(0, 1, |_| true).is_empty());
    }
}
