//! What the façades for Fortran need beyond the functions of C: attributes whose values are integers, and
//! callbacks that get their arguments by reference.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use crate::attribute::{CopyProxy, DeleteProxy, Proxy, set_proxy};

use crate::api::{comm_owner, is_predefined, predefined, refuse_predefined};
use crate::attribute::{Kind, Owner, Value};
use crate::call::Object;
use crate::error::Result;
use crate::handle::{Comm, Datatype, Request};
use crate::{objects, request};

/// Sets an attribute of a communicator to an integer.
///
/// # Safety
///
/// The callbacks of the key keep to the standard.
pub unsafe fn set_comm_attribute(comm: Comm, key: c_int, value: usize) -> Result<()> {
    let object = objects::comm(comm)?;
    refuse_predefined(key)?;
    let value = Value::Integer(Arc::new(value));
    // SAFETY: as promised by the caller.
    unsafe { object.attributes.set_value(Kind::Comm, key, value, &comm_owner(comm)) }
}

/// An attribute of a communicator as an integer, if it is set.
pub fn comm_attribute(comm: Comm, key: c_int) -> Result<Option<usize>> {
    let object = objects::comm(comm)?;
    if is_predefined(key) {
        // SAFETY: the places of predefined attributes hold an integer and stay.
        return Ok(predefined(key).map(|at| unsafe { *at } as usize));
    }
    Ok(object.attributes.value(Kind::Comm, key)?.map(|value| value.integer()))
}

/// Sets an attribute of a datatype to an integer.
///
/// # Safety
///
/// The callbacks of the key keep to the standard.
pub unsafe fn set_type_attribute(datatype: Datatype, key: c_int, value: usize) -> Result<()> {
    let object = objects::datatype(datatype)?;
    let (value, owner) = (Value::Integer(Arc::new(value)), Owner(Object::None, Some(datatype)));
    // SAFETY: as promised by the caller.
    unsafe { object.attributes.set_value(Kind::Type, key, value, &owner) }
}

/// An attribute of a datatype as an integer, if it is set.
pub fn type_attribute(datatype: Datatype, key: c_int) -> Result<Option<usize>> {
    let value = objects::datatype(datatype)?.attributes.value(Kind::Type, key)?;
    Ok(value.map(|value| value.integer()))
}

/// Has the functions of a generalized request called as those of Fortran are. Their extra state is the
/// address of the program's variable, which programs change.
pub fn call_by_reference(request: Request) -> Result<()> {
    request::general(request)?.by_reference.store(true, Ordering::Relaxed);
    Ok(())
}
