//! The lanes: one kernel for vectors of 512 bits, and the same for pairs of vectors of 256 bits.

use std::arch::x86_64::*;

use crate::{Frame, HEAD, LANES};

const BLOCK: usize = 16;
/// Bytes of each frame that one step absorbs.
const STEP: usize = 2 * BLOCK;
/// Steps before the first byte and after the last one.
const SETUP: usize = 10;
const END: usize = 7;
/// The constants of AEGIS: Fibonacci's sequence modulo 256.
const C0: [u8; BLOCK] =
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62];
const C1: [u8; BLOCK] =
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd];
const _: () = assert!(HEAD.is_multiple_of(STEP));

/// How wide the vectors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bits512,
    Bits256,
}

/// Returns the widest vectors that have AES here.
#[inline]
pub(crate) fn width() -> Option<Width> {
    if !is_x86_feature_detected!("vaes") {
        None
    } else if is_x86_feature_detected!("avx512f") {
        Some(Width::Bits512)
    } else if is_x86_feature_detected!("avx2") {
        Some(Width::Bits256)
    } else {
        None
    }
}

/// As [`crate::tags`], with vectors that this processor has.
#[inline]
pub(crate) fn tags(
    width: Width,
    key: &[u8; 16],
    first: u64,
    frames: &[Frame<'_>; LANES],
) -> Option<[u64; LANES]> {
    let len = frames[0].1.len();
    if len < HEAD || frames.iter().any(|(_, bytes)| bytes.len() != len) {
        return None;
    }
    let rest = len % STEP;
    // The last step, padded with zeros.
    let mut last = [[0; STEP]; LANES];
    for (last, (_, bytes)) in last.iter_mut().zip(frames) {
        last[..rest].copy_from_slice(&bytes[len - rest..]);
    }
    let parts = Parts {
        heads: frames.map(|(head, _)| head.as_chunks().0),
        bodies: frames.map(|(_, bytes)| bytes[HEAD..].as_chunks().0),
        last: (rest > 0).then_some(&last),
        bits: 8 * len as u64,
    };
    let nonces = [0, 1, 2, 3].map(|lane| u128::from(first.wrapping_add(lane)).to_le_bytes());
    Some(match width {
        // SAFETY: `width` found the features of this kernel.
        Width::Bits512 => unsafe { wide::tags(*key, &nonces, &parts) },
        // SAFETY: `width` found the features of this kernel.
        Width::Bits256 => unsafe { paired::tags(*key, &nonces, &parts) },
    })
}

/// Frames of one length, in steps.
struct Parts<'a> {
    heads: [&'a [[u8; STEP]]; LANES],
    bodies: [&'a [[u8; STEP]]; LANES],
    /// What remains of each, if anything does.
    last: Option<&'a [[u8; STEP]; LANES]>,
    /// The length of a frame.
    bits: u64,
}

/// A block as a vector.
#[inline]
#[target_feature(enable = "sse2")]
fn block(bytes: [u8; BLOCK]) -> __m128i {
    let number = u128::from_le_bytes(bytes);
    _mm_set_epi64x((number >> 64) as i64, number as i64)
}

/// The first or the second block of a step.
#[inline]
#[target_feature(enable = "sse2")]
fn half<const SECOND: bool>(step: &[u8; STEP]) -> __m128i {
    let ([first, second], _) = step.as_chunks() else { unreachable!("a step has two blocks") };
    block(if SECOND { *second } else { *first })
}

/// The kernel, over `V`: a block of each of the four frames. Its module has the operations on them.
macro_rules! kernel {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn tags(
            key: [u8; BLOCK],
            nonces: &[[u8; BLOCK]; LANES],
            parts: &Parts<'_>,
        ) -> [u64; LANES] {
            let (c0, c1, key) = (all(block(C0)), all(block(C1)), all(block(key)));
            let nonce = lanes(nonces.map(|nonce| block(nonce)));
            let both = xor(key, nonce);
            let mut s = [both, c1, c0, c1, both, xor(key, c0), xor(key, c1), xor(key, c0)];
            for _ in 0..SETUP {
                s = step(s, nonce, key);
            }
            s = absorb(s, parts.heads);
            s = absorb(s, parts.bodies);
            if let Some(last) = parts.last {
                s = absorb(s, last.each_ref().map(std::slice::from_ref));
            }
            let end = xor(s[2], all(_mm_set_epi64x(0, parts.bits as i64)));
            for _ in 0..END {
                s = step(s, end, end);
            }
            low(xor(xor(xor(s[0], s[1]), xor(s[2], s[3])), xor(xor(s[4], s[5]), s[6])))
        }

        /// Absorbs steps of the four frames, which have equally many.
        #[inline]
        #[target_feature(enable = $features)]
        fn absorb(mut s: [V; 8], steps: [&[[u8; STEP]]; LANES]) -> [V; 8] {
            let [a, b, c, d] = steps;
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                let first = lanes([half::<false>(a), half::<false>(b), half::<false>(c), half::<false>(d)]);
                let second = lanes([half::<true>(a), half::<true>(b), half::<true>(c), half::<true>(d)]);
                s = step(s, first, second);
            }
            s
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn step(s: [V; 8], first: V, second: V) -> [V; 8] {
            [
                round(s[7], xor(s[0], first)),
                round(s[0], s[1]),
                round(s[1], s[2]),
                round(s[2], s[3]),
                round(s[3], xor(s[4], second)),
                round(s[4], s[5]),
                round(s[5], s[6]),
                round(s[6], s[7]),
            ]
        }
    };
}

/// Vectors of 512 bits.
mod wide {
    use super::*;

    type V = __m512i;

    kernel!("avx512f,vaes");

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn lanes([a, b, c, d]: [__m128i; LANES]) -> V {
        let low = _mm512_castsi256_si512(_mm256_set_m128i(b, a));
        _mm512_inserti64x4::<1>(low, _mm256_set_m128i(d, c))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn all(block: __m128i) -> V {
        _mm512_broadcast_i32x4(block)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn xor(a: V, b: V) -> V {
        _mm512_xor_si512(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f,vaes")]
    fn round(a: V, key: V) -> V {
        _mm512_aesenc_epi128(a, key)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn low(v: V) -> [u64; LANES] {
        [
            _mm512_extracti32x4_epi32::<0>(v),
            _mm512_extracti32x4_epi32::<1>(v),
            _mm512_extracti32x4_epi32::<2>(v),
            _mm512_extracti32x4_epi32::<3>(v),
        ]
        .map(|lane| _mm_cvtsi128_si64(lane) as u64)
    }
}

/// Pairs of vectors of 256 bits.
mod paired {
    use super::*;

    type V = [__m256i; 2];

    kernel!("avx2,vaes");

    #[inline]
    #[target_feature(enable = "avx2")]
    fn lanes([a, b, c, d]: [__m128i; LANES]) -> V {
        [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn all(block: __m128i) -> V {
        [_mm256_broadcastsi128_si256(block); 2]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn xor(a: V, b: V) -> V {
        [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])]
    }

    #[inline]
    #[target_feature(enable = "avx2,vaes")]
    fn round(a: V, key: V) -> V {
        [_mm256_aesenc_epi128(a[0], key[0]), _mm256_aesenc_epi128(a[1], key[1])]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn low(v: V) -> [u64; LANES] {
        [
            _mm256_castsi256_si128(v[0]),
            _mm256_extracti128_si256::<1>(v[0]),
            _mm256_castsi256_si128(v[1]),
            _mm256_extracti128_si256::<1>(v[1]),
        ]
        .map(|lane| _mm_cvtsi128_si64(lane) as u64)
    }
}

#[cfg(test)]
mod tests {
    use aegis::aegis128l::Aegis128L;

    use super::*;

    /// The low half of the tag that the reference gives.
    fn reference(key: &[u8; 16], packet: u64, frame: &[u8]) -> u64 {
        let nonce = u128::from(packet).to_le_bytes();
        let tag = Aegis128L::<16>::new(key, &nonce).encrypt_in_place(&mut [], frame);
        u64::from_le_bytes(*tag.first_chunk().unwrap())
    }

    /// The tags of frames at every length up to some steps, of both kernels, are those of the reference.
    #[test]
    fn tags_equal_the_reference() {
        let Some(widest) = width() else {
            return tautline_skips::skip("tags_equal_the_reference", "this processor has no vector AES");
        };
        let widths = if widest == Width::Bits512 { &[Width::Bits512, Width::Bits256][..] } else { &[widest] };
        for len in (HEAD..=HEAD + 5 * STEP).chain([1_472, 4_096, 65_507]) {
            let mut seed = len as u64;
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 56) as u8
            };
            let key = std::array::from_fn(|_| next());
            let frames: [Vec<u8>; LANES] = std::array::from_fn(|_| (0..len).map(|_| next()).collect());
            let first = if len.is_multiple_of(2) { u64::MAX - 1 } else { 7 };
            let expected = std::array::from_fn(|i| reference(&key, first.wrapping_add(i as u64), &frames[i]));
            let parts = frames.each_ref().map(|frame| (frame.first_chunk().unwrap(), &frame[..]));
            for width in widths {
                assert_eq!(tags(*width, &key, first, &parts), Some(expected), "{len} bytes, {width:?}");
            }
        }
    }

    /// Frames of different lengths, and shorter ones than their heads, have no common tags.
    #[test]
    fn frames_that_do_not_fit_are_refused() {
        let Some(width) = width() else {
            return tautline_skips::skip(
                "frames_that_do_not_fit_are_refused",
                "this processor has no vector AES",
            );
        };
        let head = [0; HEAD];
        for lengths in [[100, 100, 100, 101], [99, 100, 100, 100], [HEAD - 1; LANES]] {
            let frames = lengths.map(|len| vec![0; len]);
            let parts = frames.each_ref().map(|frame| (&head, &frame[..]));
            assert_eq!(tags(width, &[0; 16], 1, &parts), None, "{lengths:?}");
        }
    }
}
