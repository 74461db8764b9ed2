//! The apertures of this node, and the cookies that it has granted.

use std::collections::HashMap;
use std::sync::Arc;

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::Refusal;

use super::cookie::{Cookie, CookieKey, Rights};
use super::ids::ApertureId;
use super::index::Index;
use super::slab::{Name, Slab};
use crate::Rank;
use crate::limits::{MAX_APERTURES, MAX_COOKIES, MAX_HANDLES};

/// An aperture.
#[derive(Debug)]
pub(crate) struct Aperture {
    pub(super) memory: Arc<ApertureMemory>,
    /// The tripwires in it, if there are any.
    pub(super) index: Option<Box<Index>>,
    /// The accesses that any of them has ever watched for.
    pub(super) watched: u8,
    cookies: Vec<Name>,
}

/// A cookie, as its owner keeps it.
///
/// Its secret is kept elsewhere: that is read once per channel, this with every request.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(super) aperture: ApertureId,
    pub(super) memory: Arc<ApertureMemory>,
    start: u64,
    len: u64,
    rights: Rights,
    pub(super) expires: Nanos,
    /// Its index among its aperture's cookies.
    place: u32,
}

/// The cost of a request must not grow with the number of endpoints, so a cookie is one cache line.
const _: () = assert!(Slab::<Granted>::ENTRY_SIZE == 64);

/// What a peer's number for a cookie stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handle {
    Cookie(Name),
    Refused(Refusal),
}

/// The apertures and cookies of this node, and the time by which cookies expire.
#[derive(Debug)]
pub(crate) struct Apertures {
    /// The epoch of this process; cookies of another one are stale.
    epoch: u64,
    apertures: Slab<Aperture>,
    cookies: Slab<Granted>,
    /// The secrets of the cookies, by number.
    secrets: Vec<[u8; 16]>,
    /// The secret of the last cookie of each number that was revoked.
    revoked: HashMap<u32, [u8; 16]>,
    /// Changes whenever the place of a put, its permission or its tripwires may have changed.
    version: u64,
    /// The time of the last poll that read the clock.
    now: Nanos,
    /// When the last cookie with an expiry time expires.
    last_expiry: Nanos,
}

impl Apertures {
    pub(super) fn new(epoch: u64) -> Apertures {
        Apertures {
            epoch,
            apertures: Slab::new(MAX_APERTURES),
            cookies: Slab::new(MAX_COOKIES),
            secrets: Vec::new(),
            revoked: HashMap::new(),
            version: 0,
            now: 0,
            last_expiry: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.apertures.len()
    }

    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Ends the validity of everything that was remembered of the place, permission and tripwires of a put.
    #[inline]
    pub(super) fn note_change(&mut self) {
        self.version += 1;
    }

    #[inline]
    pub(super) fn now(&self) -> Nanos {
        self.now
    }

    pub(super) fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Returns whether a cookie may still expire, so that the time matters.
    #[inline]
    pub(super) fn wants_time(&self) -> bool {
        self.now < self.last_expiry
    }

    #[inline]
    pub(super) fn get(&self, id: ApertureId) -> Option<&Aperture> {
        self.apertures.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: ApertureId) -> Option<&mut Aperture> {
        self.apertures.get_mut(id.0)
    }

    /// Returns the last tripwire of an aperture, if it has any.
    pub(super) fn last_wire(&self, id: ApertureId) -> Option<Name> {
        self.get(id)?.index.as_ref()?.wires.last().copied()
    }

    pub(super) fn open(&mut self, memory: Arc<ApertureMemory>) -> Option<ApertureId> {
        let aperture = Aperture { memory, index: None, watched: 0, cookies: Vec::new() };
        self.apertures.insert(aperture).map(ApertureId)
    }

    /// Removes an aperture and revokes its cookies.
    pub(super) fn close(&mut self, id: ApertureId) {
        if let Some(aperture) = self.apertures.remove(id.0) {
            for cookie in aperture.cookies {
                self.remove_cookie(cookie);
            }
        }
    }

    /// Grants a cookie for `len` bytes from `start` on. None if they are not in the aperture, or there are
    /// too many cookies.
    pub(super) fn grant(
        &mut self,
        owner: Rank,
        aperture: ApertureId,
        (start, len): (u64, u64),
        (rights, expires): (Rights, Nanos),
        secret: [u8; 16],
    ) -> Option<Cookie> {
        let it = self.apertures.get_mut(aperture.0)?;
        let memory = it.memory.clone();
        start.checked_add(len).filter(|end| *end <= memory.len() as u64)?;
        let place = it.cookies.len() as u32;
        let name = self.cookies.insert(Granted { aperture, memory, start, len, rights, expires, place })?;
        self.secrets.resize(self.secrets.len().max(name.index as usize + 1), [0; 16]);
        self.secrets[name.index as usize] = secret;
        it.cookies.push(name);
        if expires != Nanos::MAX {
            self.last_expiry = self.last_expiry.max(expires);
        }
        let skew = (start % 8) as u8;
        Some(Cookie { owner, id: name.index, epoch: self.epoch, secret, len, rights, skew })
    }

    /// Revokes a cookie of `owner`, which is this node: the next request with it is refused. False if
    /// it was not granted for this aperture, or is no longer valid.
    pub(super) fn revoke(&mut self, owner: Rank, aperture: ApertureId, cookie: &Cookie) -> bool {
        let Some((name, granted)) = self.cookies.at(cookie.id) else { return false };
        let ours = cookie.owner == owner && cookie.epoch == self.epoch;
        if !ours
            || granted.aperture != aperture
            || !cookie.key().has_secret(&self.secrets[name.index as usize])
        {
            return false;
        }
        let place = granted.place;
        if let Some(aperture) = self.apertures.get_mut(aperture.0) {
            aperture.cookies.swap_remove(place as usize);
            // The last one has moved to its index.
            if let Some(moved) = aperture.cookies.get(place as usize).copied()
                && let Some(moved) = self.cookies.get_mut(moved)
            {
                moved.place = place;
            }
        }
        self.remove_cookie(name)
    }

    /// Removes a cookie. Its secret is kept until the next one with its number is removed, so that its holder
    /// learns why it is refused.
    fn remove_cookie(&mut self, name: Name) -> bool {
        self.note_change();
        if self.cookies.remove(name).is_none() {
            return false;
        }
        self.revoked.insert(name.index, self.secrets[name.index as usize]);
        true
    }

    /// Returns a cookie that is still valid, whatever the time.
    pub(super) fn cookie(&self, name: Name) -> Option<&Granted> {
        self.cookies.get(name)
    }

    /// Lets `handle`, a number of a peer that has `handles`, stand for a cookie from now on. False if no
    /// correct peer would choose that number.
    pub(super) fn admit(&mut self, handles: &mut Vec<Handle>, handle: u32, key: CookieKey) -> bool {
        self.note_change();
        if handle as usize > handles.len() || handle as usize >= MAX_HANDLES {
            return false;
        }
        // All are compared, whatever the first comparison says.
        let known = self.cookies.at(key.id);
        let right = known.map(|(name, _)| (name, key.has_secret(&self.secrets[key.id as usize])));
        let revoked = self.revoked.get(&key.id).is_some_and(|secret| key.has_secret(secret));
        let admitted = match right {
            _ if key.epoch != self.epoch => Handle::Refused(Refusal::Stale),
            Some((name, true)) => Handle::Cookie(name),
            _ if revoked => Handle::Refused(Refusal::Revoked),
            _ => Handle::Refused(Refusal::Forged),
        };
        if handle as usize == handles.len() {
            handles.push(admitted);
        } else {
            handles[handle as usize] = admitted;
        }
        true
    }

    /// Returns the cookie and the place in its aperture of `len` bytes at `at` of a handle, if the peer that
    /// has `handles` may access them now.
    #[inline]
    pub(super) fn access(
        &self,
        handles: &[Handle],
        (handle, at): (u32, u64),
        len: u64,
        rights: Rights,
    ) -> Result<(&Granted, u64), Refusal> {
        let name = match handles.get(handle as usize) {
            Some(Handle::Cookie(name)) => *name,
            Some(Handle::Refused(why)) => return Err(*why),
            None => return Err(Refusal::Forged),
        };
        let granted = self.cookies.get(name).ok_or(Refusal::Revoked)?;
        if !granted.rights.include(rights) {
            return Err(Refusal::Rights);
        }
        if granted.expires <= self.now {
            return Err(Refusal::Expired);
        }
        if at > granted.len || len > granted.len - at {
            return Err(Refusal::OutOfRange);
        }
        Ok((granted, granted.start + at))
    }
}
