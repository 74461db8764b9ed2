//! Bounds of datatypes, and arithmetic that fails instead of wrapping.

use crate::constants::{ERR_ARG, ERR_COUNT};
use crate::error::{Error, Result};

/// Where a datatype begins and ends, relative to its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The lower bound.
    pub lower: i64,
    /// The upper bound.
    pub upper: i64,
    /// Whether the program set the lower and the upper bound. Such bounds outweigh those of data.
    pub marked: (bool, bool),
    /// The first and the last byte of data, if there is any.
    pub data: Option<(i64, i64)>,
    /// The strictest alignment of an element.
    pub align: i64,
}

impl Bounds {
    /// The bounds of a datatype without elements.
    pub const EMPTY: Bounds = Bounds { lower: 0, upper: 0, marked: (false, false), data: None, align: 1 };

    /// The distance from one copy to the next.
    pub fn extent(&self) -> i64 {
        self.upper - self.lower
    }

    /// The bounds of `count` copies, `stride` bytes apart, the first at `at`.
    pub fn repeated(&self, at: i64, count: i64, stride: i64) -> Result<Bounds> {
        if count == 0 || (self.data.is_none() && self.marked == (false, false)) {
            return Ok(Bounds::EMPTY);
        }
        let last = add(at, mul(count - 1, stride)?)?;
        let (first, last) = (at.min(last), at.max(last));
        let data = match self.data {
            Some((begin, end)) => Some((add(first, begin)?, add(last, end)?)),
            None => None,
        };
        let (lower, upper) = (add(first, self.lower)?, add(last, self.upper)?);
        // The extent must fit, too.
        sub(upper, lower)?;
        Ok(Bounds { lower, upper, data, ..*self })
    }

    /// The bounds of this and `other` together.
    pub fn joined(&self, other: &Bounds) -> Bounds {
        let align = self.align.max(other.align);
        let data = match (self.data, other.data) {
            (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
            (one, two) => one.or(two),
        };
        // A bound counts if it was set, or if there is data and no bound was set.
        let lower = |bounds: &Bounds| bounds.marked.0.then_some(bounds.lower);
        let upper = |bounds: &Bounds| bounds.marked.1.then_some(bounds.upper);
        let lower = [lower(self), lower(other)].into_iter().flatten().min();
        let upper = [upper(self), upper(other)].into_iter().flatten().max();
        let of_data = |bounds: &&&Bounds| bounds.data.is_some();
        let with_data = [self, other];
        let data_lower = with_data.iter().filter(of_data).map(|bounds| bounds.lower).min();
        let data_upper = with_data.iter().filter(of_data).map(|bounds| bounds.upper).max();
        Bounds {
            lower: lower.or(data_lower).unwrap_or(0),
            upper: upper.or(data_upper).unwrap_or(0),
            marked: (lower.is_some(), upper.is_some()),
            data,
            align,
        }
    }

    /// A structure of C ends where its next copy is aligned.
    pub fn padded(mut self) -> Result<Bounds> {
        if !self.marked.1 && self.data.is_some() {
            let extent = self.extent();
            let rest = extent.rem_euclid(self.align);
            if rest != 0 {
                self.upper = add(self.upper, self.align - rest)?;
            }
        }
        Ok(self)
    }
}

fn overflow() -> Error {
    Error::new(ERR_ARG, "a displacement of the datatype does not fit MPI_Aint")
}

/// A sum that fits.
pub fn add(one: i64, other: i64) -> Result<i64> {
    one.checked_add(other).ok_or_else(overflow)
}

/// A difference that fits.
pub fn sub(one: i64, other: i64) -> Result<i64> {
    one.checked_sub(other).ok_or_else(overflow)
}

/// A product that fits.
pub fn mul(one: i64, other: i64) -> Result<i64> {
    one.checked_mul(other).ok_or_else(overflow)
}

/// A count that is not negative.
pub fn natural(count: i64, what: &str) -> Result<u64> {
    u64::try_from(count).map_err(|_| Error::new(ERR_COUNT, format!("{what} is {count}")))
}
