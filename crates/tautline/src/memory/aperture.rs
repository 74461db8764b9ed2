//! Memory that peers may access.

use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tautline_node::ApertureMemory;
use tautline_node::memory::{ApertureId, Cookie, Rights};

use crate::core::Core;
use crate::error::{Error, Result};

/// Memory of this process that peers access with cookies. Its owner reads and writes it by copying, at any
/// time. An aligned word of eight bytes is never seen half written, whoever writes it; anything longer may be
///
///
/// Dropping it closes it: its cookies are revoked and its tripwires disarmed.
#[derive(Debug)]
pub struct Aperture {
    core: Rc<Core>,
    id: ApertureId,
    memory: Option<Arc<ApertureMemory>>,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Span {
    /// A range of a memory of `len` bytes.
    pub(super) fn new(range: &impl RangeBounds<u64>, len: u64) -> Result<Span> {
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
        if start <= end && end <= len { Ok(Span { start, len: end - start }) } else { Err(Error::OutOfRange) }
    }
}

impl Aperture {
    pub(super) fn open(core: Rc<Core>, memory: ApertureMemory) -> Result<Aperture> {
        let memory = Arc::new(memory);
        let id = core.node.open_aperture(memory.clone())?.ok_or(Error::TooMany("apertures"))?;
        Ok(Aperture { core, id, memory: Some(memory) })
    }

    /// The number of this aperture in events.
    pub fn id(&self) -> ApertureId {
        self.id
    }

    /// The memory itself, for threads of this process that have no endpoint.
    pub fn memory(&self) -> &Arc<ApertureMemory> {
        self.memory.as_ref().expect("it is there until it is closed")
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.memory().len() as u64
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.memory().read(at as usize, out).map_err(|_| Error::OutOfRange)
    }

    /// Copies bytes in. No tripwire fires: they watch accesses of peers.
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

    /// Writes `new` to an aligned word if it is `expected`; returns its former value. Atomic, also with
    /// regard to peers.
    pub fn compare_exchange(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.memory().compare_exchange(at as usize, expected, new).map_err(|_| Error::OutOfRange)
    }

    /// Adds to an aligned word; returns its former value. Atomic, also with regard to peers.
    pub fn fetch_add(&self, at: u64, value: u64) -> Result<u64> {
        self.memory().fetch_add(at as usize, value).map_err(|_| Error::OutOfRange)
    }

    /// Makes a cookie for a range: its holders may do there what `rights` say.
    pub fn cookie(&self, range: impl RangeBounds<u64>, rights: Rights) -> Result<Cookie> {
        self.grant(&range, rights, None)
    }

    /// As [`Aperture::cookie`]; it expires after `lifetime`.
    pub fn cookie_for(
        &self,
        range: impl RangeBounds<u64>,
        rights: Rights,
        lifetime: Duration,
    ) -> Result<Cookie> {
        self.grant(&range, rights, Some(lifetime))
    }

    fn grant(
        &self,
        range: &impl RangeBounds<u64>,
        rights: Rights,
        lifetime: Option<Duration>,
    ) -> Result<Cookie> {
        let Span { start, len } = Span::new(range, self.len())?;
        let lifetime = lifetime.map(|lifetime| u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX));
        let cookie = self.core.node.grant_cookie(self.id, (start, len), rights, lifetime)?;
        cookie.ok_or(Error::TooMany("cookies"))
    }

    /// Revokes a cookie: once this has returned, no request with it accesses anything. False if it was not
    /// valid, or is not one of this aperture's.
    pub fn revoke(&self, cookie: &Cookie) -> Result<bool> {
        Ok(self.core.node.revoke_cookie(self.id, cookie)?)
    }

    /// Closes the aperture; returns memory that was adopted, unless an operation of this node still uses it,
    /// or somebody holds [`Aperture::memory`]. Requests that are being answered from it are refused.
    pub fn close(mut self) -> Result<Option<Vec<u8>>> {
        self.core.node.close_aperture(self.id)?;
        let memory = self.memory.take().and_then(Arc::into_inner);
        Ok(memory.and_then(ApertureMemory::into_vec))
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        if self.memory.is_some() {
            // After a fork there is nothing to close.
            let _ = self.core.node.close_aperture(self.id);
        }
    }
}
