//! The memory verbs of an endpoint.

use tautline_node::ApertureMemory;
use tautline_node::memory::{Cookie, MemoryCounters};

use super::aperture::Aperture;
use super::mapped::{MapCookie, Mapped};
use super::operations::out_of_band;
use super::remote::Remote;
use super::tripset::Tripset;
use super::tripwire::Tripwire;
use crate::Rank;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::waiting::block_until_served;

impl Endpoint {
    /// Makes an aperture of `len` bytes of new memory, all zero. Peers on this host can also map it. Up to 64
    /// MiB are allocated at once; of more, the system allocates each page at its first access. An error if
    /// the machine has less, or the system does not let this process map it.
    pub fn aperture(&self, len: usize) -> Result<Aperture> {
        let memory = ApertureMemory::allocate(len).map_err(Error::other)?;
        Aperture::open(self.core.clone(), memory)
    }

    /// Makes an aperture of the program's memory; [`Aperture::close`] gives it back.
    pub fn adopt(&self, bytes: Vec<u8>) -> Result<Aperture> {
        let memory = ApertureMemory::adopt(bytes).map_err(|_| Error::OutOfRange)?;
        Aperture::open(self.core.clone(), memory)
    }

    /// Returns the memory that a cookie gives access to.
    pub fn remote(&self, cookie: &Cookie) -> Remote {
        Remote::new(self.core.clone(), *cookie)
    }

    /// Maps an aperture of a peer on this host. An error if the peer is on another host, belongs to another
    /// user, is gone or has revoked the share, or if the cookie claims more than the owner granted.
    /// Rights bind everybody who maps through this library; another process of the same user could open the
    /// owner's memory without it.
    pub fn map(&self, cookie: &MapCookie) -> Result<Mapped> {
        Mapped::new(self, cookie)
    }

    /// Groups tripwires; the set is ready when `need` of them have fired. With a tag, that is an event, too.
    /// Naming a tripwire twice is an error: it would count once.
    pub fn tripset(&self, wires: &[&Tripwire], need: usize, tag: Option<u64>) -> Result<Tripset> {
        Tripset::new(self.core.clone(), wires, need, tag)
    }

    /// Sends up to [`super::MAX_OUT_OF_BAND`] bytes to a peer's event queue
    /// ([`super::MemoryEvent::OutOfBand`]), past all handlers: for set-up, teardown and exceptional
    /// conditions.
    pub fn send_out_of_band(&self, peer: Rank, bytes: &[u8]) -> Result<()> {
        let message = out_of_band(bytes)?;
        block_until_served(&self.core, peer, || Ok(self.core.node.send_out_of_band(peer, &message)?))
    }

    /// Counters of this node's memory operations.
    pub fn memory_counters(&self) -> MemoryCounters {
        self.core.node.memory_counters()
    }
}
