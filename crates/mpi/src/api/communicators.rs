//! Communicators.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Ptr, groups, infos, set_string, string};
use crate::attribute::{Attributes, Owner};
use crate::call::Object;
use crate::collective::{self, Channel, Collective, algorithms};
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::group::Members;
use crate::handle::{Comm, Group, Info, Request};
use crate::objects::{self, COMMS, Communicator, lock};
use crate::topology::Cartesian;
use crate::{network, request};

/// `MPI_Comm_size`.
pub unsafe fn comm_size(comm: Comm, size: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { size.set(0, objects::comm(comm)?.size() as c_int) };
    Ok(())
}

/// `MPI_Comm_rank`.
pub unsafe fn comm_rank(comm: Comm, rank: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { rank.set(0, objects::comm(comm)?.rank as c_int) };
    Ok(())
}

/// `MPI_Comm_compare`.
pub unsafe fn comm_compare(one: Comm, two: Comm, result: Foreign<c_int>) -> Result<()> {
    let (first, second) = (objects::comm(one)?, objects::comm(two)?);
    let compared = match first.members.compare(&second.members) {
        c::IDENT if one != two => c::CONGRUENT,
        other => other,
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { result.set(0, compared) };
    Ok(())
}

/// `MPI_Comm_test_inter`.
pub unsafe fn comm_test_inter(comm: Comm, flag: Foreign<c_int>) -> Result<()> {
    objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { flag.set(0, 0) };
    Ok(())
}

/// `MPI_Comm_group`.
pub unsafe fn comm_group(comm: Comm, group: Foreign<Group>) -> Result<()> {
    let members = (*objects::comm(comm)?.members).clone();
    // SAFETY: the arguments are as the standard says.
    unsafe { groups::give(members, group) }
}

/// `MPI_Comm_get_parent`: nobody spawned this process.
pub unsafe fn comm_get_parent(parent: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { parent.set(0, c::COMM_NULL) };
    Ok(())
}

/// The first of the members of a new communicator gives it a number and tells the others. `ranks` are those
/// of the members in the communicator of the channel.
async fn agree(channel: &Channel, ranks: &[usize]) -> Result<u32> {
    let relative = ranks.iter().position(|rank| *rank == channel.rank).unwrap_or(0);
    let mut bytes = if relative == 0 { objects::new_context()? } else { 0 }.to_le_bytes().to_vec();
    algorithms::broadcast_among(channel, (relative, ranks.len()), &|number| ranks[number], &mut bytes).await?;
    let bytes = bytes.try_into().map_err(|_| Error::new(c::ERR_INTERN, "a context has 4 bytes"))?;
    Ok(u32::from_le_bytes(bytes))
}

/// Makes a communicator of members of `parent`, by rank there; the null communicator for others.
pub(super) fn make(
    parent: &Arc<Communicator>,
    channel: &Channel,
    ranks: &[usize],
    topology: Option<Cartesian>,
) -> Result<Comm> {
    let Some(rank) = ranks.iter().position(|rank| *rank == channel.rank) else { return Ok(c::COMM_NULL) };
    let members = Members(ranks.iter().map(|rank| parent.members.0[*rank]).collect());
    let context = collective::run(parent, agree(channel, ranks))?;
    let made = Communicator::like(parent, Arc::new(members), rank as u32, Attributes::default(), topology);
    made.set_context(context);
    objects::add_comm(made)
}

/// A copy of a communicator without contexts, with its attributes.
unsafe fn copy(object: &Communicator, comm: Comm) -> Result<Communicator> {
    // SAFETY: the program's callbacks keep to the standard.
    let attributes = unsafe { object.attributes.copy(&Owner(Object::Comm(comm), None))? };
    let (members, topology) = (Arc::clone(&object.members), object.topology.clone());
    Ok(Communicator::like(object, members, object.rank, attributes, topology))
}

/// `MPI_Comm_dup`.
pub unsafe fn comm_dup(comm: Comm, new: Foreign<Comm>) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let made = copy(&object, comm)?;
        let (channel, ranks) = (Channel::next(&object)?, (0..object.size()).collect::<Vec<_>>());
        made.set_context(collective::run(&object, agree(&channel, &ranks))?);
        new.set(0, objects::add_comm(made)?);
    }
    Ok(())
}

/// `MPI_Comm_dup_with_info`.
pub unsafe fn comm_dup_with_info(comm: Comm, info: Info, new: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let hints = if info == c::INFO_NULL { Vec::new() } else { lock(&*objects::info(info)?).clone() };
        comm_dup(comm, new)?;
        *lock(&objects::comm(new.get(0))?.info) = hints;
    }
    Ok(())
}

/// `MPI_Comm_idup`: the handle is there at once, the contexts when the request is complete.
pub unsafe fn comm_idup(comm: Comm, new: Foreign<Comm>, request: Foreign<Request>) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = objects::add_comm(copy(&object, comm)?)?;
        let made = objects::comm(handle)?;
        let (channel, ranks) = (Channel::next(&object)?, (0..object.size()).collect::<Vec<_>>());
        let future = async move {
            made.set_context(agree(&channel, &ranks).await?);
            Ok(())
        };
        new.set(0, handle);
        request.set(0, request::started(comm, Collective::start(&object, Box::pin(future)))?);
    }
    Ok(())
}

/// `MPI_Comm_idup_with_info`.
pub unsafe fn comm_idup_with_info(
    comm: Comm,
    info: Info,
    new: Foreign<Comm>,
    request: Foreign<Request>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let hints = if info == c::INFO_NULL { Vec::new() } else { lock(&*objects::info(info)?).clone() };
        comm_idup(comm, new, request)?;
        *lock(&objects::comm(new.get(0))?.info) = hints;
    }
    Ok(())
}

/// Members with the same colour are together, ordered by key and then by rank; those without one are in none.
fn split(comm: Comm, color: Option<u64>, key: c_int) -> Result<Comm> {
    let object = objects::comm(comm)?;
    let channel = Channel::next(&object)?;
    let mut own = vec![u8::from(color.is_some())];
    own.extend_from_slice(&color.unwrap_or(0).to_le_bytes());
    own.extend_from_slice(&key.to_le_bytes());
    let lens = vec![own.len(); object.size()];
    let all = collective::run(&object, algorithms::gather_all(&channel, own.clone(), &lens))?;
    let mut together: Vec<(c_int, usize)> = (all.iter().enumerate())
        .filter(|(_, theirs)| color.is_some() && theirs[..9] == own[..9])
        .map(|(rank, theirs)| (c_int::from_le_bytes([theirs[9], theirs[10], theirs[11], theirs[12]]), rank))
        .collect();
    together.sort_unstable();
    let ranks: Vec<usize> = together.into_iter().map(|(_, rank)| rank).collect();
    make(&object, &channel, &ranks, None)
}

/// `MPI_Comm_split`.
pub unsafe fn comm_split(comm: Comm, color: c_int, key: c_int, new: Foreign<Comm>) -> Result<()> {
    let color = match color {
        c::UNDEFINED => None,
        color => Some(u64::try_from(color).map_err(|_| Error::new(c::ERR_ARG, format!("color is {color}")))?),
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, split(comm, color, key)?) };
    Ok(())
}

/// `MPI_Comm_split_type`: ranks that share memory are those of one host. Other hardware is not told apart.
pub unsafe fn comm_split_type(
    comm: Comm,
    kind: c_int,
    key: c_int,
    _info: Info,
    new: Foreign<Comm>,
) -> Result<()> {
    let known = (c::COMM_TYPE_SHARED..=c::COMM_TYPE_RESOURCE_GUIDED).contains(&kind);
    if !known && kind != c::UNDEFINED {
        return Err(Error::new(c::ERR_ARG, format!("{kind} is no split type")));
    }
    let color = (kind == c::COMM_TYPE_SHARED).then(network::host_number);
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, split(comm, color, key)?) };
    Ok(())
}

/// The ranks of a group's members in a communicator.
fn ranks_in(comm: &Communicator, group: Group) -> Result<Vec<usize>> {
    let members = objects::group(group)?;
    let ranks: Option<Vec<usize>> = members.0.iter().map(|member| comm.members.rank_of(*member)).collect();
    ranks.ok_or_else(|| {
        Error::new(c::ERR_GROUP, "the group has members that the communicator does not have")
    })
}

/// `MPI_Comm_create`.
pub unsafe fn comm_create(comm: Comm, group: Group, new: Foreign<Comm>) -> Result<()> {
    let object = objects::comm(comm)?;
    let ranks = ranks_in(&object, group)?;
    let channel = Channel::next(&object)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, make(&object, &channel, &ranks, None)?) };
    Ok(())
}

/// `MPI_Comm_create_group`: only the members of the group call it.
pub unsafe fn comm_create_group(comm: Comm, group: Group, tag: c_int, new: Foreign<Comm>) -> Result<()> {
    let object = objects::comm(comm)?;
    let tag = u32::try_from(tag).map_err(|_| Error::new(c::ERR_TAG, format!("the tag is {tag}")))?;
    let channel = Channel::by_group(&object, tag)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, make(&object, &channel, &ranks_in(&object, group)?, None)?) };
    Ok(())
}

/// `MPI_Comm_free`. Operations under way keep the communicator.
pub unsafe fn comm_free(comm: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = comm.get(0);
        let object = objects::comm(handle)?;
        if matches!(handle, c::COMM_WORLD | c::COMM_SELF) {
            return Err(Error::new(c::ERR_COMM, "a predefined communicator cannot be freed").on(handle));
        }
        let owner = Owner(Object::Comm(handle), None);
        object.attributes.delete_all(&owner).map_err(|error| error.on(handle))?;
        COMMS.remove(handle.0);
        comm.set(0, c::COMM_NULL);
    }
    Ok(())
}

/// `MPI_Comm_disconnect`.
pub unsafe fn comm_disconnect(comm: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_free(comm) }
}

/// `MPI_Comm_set_name`.
pub unsafe fn comm_set_name(comm: Comm, name: Ptr) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    *lock(&object.name) = unsafe { string(name, "comm_name")? };
    Ok(())
}

/// `MPI_Comm_get_name`.
pub unsafe fn comm_get_name(comm: Comm, name: Ptr, length: Foreign<c_int>) -> Result<()> {
    let text = match objects::comm(comm) {
        Ok(object) => lock(&object.name).clone(),
        Err(_) if comm == c::COMM_NULL => "MPI_COMM_NULL".to_owned(),
        Err(error) => return Err(error),
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { set_string(name, c::MAX_OBJECT_NAME, &text, length) }
}

/// `MPI_Comm_set_info`.
pub unsafe fn comm_set_info(comm: Comm, info: Info) -> Result<()> {
    let object = objects::comm(comm)?;
    *lock(&object.info) = lock(&*objects::info(info)?).clone();
    Ok(())
}

/// `MPI_Comm_get_info`.
pub unsafe fn comm_get_info(comm: Comm, info: Foreign<Info>) -> Result<()> {
    let hints = lock(&objects::comm(comm)?.info).clone();
    // SAFETY: the arguments are as the standard says.
    unsafe { infos::give(hints, info) }
}
