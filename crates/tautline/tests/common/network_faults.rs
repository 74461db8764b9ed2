//! Whether the faults of a network met the traffic of a test.

use std::sync::atomic::{AtomicU64, Ordering};

use tautline::Endpoint;

/// What the links of several ranks counted.
#[derive(Default)]
pub struct FaultsMet {
    resent: AtomicU64,
    replayed: AtomicU64,
    ahead: AtomicU64,
}

impl FaultsMet {
    /// Adds what one rank has counted so far.
    pub fn add(&self, ep: &Endpoint) {
        let links = ep.counters().links;
        self.resent.fetch_add(links.slots_resent, Ordering::Relaxed);
        self.replayed.fetch_add(links.replayed, Ordering::Relaxed);
        self.ahead.fetch_add(links.slots_ahead, Ordering::Relaxed);
    }

    /// Fails unless slots were resent, frames arrived twice, and slots arrived before earlier ones.
    pub fn check(&self) {
        let counts = [&self.resent, &self.replayed, &self.ahead].map(|count| count.load(Ordering::Relaxed));
        println!("{counts:?} slots resent, frames repeated and slots ahead of others");
        assert!(counts.iter().all(|count| *count > 0), "the network had no faults: {counts:?}");
    }
}
