//! Protection of frames: the three security modes (L-22, L-23, L-34). `docs/decisions/0002-tag-and-cipher.md`
//! gives the reasons for the two crates.

use std::ops::Range;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use tautline_aegis::LANES;
use tautline_wire::frame::{HEADER_LEN, TAG_RANGE, flags};
use tautline_wire::{Header, handshake::Security};

use crate::erase::{erase, overwrite};
use crate::keys::LinkKeys;
use crate::tag::{TagKey, low64};

/// Bytes that follow a sealed payload.
pub(crate) const SEAL_LEN: usize = 16;
/// A sealing key is used for 2²² packets (L-23). The packet number selects the key, without a round trip.
const KEY_LIFETIME_BITS: u32 = 22;
/// Packets more generations ahead than this are dropped without deriving a key.
const MAX_GENERATIONS_AHEAD: u64 = 1;

/// The keys of a link, one per direction.
pub(crate) enum Seal {
    Open {
        tx: u64,
        rx: u64,
    },
    Fabric {
        tx: Box<TagKey>,
        rx: Box<TagKey>,
    },
    Sealed {
        tx: Box<Ratchet>,
        rx: Box<Ratchet>,
    },
    /// The link is idle: its keys are derived again when they are needed (N-32).
    Resting {
        sealed: bool,
        keys: Box<RestingKeys>,
    },
    /// Every frame is accepted, and none has a tag. For fuzzing.
    Unchecked,
    /// The link is dead, and its keys are erased.
    Erased {
        sealed: bool,
    },
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Seal::Open { .. } => "open",
            Seal::Fabric { .. } => "fabric(…)",
            Seal::Sealed { .. } => "sealed(…)",
            Seal::Resting { .. } => "resting(…)",
            Seal::Unchecked => "unchecked",
            Seal::Erased { .. } => "erased",
        })
    }
}

impl Seal {
    pub(crate) fn new(mode: Security, keys: &LinkKeys) -> Seal {
        match mode {
            // No secret: it is visible in every frame. It keeps out frames of earlier epochs, not attackers.
            Security::Open => Seal::Open { tx: low64(&keys.tx), rx: low64(&keys.rx) },
            Security::Fabric => {
                Seal::Fabric { tx: Box::new(TagKey::new(&keys.tx)), rx: Box::new(TagKey::new(&keys.rx)) }
            }
            Security::Sealed => {
                Seal::Sealed { tx: Box::new(Ratchet::new(keys.tx)), rx: Box::new(Ratchet::new(keys.rx)) }
            }
        }
    }

    #[inline]
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(
            self,
            Seal::Sealed { .. } | Seal::Resting { sealed: true, .. } | Seal::Erased { sealed: true }
        )
    }

    /// Returns whether the keys have to be derived before a frame is sent or received.
    #[inline]
    pub(crate) fn is_resting(&self) -> bool {
        matches!(self, Seal::Resting { .. })
    }

    /// Returns whether frames have tags, and the keys are there.
    #[inline]
    pub(crate) fn can_tag(&self) -> bool {
        matches!(self, Seal::Open { .. } | Seal::Fabric { .. } | Seal::Unchecked)
    }

    /// Keeps only what the keys are derived from.
    pub(crate) fn rest(&mut self) {
        let keys = match self {
            Seal::Fabric { tx, rx } => {
                RestingKeys { keys: LinkKeys { tx: *tx.secret(), rx: *rx.secret() }, newest: [0; 2] }
            }
            Seal::Sealed { tx, rx } => RestingKeys {
                keys: LinkKeys { tx: tx.secret, rx: rx.secret },
                newest: [tx.newest, rx.newest],
            },
            _ => return,
        };
        *self = Seal::Resting { sealed: self.is_sealed(), keys: Box::new(keys) };
    }

    /// Derives the keys, if that is necessary.
    #[cold]
    pub(crate) fn wake(&mut self) {
        let Seal::Resting { sealed, keys } = self else { return };
        let mode = if *sealed { Security::Sealed } else { Security::Fabric };
        let mut awake = Seal::new(mode, &keys.keys);
        if let Seal::Sealed { tx, rx } = &mut awake {
            [tx.newest, rx.newest] = keys.newest;
        }
        *self = awake;
    }

    /// Returns the tag of a frame whose tag field is zero.
    #[inline]
    pub(crate) fn tag(&mut self, packet: u64, frame: &[u8]) -> u64 {
        match self {
            // With the length, so that concatenated and truncated frames are detected in this mode, too.
            Seal::Open { tx, .. } => tx.wrapping_add(frame.len() as u64),
            Seal::Fabric { tx, .. } => tx.tag(packet, frame),
            Seal::Resting { .. } => self.while_awake(|seal| seal.tag(packet, frame)),
            Seal::Sealed { .. } | Seal::Erased { .. } | Seal::Unchecked => 0,
        }
    }

    /// Returns whether [`Seal::tags_to_send`] is worth a try.
    #[inline]
    pub(crate) fn tags_trains(&self) -> bool {
        matches!(self, Seal::Fabric { tx, .. } if tx.tags_trains())
    }

    /// Returns the tags of four frames to send, if they are computed together ([`TagKey::tags`]).
    #[inline]
    pub(crate) fn tags_to_send(&self, first: u64, frames: [&[u8]; LANES]) -> Option<[u64; LANES]> {
        if let Seal::Fabric { tx, .. } = self { tx.tags(first, frames) } else { None }
    }

    /// Returns the tags that four received frames must have, if they are computed together.
    #[inline]
    pub(crate) fn tags_to_receive(&self, first: u64, frames: [&[u8]; LANES]) -> Option<[u64; LANES]> {
        if let Seal::Fabric { rx, .. } = self { rx.tags(first, frames) } else { None }
    }

    /// Enciphers the payload, all of `rest` but its last [`SEAL_LEN`] bytes, and writes the seal to those.
    pub(crate) fn encipher(&mut self, packet: u64, head: &[u8], rest: &mut [u8]) {
        if self.is_resting() {
            return self.while_awake(|seal| seal.encipher(packet, head, rest));
        }
        let Seal::Sealed { tx, .. } = self else { unreachable!("only sealed links encipher") };
        let (payload, seal) = rest.split_at_mut(rest.len() - SEAL_LEN);
        let key = tx.key(packet).expect("our own packet numbers are consecutive");
        let tag = key
            .seal_in_place_separate_tag(nonce(packet), Aad::from(head), payload)
            .expect("a frame is far below the cipher's length limit");
        seal.copy_from_slice(tag.as_ref());
        tx.advance(packet);
    }

    /// Checks and deciphers a frame. Returns the range of its payload, or `None` if it is not authentic.
    #[inline]
    pub(crate) fn open(
        &mut self,
        header: &Header,
        bytes: &mut [u8],
        payload: Range<usize>,
    ) -> Option<Range<usize>> {
        let sealed = header.flags & flags::SEALED != 0;
        match self {
            Seal::Open { rx, .. } => {
                let good = header.tag == rx.wrapping_add(bytes.len() as u64) && !sealed;
                good.then_some(payload)
            }
            Seal::Fabric { rx, .. } => {
                bytes[TAG_RANGE].fill(0);
                let good = rx.tag(header.packet, bytes) == header.tag && !sealed;
                good.then_some(payload)
            }
            Seal::Sealed { rx, .. } => {
                if !sealed || header.tag != 0 || payload.len() < SEAL_LEN {
                    return None;
                }
                let (head, rest) = bytes.split_at_mut(payload.start);
                let (body, seal) = rest.split_at_mut(rest.len() - SEAL_LEN);
                let tag = Tag::try_from(&*seal).ok()?;
                rx.key(header.packet)?
                    .open_in_place_separate_tag(nonce(header.packet), Aad::from(&*head), tag, body, 0..)
                    .ok()?;
                rx.advance(header.packet);
                Some(payload.start..payload.end - SEAL_LEN)
            }
            Seal::Resting { .. } => self.open_resting(header, bytes, payload),
            Seal::Unchecked => Some(payload),
            Seal::Erased { .. } => None,
        }
    }

    /// Opens a frame of an idle link, which is idle afterwards. A forged frame wakes it: otherwise each one
    /// would have the keys derived.
    #[cold]
    fn open_resting(
        &mut self,
        header: &Header,
        bytes: &mut [u8],
        payload: Range<usize>,
    ) -> Option<Range<usize>> {
        self.wake();
        let opened = self.open(header, bytes, payload)?;
        self.rest();
        Some(opened)
    }

    /// Derives the keys for one frame.
    #[cold]
    fn while_awake<T>(&mut self, with: impl FnOnce(&mut Seal) -> T) -> T {
        self.wake();
        let done = with(self);
        self.rest();
        done
    }

    /// Forgets the keys, because the link is dead.
    pub(crate) fn erase(&mut self) {
        *self = Seal::Erased { sealed: self.is_sealed() };
    }
}

/// What the keys of an idle link are derived from.
pub(crate) struct RestingKeys {
    keys: LinkKeys,
    /// The newest sealing keys, by direction.
    newest: [u64; 2],
}

/// The sealing keys of one direction. The two newest are kept, because frames are reordered.
pub(crate) struct Ratchet {
    secret: [u8; 32],
    newest: u64,
    keys: [Option<(u64, LessSafeKey)>; 2],
}

impl Ratchet {
    fn new(secret: [u8; 32]) -> Ratchet {
        Ratchet { secret, newest: 0, keys: [None, None] }
    }

    fn key(&mut self, packet: u64) -> Option<&LessSafeKey> {
        let generation = packet >> KEY_LIFETIME_BITS;
        if generation > self.newest + MAX_GENERATIONS_AHEAD || generation + 1 < self.newest {
            return None;
        }
        let entry = &mut self.keys[(generation % 2) as usize];
        if entry.as_ref().is_none_or(|(g, _)| *g != generation) {
            *entry = Some((generation, derive(&self.secret, generation)));
        }
        entry.as_ref().map(|(_, key)| key)
    }

    /// Advances to the generation of a packet that was sealed or found authentic, and so is not forged.
    #[inline]
    fn advance(&mut self, packet: u64) {
        self.newest = self.newest.max(packet >> KEY_LIFETIME_BITS);
    }
}

impl Drop for Ratchet {
    fn drop(&mut self) {
        erase(&mut self.secret);
        // The crate does not erase its keys.
        for (_, key) in self.keys.iter_mut().flatten() {
            overwrite(key, cipher_key(&[0; 16]));
        }
    }
}

#[cold]
fn derive(secret: &[u8; 32], generation: u64) -> LessSafeKey {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"tautline v1 seal").update(&generation.to_le_bytes());
    let mut bytes = first16(hasher.finalize().as_bytes());
    let key = cipher_key(&bytes);
    erase(&mut bytes);
    key
}

fn cipher_key(bytes: &[u8; 16]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, bytes).expect("the key has sixteen bytes"))
}

/// The bytes of the first sealing key.
#[cfg(test)]
pub(crate) fn first_key(secret: &[u8; 32]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"tautline v1 seal").update(&0u64.to_le_bytes());
    first16(hasher.finalize().as_bytes())
}

fn nonce(packet: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&packet.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn first16(bytes: &[u8; 32]) -> [u8; 16] {
    let mut first = [0; 16];
    first.copy_from_slice(&bytes[..16]);
    first
}

const _: () = assert!(TAG_RANGE.end <= HEADER_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{JobKey, Role};
    use tautline_wire::{Frame, Kind, Seq};

    fn pair(mode: Security) -> (Seal, Seal) {
        let key = JobKey::new([3; 32]);
        let make = |role| Seal::new(mode, &key.derive(role, (0, 5), (1, 6)));
        (make(Role::Initiator), make(Role::Responder))
    }

    fn frame(seal: &mut Seal, packet: u64, payload: &[u8]) -> Vec<u8> {
        let sealed = seal.is_sealed();
        let header = Header {
            kind: Kind::Data,
            flags: if sealed { flags::SEALED } else { 0 },
            ext_len: 0,
            channel: 1,
            packet,
            slot: Seq(0),
            ack: Seq(0),
            credit: Seq(1),
            echo: 0,
            residence_ns: 0,
            duplicates: 0,
            tag: 0,
        };
        let mut bytes = vec![0; HEADER_LEN];
        header.write(&mut bytes);
        bytes.extend_from_slice(payload);
        if sealed {
            bytes.extend_from_slice(&[0; SEAL_LEN]);
            let (head, rest) = bytes.split_at_mut(HEADER_LEN);
            seal.encipher(packet, head, rest);
        } else {
            let tag = seal.tag(packet, &bytes);
            tautline_wire::frame::put_tag(&mut bytes, tag);
        }
        bytes
    }

    fn open(seal: &mut Seal, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = bytes.to_vec();
        let parsed = Frame::parse(&bytes).ok()?;
        let (header, payload) = (parsed.header, parsed.payload_at()..bytes.len());
        let payload = seal.open(&header, &mut bytes, payload)?;
        Some(bytes[payload].to_vec())
    }

    /// L-22, L-23: in both keyed modes every bit of a frame is protected, and keys are bound to a direction.
    #[test]
    fn every_bit_is_protected() {
        for mode in [Security::Fabric, Security::Sealed] {
            let (mut a, mut b) = pair(mode);
            let bytes = frame(&mut a, 9, b"the payload of a frame");
            assert_eq!(open(&mut b, &bytes).as_deref(), Some(&b"the payload of a frame"[..]), "{mode:?}");
            assert_eq!(open(&mut a, &bytes), None, "{mode:?}: reflected");
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&mut b, &damaged), None, "{mode:?}: bit {bit}");
            }
            for len in HEADER_LEN..bytes.len() {
                assert_eq!(open(&mut b, &bytes[..len]), None, "{mode:?}: cut to {len}");
            }
        }
    }

    /// L-23: the payload is unreadable on the wire, and reordered packets of different keys can be opened.
    #[test]
    fn sealed_frames_are_unreadable_and_rekeyed() {
        let (mut a, mut b) = pair(Security::Sealed);
        let text = b"the payload of a frame";
        let lifetime = 1 << KEY_LIFETIME_BITS;
        for packet in [1, lifetime - 1, lifetime, lifetime - 2, lifetime + 1, 2 * lifetime, lifetime + 2] {
            let bytes = frame(&mut a, packet, text);
            assert!(!bytes.windows(8).any(|w| w == &text[..8]));
            assert_eq!(open(&mut b, &bytes).as_deref(), Some(&text[..]), "{packet}");
        }
        // Generations too far ahead or behind are dropped without deriving a key.
        let Seal::Sealed { rx, .. } = &mut b else { panic!() };
        assert!(rx.key(9 * lifetime).is_none());
        assert!(rx.key(0).is_none());
    }

    /// L-23: forged packet numbers do not advance the keys; authentic frames are still accepted.
    #[test]
    fn forged_packet_numbers_do_not_advance_keys() {
        let (mut a, mut b) = pair(Security::Sealed);
        let bytes = frame(&mut a, 9, b"x");
        for generation in 1..5u64 {
            let mut forged = bytes.clone();
            forged[8..16].copy_from_slice(&(generation << KEY_LIFETIME_BITS).to_le_bytes());
            assert_eq!(open(&mut b, &forged), None);
        }
        assert!(open(&mut b, &bytes).is_some());
    }

    /// N-32: an idle link keeps its secrets only, and sends and accepts the same frames. A forged frame has
    /// the keys derived once.
    #[test]
    fn idle_links_derive_their_keys_again() {
        for mode in [Security::Fabric, Security::Sealed] {
            let (mut a, mut b) = pair(mode);
            let newest = 3 << KEY_LIFETIME_BITS;
            for packet in [1, 1 << KEY_LIFETIME_BITS, 2 << KEY_LIFETIME_BITS, newest] {
                let bytes = frame(&mut a, packet, b"some");
                assert!(open(&mut b, &bytes).is_some(), "{mode:?}");
            }
            let awake = frame(&mut a, newest + 1, b"payload");
            a.rest();
            b.rest();
            assert!(a.is_resting() && a.is_sealed() == (mode == Security::Sealed) && !a.can_tag());
            let resting = frame(&mut a, newest + 1, b"payload");
            assert_eq!(awake, resting, "{mode:?}");
            assert_eq!(open(&mut b, &resting).as_deref(), Some(&b"payload"[..]), "{mode:?}");
            assert!(a.is_resting() && b.is_resting());
            let mut forged = resting.clone();
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(open(&mut b, &forged), None);
            assert!(!b.is_resting());
            assert!(open(&mut b, &resting).is_some());
        }
        let (mut open, _) = pair(Security::Open);
        open.rest();
        assert!(!open.is_resting() && open.can_tag());
    }

    /// L-34: open mode drops frames of another epoch, truncated frames and concatenated ones.
    #[test]
    fn open_mode_drops_frames_of_other_epochs() {
        let (mut a, mut b) = pair(Security::Open);
        let bytes = frame(&mut a, 9, b"x");
        assert!(open(&mut b, &bytes).is_some());
        assert!(open(&mut b, &bytes[..bytes.len() - 1]).is_none());
        assert!(open(&mut b, &[bytes.clone(), bytes.clone()].concat()).is_none());
        let key = JobKey::new([3; 32]);
        let mut other = Seal::new(Security::Open, &key.derive(Role::Responder, (0, 7), (1, 6)));
        assert!(open(&mut other, &bytes).is_none());
    }
}
