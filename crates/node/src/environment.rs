//! What a node is given instead of the machine's own device and clock.

use tautline_device::Datagram;

use crate::{Clock, SimulatedHost};

/// A device, a clock and entropy of the program's own: for simulations, and for devices of one's own.
#[non_exhaustive]
pub struct Environment {
    /// What moves datagrams.
    pub device: Box<dyn Datagram>,
    /// The time.
    pub clock: Clock,
    /// Fresh and unpredictable: epochs come from it. It must never repeat.
    pub entropy: [u8; 32],
    /// The simulated host whose nodes share memory with this one: only for nodes on a virtual clock.
    pub host: Option<SimulatedHost>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Entropy is a secret.
        f.debug_struct("Environment").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Environment {
    /// An environment without a simulated host.
    pub fn new(device: Box<dyn Datagram>, clock: Clock, entropy: [u8; 32]) -> Environment {
        Environment { device, clock, entropy, host: None }
    }

    /// Puts the node on a simulated host, if there is one.
    pub fn on_host(mut self, host: Option<SimulatedHost>) -> Environment {
        self.host = host;
        self
    }
}
