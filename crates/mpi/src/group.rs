//! Groups: ordered sets of ranks of the job.

use std::ffi::c_int;

use crate::constants::{ERR_ARG, ERR_RANK, IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL};
use crate::error::{Error, Result};

/// The members of a group, by their rank in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members(pub Vec<u32>);

impl Members {
    /// The rank of a member; `None` if it is none.
    pub fn rank_of(&self, member: u32) -> Option<usize> {
        self.0.iter().position(|have| *have == member)
    }

    /// `MPI_Group_compare`.
    pub fn compare(&self, other: &Members) -> c_int {
        if self == other {
            return IDENT;
        }
        let sorted = |members: &Members| {
            let mut list = members.0.clone();
            list.sort_unstable();
            list
        };
        if sorted(self) == sorted(other) { SIMILAR } else { UNEQUAL }
    }

    /// All members of this group, then those of the other that are not in it.
    pub fn union(&self, other: &Members) -> Members {
        let more = other.0.iter().filter(|member| self.rank_of(**member).is_none());
        Members(self.0.iter().chain(more).copied().collect())
    }

    /// The members of this group that are in the other.
    pub fn intersection(&self, other: &Members) -> Members {
        Members(self.0.iter().filter(|member| other.rank_of(**member).is_some()).copied().collect())
    }

    /// The members of this group that are not in the other.
    pub fn difference(&self, other: &Members) -> Members {
        Members(self.0.iter().filter(|member| other.rank_of(**member).is_none()).copied().collect())
    }

    fn member(&self, rank: c_int) -> Result<u32> {
        let member = usize::try_from(rank).ok().and_then(|rank| self.0.get(rank));
        member
            .copied()
            .ok_or_else(|| Error::new(ERR_RANK, format!("rank {rank} is not in a group of {}", self.0.len())))
    }

    /// `MPI_Group_incl`.
    pub fn include(&self, ranks: &[c_int]) -> Result<Members> {
        let list: Result<Vec<u32>> = ranks.iter().map(|rank| self.member(*rank)).collect();
        let list = list?;
        for (index, member) in list.iter().enumerate() {
            if list[..index].contains(member) {
                return Err(Error::new(ERR_RANK, format!("rank {} is given twice", ranks[index])));
            }
        }
        Ok(Members(list))
    }

    /// `MPI_Group_excl`.
    pub fn exclude(&self, ranks: &[c_int]) -> Result<Members> {
        let without = self.include(ranks)?;
        Ok(self.difference(&without))
    }

    /// The rank in `other` of the member with rank `rank` here.
    pub fn translate(&self, rank: c_int, other: &Members) -> Result<c_int> {
        if rank == PROC_NULL {
            return Ok(PROC_NULL);
        }
        let member = self.member(rank)?;
        Ok(other.rank_of(member).map_or(UNDEFINED, |rank| rank as c_int))
    }
}

/// The ranks of triplets: first, last and stride.
pub fn ranks_of(ranges: &[[c_int; 3]]) -> Result<Vec<c_int>> {
    let mut ranks = Vec::new();
    for [first, last, stride] in ranges {
        if *stride == 0 {
            return Err(Error::new(ERR_ARG, "a stride is 0"));
        }
        let mut rank = i64::from(*first);
        while (*stride > 0 && rank <= i64::from(*last)) || (*stride < 0 && rank >= i64::from(*last)) {
            ranks.push(rank as c_int);
            rank += i64::from(*stride);
        }
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_keep_the_order_of_the_first_group() {
        let (one, two) = (Members(vec![4, 1, 3]), Members(vec![3, 4, 9]));
        assert_eq!(one.union(&two).0, [4, 1, 3, 9]);
        assert_eq!(one.intersection(&two).0, [4, 3]);
        assert_eq!(one.difference(&two).0, [1]);
        assert_eq!(one.compare(&one), IDENT);
        assert_eq!(one.compare(&Members(vec![1, 3, 4])), SIMILAR);
        assert_eq!(one.compare(&two), UNEQUAL);
    }

    #[test]
    fn ranks_are_included_excluded_and_translated() {
        let all = Members(vec![10, 11, 12, 13]);
        let some = all.include(&[3, 0]).unwrap();
        assert_eq!((&some.0[..], &all.exclude(&[3, 0]).unwrap().0[..]), (&[13, 10][..], &[11, 12][..]));
        assert_eq!(all.translate(3, &some).unwrap(), 0);
        assert_eq!(
            (all.translate(1, &some).unwrap(), all.translate(PROC_NULL, &some).unwrap()),
            (UNDEFINED, PROC_NULL)
        );
        assert_eq!(all.include(&[4]).unwrap_err().code, ERR_RANK);
        assert_eq!(all.include(&[1, 1]).unwrap_err().code, ERR_RANK);
        assert_eq!(ranks_of(&[[0, 5, 2], [3, 1, -1]]).unwrap(), [0, 2, 4, 3, 2, 1]);
        assert_eq!(ranks_of(&[[0, 1, 0]]).unwrap_err().code, ERR_ARG);
    }
}
