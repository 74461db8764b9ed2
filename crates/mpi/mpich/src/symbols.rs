//! Symbols of this ABI that the standard ABI does not have.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::convert::to;

/// The place of a predefined attribute's value in this ABI, by that in the core: an error code or a rank.
/// Places are never freed, since the program may keep their addresses; there is one for each value.
pub(crate) fn attribute(is_code: bool, value: c_int) -> *const c_int {
    static PLACES: Mutex<Vec<&'static c_int>> = Mutex::new(Vec::new());
    let value = if is_code { to::code(value) } else { to::rank(value) };
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = places.iter().find(|place| ***place == value) {
        return *place;
    }
    let place: &'static c_int = Box::leak(Box::new(value));
    places.push(place);
    place
}

/// An address that programs compare with. The library for Fortran sets some.
#[repr(transparent)]
pub struct Address(*const c_int);

// SAFETY: it is never dereferenced here.
unsafe impl Sync for Address {}

pub(crate) static UNWEIGHTED: c_int = 0;
pub(crate) static WEIGHTS_EMPTY: c_int = 0;

#[unsafe(no_mangle)]
pub static MPI_UNWEIGHTED: Address = Address(&raw const UNWEIGHTED);
#[unsafe(no_mangle)]
pub static MPI_WEIGHTS_EMPTY: Address = Address(&raw const WEIGHTS_EMPTY);

/// The addresses of `MPI_STATUS_IGNORE` and its like in Fortran, which its library sets.
#[unsafe(no_mangle)]
pub static mut MPI_F_STATUS_IGNORE: Address = Address(std::ptr::null());
#[unsafe(no_mangle)]
pub static mut MPI_F_STATUSES_IGNORE: Address = Address(std::ptr::null());

/// What the module `mpi_f08` calls `MPI_STATUS_IGNORE` and its like.
#[unsafe(no_mangle)]
pub static mut MPIR_F08_MPI_STATUS_IGNORE_OBJ: [c_int; 5] = [0; 5];
#[unsafe(no_mangle)]
pub static mut MPIR_F08_MPI_STATUSES_IGNORE_OBJ: [c_int; 5] = [0; 5];
#[unsafe(no_mangle)]
pub static mut MPIR_F08_MPI_BOTTOM: c_int = 0;
#[unsafe(no_mangle)]
pub static mut MPIR_F08_MPI_IN_PLACE: c_int = 0;
#[unsafe(no_mangle)]
pub static mut MPI_F08_STATUS_IGNORE: Address = Address((&raw const MPIR_F08_MPI_STATUS_IGNORE_OBJ).cast());
#[unsafe(no_mangle)]
pub static mut MPI_F08_STATUSES_IGNORE: Address =
    Address((&raw const MPIR_F08_MPI_STATUSES_IGNORE_OBJ).cast());

/// `MPI_COMM_DUP_FN` and its like: an attribute's copy has the same value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIR_Dup_fn(
    _object: c_int,
    _keyval: c_int,
    _extra_state: *mut c_void,
    value: *mut c_void,
    copy: *mut *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: whoever copies attributes passes places for both.
    unsafe {
        *copy = value;
        *flag = 1;
    }
    0
}
