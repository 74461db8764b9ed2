//! Simulated hosts: which nodes share memory.

use tautline_node::SimulatedHost;

use crate::Hosts;
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
    /// The host of each node.
    of: Vec<u32>,
}

impl WorldHosts {
    pub(crate) fn new(of: Vec<u32>) -> WorldHosts {
        let count = of.iter().max().map_or(0, |most| most + 1);
        WorldHosts { hosts: (0..count).map(|_| SimulatedHost::new()).collect(), of }
    }

    /// The host of a node, if other nodes are on it.
    pub(crate) fn shared(&self, node: u32) -> Option<&SimulatedHost> {
        self.neighbours(node).next()?;
        self.hosts.get(self.of[node as usize] as usize)
    }

    /// The other nodes on a node's host.
    pub(crate) fn neighbours(&self, node: u32) -> impl Iterator<Item = u32> + use<'_> {
        let host = self.of[node as usize];
        let others = self.of.iter().enumerate().filter(move |(_, of)| **of == host);
        others.map(|(other, _)| other as u32).filter(move |other| *other != node)
    }

    /// How often the real host had too few descriptors or too little memory: then the seed did not decide
    /// everything.
    pub(crate) fn failures(&self) -> u64 {
        self.hosts.iter().map(SimulatedHost::failures).sum()
    }
}
