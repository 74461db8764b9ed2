//! Addresses that stand for something else: `mpif.h` declares each as a common block, which the linker makes
//! one with the symbol here.

use std::ffi::{c_int, c_void};

use tautline_mpi::constants as c;

/// The memory of a common block. Compilers align common blocks by their own rules.
#[repr(C, align(32))]
pub struct Block([c_int; 8]);

macro_rules! blocks {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "it is the name of the common block")]
        pub static mut $name: Block = Block([0; 8]);
    )*};
}

blocks! {
    mpiabi_bottom_ mpiabi_in_place_ mpiabi_buffer_automatic_ mpiabi_status_ignore_ mpiabi_statuses_ignore_
    mpiabi_errcodes_ignore_ mpiabi_unweighted_ mpiabi_weights_empty_ mpiabi_argv_null_
}

/// An address of data, or what it stands for.
#[inline]
pub fn buffer(at: *mut c_void) -> *mut c_void {
    let stands_for = match at.cast::<Block>().cast_const() {
        at if at == &raw const mpiabi_bottom_ => c::BOTTOM,
        at if at == &raw const mpiabi_in_place_ => c::IN_PLACE,
        at if at == &raw const mpiabi_buffer_automatic_ => c::BUFFER_AUTOMATIC,
        _ => return at,
    };
    std::ptr::without_provenance_mut(stands_for)
}

/// Weights of edges, or what their address stands for.
pub fn weights(at: *mut c_void) -> *mut c_void {
    let stands_for = match at.cast::<Block>().cast_const() {
        at if at == &raw const mpiabi_unweighted_ => c::UNWEIGHTED,
        at if at == &raw const mpiabi_weights_empty_ => c::WEIGHTS_EMPTY,
        _ => return at,
    };
    std::ptr::without_provenance_mut(stands_for)
}

/// Statuses; null if the program ignores them.
#[inline]
pub fn status(at: *mut c_void) -> *mut c_void {
    let block = at.cast::<Block>().cast_const();
    let ignored = block == &raw const mpiabi_status_ignore_ || block == &raw const mpiabi_statuses_ignore_;
    if ignored { std::ptr::null_mut() } else { at }
}
