//! `libmpi_abi.so.1`: the functions of MPI with the standard ABI of MPI 5, over [`tautline_mpi`].
//!
//! The functions are generated; see `cargo xtask mpi`. Each is exported twice, as `MPI_…` and as `PMPI_…`, so
//! that tools can put themselves between the program and the library.

/// The exported functions.
mod exports {
    use std::ffi::c_int;

    use crate::prelude::*;

    tautline_mpi::functions!();
}

/// The functions that Fortran calls.
mod fortran;

/// What the generated functions use.
mod prelude {
    use std::ffi::{c_int, c_void};

    pub use tautline_mpi::api;
    pub use tautline_mpi::call::{Absent, Object, absent, call, call_short, unsupported};
    pub use tautline_mpi::foreign::Foreign;
    pub use tautline_mpi::handle::*;
    pub use tautline_mpi::short;
    pub use tautline_mpi::standard::codec;

    /// Every pointer of the interface.
    pub type Ptr = *mut c_void;

    /// From the representation of the program to that of the core, which is the same.
    pub mod from {
        use super::*;
        pub use tautline_mpi::standard::{callback, status};

        macro_rules! same {
            ($($name:ident: $type:ty;)*) => {$(
                #[inline(always)]
                pub fn $name(value: $type) -> $type {
                    value
                }
            )*};
        }

        same! {
            buffer: Ptr; weights: Ptr; rank: c_int; tag: c_int; root: c_int; keyval: c_int; code: c_int; order: c_int;
            split: c_int; thread: c_int; typeclass: c_int;
            comm: Comm; group: Group; win: Win; file: File; session: Session; message: Message; info: Info;
            errhandler: Errhandler; request: Request; datatype: Datatype; op: Op;
        }

        macro_rules! of_int {
            ($($name:ident: $type:ident;)*) => {$(
                pub fn $name(value: c_int) -> $type {
                    $type(usize::try_from(value).unwrap_or(0))
                }
            )*};
        }

        of_int! {
            comm_of_int: Comm; group_of_int: Group; win_of_int: Win; file_of_int: File;
            session_of_int: Session; message_of_int: Message; info_of_int: Info;
            errhandler_of_int: Errhandler; request_of_int: Request; datatype_of_int: Datatype; op_of_int: Op;
        }
    }

    /// From the representation of the core to that of the program.
    pub mod to {
        use super::*;

        /// A handle as a number for Fortran: all are small.
        pub fn int(handle: impl Into<usize>) -> c_int {
            c_int::try_from(handle.into()).unwrap_or(0)
        }
    }
}
