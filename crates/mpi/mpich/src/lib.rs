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
mod fortran;
mod removed;
mod symbols;
#[allow(dead_code, reason = "some values belong to functions that are not implemented yet")]
mod values;

/// What the generated functions use.
mod prelude {
    use std::ffi::{c_int, c_void};

    pub use tautline_mpi::call::{Absent, Object, absent};
    use tautline_mpi::error::Result;
    pub use tautline_mpi::foreign::Foreign;
    pub use tautline_mpi::short;

    pub use crate::convert::{codec, from, to};

    /// The functions of the core, except for what differs in this ABI.
    pub mod api {
        use std::ffi::c_int;

        use tautline_mpi::constants::{BUFFER_AUTOMATIC, HOST, IN_PLACE, IO, LASTUSEDCODE};
        use tautline_mpi::error::Result;
        use tautline_mpi::foreign::Foreign;
        use tautline_mpi::handle::Comm;

        use crate::prelude::Ptr;

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

        /// `MPI_Get_address`: the values that stand for something else are those of this ABI.
        pub unsafe fn get_address(location: Ptr, address: Foreign<i64>) -> Result<()> {
            let location = match location.addr() {
                IN_PLACE => std::ptr::without_provenance_mut(usize::MAX),
                BUFFER_AUTOMATIC => std::ptr::without_provenance_mut(usize::MAX - 1),
                _ => location,
            };
            // SAFETY: the arguments are as the standard says.
            unsafe { tautline_mpi::api::get_address(location, address) }
        }

        /// `MPI_Comm_get_attr`: the values of some predefined attributes are constants of this ABI.
        pub unsafe fn comm_get_attr(comm: Comm, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
            // SAFETY: the arguments are as the standard says; the place of a predefined attribute is an `int`
            // that the program must not change.
            unsafe {
                tautline_mpi::api::comm_get_attr(comm, key, value, flag)?;
                if flag.get(0) != 0 && matches!(key, HOST | IO | LASTUSEDCODE) {
                    let place = value.cast::<*const c_int>();
                    let found = place.read_unaligned().read();
                    place.write_unaligned(crate::symbols::attribute(key == LASTUSEDCODE, found));
                }
            }
            Ok(())
        }

        /// `MPI_Attr_get`.
        pub unsafe fn attr_get(comm: Comm, key: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe { comm_get_attr(comm, key, value, flag) }
        }

        /// An address that a function of the core has written, as this ABI writes it.
        unsafe fn buffer_back(place: Ptr) {
            // SAFETY: the program passed a place for an address, or none.
            unsafe {
                let place = place.cast::<Ptr>();
                if !place.is_null() && place.read_unaligned().addr() == BUFFER_AUTOMATIC {
                    place.write_unaligned(std::ptr::without_provenance_mut(usize::MAX - 1));
                }
            }
        }

        /// `MPI_Buffer_detach`.
        pub unsafe fn buffer_detach(buffer_addr: Ptr, size: Foreign<i64>) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe {
                tautline_mpi::api::buffer_detach(buffer_addr, size)?;
                buffer_back(buffer_addr);
            }
            Ok(())
        }

        /// `MPI_Comm_detach_buffer`.
        pub unsafe fn comm_detach_buffer(comm: Comm, buffer_addr: Ptr, size: Foreign<i64>) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe {
                tautline_mpi::api::comm_detach_buffer(comm, buffer_addr, size)?;
                buffer_back(buffer_addr);
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

    /// As [`call`], for a function that short messages make frequent.
    #[inline(always)]
    pub fn call_short(
        name: &'static str,
        object: Object,
        short: impl FnOnce() -> Option<Result<()>>,
        body: impl FnOnce() -> Result<()>,
    ) -> c_int {
        to::code(tautline_mpi::call::call_short(name, object, short, body))
    }

    /// What a function that is not implemented does.
    pub fn unsupported(name: &'static str, object: Object) -> c_int {
        to::code(tautline_mpi::call::unsupported(name, object))
    }
}
