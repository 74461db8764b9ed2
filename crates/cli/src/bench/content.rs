//! The content of our messages, like that of the baseline's drivers: bytes that differ from message to
//! message, with the message's number at both ends.

use std::hint::black_box;

/// The source shifts by up to this before it repeats.
const SHIFT: usize = 4096;

/// Makes messages from bytes that lie elsewhere, whole or part by part.
pub struct Pattern {
    source: Vec<u8>,
    bytes: usize,
}

impl Pattern {
    pub fn new(bytes: usize) -> Pattern {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let step = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        Pattern { source: (0..(bytes + SHIFT).div_ceil(8)).flat_map(step).collect(), bytes }
    }

    /// Writes the part of message `number` that begins `at` bytes from its start.
    #[inline]
    pub fn write(&self, number: u64, at: usize, room: &mut [u8]) {
        let from = (number as usize * 8) % SHIFT + at;
        room.copy_from_slice(&self.source[from..from + room.len()]);
        let stamp = number.to_le_bytes();
        if at < 8 {
            overlay(&stamp, 0, at, room);
        }
        if self.bytes >= 16 && at + room.len() > self.bytes - 8 {
            overlay(&stamp, self.bytes - 8, at, room);
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

/// Whether both ends carry this number.
#[inline]
pub fn is_intact(number: u64, message: &[u8]) -> bool {
    let stamp = number.to_le_bytes();
    let len = message.len();
    let head = len.min(8);
    message[..head] == stamp[..head] && (len < 16 || message[len - 8..] == stamp)
}

/// Reads every byte, as a user would.
pub fn read_out(message: &[u8]) {
    let (words, rest) = message.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    black_box(rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_equal_the_whole() {
        for bytes in [0, 1, 8, 15, 16, 17, 100, 5000] {
            let pattern = Pattern::new(bytes);
            let mut whole = vec![0; bytes];
            pattern.write(777, 0, &mut whole);
            assert!(is_intact(777, &whole) && (bytes == 0 || !is_intact(778, &whole)), "{bytes}");
            for part in [1, 3, 7, 64] {
                let mut pieced = vec![0; bytes];
                for (i, room) in pieced.chunks_mut(part).enumerate() {
                    pattern.write(777, i * part, room);
                }
                assert_eq!(pieced, whole, "{bytes} by {part}");
            }
        }
    }
}
