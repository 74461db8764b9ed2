//! Communicators. Those that are made here have one member: making larger ones needs collectives.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Ptr, groups, infos, set_string, string};
use crate::attribute::{Attributes, Owner};
use crate::call::Object;
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::handle::{Comm, Group, Info, Request};
use crate::objects::{self, COMMS, Communicator, lock};
use crate::request;

/// Fails for communicators of several ranks.
pub(super) fn alone(comm: Comm) -> Result<Arc<Communicator>> {
    let object = objects::comm(comm)?;
    if object.size() == 1 {
        return Ok(object);
    }
    Err(Error::new(c::ERR_UNSUPPORTED_OPERATION, "collectives of several ranks are not implemented"))
}

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

/// `MPI_Comm_dup`.
pub unsafe fn comm_dup(comm: Comm, new: Foreign<Comm>) -> Result<()> {
    let object = alone(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let attributes = object.attributes.copy(&Owner(Object::Comm(comm), None))?;
        let copy = Communicator::like(&object, Arc::clone(&object.members), object.rank, attributes);
        new.set(0, objects::add_comm(copy)?);
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

/// `MPI_Comm_idup`.
pub unsafe fn comm_idup(comm: Comm, new: Foreign<Comm>, request: Foreign<Request>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        comm_dup(comm, new)?;
        request.set(0, request::started(comm, None)?);
    }
    Ok(())
}

/// A communicator with this process alone, if it belongs to it.
unsafe fn split(comm: Comm, belongs: bool, new: Foreign<Comm>) -> Result<()> {
    let object = alone(comm)?;
    let handle = if belongs {
        let members = Arc::clone(&object.members);
        objects::add_comm(Communicator::like(&object, members, object.rank, Attributes::default()))?
    } else {
        c::COMM_NULL
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, handle) };
    Ok(())
}

/// `MPI_Comm_split`.
pub unsafe fn comm_split(comm: Comm, color: c_int, _key: c_int, new: Foreign<Comm>) -> Result<()> {
    if color < 0 && color != c::UNDEFINED {
        return Err(Error::new(c::ERR_ARG, format!("color is {color}")));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { split(comm, color != c::UNDEFINED, new) }
}

/// `MPI_Comm_split_type`.
pub unsafe fn comm_split_type(
    comm: Comm,
    kind: c_int,
    _key: c_int,
    _info: Info,
    new: Foreign<Comm>,
) -> Result<()> {
    let known = (c::COMM_TYPE_SHARED..=c::COMM_TYPE_RESOURCE_GUIDED).contains(&kind);
    if !known && kind != c::UNDEFINED {
        return Err(Error::new(c::ERR_ARG, format!("{kind} is no split type")));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { split(comm, kind == c::COMM_TYPE_SHARED, new) }
}

/// `MPI_Comm_create`.
pub unsafe fn comm_create(comm: Comm, group: Group, new: Foreign<Comm>) -> Result<()> {
    let (object, members) = (alone(comm)?, objects::group(group)?);
    if members.0.iter().any(|member| object.members.rank_of(*member).is_none()) {
        return Err(Error::new(c::ERR_GROUP, "the group has members that the communicator does not have"));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { split(comm, !members.0.is_empty(), new) }
}

/// `MPI_Comm_create_group`.
pub unsafe fn comm_create_group(comm: Comm, group: Group, _tag: c_int, new: Foreign<Comm>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_create(comm, group, new) }
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
