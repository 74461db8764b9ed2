//! How lanes are addressed: by rank and lane, in one number.

use crate::Rank;

/// Where the lane begins in a number.
const LANE_AT: u32 = 16;

/// A lane of a rank: what a message goes to.
///
/// Calls take it as one number, which is the rank itself for lane 0, so that programs without further lanes
/// need not know of it: `Address::new(3, 0)` is rank 3. Convert it with `into()`.
///
/// ```
/// use tautline_node::{Address, Rank};
///
/// assert_eq!(Rank::from(Address::new(3, 0)), 3);
/// let other = Rank::from(Address::new(3, 1));
/// assert_eq!(Address::from(other), Address { rank: 3, lane: 1 });
/// assert_eq!(Address::from(other).to_string(), "rank 3, lane 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The process.
    pub rank: Rank,
    /// Its lane; zero is the one that it joined with.
    pub lane: u16,
}

impl Address {
    /// Ranks are below this.
    pub const RANKS: u32 = 1 << LANE_AT;

    /// The lane `lane` of `rank`.
    pub const fn new(rank: Rank, lane: u16) -> Address {
        Address { rank, lane }
    }
}

impl From<Address> for Rank {
    #[inline]
    fn from(address: Address) -> Rank {
        (address.rank % Address::RANKS) | (Rank::from(address.lane) << LANE_AT)
    }
}

impl From<Rank> for Address {
    #[inline]
    fn from(number: Rank) -> Address {
        Address { rank: number % Address::RANKS, lane: (number >> LANE_AT) as u16 }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lane {
            0 => write!(f, "rank {}", self.rank),
            lane => write!(f, "rank {}, lane {lane}", self.rank),
        }
    }
}
