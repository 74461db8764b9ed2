//! The functions of MPI, in the representation of the core: one module for each chapter of the standard. Each
//! function does the work of `MPI_…` and of its large-count twin.
//!
//! # Safety
//!
//! All functions have the same contract: pointers are as the standard describes the arguments of the
//! function, callbacks keep to the standard, and memory that is lent to an operation is left alone until it
//! is complete.

#![allow(clippy::missing_safety_doc, reason = "the contract is that of the standard, stated above")]
#![allow(clippy::too_many_arguments, reason = "the functions have the parameters of the standard")]

#[macro_use]
mod plans;

mod attributes;
mod buffered;
mod collectives;
mod communicators;
mod completion;
mod constructors;
mod datatypes;
mod environment;
mod errors;
mod fortran_types;
mod graphs;
mod groups;
mod infos;
mod inter;
mod intercommunicators;
mod neighbors;
mod operations;
mod packing;
mod point_to_point;
mod probing;
mod reductions;
mod time;
mod tools;
mod topologies;

use std::ffi::{CStr, c_int, c_void};

pub use attributes::*;
pub use buffered::*;
pub use collectives::*;
pub use communicators::*;
pub use completion::*;
pub use constructors::*;
pub use datatypes::*;
pub use environment::*;
pub use errors::*;
pub use fortran_types::*;
pub use graphs::*;
pub use groups::*;
pub use infos::*;
pub use intercommunicators::*;
pub use neighbors::*;
pub use operations::*;
pub use packing::*;
pub use point_to_point::*;
pub use probing::*;
pub use reductions::*;
pub use time::*;
pub use tools::*;
pub use topologies::*;

use crate::constants::ERR_ARG;
use crate::error::{Error, Result};
use crate::foreign::Foreign;

/// A pointer of the program.
type Ptr = *mut c_void;

/// A string of the program.
///
/// # Safety
///
/// It is null or ends in a zero byte.
unsafe fn string(at: Ptr, what: &str) -> Result<String> {
    if at.is_null() {
        return Err(Error::new(ERR_ARG, format!("{what} is a null pointer")));
    }
    // SAFETY: as promised by the caller.
    Ok(unsafe { CStr::from_ptr(at.cast()) }.to_string_lossy().into_owned())
}

/// Writes a string of at most `limit` bytes, with its zero byte, and its length.
///
/// # Safety
///
/// There is room for `limit` bytes.
unsafe fn set_string(at: Ptr, limit: c_int, text: &str, length: Foreign<c_int>) -> Result<()> {
    if at.is_null() {
        return Err(Error::new(ERR_ARG, "the string is a null pointer"));
    }
    let mut end = text.len().min(usize::try_from(limit).unwrap_or(1).saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: as promised by the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), at.cast(), end);
        at.cast::<u8>().add(end).write(0);
        length.set(0, end as c_int);
    }
    Ok(())
}

/// Fails for a null pointer that the function must write to.
fn ensure_some<T>(at: Foreign<T>, what: &str) -> Result<()> {
    if at.is_null() { Err(Error::new(ERR_ARG, format!("{what} is a null pointer"))) } else { Ok(()) }
}
