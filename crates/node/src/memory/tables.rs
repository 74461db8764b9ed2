//! Apertures, and the cookies that open them.

use std::sync::Arc;

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::Refusal;

use super::index::Index;
use super::slab::Name;
use super::{Memory, PeerMemory};
use crate::Rank;
use crate::lane::Lane;
use crate::limits::MAX_HANDLES;

/// An aperture of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApertureId(pub(crate) Name);

/// What a cookie allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// Bytes may be read.
    pub const READ: Rights = Rights(1);
    /// Bytes may be written.
    pub const WRITE: Rights = Rights(2);
    /// Words may be changed, and their former values seen.
    pub const ATOMIC: Rights = Rights(4);
    /// Everything.
    pub const ALL: Rights = Rights(7);

    /// These and those.
    pub const fn and(self, more: Rights) -> Rights {
        Rights(self.0 | more.0)
    }

    /// Whether all of `these` are among them.
    pub const fn include(self, these: Rights) -> bool {
        self.0 & these.0 == these.0
    }
}

/// A capability to part of an aperture: whoever has it may do there what it allows, until it is revoked, its time is over, or its
/// owner's life ends. It can be sent in any message.
///
/// `Debug` does not show the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// Whose memory it opens.
    pub(crate) owner: Rank,
    pub(crate) id: u32,
    pub(crate) epoch: u64,
    pub(crate) secret: [u8; 16],
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    /// Where in a word of the aperture its first byte lies: parts of puts end where words do.
    pub(crate) skew: u8,
}

impl std::fmt::Debug for Cookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut it = f.debug_struct("Cookie");
        it.field("owner", &self.owner)
            .field("len", &self.len)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

impl Cookie {
    /// Bytes of a cookie in a message.
    pub const LEN: usize = 48;

    /// What the owner is shown of it.
    pub(crate) fn key(&self) -> CookieKey {
        (self.id, self.epoch, self.secret)
    }

    /// Whose memory it opens.
    pub fn owner(&self) -> Rank {
        self.owner
    }

    /// How many bytes it opens.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What it allows.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// For a message.
    pub fn to_bytes(&self) -> [u8; Cookie::LEN] {
        let mut out = [0; Cookie::LEN];
        out[..4].copy_from_slice(&self.owner.to_le_bytes());
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..32].copy_from_slice(&self.secret);
        out[32..40].copy_from_slice(&self.len.to_le_bytes());
        out[40] = self.rights.0;
        out[41] = self.skew;
        out
    }

    /// Out of a message. Any bytes make a cookie; only one that was given opens anything.
    pub fn from_bytes(bytes: &[u8; Cookie::LEN]) -> Cookie {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Cookie {
            owner: word(0) as u32,
            id: (word(0) >> 32) as u32,
            epoch: word(8),
            secret: bytes[16..32].try_into().expect("sixteen bytes"),
            len: word(32),
            rights: Rights(bytes[40]),
            skew: bytes[41] & 7,
        }
    }

    /// How many of `left` bytes, `at` of them, to send in a part of up to `most`: so many that it ends with a word, or with the last byte.
    #[inline]
    pub(crate) fn part(&self, at: u64, most: usize, left: u64) -> usize {
        whole_words(at.wrapping_add(self.skew.into()), most, left)
    }
}

/// How many of `left` bytes of an aperture, from `place` on, to move in one go of up to `most`: all, or up to the end of a word.
#[inline]
pub(crate) fn whole_words(place: u64, most: usize, left: u64) -> usize {
    if most as u64 >= left {
        return left as usize;
    }
    let beyond = (place.wrapping_add(most as u64) % 8) as usize;
    if most > beyond { most - beyond } else { most }
}

/// What the owner of a cookie is shown: its number, its owner's life, its secret.
pub(crate) type CookieKey = (u32, u64, [u8; 16]);

/// An aperture, as its node knows it.
#[derive(Debug)]
pub(crate) struct Aperture {
    pub(crate) memory: Arc<ApertureMemory>,
    /// The tripwires in it, if there are any, and what they watch for.
    pub(crate) index: Option<Box<Index>>,
    pub(crate) watched: u8,
    pub(crate) cookies: Vec<Name>,
}

/// A cookie, as its owner knows it.
///
/// Its secret is kept elsewhere: it is looked at once per channel, this with every request.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) aperture: ApertureId,
    pub(crate) memory: Arc<ApertureMemory>,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    pub(crate) expires: Nanos,
    /// Where among its aperture's cookies it is.
    place: u32,
}

/// What a peer's number for a cookie stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handle {
    Cookie(Name),
    Refused(Refusal),
}

/// Compares without telling by its time where a difference is.
fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    std::hint::black_box(u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)) == 0
}

impl Memory {
    /// As [`Lane::access`], of a peer that has these numbers.
    #[inline]
    pub(crate) fn access(
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

/// A word with a tripwire of its own, which a peer may put to for as long as nothing changes.
#[derive(Debug)]
pub(crate) struct Flag {
    /// When that was found.
    pub(crate) version: u64,
    pub(crate) expires: Nanos,
    pub(crate) memory: Arc<ApertureMemory>,
    pub(crate) place: usize,
    pub(crate) wire: u32,
}

impl Memory {
    /// What there is to know of a word that is put again and again. Nothing if that is not allowed, or there is more to be done than to write it and to fire a tripwire that is looked at.
    #[inline(never)]
    pub(crate) fn flag(&self, handles: &[Handle], place: (u32, u64)) -> Option<Flag> {
        let (granted, at) =
            self.access(handles, place, 8, Rights::WRITE).ok().filter(|(_, at)| at.is_multiple_of(8))?;
        let (memory, expires) = (granted.memory.clone(), granted.expires);
        let wire = self.flag_wire(granted.aperture, (at, at + 8))?;
        Some(Flag { version: self.version, expires, memory, place: at as usize, wire })
    }
}

impl Lane {
    /// Makes memory an aperture.
    pub(crate) fn open_aperture(&mut self, memory: Arc<ApertureMemory>) -> Option<ApertureId> {
        let aperture = Aperture { memory, index: None, watched: 0, cookies: Vec::new() };
        self.memory.apertures.insert(aperture).map(ApertureId)
    }

    /// Closes an aperture: its cookies are revoked, its tripwires disarmed. From now on nobody reaches it.
    pub(crate) fn close_aperture(&mut self, id: ApertureId) {
        self.memory.version += 1;
        // Whoever closes it may want its memory back.
        for rank in self.peers.ranks() {
            self.peers.member_mut(rank).memory.flag = None;
            self.memory.counters.refused += self.peers.member_mut(rank).memory.refuse_answers(id);
        }
        while let Some(wire) = self.memory.last_wire(id) {
            self.disarm(wire);
        }
        if let Some(aperture) = self.memory.apertures.remove(id.0) {
            for cookie in aperture.cookies {
                self.take_back(cookie);
            }
        }
    }

    /// Gives a cookie for part of an aperture.
    pub(crate) fn grant_cookie(
        &mut self,
        aperture: ApertureId,
        (start, len): (u64, u64),
        rights: Rights,
        expires: Nanos,
    ) -> Option<Cookie> {
        let secret = self.secrets.bytes();
        let it = self.memory.apertures.get_mut(aperture.0)?;
        let memory = it.memory.clone();
        start.checked_add(len).filter(|end| *end <= memory.len() as u64)?;
        let place = it.cookies.len() as u32;
        let granted = Granted { aperture, memory, start, len, rights, expires, place };
        let name = self.memory.cookies.insert(granted)?;
        let secrets = &mut self.memory.secrets;
        secrets.resize(secrets.len().max(name.index as usize + 1), [0; 16]);
        secrets[name.index as usize] = secret;
        it.cookies.push(name);
        if expires != Nanos::MAX {
            self.memory.last_expiry = self.memory.last_expiry.max(expires);
        }
        Some(Cookie {
            owner: self.rank,
            id: name.index,
            epoch: self.memory.epoch,
            secret,
            len,
            rights,
            skew: (start % 8) as u8,
        })
    }

    /// Takes a cookie back, at once: the next request that shows it is refused. False if it was not given for
    /// this aperture, or is gone already.
    pub(crate) fn revoke_cookie(&mut self, aperture: ApertureId, cookie: &Cookie) -> bool {
        let Some((name, granted)) = self.memory.cookies.at(cookie.id) else { return false };
        let ours = cookie.owner == self.rank && cookie.epoch == self.memory.epoch;
        if !ours
            || granted.aperture != aperture
            || !same(&self.memory.secrets[name.index as usize], &cookie.secret)
        {
            return false;
        }
        let place = granted.place;
        if let Some(aperture) = self.memory.apertures.get_mut(aperture.0) {
            aperture.cookies.swap_remove(place as usize);
            // The last one has taken its place.
            if let Some(moved) = aperture.cookies.get(place as usize).copied()
                && let Some(moved) = self.memory.cookies.get_mut(moved)
            {
                moved.place = place;
            }
        }
        self.take_back(name)
    }

    /// A cookie opens nothing any more. Its secret is kept until the next one of its number goes, so that whoever shows it learns why.
    fn take_back(&mut self, name: Name) -> bool {
        self.memory.version += 1;
        if self.memory.cookies.remove(name).is_none() {
            return false;
        }
        self.memory.gone.insert(name.index, self.memory.secrets[name.index as usize]);
        true
    }

    /// A peer shows a cookie, and will refer to it by a number. False if no correct peer would.
    pub(crate) fn admit(
        &mut self,
        rank: Rank,
        handle: u32,
        (id, epoch, secret): (u32, u64, [u8; 16]),
    ) -> bool {
        self.memory.version += 1;
        let handles = &mut self.peers.member_mut(rank).memory.handles;
        if handle as usize > handles.len() || handle as usize >= MAX_HANDLES {
            return false;
        }
        // All are looked at, whatever the first says.
        let known = self.memory.cookies.at(id);
        let right = known.map(|(name, _)| (name, same(&self.memory.secrets[id as usize], &secret)));
        let gone = self.memory.gone.get(&id).is_some_and(|gone| same(gone, &secret));
        let admitted = match right {
            _ if epoch != self.memory.epoch => Handle::Refused(Refusal::Stale),
            Some((name, true)) => Handle::Cookie(name),
            _ if gone => Handle::Refused(Refusal::Revoked),
            _ => Handle::Refused(Refusal::Forged),
        };
        if handle as usize == handles.len() {
            handles.push(admitted);
        } else {
            handles[handle as usize] = admitted;
        }
        true
    }

    /// What a peer's number for a cookie gives access to now: `len` bytes at `at`, if all of that is allowed.
    #[inline]
    pub(crate) fn access(
        &self,
        rank: Rank,
        place: (u32, u64),
        len: u64,
        rights: Rights,
    ) -> Result<(&Granted, u64), Refusal> {
        self.memory.access(&self.peers.member(rank).memory.handles, place, len, rights)
    }

    /// The number by which a peer knows a cookie, if it was told; `hint` is what was learnt of it last time.
    #[inline]
    pub(crate) fn handle_of(&self, cookie: &Cookie, hint: Hint) -> Option<u32> {
        let peer = self.peers.member(cookie.owner);
        if let Some(handle) = peer.memory.hinted(peer.incarnation, cookie, hint) {
            return Some(handle);
        }
        peer.memory.by_key.get(&cookie.key()).copied()
    }

    /// What to remember of the number by which a peer knows a cookie.
    pub(crate) fn hint_of(&self, cookie: &Cookie, handle: u32) -> Hint {
        let peer = self.peers.member(cookie.owner);
        let newest = peer.memory.next_handle.wrapping_sub(1);
        // The last of the numbers given so far that falls on this place.
        let back = newest.wrapping_sub(handle) % MAX_HANDLES as u32;
        Hint { incarnation: peer.incarnation, turn: newest.wrapping_sub(back) }
    }

    /// Chooses the number by which the peer shall know a cookie; the oldest gives way.
    pub(crate) fn new_handle(&mut self, cookie: &Cookie) -> u32 {
        let memory = &mut self.peers.member_mut(cookie.owner).memory;
        let handle = memory.next_handle as usize % MAX_HANDLES;
        memory.next_handle = memory.next_handle.wrapping_add(1);
        if handle < memory.opened.len() {
            let old = std::mem::replace(&mut memory.opened[handle], cookie.key());
            memory.by_key.remove(&old);
        } else {
            memory.opened.push(cookie.key());
        }
        memory.by_key.insert(cookie.key(), handle as u32);
        handle as u32
    }
}

/// Which of the numbers that were ever given on a channel stands for a cookie: good for as long as the channel lasts, and the number has not been given anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Zero is no channel's.
    incarnation: u32,
    turn: u32,
}

impl PeerMemory {
    /// The number that a hint stands for, if it is still good. It was learnt for this cookie.
    #[inline]
    pub(crate) fn hinted(&self, incarnation: u32, cookie: &Cookie, hint: Hint) -> Option<u32> {
        let age = self.next_handle.wrapping_sub(hint.turn).wrapping_sub(1);
        let good = hint.incarnation == incarnation && age < MAX_HANDLES as u32;
        let handle = hint.turn % MAX_HANDLES as u32;
        debug_assert!(!good || self.opened[handle as usize] == cookie.key(), "a hint of another cookie");
        good.then_some(handle)
    }
}
