//! Communicators.

use std::ffi::c_int;
use std::sync::Arc;

use tautline::group::{Call, Group};

use super::{Ptr, groups, infos, intercommunicators, set_string, string};
use crate::attribute::{Attributes, Owner};
use crate::call::Object;
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::group::Members;
use crate::handle::{self, Comm, Info, Request};
use crate::network::{failure, host_number, network};
use crate::objects::{self, COMMS, Communicator, lock};
use crate::operation::Operation;
use crate::request;
use crate::topology::Topology;

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
    let local = first.members.compare(&second.members);
    let both = match (&first.remote, &second.remote) {
        (None, None) => [local, local],
        (Some(first), Some(second)) => [local, first.compare(second)],
        _ => [c::UNEQUAL; 2],
    };
    let compared = match both {
        [c::IDENT, c::IDENT] if one == two => c::IDENT,
        [c::IDENT, c::IDENT] => c::CONGRUENT,
        both if both.contains(&c::UNEQUAL) => c::UNEQUAL,
        _ => c::SIMILAR,
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { result.set(0, compared) };
    Ok(())
}

/// `MPI_Comm_group`.
pub unsafe fn comm_group(comm: Comm, group: Foreign<handle::Group>) -> Result<()> {
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

/// Makes a communicator of a group that was made of `parent`; the null communicator without one.
pub(super) fn make(parent: &Communicator, group: Option<Group>, topology: Option<Topology>) -> Result<Comm> {
    let Some(group) = group else { return Ok(c::COMM_NULL) };
    let (members, rank) = (Members(group.ranks().to_vec()), group.member() as u32);
    let made = Communicator::like(parent, Arc::new(members), rank, Attributes::default(), topology);
    made.set_group(group);
    objects::add_comm(made)
}

/// Makes a communicator of members of `parent`, by rank there, the same list at all of them. All members of
/// `parent` call it.
pub(super) fn make_subset(
    parent: &Communicator,
    ranks: &[usize],
    topology: Option<Topology>,
) -> Result<Comm> {
    intercommunicators::ensure_intra(parent)?;
    make(parent, parent.group()?.subset(ranks).map_err(failure)?, topology)
}

/// A copy of a communicator without a group, with its attributes.
unsafe fn copy(object: &Communicator, comm: Comm) -> Result<Communicator> {
    // SAFETY: the program's callbacks keep to the standard.
    let attributes = unsafe { object.attributes.copy(&Owner(Object::Comm(comm), None))? };
    let (members, topology) = (Arc::clone(&object.members), object.topology.clone());
    let mut made = Communicator::like(object, members, object.rank, attributes, topology);
    made.remote.clone_from(&object.remote);
    Ok(made)
}

/// `MPI_Comm_dup`.
pub unsafe fn comm_dup(comm: Comm, new: Foreign<Comm>) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        new.set(0, c::COMM_NULL);
        let made = copy(&object, comm)?;
        made.set_group(object.group()?.duplicate().map_err(failure)?);
        new.set(0, objects::add_comm(made)?);
    }
    Ok(())
}

/// The hints that a communicator keeps: those of the standard. Others are ignored.
fn hints(info: Info) -> Result<Vec<(String, String)>> {
    if info == c::INFO_NULL {
        return Ok(Vec::new());
    }
    let mut hints = lock(&*objects::info(info)?).clone();
    hints.retain(|(key, _)| key.starts_with("mpi_"));
    Ok(hints)
}

/// `MPI_Comm_dup_with_info`.
pub unsafe fn comm_dup_with_info(comm: Comm, info: Info, new: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let hints = hints(info)?;
        comm_dup(comm, new)?;
        *lock(&objects::comm(new.get(0))?.info) = hints;
    }
    Ok(())
}

/// `MPI_Comm_idup`: the handle is there at once, the group when the request is complete. The first member
/// chooses its number.
pub unsafe fn comm_idup(comm: Comm, new: Foreign<Comm>, request: Foreign<Request>) -> Result<()> {
    let object = objects::comm(comm)?;
    let ranks = object.group()?.ranks().to_vec();
    let first = object.group()?.member() == 0;
    let input = if first { objects::new_id()?.to_le_bytes().to_vec() } else { Vec::new() };
    // SAFETY: the arguments are as the standard says.
    unsafe {
        new.set(0, c::COMM_NULL);
        let handle = objects::add_comm(copy(&object, comm)?)?;
        let made = objects::comm(handle)?;
        let finish = move |bytes: &[u8]| {
            let id = bytes.try_into().map(u32::from_le_bytes);
            let id = id.map_err(|_| Error::new(c::ERR_INTERN, "the number of a group has 4 bytes"))?;
            made.set_group(Group::with_id(network().tags(), &ranks, id).map_err(failure)?);
            Ok(())
        };
        let call = Call::Broadcast { root: 0, len: 4 };
        let collective = object.group()?.start(&call, input).map_err(failure)?;
        new.set(0, handle);
        crate::waiting::note_started_collective();
        request.set(0, request::started(object, Operation::Collective(Some(collective), Arc::new(finish)))?);
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
        let hints = hints(info)?;
        comm_idup(comm, new, request)?;
        *lock(&objects::comm(new.get(0))?.info) = hints;
    }
    Ok(())
}

fn split(comm: Comm, color: Option<u32>, key: c_int) -> Result<Comm> {
    let object = objects::comm(comm)?;
    if object.remote.is_some() {
        return intercommunicators::split(&object, color, key);
    }
    make(&object, object.group()?.split(color, key.into()).map_err(failure)?, None)
}

/// `MPI_Comm_split`.
pub unsafe fn comm_split(comm: Comm, color: c_int, key: c_int, new: Foreign<Comm>) -> Result<()> {
    let color = match color {
        c::UNDEFINED => None,
        color => Some(u32::try_from(color).map_err(|_| Error::new(c::ERR_ARG, format!("color is {color}")))?),
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, split(comm, color, key)?) };
    Ok(())
}

/// Whether ranks that share memory are asked for by the info of a guided split.
fn asks_for_shared_memory(info: Info) -> Result<bool> {
    if info == c::INFO_NULL {
        return Ok(false);
    }
    let hints = objects::info(info)?;
    let hints = lock(&hints);
    Ok(hints.iter().any(|(key, value)| key == "mpi_hw_resource_type" && value == "mpi_shared_memory"))
}

/// `MPI_Comm_split_type`: ranks that share memory are those of one host. Other hardware is not told apart.
pub unsafe fn comm_split_type(
    comm: Comm,
    kind: c_int,
    key: c_int,
    info: Info,
    new: Foreign<Comm>,
) -> Result<()> {
    let known = (c::COMM_TYPE_SHARED..=c::COMM_TYPE_RESOURCE_GUIDED).contains(&kind);
    if !known && kind != c::UNDEFINED {
        return Err(Error::new(c::ERR_ARG, format!("{kind} is no split type")));
    }
    let shared = match kind {
        c::COMM_TYPE_SHARED => true,
        c::COMM_TYPE_HW_GUIDED | c::COMM_TYPE_RESOURCE_GUIDED => asks_for_shared_memory(info)?,
        _ => false,
    };
    let color = shared.then(host_number);
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, split(comm, color, key)?) };
    Ok(())
}

/// The ranks of a group's members in a communicator.
fn ranks_in(comm: &Communicator, group: handle::Group) -> Result<Vec<usize>> {
    let members = objects::group(group)?;
    let ranks: Option<Vec<usize>> = members.0.iter().map(|member| comm.members.rank_of(*member)).collect();
    ranks.ok_or_else(|| Error::new(c::ERR_GROUP, "the group has members that the communicator does not have"))
}

/// `MPI_Comm_create`.
pub unsafe fn comm_create(comm: Comm, group: handle::Group, new: Foreign<Comm>) -> Result<()> {
    let object = objects::comm(comm)?;
    let ranks = ranks_in(&object, group)?;
    let made = match object.remote {
        Some(_) => intercommunicators::create(&object, group)?,
        None => make_subset(&object, &ranks, None)?,
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, made) };
    Ok(())
}

/// `MPI_Comm_create_group`: only the members of the group call it.
pub unsafe fn comm_create_group(
    comm: Comm,
    group: handle::Group,
    tag: c_int,
    new: Foreign<Comm>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    intercommunicators::ensure_intra(&object)?;
    let tag = u32::try_from(tag).map_err(|_| Error::new(c::ERR_TAG, format!("the tag is {tag}")))?;
    ranks_in(&object, group)?;
    let members = objects::group(group)?;
    let made = if members.rank_of(network().rank).is_some() {
        Some(object.group()?.create_within(&members.0, tag).map_err(failure)?)
    } else {
        None
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, make(&object, made, None)?) };
    Ok(())
}

/// `MPI_Comm_free`. Operations under way keep the communicator.
pub unsafe fn comm_free(comm: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = comm.get(0);
        let object = objects::comm(handle)?;
        if matches!(handle, c::COMM_WORLD | c::COMM_SELF) {
            return Err(Error::new(c::ERR_COMM, "a predefined communicator cannot be freed").on(&object));
        }
        let owner = Owner(Object::Comm(handle), None);
        object.attributes.delete_all(&owner).map_err(|error| error.on(&object))?;
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
    objects::info(info)?;
    *lock(&object.info) = hints(info)?;
    Ok(())
}

/// `MPI_Comm_get_info`.
pub unsafe fn comm_get_info(comm: Comm, info: Foreign<Info>) -> Result<()> {
    let hints = lock(&objects::comm(comm)?.info).clone();
    // SAFETY: the arguments are as the standard says.
    unsafe { infos::give(hints, info) }
}
