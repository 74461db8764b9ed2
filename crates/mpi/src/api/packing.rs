//! Packing into the program's memory, and what a status says about counts.

use std::ffi::c_int;

use super::{Ptr, string};
use crate::constants as c;
use crate::datatype::Message;
use crate::error::{Error, Result, count as natural, ensure};
use crate::foreign::{Foreign, Status};
use crate::handle::{Comm, Datatype};
use crate::objects;

/// A message in the program's memory.
pub(super) fn message(at: Ptr, count: i64, datatype: Datatype) -> Result<Message> {
    let object = objects::datatype(datatype)?;
    object.of.ensure_committed()?;
    Message::new(at, count, &object.of)
}

/// `MPI_Pack_size`.
pub unsafe fn pack_size(count: i64, datatype: Datatype, comm: Comm, size: Foreign<i64>) -> Result<()> {
    objects::comm(comm)?;
    let count = natural(count, "incount")? as i64;
    let bytes = objects::datatype(datatype)?.of.size().cast_signed().checked_mul(count);
    let bytes = bytes.ok_or_else(|| Error::new(c::ERR_COUNT, "the packed size does not fit MPI_Count"))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { size.set(0, bytes) };
    Ok(())
}

/// The part of a packed buffer behind the position.
fn room(size: i64, position: i64, needed: u64) -> Result<i64> {
    let end = i64::try_from(needed).ok().and_then(|needed| position.checked_add(needed));
    ensure(position >= 0 && end.is_some_and(|end| end <= size), c::ERR_TRUNCATE, || {
        format!("{needed} bytes at position {position} do not fit a buffer of {size} bytes")
    })?;
    Ok(position)
}

/// `MPI_Pack`.
pub unsafe fn pack(
    input: Ptr,
    count: i64,
    datatype: Datatype,
    output: Ptr,
    size: i64,
    position: Foreign<i64>,
    comm: Comm,
) -> Result<()> {
    objects::comm(comm)?;
    let message = message(input, count, datatype)?;
    // SAFETY: the arguments are as the standard says; the room was checked.
    unsafe {
        let at = room(size, position.get(0), message.size())?;
        let bytes = message.size() as usize;
        if bytes > 0 {
            let out = std::slice::from_raw_parts_mut(output.cast::<u8>().offset(at as isize), bytes);
            message.pack(0, out);
        }
        position.set(0, at + bytes as i64);
    }
    Ok(())
}

/// `MPI_Unpack`.
pub unsafe fn unpack(
    input: Ptr,
    size: i64,
    position: Foreign<i64>,
    output: Ptr,
    count: i64,
    datatype: Datatype,
    comm: Comm,
) -> Result<()> {
    objects::comm(comm)?;
    let message = message(output, count, datatype)?;
    // SAFETY: the arguments are as the standard says; the room was checked.
    unsafe {
        let at = room(size, position.get(0), message.size())?;
        let bytes = message.size() as usize;
        if bytes > 0 {
            message.unpack(0, std::slice::from_raw_parts(input.cast::<u8>().offset(at as isize), bytes));
        }
        position.set(0, at + bytes as i64);
    }
    Ok(())
}

/// The message and its size in the representation that the program names.
unsafe fn external(datarep: Ptr, at: Ptr, count: i64, datatype: Datatype) -> Result<(Message, u64)> {
    // SAFETY: the arguments are as the standard says.
    let name = unsafe { string(datarep, "datarep")? };
    ensure(name == "external32", c::ERR_UNSUPPORTED_DATAREP, || {
        format!("the data representation is `{name}`, and only `external32` is supported")
    })?;
    let message = message(at, count, datatype)?;
    let size = message.external_size();
    let size = size.ok_or_else(|| Error::new(c::ERR_COUNT, "the packed size does not fit MPI_Count"))?;
    Ok((message, size))
}

/// `MPI_Pack_external_size`.
pub unsafe fn pack_external_size(
    datarep: Ptr,
    count: i64,
    datatype: Datatype,
    size: Foreign<i64>,
) -> Result<()> {
    // Nothing is read from this address.
    let nowhere = std::ptr::dangling_mut::<u128>().cast();
    // SAFETY: the arguments are as the standard says.
    unsafe { size.set(0, external(datarep, nowhere, count, datatype)?.1.cast_signed()) };
    Ok(())
}

/// `MPI_Pack_external`.
pub unsafe fn pack_external(
    datarep: Ptr,
    input: Ptr,
    count: i64,
    datatype: Datatype,
    output: Ptr,
    size: i64,
    position: Foreign<i64>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says; the room was checked.
    unsafe {
        let (message, bytes) = external(datarep, input, count, datatype)?;
        let at = room(size, position.get(0), bytes)?;
        if bytes > 0 {
            let out = output.cast::<u8>().offset(at as isize);
            message.pack_external(std::slice::from_raw_parts_mut(out, bytes as usize));
        }
        position.set(0, at + bytes.cast_signed());
    }
    Ok(())
}

/// `MPI_Unpack_external`.
pub unsafe fn unpack_external(
    datarep: Ptr,
    input: Ptr,
    size: i64,
    position: Foreign<i64>,
    output: Ptr,
    count: i64,
    datatype: Datatype,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says; the room was checked.
    unsafe {
        let (message, bytes) = external(datarep, output, count, datatype)?;
        let at = room(size, position.get(0), bytes)?;
        if bytes > 0 {
            let from = input.cast::<u8>().offset(at as isize);
            message.unpack_external(std::slice::from_raw_parts(from, bytes as usize));
        }
        position.set(0, at + bytes.cast_signed());
    }
    Ok(())
}

/// `MPI_Get_count`.
pub unsafe fn get_count(status: Foreign<Status>, datatype: Datatype, count: Foreign<i64>) -> Result<()> {
    let object = objects::datatype(datatype)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let copies = object.of.copies_in(status.get(0).bytes);
        count.set(0, copies.map_or(i64::from(c::UNDEFINED), u64::cast_signed));
    }
    Ok(())
}

/// `MPI_Get_elements`.
pub unsafe fn get_elements(status: Foreign<Status>, datatype: Datatype, count: Foreign<i64>) -> Result<()> {
    let object = objects::datatype(datatype)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let elements = object.of.elements_in(status.get(0).bytes);
        count.set(0, elements.map_or(i64::from(c::UNDEFINED), u64::cast_signed));
    }
    Ok(())
}

/// `MPI_Get_elements_x`.
pub unsafe fn get_elements_x(status: Foreign<Status>, datatype: Datatype, count: Foreign<i64>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { get_elements(status, datatype, count) }
}

/// `MPI_Status_set_elements`.
pub unsafe fn status_set_elements(status: Foreign<Status>, datatype: Datatype, count: i64) -> Result<()> {
    let elements = natural(count, "count")? as u64;
    let bytes = objects::datatype(datatype)?.of.bytes_of(elements);
    let bytes = bytes.ok_or_else(|| Error::new(c::ERR_COUNT, "so many elements do not fit a status"))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { change(status, |status| status.bytes = bytes) }
}

/// `MPI_Status_set_elements_x`.
pub unsafe fn status_set_elements_x(status: Foreign<Status>, datatype: Datatype, count: i64) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { status_set_elements(status, datatype, count) }
}

unsafe fn change(status: Foreign<Status>, change: impl FnOnce(&mut Status)) -> Result<()> {
    super::ensure_some(status, "status")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let mut value = status.get(0);
        change(&mut value);
        status.set(0, value);
    }
    Ok(())
}

/// `MPI_Status_set_cancelled`.
pub unsafe fn status_set_cancelled(status: Foreign<Status>, flag: c_int) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { change(status, |status| status.cancelled = flag != 0) }
}

/// `MPI_Status_set_source`.
pub unsafe fn status_set_source(status: Foreign<Status>, source: c_int) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { change(status, |status| status.source = source) }
}

/// `MPI_Status_set_tag`.
pub unsafe fn status_set_tag(status: Foreign<Status>, tag: c_int) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { change(status, |status| status.tag = tag) }
}

/// `MPI_Status_set_error`.
pub unsafe fn status_set_error(status: Foreign<Status>, error: c_int) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { change(status, |status| status.error = error) }
}

/// `MPI_Status_get_source`.
pub unsafe fn status_get_source(status: Foreign<Status>, source: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { source.set(0, status.get(0).source) };
    Ok(())
}

/// `MPI_Status_get_tag`.
pub unsafe fn status_get_tag(status: Foreign<Status>, tag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { tag.set(0, status.get(0).tag) };
    Ok(())
}

/// `MPI_Status_get_error`.
pub unsafe fn status_get_error(status: Foreign<Status>, error: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { error.set(0, status.get(0).error) };
    Ok(())
}

/// `MPI_Test_cancelled`.
pub unsafe fn test_cancelled(status: Foreign<Status>, flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { flag.set(0, c_int::from(status.get(0).cancelled)) };
    Ok(())
}
