//! `libmpi.so.12`: the functions of MPI with the ABI of MPICH, over [`tautline_mpi`].
//!
//! The functions and the pairs of values are generated; see `cargo xtask mpi`. Handles are `int` here, except
//! for files. Handles that are not predefined have the value that they have in the core.

#[allow(dead_code, reason = "some conversions belong to functions that are not implemented yet")]
mod convert;
/// The exported functions.
mod exports {
    use std::ffi::c_int;

    use crate::prelude::*;

    tautline_mpi::functions!();
}
mod symbols;
#[allow(dead_code, reason = "some values belong to functions that are not implemented yet")]
mod values;

/// What the generated functions use.
mod prelude {
    use std::ffi::{c_int, c_void};

    pub use tautline_mpi::call::Object;
    use tautline_mpi::error::Result;
    pub use tautline_mpi::foreign::Foreign;

    pub use crate::convert::{codec, from, to};

    /// The functions of the core, except for what differs in this ABI.
    pub mod api {
        use std::ffi::c_int;

        use tautline_mpi::error::Result;
        use tautline_mpi::foreign::Foreign;

        pub use tautline_mpi::api::*;

        /// `MPI_Abi_get_version`: this is not the standard ABI.
        pub unsafe fn abi_get_version(major: Foreign<c_int>, minor: Foreign<c_int>) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe {
                major.set(0, -1);
                minor.set(0, -1);
            }
            Ok(())
        }
    }

    /// Every pointer of the interface.
    pub type Ptr = *mut c_void;
    pub type Comm = c_int;
    pub type Group = c_int;
    pub type Win = c_int;
    pub type File = Ptr;
    pub type Session = c_int;
    pub type Message = c_int;
    pub type Info = c_int;
    pub type Errhandler = c_int;
    pub type Request = c_int;
    pub type Datatype = c_int;
    pub type Op = c_int;

    /// Runs the body of a function and returns its error code in this ABI.
    #[inline]
    pub fn call(name: &'static str, object: Object, body: impl FnOnce() -> Result<()>) -> c_int {
        to::code(tautline_mpi::call::call(name, object, body))
    }

    /// What a function that is not implemented does.
    pub fn unsupported(name: &'static str, object: Object) -> c_int {
        to::code(tautline_mpi::call::unsupported(name, object))
    }
}
