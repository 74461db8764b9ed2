//! MPI over Tautline: datatypes, reductions, handles, attributes, error handlers, groups and communication.
//!
//! This is the core. It exports no C symbols: the façades `libmpi_abi.so.1` (the standard ABI of MPI 5) and
//! `libmpi.so.12` (the ABI of MPICH) are generated from the tables in `table/` and call the functions in
//! [`api`], one for each function of the standard and its large-count twin. The core has one representation
//! of handles and constants, that of the standard ABI; [`foreign`] is how a façade with another one reads and
//! writes the program's memory.
//!
//! The functions in [`api`] take the pointers that the program passed. They are sound to call as far as the
//! program keeps to the standard: that is what their safety rests on, here as in every MPI.

/// The C header `mpi.h` of the standard ABI.
pub const HEADER: &str = include_str!("../include/mpi.h");
/// The header `mpif.h` for Fortran.
pub const FORTRAN_HEADER: &str = include_str!("../include/mpif.h");
/// The source of the module `mpi` for Fortran.
pub const FORTRAN_MODULE: &str = include_str!("../include/mpi.f90");

pub mod api;
pub mod call;
pub mod constants;
pub mod datatype;
pub mod error;
pub mod foreign;
pub mod handle;
pub mod language;
pub mod op;
pub mod short;
pub mod standard;

mod attribute;
mod buffered;
mod errhandler;
mod export;
mod exports;
mod grequest;
mod group;
mod keyed;
mod network;
mod objects;
mod operation;
mod pool;
#[cfg(test)]
mod random;
mod reducer;
mod request;
mod state;
mod tools;
mod topology;
mod trace;
mod waiting;
