//! What MPICH's library for Fortran imports beyond the functions of the standard: attributes with a type,
//! callbacks that it calls itself, conversions, and extensions of MPICH.

use std::ffi::c_int;

use tautline_mpi::constants as core;
use tautline_mpi::error::Result;
use tautline_mpi::language::{self, CopyProxy, DeleteProxy, Proxy};

use crate::exports::*;
use crate::prelude::*;

/// Copies a status, which is the same five integers in C and Fortran.
unsafe fn copy_status(from: Ptr, to: Ptr) -> c_int {
    // SAFETY: the program passed two statuses.
    unsafe { std::ptr::copy(from.cast::<[c_int; 5]>(), to.cast::<[c_int; 5]>(), 1) };
    0
}

tautline_mpi::export! {
MPI_File_c2f PMPI_File_c2f(file: File) -> c_int { PMPI_File_toint(file) }
MPI_File_f2c PMPI_File_f2c(file: c_int) -> File { PMPI_File_fromint(file) }
MPI_Status_c2f PMPI_Status_c2f(from: Ptr, to: Ptr) -> c_int { copy_status(from, to) }
MPI_Status_f2c PMPI_Status_f2c(from: Ptr, to: Ptr) -> c_int { copy_status(from, to) }
MPI_Status_c2f08 PMPI_Status_c2f08(from: Ptr, to: Ptr) -> c_int { copy_status(from, to) }
MPI_Status_f082c PMPI_Status_f082c(from: Ptr, to: Ptr) -> c_int { copy_status(from, to) }
MPI_Status_f2f08 PMPI_Status_f2f08(from: Ptr, to: Ptr) -> c_int { copy_status(from, to) }
MPI_Status_f082f PMPI_Status_f082f(from: Ptr, to: Ptr) -> c_int { copy_status(from, to) }
MPIX_Comm_agree PMPIX_Comm_agree(comm: Comm, flag: Ptr) -> c_int {
    unsupported("MPIX_Comm_agree", Object::Comm(from::comm(comm)))
}
MPIX_Comm_failure_ack PMPIX_Comm_failure_ack(comm: Comm) -> c_int {
    unsupported("MPIX_Comm_failure_ack", Object::Comm(from::comm(comm)))
}
MPIX_Comm_failure_get_acked PMPIX_Comm_failure_get_acked(comm: Comm, group: Ptr) -> c_int {
    unsupported("MPIX_Comm_failure_get_acked", Object::Comm(from::comm(comm)))
}
MPIX_Comm_revoke PMPIX_Comm_revoke(comm: Comm) -> c_int {
    unsupported("MPIX_Comm_revoke", Object::Comm(from::comm(comm)))
}
MPIX_Comm_shrink PMPIX_Comm_shrink(comm: Comm, newcomm: Ptr) -> c_int {
    unsupported("MPIX_Comm_shrink", Object::Comm(from::comm(comm)))
}
MPIX_GPU_query_support PMPIX_GPU_query_support(kind: c_int, supported: Ptr) -> c_int {
    no_device(supported)
}
MPIX_Query_cuda_support PMPIX_Query_cuda_support() -> c_int { 0 }
MPIX_Query_hip_support PMPIX_Query_hip_support() -> c_int { 0 }
MPIX_Query_ze_support PMPIX_Query_ze_support() -> c_int { 0 }
}

/// Memory of graphics processors is not supported.
unsafe fn no_device(supported: Ptr) -> c_int {
    // SAFETY: the program passed a place for an integer.
    unsafe { Foreign::new(supported, &codec::INT).set(0, 0) };
    0
}

/// The type of an attribute's value that is a pointer; the others are integers.
const POINTER: c_int = 0;

/// An attribute key. Those that are predefined are one more in Fortran than in C, where they are odd.
fn key_of(key: c_int) -> c_int {
    let is_predefined = [0x6440_0000, 0x6600_0000].contains(&(key & !0xff));
    from::keyval(if is_predefined && key & 1 == 0 { key - 1 } else { key })
}

/// An attribute of a communicator as an integer. The values of some that are predefined are constants.
fn comm_attribute(comm: Comm, key: c_int) -> Result<Option<usize>> {
    let key = key_of(key);
    let found = language::comm_attribute(from::comm(comm), key)?;
    let converted = |to: fn(c_int) -> c_int| found.map(|value| to(value as c_int) as usize);
    Ok(match key {
        core::IO | core::HOST => converted(to::rank),
        core::LASTUSEDCODE => converted(to::code),
        _ => found,
    })
}

/// Writes the value of an attribute, which a function returns in a word whatever its type is.
unsafe fn give(found: Option<usize>, value: Ptr, flag: Ptr) {
    // SAFETY: the caller passes places for both.
    unsafe {
        *flag.cast::<c_int>() = c_int::from(found.is_some());
        found.iter().for_each(|found| value.cast::<usize>().write_unaligned(*found));
    }
}

/// Sets an attribute of a communicator that has the given type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Comm_set_attr(comm: Comm, key: c_int, value: Ptr, kind: c_int) -> c_int {
    // SAFETY: the arguments are as the library for Fortran passes them.
    unsafe {
        if kind == POINTER {
            return PMPI_Comm_set_attr(comm, key, value);
        }
        call("MPI_Comm_set_attr", Object::Comm(from::comm(comm)), || {
            language::set_comm_attribute(from::comm(comm), key_of(key), value.addr())
        })
    }
}

/// Reads an attribute of a communicator as the given type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Comm_get_attr(
    comm: Comm,
    key: c_int,
    value: Ptr,
    flag: Ptr,
    kind: c_int,
) -> c_int {
    // SAFETY: the arguments are as the library for Fortran passes them.
    unsafe {
        if kind == POINTER {
            return PMPI_Comm_get_attr(comm, key, value, flag);
        }
        call("MPI_Comm_get_attr", Object::Comm(from::comm(comm)), || {
            give(comm_attribute(comm, key)?, value, flag);
            Ok(())
        })
    }
}

/// Sets an attribute of a datatype that has the given type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Type_set_attr(of: Datatype, key: c_int, value: Ptr, kind: c_int) -> c_int {
    // SAFETY: the arguments are as the library for Fortran passes them.
    unsafe {
        if kind == POINTER {
            return PMPI_Type_set_attr(of, key, value);
        }
        call("MPI_Type_set_attr", Object::None, || {
            language::set_type_attribute(from::datatype(of), key_of(key), value.addr())
        })
    }
}

/// Reads an attribute of a datatype as the given type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Type_get_attr(
    of: Datatype,
    key: c_int,
    value: Ptr,
    flag: Ptr,
    kind: c_int,
) -> c_int {
    // SAFETY: the arguments are as the library for Fortran passes them.
    unsafe {
        if kind == POINTER {
            return PMPI_Type_get_attr(of, key, value, flag);
        }
        call("MPI_Type_get_attr", Object::None, || {
            give(language::type_attribute(from::datatype(of), from::keyval(key))?, value, flag);
            Ok(())
        })
    }
}

/// There are no windows yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Win_set_attr(win: Win, key: c_int, value: Ptr, _kind: c_int) -> c_int {
    // SAFETY: the arguments are as the library for Fortran passes them.
    unsafe { PMPI_Win_set_attr(win, key, value) }
}

/// There are no windows yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Win_get_attr(
    win: Win,
    key: c_int,
    value: Ptr,
    flag: Ptr,
    _kind: c_int,
) -> c_int {
    // SAFETY: the arguments are as the library for Fortran passes them.
    unsafe { PMPI_Win_get_attr(win, key, value, flag) }
}

/// Has the callbacks of a key called by functions of the library for Fortran.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Keyval_set_proxy(key: c_int, copy: CopyProxy, delete: DeleteProxy) {
    language::set_proxy(from::keyval(key), Proxy { copy, delete });
}

/// Says that the functions of a generalized request are those of a Fortran program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPII_Grequest_set_lang_f77(request: Request) {
    // It fails for other requests only, which the library for Fortran does not pass.
    let _ = language::call_by_reference(from::request(request));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predefined_keys_of_fortran_are_found() {
        assert_eq!((key_of(0x6440_0002), key_of(0x6440_0001)), (core::TAG_UB, core::TAG_UB));
        assert_eq!(key_of(0x6440_000c), core::LASTUSEDCODE);
        assert_eq!((key_of(4096), key_of(4097)), (4096, 4097));
    }
}
