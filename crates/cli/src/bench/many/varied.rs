//! Collectives with parts of different lengths, and those of neighbours only.

use anyhow::Result;

use super::rank::Rank;
use crate::bench::case::part_words;

impl Rank {
    /// One step of a collective with parts of different lengths, of which those of `mine` are the longest.
    pub(super) fn varied(
        &self,
        name: &str,
        step: u64,
        mine: &mut [u64],
        (all, got): (&mut [u64], &mut [u64]),
    ) -> Result<()> {
        let (me, size, n) = (self.rank, self.size, mine.len());
        let lens: Vec<usize> = (0..size).map(|rank| part_words(rank, n)).collect();
        let total: usize = lens.iter().sum();
        let own = &mut mine[..lens[me]];
        match name {
            "scatter-varied" => {
                if me == 0 {
                    self.fill_parts(all, &lens, |part, to| self.fill(part, step, 0, to));
                }
                self.world.scatter_varied(0, if me == 0 { &all[..total] } else { &[] }, &lens, own)?;
                self.check(own, step, 0, me)
            }
            "gather-varied" => {
                self.fill(own, step, me, 0);
                self.world.gather_varied(0, own, if me == 0 { &mut all[..total] } else { &mut [] }, &lens)?;
                if me == 0 { self.check_parts(all, &lens, step, 0) } else { Ok(()) }
            }
            "all-gather-varied" => {
                self.fill(own, step, me, 0);
                self.world.all_gather_varied(own, &mut all[..total], &lens)?;
                self.check_parts(all, &lens, step, 0)
            }
            _ => {
                // What two ranks send each other has one length.
                let lens: Vec<usize> = (0..size).map(|other| part_words(me + other, n)).collect();
                let total: usize = lens.iter().sum();
                self.fill_parts(all, &lens, |part, to| self.fill(part, step, me, to));
                self.world.all_to_all_varied(&all[..total], &lens, &mut got[..total], &lens)?;
                self.check_parts(got, &lens, step, me)
            }
        }
    }

    /// Words for both neighbours on a ring, and theirs.
    pub(super) fn neighbours(&self, step: u64, n: usize, (all, got): (&mut [u64], &mut [u64])) -> Result<()> {
        let (me, size) = (self.rank, self.size);
        let (sent, got) = (&mut all[..2 * n], &mut got[..2 * n]);
        let near = [(me + size - 1) % size, (me + 1) % size];
        for (part, to) in sent.chunks_exact_mut(n).zip(near) {
            self.fill(part, step, me, to);
        }
        let parts = near.map(|rank| (rank, n));
        self.world.neighbour_all_to_all(sent, &parts, got, &parts)?;
        let mut parts = got.chunks_exact(n).zip(near);
        parts.try_for_each(|(part, from)| self.check(part, step, from, me))
    }

    fn fill_parts(&self, mut words: &mut [u64], lens: &[usize], each: impl Fn(&mut [u64], usize)) {
        for (rank, len) in lens.iter().enumerate() {
            let part = words.split_off_mut(..*len).unwrap_or_default();
            each(part, rank);
        }
    }

    fn check_parts(&self, mut words: &[u64], lens: &[usize], step: u64, to: usize) -> Result<()> {
        for (from, len) in lens.iter().enumerate() {
            let part = words.split_off(..*len).unwrap_or_default();
            self.check(part, step, from, to)?;
        }
        Ok(())
    }
}
