//! The keyed 64-bit tag of a frame (L-22). Why two algorithms: `docs/decisions/0002-tag-and-cipher.md`.
//!
//! A short frame's tag is a polynomial hash (POLYVAL) under one secret, hidden by one AES block of its packet number and length
//! under another: Carter and Wegman's construction. It costs next to nothing to start, so it wins where frames are short; AEGIS takes
//! longer to start and then runs at several times the speed. Packet number and length choose the pad, so frames of different
//! number or length have unrelated tags, and within one length the hash is universal: what is hashed is the frame in whole groups
//! of four blocks, for which the last group reaches back as far as it must. That repeats bytes, and loses none.

use aegis::aegis128x4::Aegis128X4;
use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use polyval::universal_hash::UniversalHash;
use polyval::{Block, Polyval};

use tautline_wire::frame::HEADER_LEN;

use crate::seal::low64;

/// Frames up to this length take the short way.
const SHORT_FRAME: usize = 256;
const BLOCK: usize = 16;
/// Bytes that the hash takes in one step.
const GROUP: usize = 4 * BLOCK;
const _: () = assert!(HEADER_LEN == GROUP - BLOCK, "the shortest frame is one block short of a group");

/// One direction's secrets.
pub(crate) struct TagKey {
    hash: Polyval,
    pad: Aes128Enc,
    long: [u8; 16],
}

impl TagKey {
    /// Derives three independent secrets from one.
    pub(crate) fn new(secret: &[u8; 32]) -> TagKey {
        let mut bytes = [[0; 16]; 3];
        let mut stream = blake3::Hasher::new_keyed(secret).update(b"tautline v1 tag").finalize_xof();
        bytes.iter_mut().for_each(|part| stream.fill(part));
        let [hash, pad, long] = bytes;
        TagKey { hash: Polyval::new(&hash.into()), pad: Aes128Enc::new(&pad.into()), long }
    }

    /// The tag of a frame whose tag field is zero. A packet number is used once.
    #[inline]
    pub(crate) fn tag(&self, packet: u64, frame: &[u8]) -> u64 {
        if (HEADER_LEN..=SHORT_FRAME).contains(&frame.len()) {
            self.short(packet, frame)
        } else {
            self.long(packet, frame)
        }
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
        low64(&Aegis128X4::<16>::new(&self.long, &nonce).encrypt_in_place(&mut [], frame))
    }
}

/// Bytes as blocks, of which they are a whole number.
#[inline]
fn blocks(bytes: &[u8]) -> &[Block] {
    Block::slice_as_chunks(bytes).0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-22: every byte of a frame counts, at every length around the groups' boundaries.
    #[test]
    fn every_byte_counts() {
        let key = TagKey::new(&[3; 32]);
        for len in (48..=66).chain(112..=130).chain(254..=258) {
            let mut frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let tag = key.tag(5, &frame);
            for at in 0..len {
                frame[at] ^= 0x10;
                assert_ne!(key.tag(5, &frame), tag, "{len} bytes, byte {at}");
                frame[at] ^= 0x10;
            }
        }
    }

    /// L-22: frames that differ only in zeros at their end, and frames on both sides of the change of algorithm, have
    /// tags of their own, which depend on the packet number and the key.
    #[test]
    fn length_number_and_key_count() {
        let (key, other) = (TagKey::new(&[1; 32]), TagKey::new(&[2; 32]));
        let mut seen = std::collections::HashSet::new();
        for len in (48..=65).chain(SHORT_FRAME - 1..=SHORT_FRAME + 2) {
            let frame = vec![0; len];
            for packet in [0, 1, 2, 1 << 40] {
                assert!(seen.insert(key.tag(packet, &frame)), "{len} bytes, packet {packet}");
            }
            assert!(seen.insert(other.tag(1, &frame)), "{len} bytes, other key");
            assert_eq!(key.tag(1, &frame), TagKey::new(&[1; 32]).tag(1, &frame));
        }
    }

    /// L-22: what goes over the wire stays as it is: these tags were computed when the rule was written.
    #[test]
    fn tags_are_stable() {
        let frame: Vec<u8> = (0..=255).cycle().take(1_500).collect();
        let key = TagKey::new(&[7; 32]);
        let tags = [60, 256, 257, 1_500].map(|len| key.tag(len as u64, &frame[..len]));
        assert_eq!(
            tags,
            [15797705570800126510, 17627264587019665279, 16231754956339670252, 8349585293040050537]
        );
    }
}
