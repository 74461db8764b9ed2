//! Randomness that is the same everywhere: the seed decides all of it.

/// Mixes the bits of a number (the finaliser of splitmix64).
#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Streams of one seed differ by `stream`.
    pub(crate) fn new(seed: u64, stream: u64) -> Rng {
        Rng(mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`; zero if `n` is zero.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high`, small ones more often: the magnitude is drawn evenly.
    pub(crate) fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let span = (high - low + 1).ilog2();
        let bits = self.below(u64::from(span) + 1) as u32;
        (low + self.below(1 << bits) + (1 << bits) - 1).min(high)
    }

    /// True `ppm` times in a million.
    #[inline]
    pub(crate) fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// 32 bytes that do not repeat in this stream.
    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        out.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&self.next().to_le_bytes()));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything stays within its bounds.
    #[test]
    fn bounds() {
        let mut rng = Rng::new(1, 2);
        for _ in 0..10_000 {
            assert!(rng.below(7) < 7);
            assert!((3..=9).contains(&rng.range(3, 9)));
            assert!((5..=1_000).contains(&rng.magnitude(5, 1_000)));
            assert!(!rng.chance(0) && rng.chance(1_000_000));
        }
    }
}
