//! The paths of the network, each from one place to another. A path takes memory only once it is used.

use std::collections::HashMap;

use super::PathOptions;
use crate::Nanos;

#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// The place that it leads to.
    pub(super) to: u32,
    pub(crate) options: PathOptions,
    pub(crate) mtu: usize,
    /// Frames that are too large are reported, as routers do; otherwise they vanish.
    pub(crate) reports_mtu: bool,
    pub(crate) burst_until: Nanos,
    pub(crate) blocked_until: Nanos,
    pub(super) reported_at: Nanos,
    pub(super) busy_until: Nanos,
    pub(super) last_arrival: Nanos,
    /// When the last intact frame arrives that the network has not delivered before.
    pub(super) last_heard: Nanos,
    pub(super) held: Vec<Held>,
}

/// A frame that is held back.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: u64,
    pub(super) frame: u32,
    /// How many frames are still to overtake it.
    pub(super) left: u64,
}

#[derive(Debug)]
pub(crate) struct Paths {
    /// What a path is before its first use.
    unused: Path,
    used: Vec<Path>,
    /// Where paths are in `used`, by the places that they lead from and to.
    places: HashMap<(u32, u32), u32>,
}

impl Paths {
    pub(super) fn new(options: PathOptions, mtu: usize) -> Paths {
        let unused = Path {
            to: 0,
            options,
            mtu,
            reports_mtu: false,
            burst_until: 0,
            blocked_until: 0,
            reported_at: 0,
            busy_until: 0,
            last_arrival: 0,
            last_heard: 0,
            held: Vec::new(),
        };
        Paths { unused, used: Vec::new(), places: HashMap::new() }
    }

    /// The number of the path between two places.
    pub(super) fn number(&mut self, from: u32, to: u32) -> u32 {
        *self.places.entry((from, to)).or_insert_with(|| {
            self.used.push(Path { to, ..self.unused.clone() });
            self.used.len() as u32 - 1
        })
    }

    pub(super) fn get(&self, from: u32, to: u32) -> &Path {
        self.places.get(&(from, to)).map_or(&self.unused, |number| &self.used[*number as usize])
    }

    /// A path by its number.
    pub(super) fn at(&mut self, number: u32) -> &mut Path {
        &mut self.used[number as usize]
    }

    /// Changes every path, used or not.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut Path)) {
        change(&mut self.unused);
        self.used.iter_mut().for_each(change);
    }
}
