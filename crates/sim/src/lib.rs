//! A deterministic world: the same link, node and message code for many nodes, in one thread, on a virtual
//! clock.
//!
//! # The map
//! * [`run`]: one seed. The seed draws everything (`swarm`, `schedule`); the network (`net`) loses, repeats,
//!   reorders and damages frames; nodes (`world`) pause, compute, crash and restart; programs (`program`,
//!   `handlers`) send messages of all kinds; the checkers (`check`) verify the promises: exactly once, in
//!   order, unaltered, nothing of a former incarnation, messages lost only to a peer that was reported down,
//!   no false death, progress after healing, no slot leaked.
//! * [`run_many`]: many seeds on a few threads. [`replay`]: one seed with a readable trace and a capture.
//! * Nodes have one lane or several (`places`), which all take part.
//! * Nodes of a simulated host (`hosts`) share memory; the seed decides which nodes do. Other pairs use
//!   links, and every node sends to itself, too: all kinds of channel run in one world.
//! * [`memory`]: a world of its own for apertures and tripwires, under the same faults; [`styles`]: another
//!   one for calls, queues and streams; both in a `harness`. [`run_many`] runs some of both.
//! * [`cluster`]: up to tens of thousands of nodes on one switch, without faults: how long patterns of
//!   messages take, and what a node costs.
//! * [`goodput`]: goodput at given loss rates, windows and recovery policies; a golden table.
//!
//! The same seed gives the same [`Report::trace_hash`], on every machine. What does not live here: real time,
//! real sockets and threads, and so the watchdog, waiting and the system calls.
#![forbid(unsafe_code)]

mod check;
pub mod cluster;
mod content;
mod device;
pub mod goodput;
mod handlers;
mod harness;
mod hosts;
mod many;
pub mod memory;
#[cfg(test)]
mod narrow;
mod net;
mod places;
mod program;
mod report;
mod rng;
mod sabotage;
mod schedule;
pub mod styles;
mod swarm;
mod trace;
mod world;

pub use device::SimDevice;
pub use many::{Progress, SeedSummary, run_many, run_others};
pub use net::{NetCounters, NetworkModel, PathOptions};
pub use report::{Pairs, Report, Totals};
pub use sabotage::Sabotage;
pub use trace::Trace;

/// Nanoseconds on the virtual clock.
pub type Nanos = u64;

/// Which nodes are on one simulated host, and so share memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// The seed decides.
    #[default]
    Drawn,
    /// Every node has a host of its own: no memory is shared.
    Separate,
    /// All nodes are on one host.
    Single,
}

/// Options that the seed does not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Messages per seed, roughly; the seed draws between half and one and a half of it.
    pub messages: u64,
    /// Stop at the first violation instead of collecting more.
    pub stop_at_violation: bool,
    /// Which nodes share memory.
    pub hosts: Hosts,
    /// How many lanes each node has; the seed decides if there is none.
    pub lanes: Option<u32>,
    /// A deliberate mistake, to show that the checkers detect it.
    pub sabotage: Sabotage,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            messages: 10_000,
            stop_at_violation: true,
            hosts: Hosts::default(),
            lanes: None,
            sabotage: Sabotage::None,
        }
    }
}

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Report {
    world::World::new(seed, options, None).run()
}

/// Runs one seed and writes a trace of it.
pub fn replay(seed: u64, options: &Options, trace: Trace) -> Report {
    world::World::new(seed, options, Some(trace)).run()
}

/// Returns everything that a seed draws, as text.
pub fn describe(seed: u64, options: &Options) -> String {
    swarm::Swarm::draw(seed, options).to_string()
}
