//! A fast hash for keys that consist of counted numbers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The golden ratio times 2⁶⁴: odd, and its bits have no pattern.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes hashers that start from a random number of the map's own, so that a peer cannot choose keys that
/// collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(RandomState::new().hash_one(SPREAD))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixed;

    #[inline]
    fn build_hasher(&self) -> Mixed {
        Mixed(self.0)
    }
}

/// Mixes one word after the other into the random number.
#[derive(Debug)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    #[inline]
    fn write_u32(&mut self, word: u32) {
        // Combines both halves of the product, so that every bit of the word affects every bit of the state.
        let product = u128::from(self.0 ^ u64::from(word)) * u128::from(SPREAD);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Consecutive numbers spread well, in any word of the key: over the lower bits, which choose a bucket,
    /// and the upper bits, which distinguish the keys in it.
    #[test]
    fn consecutive_numbers_spread() {
        let seeded = Seeded::default();
        for at in 0..3 {
            let of = |number: u32| {
                let mut key = [7_u32, 1, 9];
                key[at] = number;
                seeded.hash_one((key[0], key[1], key[2]))
            };
            let all: Vec<u64> = (0..4096).map(of).collect();
            let count = |of: fn(&u64) -> u64| all.iter().map(of).collect::<HashSet<_>>().len();
            // Random numbers would hit 63 % of 4,096 buckets.
            assert_eq!(count(|hash| *hash), 4096);
            assert!(count(|hash| hash & 4095) > 2200, "{} buckets", count(|hash| hash & 4095));
            assert_eq!(count(|hash| hash >> 57), 128);
        }
        let other = Seeded::default();
        assert_ne!(seeded.hash_one((1_u32, 2_u32, 3_u32)), other.hash_one((1_u32, 2_u32, 3_u32)));
    }
}
