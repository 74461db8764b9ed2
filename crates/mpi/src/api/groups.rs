//! Groups.

use std::ffi::c_int;
use std::sync::Arc;

use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::group::{Members, ranks_of};
use crate::handle::Group;
use crate::network::network;
use crate::objects::{self, GROUPS};

/// Gives the program a group.
pub(super) unsafe fn give(members: Members, group: Foreign<Group>) -> Result<()> {
    super::ensure_some(group, "the new group")?;
    let handle =
        if members.0.is_empty() { c::GROUP_EMPTY } else { objects::add(&GROUPS, Arc::new(members))? };
    // SAFETY: the arguments are as the standard says.
    unsafe { group.set(0, handle) };
    Ok(())
}

fn number(n: c_int) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::new(c::ERR_ARG, format!("n is {n}")))
}

/// `MPI_Group_size`.
pub unsafe fn group_size(group: Group, size: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { size.set(0, objects::group(group)?.0.len() as c_int) };
    Ok(())
}

/// `MPI_Group_rank`.
pub unsafe fn group_rank(group: Group, rank: Foreign<c_int>) -> Result<()> {
    let own = objects::group(group)?.rank_of(network().rank);
    // SAFETY: the arguments are as the standard says.
    unsafe { rank.set(0, own.map_or(c::UNDEFINED, |rank| rank as c_int)) };
    Ok(())
}

/// `MPI_Group_translate_ranks`.
pub unsafe fn group_translate_ranks(
    one: Group,
    n: c_int,
    ranks: Foreign<c_int>,
    two: Group,
    into: Foreign<c_int>,
) -> Result<()> {
    let (one, two) = (objects::group(one)?, objects::group(two)?);
    for index in 0..number(n)? {
        // SAFETY: the arguments are as the standard says.
        unsafe { into.set(index, one.translate(ranks.get(index), &two)?) };
    }
    Ok(())
}

/// `MPI_Group_compare`.
pub unsafe fn group_compare(one: Group, two: Group, result: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { result.set(0, objects::group(one)?.compare(&*objects::group(two)?)) };
    Ok(())
}

/// `MPI_Group_union`.
pub unsafe fn group_union(one: Group, two: Group, group: Foreign<Group>) -> Result<()> {
    let members = objects::group(one)?.union(&*objects::group(two)?);
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members, group) }
}

/// `MPI_Group_intersection`.
pub unsafe fn group_intersection(one: Group, two: Group, group: Foreign<Group>) -> Result<()> {
    let members = objects::group(one)?.intersection(&*objects::group(two)?);
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members, group) }
}

/// `MPI_Group_difference`.
pub unsafe fn group_difference(one: Group, two: Group, group: Foreign<Group>) -> Result<()> {
    let members = objects::group(one)?.difference(&*objects::group(two)?);
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members, group) }
}

/// `MPI_Group_incl`.
pub unsafe fn group_incl(group: Group, n: c_int, ranks: Foreign<c_int>, new: Foreign<Group>) -> Result<()> {
    let members = objects::group(group)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members.include(&ranks.to_vec(number(n)?))?, new) }
}

/// `MPI_Group_excl`.
pub unsafe fn group_excl(group: Group, n: c_int, ranks: Foreign<c_int>, new: Foreign<Group>) -> Result<()> {
    let members = objects::group(group)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members.exclude(&ranks.to_vec(number(n)?))?, new) }
}

/// The ranks of an array of triplets.
unsafe fn triplets(n: c_int, ranges: Foreign<c_int>) -> Result<Vec<c_int>> {
    // SAFETY: the arguments are as the standard says.
    let all = unsafe { ranges.to_vec(3 * number(n)?) };
    let ranges: Vec<[c_int; 3]> = all.chunks_exact(3).map(|range| [range[0], range[1], range[2]]).collect();
    ranks_of(&ranges)
}

/// `MPI_Group_range_incl`.
pub unsafe fn group_range_incl(
    group: Group,
    n: c_int,
    ranges: Foreign<c_int>,
    new: Foreign<Group>,
) -> Result<()> {
    let members = objects::group(group)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members.include(&triplets(n, ranges)?)?, new) }
}

/// `MPI_Group_range_excl`.
pub unsafe fn group_range_excl(
    group: Group,
    n: c_int,
    ranges: Foreign<c_int>,
    new: Foreign<Group>,
) -> Result<()> {
    let members = objects::group(group)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { give(members.exclude(&triplets(n, ranges)?)?, new) }
}

/// `MPI_Group_free`.
pub unsafe fn group_free(group: Foreign<Group>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = group.get(0);
        objects::group(handle)?;
        GROUPS.remove(handle.0);
        group.set(0, c::GROUP_NULL);
    }
    Ok(())
}
