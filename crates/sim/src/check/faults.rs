//! Which faults are in effect between two places, to tell what was sent under them.

use crate::Nanos;

#[derive(Debug)]
pub(crate) struct ActiveFaults {
    places: u32,
    /// Paths lose, repeat, hold back or damage frames by chance.
    chance: bool,
    /// Until when the paths between two places are blocked or lose a burst.
    paths: Vec<Nanos>,
    /// Until when a place is paused or has crashed.
    ends: Vec<Nanos>,
}

impl ActiveFaults {
    pub(crate) fn new(places: u32) -> ActiveFaults {
        let pairs = (places * places) as usize;
        ActiveFaults { places, chance: false, paths: vec![0; pairs], ends: vec![0; places as usize] }
    }

    /// Paths have faults by chance from now on, or have none any more.
    pub(crate) fn set_chance(&mut self, chance: bool) {
        self.chance = chance;
    }

    /// A path is blocked, or loses nearly everything.
    pub(crate) fn path(&mut self, a: u32, b: u32, until: Nanos) {
        let at = self.at(a, b);
        self.paths[at] = until.max(self.paths[at]);
    }

    /// A place does not run.
    pub(crate) fn end(&mut self, place: u32, until: Nanos) {
        let at = &mut self.ends[place as usize];
        *at = until.max(*at);
    }

    /// Blocks, bursts and pauses are over, and every node runs.
    pub(crate) fn heal(&mut self) {
        self.paths.fill(0);
        self.ends.fill(0);
    }

    /// Whether a fault affects what `from` sends to `to` now; `networked` says that it takes a path.
    pub(crate) fn affect(&self, (from, to): (u32, u32), networked: bool, now: Nanos) -> bool {
        let on_path = self.chance || now < self.paths[self.at(from, to)];
        networked && on_path || now < self.ends[from as usize] || now < self.ends[to as usize]
    }

    fn at(&self, a: u32, b: u32) -> usize {
        (a.min(b) * self.places + a.max(b)) as usize
    }
}
