//! Functions that the standard has removed and that libraries with this ABI still export, and functions of
//! MPICH that the standard has taken over under other names.

use std::ffi::c_int;

use crate::exports as mpi;
use crate::prelude::{Comm, Datatype, Errhandler, Ptr};

macro_rules! renamed {
    ($($old:ident $twin:ident($($arg:ident: $type:ty),*) = $new:ident;)*) => {
        tautline_mpi::export! {$(
            $old $twin($($arg: $type),*) -> c_int { mpi::$new($($arg),*) }
        )*}
    };
}

renamed! {
    MPI_Address PMPI_Address(location: Ptr, address: Ptr) = PMPI_Get_address;
    MPI_Errhandler_create PMPI_Errhandler_create(function: Ptr, handler: Ptr) = PMPI_Comm_create_errhandler;
    MPI_Errhandler_get PMPI_Errhandler_get(comm: Comm, errhandler: Ptr) = PMPI_Comm_get_errhandler;
    MPI_Errhandler_set PMPI_Errhandler_set(comm: Comm, errhandler: Errhandler) = PMPI_Comm_set_errhandler;
    MPI_Type_hindexed PMPI_Type_hindexed(
        count: c_int, lengths: Ptr, displacements: Ptr, oldtype: Datatype, newtype: Ptr
    ) = PMPI_Type_create_hindexed;
    MPI_Type_hvector PMPI_Type_hvector(
        count: c_int, length: c_int, stride: i64, oldtype: Datatype, newtype: Ptr
    ) = PMPI_Type_create_hvector;
    MPI_Type_struct PMPI_Type_struct(
        count: c_int, lengths: Ptr, displacements: Ptr, types: Ptr, newtype: Ptr
    ) = PMPI_Type_create_struct;
    MPIX_Delete_error_class PMPIX_Delete_error_class(class: c_int) = PMPI_Remove_error_class;
    MPIX_Delete_error_code PMPIX_Delete_error_code(code: c_int) = PMPI_Remove_error_code;
    MPIX_Delete_error_string PMPIX_Delete_error_string(code: c_int) = PMPI_Remove_error_string;
}

/// Lower bound and extent.
unsafe fn extent(datatype: Datatype) -> Result<(i64, i64), c_int> {
    let (mut lower, mut extent) = (0_i64, 0_i64);
    // SAFETY: both places have the size of `MPI_Aint`.
    let code =
        unsafe { mpi::PMPI_Type_get_extent(datatype, (&raw mut lower).cast(), (&raw mut extent).cast()) };
    if code == 0 { Ok((lower, extent)) } else { Err(code) }
}

/// Writes one of the numbers of a datatype.
unsafe fn give(datatype: Datatype, into: Ptr, number: impl FnOnce(i64, i64) -> i64) -> c_int {
    // SAFETY: the program passed a place for an `MPI_Aint`.
    unsafe {
        match extent(datatype) {
            Ok((lower, extent)) => {
                into.cast::<i64>().write_unaligned(number(lower, extent));
                0
            }
            Err(code) => code,
        }
    }
}

tautline_mpi::export! {
    MPI_Type_extent PMPI_Type_extent(datatype: Datatype, into: Ptr) -> c_int {
        give(datatype, into, |_, extent| extent)
    }
    MPI_Type_lb PMPI_Type_lb(datatype: Datatype, into: Ptr) -> c_int {
        give(datatype, into, |lower, _| lower)
    }
    MPI_Type_ub PMPI_Type_ub(datatype: Datatype, into: Ptr) -> c_int {
        give(datatype, into, |lower, extent| lower + extent)
    }
}
