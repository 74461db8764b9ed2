//! What the protection of a frame costs, without a link around it: for measurements.

use tautline_wire::frame::HEADER_LEN;
use tautline_wire::handshake::Security;

use crate::TRAIN_TAGS;
use crate::keys::LinkKeys;
use crate::seal::{SEAL_LEN, Seal};

/// Protects frames as the sender of a link does, under keys that no link has.
#[derive(Debug)]
pub struct Protection {
    seal: Seal,
    packet: u64,
}

impl Protection {
    /// Protection in a mode.
    pub fn new(security: Security) -> Protection {
        let keys = LinkKeys { tx: [1; 32], rx: [2; 32] };
        Protection { seal: Seal::new(security, &keys), packet: 0 }
    }

    /// Returns the tag of the next frame or, on a sealed link, enciphers its payload in place and returns 0.
    ///
    /// # Panics
    ///
    /// If the frame is shorter than a header and, on a sealed link, a seal.
    #[inline]
    pub fn protect(&mut self, frame: &mut [u8]) -> u64 {
        assert!(frame.len() >= HEADER_LEN + SEAL_LEN, "a frame of {} bytes", frame.len());
        self.packet += 1;
        if self.seal.is_sealed() {
            let (head, rest) = frame.split_at_mut(HEADER_LEN);
            self.seal.encipher(self.packet, head, rest);
            return 0;
        }
        self.seal.tag(self.packet, frame)
    }

    /// As [`Protection::protect`] for four frames of a train; `seen` is given their tags.
    #[inline]
    pub fn protect_train(&mut self, frames: &mut [Vec<u8>; TRAIN_TAGS], mut seen: impl FnMut(u64)) {
        match self.seal.tags_to_send(self.packet + 1, frames.each_ref().map(|frame| &frame[..])) {
            Some(tags) => {
                self.packet += TRAIN_TAGS as u64;
                tags.into_iter().for_each(seen);
            }
            None => frames.iter_mut().for_each(|frame| seen(self.protect(frame))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is measured is what a link does: the frame decides the tag, and a sealed payload is enciphered.
    #[test]
    fn frames_are_protected() {
        let tags = [0, 1].map(|first| {
            let mut frame = [7; 1_472];
            frame[HEADER_LEN] = first;
            Protection::new(Security::Fabric).protect(&mut frame)
        });
        assert_ne!(tags[0], tags[1]);
        let mut frame = [7; 1_472];
        assert_eq!(Protection::new(Security::Sealed).protect(&mut frame), 0);
        assert_eq!(frame[..HEADER_LEN], [7; HEADER_LEN]);
        assert!(frame[HEADER_LEN..].chunks(64).all(|chunk| chunk.iter().any(|byte| *byte != 7)));
    }
}
