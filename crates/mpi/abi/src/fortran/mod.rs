//! The functions that Fortran programs call, in the manner of gfortran: lower-case names with an underscore,
//! all arguments by reference, lengths of strings by value behind the others, and the error code last.
//!
//! What lives here: how arguments of Fortran are read and written. The functions are generated from the table
//! of functions. Handles and constants have the values that they have in C; a `logical` is 0 or 1.

mod exports;
mod removed;
mod sentinels;
mod special;
mod strings;

/// Defines each function under both names.
macro_rules! by_reference {
    ($(
        $name:ident $twin:ident($($arg:ident),*) ($($length:ident),*) $(-> $result:ty)? { $body:expr }
    )*) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_variables, unused_unsafe, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $twin($($arg: Ptr,)* $($length: usize),*) $(-> $result)? {
            // SAFETY: the program passes what the standard asks for.
            unsafe { $body }
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: Ptr,)* $($length: usize),*) $(-> $result)? {
            // SAFETY: as above.
            unsafe { $twin($($arg,)* $($length),*) }
        }
    )*};
}
use by_reference;

/// What the generated functions use.
#[allow(dead_code, reason = "some kinds of handles belong to functions that are not implemented yet")]
mod prelude {
    use std::ffi::{c_int, c_void};

    pub use tautline_mpi::call::{Object, call, unsupported};
    pub use tautline_mpi::foreign::Foreign;

    pub(super) use super::special as api;

    /// Every argument.
    pub type Ptr = *mut c_void;

    /// Writes an error code.
    ///
    /// # Safety
    ///
    /// It is the address of an integer, or null.
    pub unsafe fn give(ierror: Ptr, code: c_int) {
        let at = ierror.cast::<c_int>();
        if !at.is_null() {
            // SAFETY: as promised by the caller.
            unsafe { at.write(code) };
        }
    }

    /// How arguments are read.
    pub mod from {
        use super::*;
        use tautline_mpi::foreign::{Callback, Status};
        use tautline_mpi::handle::*;
        use tautline_mpi::standard;

        pub use super::super::sentinels::{buffer, weights};
        pub use super::super::strings::{Line, Text};

        /// An integer.
        ///
        /// # Safety
        ///
        /// The program passed an integer.
        #[inline]
        pub unsafe fn int(at: Ptr) -> c_int {
            // SAFETY: as promised by the caller.
            unsafe { at.cast::<c_int>().read_unaligned() }
        }

        /// An integer of 8 bytes.
        ///
        /// # Safety
        ///
        /// The program passed such an integer.
        #[inline]
        pub unsafe fn wide(at: Ptr) -> i64 {
            // SAFETY: as promised by the caller.
            unsafe { at.cast::<i64>().read_unaligned() }
        }

        macro_rules! handles {
            ($($name:ident: $type:ident;)*) => {$(
                /// # Safety
                ///
                /// The program passed an integer.
                #[inline]
                pub unsafe fn $name(at: Ptr) -> $type {
                    // SAFETY: as promised by the caller.
                    $type(usize::try_from(unsafe { int(at) }).unwrap_or(0))
                }
            )*};
        }

        handles! {
            comm: Comm; group: Group; win: Win; file: File; session: Session; message: Message; info: Info;
            errhandler: Errhandler; request: Request; datatype: Datatype; op: Op;
        }

        /// One or more statuses, or none.
        pub fn status(at: Ptr) -> Foreign<Status> {
            standard::status(super::super::sentinels::status(at))
        }

        /// A callback. What its arguments point to has the representation of the standard ABI: the low half
        /// of a handle is the integer that Fortran knows it by.
        pub fn callback(address: Ptr) -> Callback {
            standard::callback(address, false)
        }
    }

    /// The ways to read and write values in the program's memory.
    pub mod codec {
        use super::*;
        use tautline_mpi::constants::UNDEFINED;
        use tautline_mpi::foreign::Codec;
        use tautline_mpi::handle::*;

        pub use tautline_mpi::standard::codec::{
            CODE, COMBINER, COMPARE, CONTENTS, DARG, DISTRIB, INT, KEYVAL, NARROW, RANK, TAG, THREAD, TOPO,
            WIDE,
        };

        /// Indices, which Fortran counts from 1.
        pub static INDEX: Codec<c_int> = Codec {
            // SAFETY: as promised by the caller of `Foreign::get`.
            get: |at, index| unsafe { at.cast::<c_int>().add(index).read_unaligned() } - 1,
            set: |at, index, value| {
                let value = if value == UNDEFINED { value } else { value + 1 };
                // SAFETY: as promised by the caller of `Foreign::set`.
                unsafe { at.cast::<c_int>().add(index).write_unaligned(value) }
            },
        };

        macro_rules! handles {
            ($($name:ident: $type:ident;)*) => {$(
                pub static $name: Codec<$type> = Codec {
                    get: |at, index| {
                        // SAFETY: as promised by the caller of `Foreign::get`.
                        let value = unsafe { at.cast::<c_int>().add(index).read_unaligned() };
                        $type(usize::try_from(value).unwrap_or(0))
                    },
                    set: |at, index, value| {
                        // Handles of the core are numbers of 26 bits.
                        let value = c_int::try_from(value.0).unwrap_or(0);
                        // SAFETY: as promised by the caller of `Foreign::set`.
                        unsafe { at.cast::<c_int>().add(index).write_unaligned(value) }
                    },
                };
            )*};
        }

        handles! {
            COMM: Comm; GROUP: Group; WIN: Win; FILE: File; SESSION: Session; MESSAGE: Message; INFO: Info;
            ERRHANDLER: Errhandler; REQUEST: Request; DATATYPE: Datatype; OP: Op;
        }
    }
}
