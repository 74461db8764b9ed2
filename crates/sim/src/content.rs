//! What messages contain: a function of their key, so that every byte can be checked wherever it turns up. The first eight
//! bytes are the key itself.

use crate::rng::mix;

#[inline]
fn word(key: u64, at: u64) -> u64 {
    if at == 0 { key } else { mix(key ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
}

/// Writes a message's bytes from `offset` on.
pub(crate) fn fill(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let bytes = word(key, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let take = rest.len().min(8 - from);
        rest[..take].copy_from_slice(&bytes[from..from + take]);
        rest = &mut rest[take..];
        at += take as u64;
    }
}

/// Whether these are a message's bytes from `offset` on.
pub(crate) fn is(key: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut at = offset;
    let mut rest = bytes;
    let mut good = true;
    while !rest.is_empty() {
        let expected = word(key, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let take = rest.len().min(8 - from);
        good &= rest[..take] == expected[from..from + take];
        rest = &rest[take..];
        at += take as u64;
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts are parts of the whole, and a changed bit is noticed.
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
