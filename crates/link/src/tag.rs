//! The keyed 64-bit tag of a frame (L-22, L-32, L-33). `docs/decisions/0002-tag-and-cipher.md` gives the
//! reasons for two algorithms.
//!
//! The tag of a short frame is a polynomial hash (POLYVAL) under one secret, masked with one AES block of
//! packet number and length under another: Carter and Wegman's construction. It has almost no setup cost, so
//! it is faster for short frames; AEGIS has a higher setup cost and several times the throughput. The mask
//! depends on packet number and length, so frames that differ in either have unrelated tags. For frames of
//! one length the hash is universal: it covers the frame in whole groups of four blocks, and the last group
//! overlaps the one before as far as necessary. Some bytes are hashed twice, and none is left out.

use aegis::aegis128l::Aegis128L;
use aegis::aegis128x4::Aegis128X4;
use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use polyval::universal_hash::UniversalHash;
use polyval::{Block, Polyval};

use tautline_aegis::{HEAD, LANES};
use tautline_wire::frame::{HEADER_LEN, TAG_RANGE};

use crate::erase::{erase, overwrite};

/// Frames up to this length are hashed with POLYVAL.
const SHORT_FRAME: usize = 256;
/// Frames beyond this length are long enough for AEGIS's widest variant, whose setup is four times as long on
/// a processor without vector AES. Shorter ones come in trains, whose tags are computed together.
const LONG_FRAME: usize = 4_096;
const BLOCK: usize = 16;
/// Bytes that the hash processes in one step.
const GROUP: usize = 4 * BLOCK;
const _: () = assert!(HEADER_LEN == GROUP - BLOCK, "the shortest frame is one block shorter than a group");

/// The secrets of one direction.
pub(crate) struct TagKey {
    /// What the others are derived from.
    secret: [u8; 32],
    hash: Polyval,
    pad: Aes128Enc,
    /// For AEGIS. The variants' initial states differ, and a packet number is used with one of them only.
    long: [u8; 16],
    /// This processor computes tags of several frames together.
    together: bool,
}

impl TagKey {
    /// Derives three independent secrets from one.
    pub(crate) fn new(secret: &[u8; 32]) -> TagKey {
        let mut parts = secrets(secret);
        let [hash, pad, long] = parts;
        let key = TagKey {
            secret: *secret,
            hash: Polyval::new(&hash.into()),
            pad: Aes128Enc::new(&pad.into()),
            long,
            together: tautline_aegis::is_available(),
        };
        parts.iter_mut().for_each(|part| erase(part));
        key
    }

    /// Returns whether [`TagKey::tags`] is worth a try.
    #[inline]
    pub(crate) fn tags_trains(&self) -> bool {
        self.together
    }

    /// Returns what the key was made of.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Returns the tag of a frame whose tag field is zero. A packet number must be used only once.
    #[inline]
    pub(crate) fn tag(&self, packet: u64, frame: &[u8]) -> u64 {
        if (HEADER_LEN..=SHORT_FRAME).contains(&frame.len()) {
            self.short(packet, frame)
        } else {
            self.long(packet, frame)
        }
    }

    /// Returns the tags of frames with consecutive packet numbers, the first one `first`, whatever their tag
    /// fields hold. `None` if they are not computed together here: the processor cannot, or the frames are
    /// not equally long or not of a suitable length.
    #[inline]
    pub(crate) fn tags(&self, first: u64, frames: [&[u8]; LANES]) -> Option<[u64; LANES]> {
        if !(SHORT_FRAME + 1..=LONG_FRAME).contains(&frames[0].len()) {
            return None;
        }
        let mut heads = [[0; HEAD]; LANES];
        for (head, frame) in heads.iter_mut().zip(frames) {
            *head = *frame.first_chunk()?;
            head[TAG_RANGE].fill(0);
        }
        let [a, b, c, d] = &heads;
        let [first_frame, second, third, fourth] = frames;
        tautline_aegis::tags(&self.long, first, &[(a, first_frame), (b, second), (c, third), (d, fourth)])
    }

    #[inline]
    fn short(&self, packet: u64, frame: &[u8]) -> u64 {
        let mut pad = [0; 16];
        pad[..8].copy_from_slice(&packet.to_le_bytes());
        pad[8..].copy_from_slice(&(frame.len() as u64).to_le_bytes());
        let mut pad = pad.into();
        self.pad.encrypt_block(&mut pad);
        let mut hash = self.hash.clone();
        if frame.len() < GROUP {
            let mut group = [Block::default(); 4];
            group[..3].copy_from_slice(blocks(&frame[..HEADER_LEN]));
            group[3].copy_from_slice(&frame[frame.len() - BLOCK..]);
            hash.update(&group);
        } else {
            hash.update(blocks(&frame[..frame.len() / GROUP * GROUP]));
            if !frame.len().is_multiple_of(GROUP) {
                hash.update(blocks(&frame[frame.len() - GROUP..]));
            }
        }
        low64(&hash.finalize()) ^ low64(&pad)
    }

    #[inline]
    fn long(&self, packet: u64, frame: &[u8]) -> u64 {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&packet.to_le_bytes());
        low64(&if frame.len() <= LONG_FRAME {
            Aegis128L::<16>::new(&self.long, &nonce).encrypt_in_place(&mut [], frame)
        } else {
            Aegis128X4::<16>::new(&self.long, &nonce).encrypt_in_place(&mut [], frame)
        })
    }
}

impl Drop for TagKey {
    fn drop(&mut self) {
        overwrite(&mut self.hash, Polyval::new(&[0; 16].into()));
        overwrite(&mut self.pad, Aes128Enc::new(&[0; 16].into()));
        erase(&mut self.long);
        erase(&mut self.secret);
    }
}

/// The three secrets that are derived from that of a direction.
pub(crate) fn secrets(secret: &[u8; 32]) -> [[u8; 16]; 3] {
    let mut parts = [[0; 16]; 3];
    let mut stream = blake3::Hasher::new_keyed(secret).update(b"tautline v1 tag").finalize_xof();
    parts.iter_mut().for_each(|part| stream.fill(part));
    parts
}

/// Views bytes as blocks. Their length must be a multiple of the block length.
#[inline]
fn blocks(bytes: &[u8]) -> &[Block] {
    Block::slice_as_chunks(bytes).0
}

/// Returns the first eight bytes as a little-endian number.
#[inline]
pub(crate) fn low64(bytes: &[u8]) -> u64 {
    let mut low = [0; 8];
    low.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-22, L-32: the tag depends on every byte of a frame, at every length around the boundaries of groups.
    #[test]
    fn tag_depends_on_every_byte() {
        let key = TagKey::new(&[3; 32]);
        for len in (48..=66).chain(112..=130).chain(254..=258).chain([4_096, 4_097]) {
            let mut frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let tag = key.tag(5, &frame);
            for at in 0..len {
                frame[at] ^= 0x10;
                assert_ne!(key.tag(5, &frame), tag, "{len} bytes, byte {at}");
                frame[at] ^= 0x10;
            }
        }
    }

    /// L-32, L-33: frames of zeros have different tags if length, packet number or key differ, also where the
    /// algorithm changes.
    #[test]
    fn tag_depends_on_length_packet_number_and_key() {
        let (key, other) = (TagKey::new(&[1; 32]), TagKey::new(&[2; 32]));
        let mut seen = std::collections::HashSet::new();
        for len in (48..=65).chain(SHORT_FRAME - 1..=SHORT_FRAME + 2).chain(LONG_FRAME..=LONG_FRAME + 1) {
            let frame = vec![0; len];
            for packet in [0, 1, 2, 1 << 40] {
                assert!(seen.insert(key.tag(packet, &frame)), "{len} bytes, packet {packet}");
            }
            assert!(seen.insert(other.tag(1, &frame)), "{len} bytes, other key");
            assert_eq!(key.tag(1, &frame), TagKey::new(&[1; 32]).tag(1, &frame));
        }
    }

    /// L-32, L-33: tags do not change between versions of this code; these were computed when the rule was
    /// written.
    #[test]
    fn tags_are_stable() {
        let frame: Vec<u8> = (0..=255).cycle().take(8_972).collect();
        let key = TagKey::new(&[7; 32]);
        let tags = [60, 256, 257, 1_472, 4_096, 8_972].map(|len| key.tag(len as u64, &frame[..len]));
        assert_eq!(
            tags,
            [
                15797705570800126510,
                17627264587019665279,
                9419040444592631752,
                18328473232319874509,
                11682383360092113506,
                2298103521378149493
            ]
        );
    }

    /// L-33: the tags of four frames that are computed together are those of the frames by themselves,
    /// whatever their tag fields hold.
    #[test]
    fn tags_of_four_frames_are_those_of_each() {
        let key = TagKey::new(&[5; 32]);
        for len in [257, 258, 288, 319, 1_472, 4_096] {
            let mut frames = [1, 2, 3, 4].map(|seed| (0..len).map(|i| (i * seed) as u8).collect::<Vec<u8>>());
            let together = key.tags(u64::MAX - 1, frames.each_ref().map(|frame| &frame[..]));
            if !tautline_aegis::is_available() {
                assert_eq!(together, None);
                return tautline_skips::skip(
                    "tags_of_four_frames_are_those_of_each",
                    "this processor has no vector AES",
                );
            }
            frames.iter_mut().for_each(|frame| frame[TAG_RANGE].fill(0));
            let alone = [0, 1, 2, 3].map(|i| key.tag((u64::MAX - 1).wrapping_add(i), &frames[i as usize]));
            assert_eq!(together, Some(alone), "{len} bytes");
        }
        for lengths in [[256; 4], [4_097; 4], [1_472, 1_472, 1_472, 1_471]] {
            let frames = lengths.map(|len| vec![0; len]);
            assert_eq!(key.tags(1, frames.each_ref().map(|frame| &frame[..])), None, "{lengths:?}");
        }
    }
}
