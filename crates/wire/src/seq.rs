//! Serial-number arithmetic for slot sequence numbers (W-8).

/// The sequence number of a slot in one direction of a channel. It wraps around. Comparisons are valid for
/// numbers less than 2³¹ apart; the largest credit is far below that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns how far `self` is ahead of `other`; negative if it is behind.
    #[inline(always)]
    pub fn distance(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns the sequence number `n` after this one.
    #[inline(always)]
    #[must_use]
    pub fn ahead(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// Returns the next sequence number.
    #[inline(always)]
    #[must_use]
    pub fn next(self) -> Seq {
        self.ahead(1)
    }

    /// Returns whether `self` comes before `other`.
    #[inline(always)]
    pub fn before(self, other: Seq) -> bool {
        self.distance(other) < 0
    }
}

/// Restores a 64-bit packet number from its low 32 bits: returns the value nearest to `near` (W-9).
#[inline]
pub fn widen(low: u32, near: u64) -> u64 {
    let delta = i64::from(low.wrapping_sub(near as u32) as i32);
    near.saturating_add_signed(delta)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-8: comparisons hold across wrap-around.
    #[test]
    fn comparison_across_wrap_around() {
        let a = Seq(u32::MAX);
        let b = a.next();
        assert_eq!(b, Seq(0));
        assert!(a.before(b));
        assert_eq!(b.distance(a), 1);
        assert_eq!(a.distance(b), -1);
    }

    /// W-9: the nearest packet number is chosen on both sides of a wrap-around.
    #[test]
    fn widen_chooses_the_nearest_number() {
        assert_eq!(widen(5, 3), 5);
        assert_eq!(widen(0xffff_fffe, 0x1_0000_0002), 0xffff_fffe);
        assert_eq!(widen(1, 0xffff_ffff), 0x1_0000_0001);
        assert_eq!(widen(7, 0x5_0000_0000), 0x5_0000_0007);
    }
}
