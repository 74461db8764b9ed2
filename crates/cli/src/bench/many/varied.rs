//! Collectives with parts of different lengths, and those of neighbours only.

use anyhow::Result;

use super::rank::Rank;
use crate::bench::case::part_words;

/// A step of such a collective.
pub(super) struct Parts<'a> {
    rank: &'a Rank,
    step: u64,
}

impl<'a> Parts<'a> {
    pub(super) fn new(rank: &'a Rank, step: u64) -> Parts<'a> {
        Parts { rank, step }
    }

    /// Parts of different lengths for or from all ranks, of which those of `mine` are the longest.
    pub(super) fn varied(
        &self,
        name: &str,
        mine: &mut [u64],
        (all, got): (&mut [u64], &mut [u64]),
    ) -> Result<()> {
        let Rank { world, rank: me, size, .. } = self.rank;
        let (me, size, n) = (*me, *size, mine.len());
        let lens: Vec<usize> = (0..size).map(|rank| part_words(rank, n)).collect();
        let total: usize = lens.iter().sum();
        let own = &mut mine[..lens[me]];
        match name {
            "scatter-varied" => {
                if me == 0 {
                    self.fill(all, &lens, 0);
                }
                world.scatter_varied(0, if me == 0 { &all[..total] } else { &[] }, &lens, own)?;
                self.rank.check(own, self.step, 0, me)
            }
            "gather-varied" => {
                self.rank.fill(own, self.step, me, 0);
                world.gather_varied(0, own, if me == 0 { &mut all[..total] } else { &mut [] }, &lens)?;
                if me == 0 { self.check(all, &lens, 0) } else { Ok(()) }
            }
            "all-gather-varied" => {
                self.rank.fill(own, self.step, me, 0);
                world.all_gather_varied(own, &mut all[..total], &lens)?;
                self.check(all, &lens, 0)
            }
            _ => {
                // What two ranks send each other has one length.
                let lens: Vec<usize> = (0..size).map(|other| part_words(me + other, n)).collect();
                let total: usize = lens.iter().sum();
                self.fill(all, &lens, me);
                world.all_to_all_varied(&all[..total], &lens, &mut got[..total], &lens)?;
                self.check(got, &lens, me)
            }
        }
    }

    /// `n` words for each of both neighbours on a ring, and theirs.
    pub(super) fn neighbours(&self, n: usize, (all, got): (&mut [u64], &mut [u64])) -> Result<()> {
        let (me, size) = (self.rank.rank, self.rank.size);
        let (sent, got) = (&mut all[..2 * n], &mut got[..2 * n]);
        let near = [(me + size - 1) % size, (me + 1) % size];
        for (part, to) in sent.chunks_exact_mut(n).zip(near) {
            self.rank.fill(part, self.step, me, to);
        }
        let parts = near.map(|rank| (rank, n));
        self.rank.world.neighbour_all_to_all(sent, &parts, got, &parts)?;
        let mut parts = got.chunks_exact(n).zip(near);
        parts.try_for_each(|(part, from)| self.rank.check(part, self.step, from, me))
    }

    /// Writes what `from` has for each rank.
    fn fill(&self, mut words: &mut [u64], lens: &[usize], from: usize) {
        for (rank, len) in lens.iter().enumerate() {
            let part = words.split_off_mut(..*len).unwrap_or_default();
            self.rank.fill(part, self.step, from, rank);
        }
    }

    /// Reads what each rank had for `to`.
    fn check(&self, mut words: &[u64], lens: &[usize], to: usize) -> Result<()> {
        for (from, len) in lens.iter().enumerate() {
            let part = words.split_off(..*len).unwrap_or_default();
            self.rank.check(part, self.step, from, to)?;
        }
        Ok(())
    }
}
