//! The content of messages: bytes that change from message to message, with the message's number at both
//! ends.

use std::hint::black_box;
use std::io;

/// The source shifts by up to this before it repeats.
const SHIFT: usize = 4096;

/// Rewrites buffers as a user would, from bytes that lie elsewhere.
pub(crate) struct Pattern {
    source: Vec<u8>,
}

impl Pattern {
    pub(crate) fn new(bytes: usize) -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let words = (bytes + SHIFT).div_ceil(8);
        let step = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        Self { source: (0..words).flat_map(step).collect() }
    }

    /// Rewrites the whole buffer as message `number`.
    pub(crate) fn write(&self, number: u64, buf: &mut [u8]) {
        self.write_part(number, 0, buf.len(), buf);
    }

    /// Writes the part of message `number`, of `bytes` in all, that begins `at` bytes from its start. The
    /// number is at both ends of the message, as far as there is room.
    #[inline]
    pub(crate) fn write_part(&self, number: u64, at: usize, bytes: usize, part: &mut [u8]) {
        let from = (number as usize * 8) % SHIFT + at;
        part.copy_from_slice(&self.source[from..from + part.len()]);
        let stamp = number.to_le_bytes();
        if at < 8 {
            overlay(&stamp, 0, at, part);
        }
        if bytes >= 16 && at + part.len() > bytes - 8 {
            overlay(&stamp, bytes - 8, at, part);
        }
    }
}

/// Writes the overlap of a stamp, which belongs at `place`, with a part that begins at `at`.
fn overlay(stamp: &[u8; 8], place: usize, at: usize, part: &mut [u8]) {
    let (first, last) = (place.max(at), (place + 8).min(at + part.len()));
    if first < last {
        part[first - at..last - at].copy_from_slice(&stamp[first - place..last - place]);
    }
}

/// Checks the number at both ends.
pub(crate) fn check(number: u64, buf: &[u8]) -> io::Result<()> {
    let expected = number.to_le_bytes();
    let len = buf.len();
    let head = len.min(8);
    if buf[..head] == expected[..head] && (len < 16 || buf[len - 8..] == expected) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("message {number} of {len} bytes is not what was sent"),
    ))
}

/// Reads every byte, as a user would.
pub(crate) fn read_out(buf: &[u8]) {
    let (words, rest) = buf.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    black_box(rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_matches_its_number_only() {
        let pattern = Pattern::new(4096);
        for len in [0, 1, 7, 8, 15, 16, 17, 4096] {
            let mut buf = vec![0; len];
            pattern.write(7, &mut buf);
            check(7, &buf).unwrap();
            assert_eq!(check(8, &buf).is_ok(), len == 0, "{len} bytes");
        }
    }

    #[test]
    fn parts_equal_the_whole() {
        for bytes in [1, 8, 15, 16, 100, 5000] {
            let pattern = Pattern::new(bytes);
            let (mut whole, mut pieced) = (vec![0; bytes], vec![0; bytes]);
            pattern.write(777, &mut whole);
            for part in [1, 3, 64] {
                for (i, room) in pieced.chunks_mut(part).enumerate() {
                    pattern.write_part(777, i * part, bytes, room);
                }
                assert_eq!(pieced, whole, "{bytes} by {part}");
                pieced.fill(0);
            }
        }
    }

    #[test]
    fn each_message_differs_from_the_last() {
        let pattern = Pattern::new(64);
        let (mut one, mut two) = ([0; 64], [0; 64]);
        pattern.write(1, &mut one);
        pattern.write(2, &mut two);
        assert_ne!(one[8..56], two[8..56]);
    }
}
