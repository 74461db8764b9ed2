//! What messages contain: a function of their key, so that every byte can be checked wherever it appears. The
//! first eight bytes are the key itself.

use crate::rng::mix;

#[inline]
fn word(key: u64, at: u64) -> u64 {
    if at == 0 { key } else { mix(key ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
}

/// Returns how many of `len` bytes at `offset` come before the next whole word.
fn head_len(offset: u64, len: usize) -> usize {
    (offset.wrapping_neg() % 8).min(len as u64) as usize
}

/// Writes the bytes of a message from `offset` on.
pub(crate) fn fill(key: u64, offset: u64, out: &mut [u8]) {
    let (head, rest) = out.split_at_mut(head_len(offset, out.len()));
    if !head.is_empty() {
        let from = (offset % 8) as usize;
        head.copy_from_slice(&word(key, offset / 8).to_le_bytes()[from..][..head.len()]);
    }
    let mut at = offset.div_ceil(8);
    let mut words = rest.chunks_exact_mut(8);
    for out in &mut words {
        out.copy_from_slice(&word(key, at).to_le_bytes());
        at += 1;
    }
    let tail = words.into_remainder();
    if !tail.is_empty() {
        tail.copy_from_slice(&word(key, at).to_le_bytes()[..tail.len()]);
    }
}

/// Whether `bytes` are those of a message from `offset` on.
pub(crate) fn is(key: u64, offset: u64, bytes: &[u8]) -> bool {
    let (head, rest) = bytes.split_at(head_len(offset, bytes.len()));
    let from = (offset % 8) as usize;
    let mut good = head.is_empty() || *head == word(key, offset / 8).to_le_bytes()[from..][..head.len()];
    let mut at = offset.div_ceil(8);
    let words = rest.chunks_exact(8);
    let tail = words.remainder();
    for bytes in words {
        good &= u64::from_le_bytes(bytes.try_into().expect("eight bytes")) == word(key, at);
        at += 1;
    }
    good && (tail.is_empty() || *tail == word(key, at).to_le_bytes()[..tail.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any part matches the whole, and a changed bit is detected.
    #[test]
    fn parts_fit() {
        let mut whole = [0; 100];
        fill(77, 0, &mut whole);
        for start in 0..20 {
            for end in start..100 {
                assert!(is(77, start as u64, &whole[start..end]));
            }
        }
        whole[50] ^= 4;
        assert!(!is(77, 43, &whole[43..60]));
        assert_eq!(u64::from_le_bytes(whole[..8].try_into().unwrap()), 77);
    }
}
