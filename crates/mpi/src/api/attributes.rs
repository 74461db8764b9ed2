//! Attributes of communicators and datatypes.

use std::ffi::c_int;
use std::sync::OnceLock;

use super::Ptr;
use crate::attribute::{self, Kind, Owner};
use crate::call::Object;
use crate::constants as c;
use crate::errhandler;
use crate::error::{Error, Result};
use crate::foreign::{Callback, Foreign};
use crate::handle::{Comm, Datatype};
use crate::network::network;
use crate::objects;

/// The highest tag.
pub(super) const TAG_UB: c_int = c_int::MAX;

/// The place of a predefined attribute's value; `None` if the attribute is not set, or the key is another
/// one.
pub(crate) fn predefined(key: c_int) -> Option<*const c_int> {
    static TAG: c_int = TAG_UB;
    static IO: c_int = c::ANY_SOURCE;
    static HOST: c_int = c::PROC_NULL;
    static GLOBAL: c_int = 0;
    static LAST: OnceLock<c_int> = OnceLock::new();
    Some(match key {
        c::TAG_UB => &TAG,
        c::IO => &IO,
        c::HOST => &HOST,
        c::WTIME_IS_GLOBAL => &GLOBAL,
        // A code may be added later, so each value has a place of its own.
        c::LASTUSEDCODE if errhandler::last_code() == c::ERR_LASTCODE => {
            LAST.get_or_init(errhandler::last_code)
        }
        c::LASTUSEDCODE => Box::leak(Box::new(errhandler::last_code())),
        c::APPNUM => network().program.as_ref()?,
        c::UNIVERSE_SIZE => &network().universe,
        _ => return None,
    })
}

/// Whether a key is one of the standard's.
pub(crate) fn is_predefined(key: c_int) -> bool {
    (c::TAG_UB..=c::UNIVERSE_SIZE).contains(&key)
}

pub(crate) fn comm_owner(comm: Comm) -> Owner {
    Owner(Object::Comm(comm), None)
}

pub(crate) fn refuse_predefined(key: c_int) -> Result<()> {
    if is_predefined(key) {
        return Err(Error::new(c::ERR_KEYVAL, "a predefined attribute cannot be changed"));
    }
    Ok(())
}

unsafe fn give(found: Option<Ptr>, value: Ptr, flag: Foreign<c_int>) {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        flag.set(0, c_int::from(found.is_some()));
        found.iter().for_each(|found| value.cast::<Ptr>().write_unaligned(*found));
    }
}

/// `MPI_Comm_create_keyval`.
pub unsafe fn comm_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Foreign<c_int>,
    extra_state: Ptr,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { key.set(0, attribute::create(Kind::Comm, copy, delete, extra_state)?) };
    Ok(())
}

/// `MPI_Comm_free_keyval`.
pub unsafe fn comm_free_keyval(key: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        attribute::free(Kind::Comm, key.get(0))?;
        key.set(0, c::KEYVAL_INVALID);
    }
    Ok(())
}

/// `MPI_Comm_set_attr`.
pub unsafe fn comm_set_attr(comm: Comm, key: c_int, value: Ptr) -> Result<()> {
    let object = objects::comm(comm)?;
    refuse_predefined(key)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { object.attributes.set(Kind::Comm, key, value, &comm_owner(comm)) }
}

/// `MPI_Comm_get_attr`.
pub unsafe fn comm_get_attr(comm: Comm, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    let object = objects::comm(comm)?;
    let found = if is_predefined(key) {
        predefined(key).map(|at| at.cast_mut().cast())
    } else {
        object.attributes.get(Kind::Comm, key)?
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { give(found, value, flag) };
    Ok(())
}

/// `MPI_Comm_delete_attr`.
pub unsafe fn comm_delete_attr(comm: Comm, key: c_int) -> Result<()> {
    let object = objects::comm(comm)?;
    refuse_predefined(key)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { object.attributes.delete(Kind::Comm, key, &comm_owner(comm)) }
}

/// `MPI_Keyval_create`.
pub unsafe fn keyval_create(copy: Callback, delete: Callback, key: Foreign<c_int>, extra: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_create_keyval(copy, delete, key, extra) }
}

/// `MPI_Keyval_free`.
pub unsafe fn keyval_free(key: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_free_keyval(key) }
}

/// `MPI_Attr_put`.
pub unsafe fn attr_put(comm: Comm, key: c_int, value: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_set_attr(comm, key, value) }
}

/// `MPI_Attr_get`.
pub unsafe fn attr_get(comm: Comm, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_get_attr(comm, key, value, flag) }
}

/// `MPI_Attr_delete`.
pub unsafe fn attr_delete(comm: Comm, key: c_int) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_delete_attr(comm, key) }
}

/// `MPI_Type_create_keyval`.
pub unsafe fn type_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Foreign<c_int>,
    extra_state: Ptr,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { key.set(0, attribute::create(Kind::Type, copy, delete, extra_state)?) };
    Ok(())
}

/// `MPI_Type_free_keyval`.
pub unsafe fn type_free_keyval(key: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        attribute::free(Kind::Type, key.get(0))?;
        key.set(0, c::KEYVAL_INVALID);
    }
    Ok(())
}

/// `MPI_Type_set_attr`.
pub unsafe fn type_set_attr(datatype: Datatype, key: c_int, value: Ptr) -> Result<()> {
    let object = objects::datatype(datatype)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { object.attributes.set(Kind::Type, key, value, &Owner(Object::None, Some(datatype))) }
}

/// `MPI_Type_get_attr`.
pub unsafe fn type_get_attr(datatype: Datatype, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    let found = objects::datatype(datatype)?.attributes.get(Kind::Type, key)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { give(found, value, flag) };
    Ok(())
}

/// `MPI_Type_delete_attr`.
pub unsafe fn type_delete_attr(datatype: Datatype, key: c_int) -> Result<()> {
    let object = objects::datatype(datatype)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { object.attributes.delete(Kind::Type, key, &Owner(Object::None, Some(datatype))) }
}
