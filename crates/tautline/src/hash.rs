//! A quick hash for keys that peers count up.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Odd, and without a pattern: the golden ratio of 2⁶⁴.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes hashers that start from a secret of this map's own, so that nobody can send numbers that all fall into one place.
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

/// Mixes one word after the other into the secret.
#[derive(Debug)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    #[inline]
    fn write_u32(&mut self, word: u32) {
        // Both halves of the product count, so that every bit of the word reaches every bit of the sum.
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

    /// Numbers that are counted up spread well, in whichever word they are: over the lower bits, which choose a place, and the upper, which tell neighbours apart.
    #[test]
    fn numbers_spread() {
        let seeded = Seeded::default();
        for at in 0..3 {
            let of = |number: u32| {
                let mut key = [7_u32, 1, 9];
                key[at] = number;
                seeded.hash_one((key[0], key[1], key[2]))
            };
            let all: Vec<u64> = (0..4096).map(of).collect();
            let count = |of: fn(&u64) -> u64| all.iter().map(of).collect::<HashSet<_>>().len();
            // Thrown at random into 4,096 places, they would hit 63 % of them.
            assert_eq!(count(|hash| *hash), 4096);
            assert!(count(|hash| hash & 4095) > 2200, "{} places", count(|hash| hash & 4095));
            assert_eq!(count(|hash| hash >> 57), 128);
        }
        let other = Seeded::default();
        assert_ne!(seeded.hash_one((1_u32, 2_u32, 3_u32)), other.hash_one((1_u32, 2_u32, 3_u32)));
    }
}
