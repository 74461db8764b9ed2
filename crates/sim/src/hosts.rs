//! Simulated hosts: which nodes share memory.

use tautline_node::SimulatedHost;

use crate::Hosts;
use crate::places::Places;
use crate::rng::Rng;

/// Nodes that may share a host, at most: every channel has a dozen descriptors and some megabytes.
const MAX_SHARING: usize = 4;

/// Draws the host of each node, from a stream of its own: worlds are the same but for their hosts.
pub(crate) fn draw(seed: u64, nodes: usize, hosts: Hosts) -> Vec<u32> {
    let mut rng = Rng::new(seed, 0x686f_7374);
    let separate = hosts == Hosts::Separate || hosts == Hosts::Drawn && rng.chance(400_000);
    if separate {
        return (0..nodes as u32).collect();
    }
    if hosts == Hosts::Single {
        return vec![0; nodes];
    }
    // Few hosts more often than many.
    let count = rng.magnitude(1, nodes as u64 - 1);
    let mut drawn: Vec<u32> = Vec::new();
    for node in 0..nodes as u32 {
        let host = rng.below(count) as u32;
        let full = drawn.iter().filter(|other| **other == host).count() >= MAX_SHARING;
        drawn.push(if full { nodes as u32 + node } else { host });
    }
    drawn
}

/// The hosts of a world.
#[derive(Debug)]
pub(crate) struct WorldHosts {
    hosts: Vec<SimulatedHost>,
    /// The host of each rank.
    of: Vec<u32>,
    places: Places,
}

impl WorldHosts {
    pub(crate) fn new(of: Vec<u32>, places: Places) -> WorldHosts {
        let count = of.iter().max().map_or(0, |most| most + 1);
        WorldHosts { hosts: (0..count).map(|_| SimulatedHost::new()).collect(), of, places }
    }

    fn of(&self, place: u32) -> u32 {
        self.of[self.places.rank(place) as usize]
    }

    /// The host of a place, if other places are on it.
    pub(crate) fn shared(&self, place: u32) -> Option<&SimulatedHost> {
        self.neighbours(place).next()?;
        self.hosts.get(self.of(place) as usize)
    }

    /// The other places on a place's host.
    pub(crate) fn neighbours(&self, place: u32) -> impl Iterator<Item = u32> + use<'_> {
        let host = self.of(place);
        (0..self.places.count()).filter(move |other| *other != place && self.of(*other) == host)
    }

    /// How often the real host had too few descriptors or too little memory: then the seed did not decide
    /// everything.
    pub(crate) fn failures(&self) -> u64 {
        self.hosts.iter().map(SimulatedHost::failures).sum()
    }
}
