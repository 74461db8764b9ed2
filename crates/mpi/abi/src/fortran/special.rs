//! The functions of the core, except for those whose arguments differ in Fortran: attributes are integers,
//! and callbacks get their arguments by reference.

use std::ffi::{c_int, c_void};

pub use tautline_mpi::api::*;
use tautline_mpi::error::Result;
use tautline_mpi::foreign::{Callback, Foreign};
use tautline_mpi::handle::{Comm, Datatype, Info, Request};
use tautline_mpi::language::{self, Proxy};

use super::prelude::{Ptr, codec, from};

/// An extra state, which the program passes by reference and the core keeps by value.
unsafe fn state(at: Ptr) -> Ptr {
    // SAFETY: the program passed an integer of the size of an address.
    std::ptr::with_exposed_provenance_mut(unsafe { from::wide(at) } as usize)
}

type Copy =
    unsafe extern "C" fn(*mut c_int, *mut c_int, *mut usize, *mut usize, *mut usize, *mut c_int, *mut c_int);
type Delete = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut usize, *mut usize, *mut c_int);

#[allow(clippy::too_many_arguments, reason = "it is what the core calls")]
unsafe extern "C" fn copy(
    function: *const c_void,
    mut handle: c_int,
    mut key: c_int,
    extra: Ptr,
    _kind: c_int,
    value: Ptr,
    copied: *mut Ptr,
    flag: *mut c_int,
) -> c_int {
    let (mut extra, mut value, mut new, mut code) = (extra.addr(), value.addr(), 0, 0);
    // SAFETY: the program passed a function of this type, and the core passes places for the results.
    unsafe {
        let function = std::mem::transmute::<*const c_void, Copy>(function);
        let (handle, key, extra) = (&raw mut handle, &raw mut key, &raw mut extra);
        function(handle, key, extra, &raw mut value, &raw mut new, flag, &raw mut code);
        *copied = std::ptr::with_exposed_provenance_mut(new);
    }
    code
}

unsafe extern "C" fn delete(
    function: *const c_void,
    mut handle: c_int,
    mut key: c_int,
    _kind: c_int,
    value: Ptr,
    extra: Ptr,
) -> c_int {
    let (mut extra, mut value, mut code) = (extra.addr(), value.addr(), 0);
    // SAFETY: the program passed a function of this type.
    unsafe {
        let function = std::mem::transmute::<*const c_void, Delete>(function);
        function(&raw mut handle, &raw mut key, &raw mut value, &raw mut extra, &raw mut code);
    }
    code
}

const PROXY: Proxy = Proxy { copy, delete };

/// Writes the value of an attribute and whether it is set.
unsafe fn give(found: Option<usize>, value: Ptr, flag: Foreign<c_int>, is_wide: bool) {
    // SAFETY: the program passed a place for an integer, which is as wide as the function says.
    unsafe {
        flag.set(0, c_int::from(found.is_some()));
        match found {
            Some(found) if is_wide => value.cast::<usize>().write_unaligned(found),
            Some(found) => value.cast::<u32>().write_unaligned(found as u32),
            None => {}
        }
    }
}

/// `MPI_COMM_CREATE_KEYVAL`.
pub unsafe fn comm_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Foreign<c_int>,
    extra: Ptr,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        tautline_mpi::api::comm_create_keyval(copy, delete, key, state(extra))?;
        language::set_proxy(key.get(0), PROXY);
    }
    Ok(())
}

/// `MPI_KEYVAL_CREATE`, whose extra state is an integer.
pub unsafe fn keyval_create(copy: Callback, delete: Callback, key: Foreign<c_int>, extra: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let extra = std::ptr::with_exposed_provenance_mut(i64::from(from::int(extra)) as usize);
        tautline_mpi::api::comm_create_keyval(copy, delete, key, extra)?;
        language::set_proxy(key.get(0), PROXY);
    }
    Ok(())
}

/// `MPI_TYPE_CREATE_KEYVAL`.
pub unsafe fn type_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Foreign<c_int>,
    extra: Ptr,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        tautline_mpi::api::type_create_keyval(copy, delete, key, state(extra))?;
        language::set_proxy(key.get(0), PROXY);
    }
    Ok(())
}

/// `MPI_COMM_SET_ATTR`.
pub unsafe fn comm_set_attr(comm: Comm, key: c_int, value: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { language::set_comm_attribute(comm, key, from::wide(value) as usize) }
}

/// `MPI_COMM_GET_ATTR`.
pub unsafe fn comm_get_attr(comm: Comm, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { give(language::comm_attribute(comm, key)?, value, flag, true) };
    Ok(())
}

/// `MPI_ATTR_PUT`.
pub unsafe fn attr_put(comm: Comm, key: c_int, value: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { language::set_comm_attribute(comm, key, i64::from(from::int(value)) as usize) }
}

/// `MPI_ATTR_GET`.
pub unsafe fn attr_get(comm: Comm, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { give(language::comm_attribute(comm, key)?, value, flag, false) };
    Ok(())
}

/// `MPI_TYPE_SET_ATTR`.
pub unsafe fn type_set_attr(datatype: Datatype, key: c_int, value: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { language::set_type_attribute(datatype, key, from::wide(value) as usize) }
}

/// `MPI_TYPE_GET_ATTR`.
pub unsafe fn type_get_attr(datatype: Datatype, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { give(language::type_attribute(datatype, key)?, value, flag, true) };
    Ok(())
}

/// `MPI_GREQUEST_START`.
pub unsafe fn grequest_start(
    query: Callback,
    free: Callback,
    cancel: Callback,
    extra: Ptr,
    request: Foreign<Request>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        tautline_mpi::api::grequest_start(query, free, cancel, extra, request)?;
        language::call_by_reference(request.get(0))
    }
}

/// `MPI_INFO_GET_STRING`: lengths do not count a zero byte.
pub unsafe fn info_get_string(
    info: Info,
    key: Ptr,
    length: Foreign<c_int>,
    value: Ptr,
    flag: Foreign<c_int>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let room = length.get(0);
        let mut with_zero = if room > 0 { room.saturating_add(1) } else { 0 };
        let place = Foreign::new((&raw mut with_zero).cast(), &codec::INT);
        tautline_mpi::api::info_get_string(info, key, place, value, flag)?;
        if flag.get(0) != 0 {
            length.set(0, with_zero - 1);
        }
    }
    Ok(())
}

/// `MPI_BUFFER_DETACH`: Fortran gets the size only.
pub unsafe fn buffer_detach(_buffer: Ptr, size: Foreign<i64>) -> Result<()> {
    let mut place: Ptr = std::ptr::null_mut();
    // SAFETY: the arguments are as the standard says.
    unsafe { tautline_mpi::api::buffer_detach((&raw mut place).cast(), size) }
}

/// `MPI_COMM_DETACH_BUFFER`: Fortran gets the size only.
pub unsafe fn comm_detach_buffer(comm: Comm, _buffer: Ptr, size: Foreign<i64>) -> Result<()> {
    let mut place: Ptr = std::ptr::null_mut();
    // SAFETY: the arguments are as the standard says.
    unsafe { tautline_mpi::api::comm_detach_buffer(comm, (&raw mut place).cast(), size) }
}
