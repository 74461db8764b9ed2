//! Cookies, the capabilities to apertures, as they travel in messages.

use crate::Rank;

/// What a cookie allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// Bytes may be read.
    pub const READ: Rights = Rights(1);
    /// Bytes may be written.
    pub const WRITE: Rights = Rights(2);
    /// Words may be changed, and their former values read.
    pub const ATOMIC: Rights = Rights(4);
    /// Everything.
    pub const ALL: Rights = Rights(7);

    /// Returns the union of both.
    pub const fn and(self, more: Rights) -> Rights {
        Rights(self.0 | more.0)
    }

    /// Returns whether all of `these` are included.
    pub const fn include(self, these: Rights) -> bool {
        self.0 & these.0 == these.0
    }
}

/// A capability to part of an aperture. It grants its rights until it is revoked, it expires, or its owner's
/// process ends. It can be sent in any message.
///
/// `Debug` does not show the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// The owner of the memory.
    pub(crate) owner: Rank,
    pub(crate) id: u32,
    pub(crate) epoch: u64,
    pub(crate) secret: [u8; 16],
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    /// The offset of its first byte in a word of the aperture: parts of puts end where words end.
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

    /// Returns what the owner checks.
    pub(crate) fn key(&self) -> CookieKey {
        CookieKey { id: self.id, epoch: self.epoch, secret: self.secret }
    }

    /// Returns the owner of the memory.
    pub fn owner(&self) -> Rank {
        self.owner
    }

    /// Returns how many bytes it gives access to.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns what it allows.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Encodes it for a message.
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

    /// Decodes it from a message. Any bytes make a cookie; only one that was granted gives access to
    /// anything.
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

    /// Returns how many of the `left` bytes from `at` on go in a part of at most `most` bytes. The part ends
    /// with a word or with the last byte.
    #[inline]
    pub(crate) fn part(&self, at: u64, most: usize, left: u64) -> usize {
        whole_words(at.wrapping_add(self.skew.into()), most, left)
    }
}

/// Returns how many of `left` bytes of an aperture, from `place` on, go in one part of at most `most` bytes:
/// all of them, or up to the end of a word.
#[inline]
pub(crate) fn whole_words(place: u64, most: usize, left: u64) -> usize {
    if most as u64 >= left {
        return left as usize;
    }
    let beyond = (place.wrapping_add(most as u64) % 8) as usize;
    if most > beyond { most - beyond } else { most }
}

/// What the owner checks of a cookie: its number, the owner's epoch, and the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CookieKey {
    pub(crate) id: u32,
    pub(crate) epoch: u64,
    pub(crate) secret: [u8; 16],
}

impl CookieKey {
    /// Returns whether it has this secret, in a time that does not depend on where they differ.
    pub(crate) fn has_secret(&self, secret: &[u8; 16]) -> bool {
        std::hint::black_box(u128::from_ne_bytes(self.secret) ^ u128::from_ne_bytes(*secret)) == 0
    }
}
