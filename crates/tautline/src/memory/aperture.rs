//! Memory that others may reach.

use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tautline_node::ApertureMemory;

use super::{ApertureId, Cookie, Remote, Rights, TripwireBuilder};
use crate::core::Core;
use crate::{Endpoint, Error, Result};

/// Memory of this process that peers reach with cookies. Its owner reads and writes it by copying, at any time: every aligned word of eight bytes is
/// seen whole, whoever writes it; what is longer may be seen half written.
///
/// Dropping it closes it: its cookies are revoked, its tripwires disarmed.
#[derive(Debug)]
pub struct Aperture {
    core: Rc<Core>,
    id: ApertureId,
    memory: Option<Arc<ApertureMemory>>,
}

/// A range of a memory of `len` bytes, as start and length.
pub(crate) fn span(range: &impl RangeBounds<u64>, len: u64) -> Result<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => at.checked_add(1).ok_or(Error::OutOfRange)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(at) => at.checked_add(1).ok_or(Error::OutOfRange)?,
        Bound::Excluded(at) => *at,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len { Ok((start, end - start)) } else { Err(Error::OutOfRange) }
}

impl Endpoint {
    /// Takes `len` bytes from the system, all zero, and makes them an aperture. Peers on this host can also map it. Up to 64 MiB are taken at once; of more, the system
    /// gives each page when it is first touched. More than the machine has, or than the system lets this process map, is an error.
    pub fn aperture(&self, len: usize) -> Result<Aperture> {
        let memory = ApertureMemory::allocate(len).map_err(Error::other)?;
        Aperture::open(self.core.clone(), memory)
    }

    /// Makes memory of the program's an aperture; [`Aperture::close`] gives it back.
    pub fn adopt(&self, bytes: Vec<u8>) -> Result<Aperture> {
        let memory = ApertureMemory::adopt(bytes).map_err(|_| Error::OutOfRange)?;
        Aperture::open(self.core.clone(), memory)
    }

    /// What a cookie opens.
    pub fn remote(&self, cookie: &Cookie) -> Remote {
        Remote::new(self.core.clone(), *cookie)
    }
}

impl Aperture {
    fn open(core: Rc<Core>, memory: ApertureMemory) -> Result<Aperture> {
        let memory = Arc::new(memory);
        let id = core.node.open_aperture(memory.clone())?.ok_or(Error::TooMany("apertures"))?;
        Ok(Aperture { core, id, memory: Some(memory) })
    }

    /// Which aperture events mean.
    pub fn id(&self) -> ApertureId {
        self.id
    }

    /// The memory itself, for threads of this process that have no endpoint.
    pub fn memory(&self) -> &Arc<ApertureMemory> {
        self.memory.as_ref().expect("it is there until it is closed")
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.memory().len() as u64
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.memory().read(at as usize, out).map_err(|_| Error::OutOfRange)
    }

    /// Copies bytes in. No tripwire fires: they watch peers.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory().write(at as usize, bytes).map_err(|_| Error::OutOfRange)
    }

    /// Reads an aligned word of eight bytes.
    #[inline]
    pub fn read_u64(&self, at: u64) -> Result<u64> {
        self.memory().read_u64(at as usize).map_err(|_| Error::OutOfRange)
    }

    /// Writes an aligned word of eight bytes.
    #[inline]
    pub fn write_u64(&self, at: u64, value: u64) -> Result<()> {
        self.memory().write_u64(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Changes an aligned word if it holds `expected`; returns what it held. Atomic towards peers, too.
    pub fn compare_exchange(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.memory().compare_exchange(at as usize, expected, new).map_err(|_| Error::OutOfRange)
    }

    /// Adds to an aligned word; returns what it held. Atomic towards peers, too.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.memory().fetch_add(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Gives a cookie for a range: whoever has it may do there what `rights` say.
    pub fn cookie(&self, range: impl RangeBounds<u64>, rights: Rights) -> Result<Cookie> {
        self.grant(&range, rights, None)
    }

    /// As [`Aperture::cookie`], good for a while only.
    pub fn cookie_for(&self, range: impl RangeBounds<u64>, rights: Rights, life: Duration) -> Result<Cookie> {
        self.grant(&range, rights, Some(life))
    }

    fn grant(&self, range: &impl RangeBounds<u64>, rights: Rights, life: Option<Duration>) -> Result<Cookie> {
        let span = span(range, self.len())?;
        let life = life.map(|life| u64::try_from(life.as_nanos()).unwrap_or(u64::MAX));
        self.core.node.grant_cookie(self.id, span, rights, life)?.ok_or(Error::TooMany("cookies"))
    }

    /// Takes a cookie back: when this returns, no request that shows it touches anything any more. False if it was not good anyway, or is not
    /// one of this aperture's.
    pub fn revoke(&self, cookie: &Cookie) -> Result<bool> {
        Ok(self.core.node.revoke_cookie(self.id, cookie)?)
    }

    /// Begins to describe a tripwire on a range.
    pub fn tripwire(&self, range: impl RangeBounds<u64>) -> TripwireBuilder<'_> {
        TripwireBuilder::new(self, span(&range, self.len()))
    }

    /// Closes the aperture; memory that was adopted comes back, unless an operation of this node's own still uses it, or somebody keeps [`Aperture::memory`]. What peers are
    /// being answered from it ends with a refusal.
    pub fn close(mut self) -> Result<Option<Vec<u8>>> {
        self.core.node.close_aperture(self.id)?;
        let memory = self.memory.take().and_then(Arc::into_inner);
        Ok(memory.and_then(ApertureMemory::into_vec))
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        if self.memory.is_some() {
            // After fork there is nothing to close.
            let _ = self.core.node.close_aperture(self.id);
        }
    }
}
