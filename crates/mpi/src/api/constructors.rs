//! Constructors of datatypes.

use std::ffi::c_int;
use std::sync::Arc;

use crate::constants as c;
use crate::datatype::Type;
use crate::datatype::array::GridDimension;
use crate::error::{Error, Result, count as natural};
use crate::foreign::Foreign;
use crate::handle::Datatype;
use crate::objects::{self, TYPES, TypeObject};

fn old(handle: Datatype) -> Result<Arc<Type>> {
    Ok(Arc::clone(&objects::datatype(handle)?.of))
}

/// Gives the program a new datatype.
unsafe fn made(made: Type, into: Foreign<Datatype>) -> Result<()> {
    super::ensure_some(into, "newtype")?;
    let handle = objects::add(&TYPES, Arc::new(TypeObject::new(Arc::new(made), "")))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { into.set(0, handle) };
    Ok(())
}

/// `MPI_Type_contiguous`.
pub unsafe fn type_contiguous(count: i64, oldtype: Datatype, newtype: Foreign<Datatype>) -> Result<()> {
    let of = Type::contiguous(count, &old(oldtype)?)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { made(of, newtype) }
}

/// `MPI_Type_vector`.
pub unsafe fn type_vector(
    count: i64,
    length: i64,
    stride: i64,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let of = Type::vector(count, length, stride, &old(oldtype)?)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { made(of, newtype) }
}

/// `MPI_Type_create_hvector`.
pub unsafe fn type_create_hvector(
    count: i64,
    length: i64,
    stride: i64,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let of = Type::hvector(count, length, stride, &old(oldtype)?)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { made(of, newtype) }
}

/// `MPI_Type_indexed`.
pub unsafe fn type_indexed(
    count: i64,
    lengths: Foreign<i64>,
    displacements: Foreign<i64>,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = natural(count, "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (lengths, at) = (lengths.to_vec(count), displacements.to_vec(count));
        made(Type::indexed(&lengths, &at, false, &old(oldtype)?)?, newtype)
    }
}

/// `MPI_Type_create_hindexed`.
pub unsafe fn type_create_hindexed(
    count: i64,
    lengths: Foreign<i64>,
    displacements: Foreign<i64>,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = natural(count, "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (lengths, at) = (lengths.to_vec(count), displacements.to_vec(count));
        made(Type::indexed(&lengths, &at, true, &old(oldtype)?)?, newtype)
    }
}

/// `MPI_Type_create_indexed_block`.
pub unsafe fn type_create_indexed_block(
    count: i64,
    length: i64,
    displacements: Foreign<i64>,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = natural(count, "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let at = displacements.to_vec(count);
        made(Type::indexed_block(length, &at, false, &old(oldtype)?)?, newtype)
    }
}

/// `MPI_Type_create_hindexed_block`.
pub unsafe fn type_create_hindexed_block(
    count: i64,
    length: i64,
    displacements: Foreign<i64>,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = natural(count, "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let at = displacements.to_vec(count);
        made(Type::indexed_block(length, &at, true, &old(oldtype)?)?, newtype)
    }
}

/// `MPI_Type_create_struct`.
pub unsafe fn type_create_struct(
    count: i64,
    lengths: Foreign<i64>,
    displacements: Foreign<i64>,
    types: Foreign<Datatype>,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = natural(count, "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let types: Result<Vec<Arc<Type>>> = types.to_vec(count).into_iter().map(old).collect();
        made(Type::structure(&lengths.to_vec(count), &displacements.to_vec(count), &types?)?, newtype)
    }
}

/// `MPI_Type_create_resized`.
pub unsafe fn type_create_resized(
    oldtype: Datatype,
    lower: i64,
    extent: i64,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let of = Type::resized(&old(oldtype)?, lower, extent)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { made(of, newtype) }
}

/// `MPI_Type_create_subarray`.
pub unsafe fn type_create_subarray(
    dimensions: c_int,
    sizes: Foreign<i64>,
    subsizes: Foreign<i64>,
    starts: Foreign<i64>,
    order: c_int,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = dimensions_of(dimensions)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (sizes, subsizes, starts) = (sizes.to_vec(count), subsizes.to_vec(count), starts.to_vec(count));
        made(Type::subarray(&sizes, &subsizes, &starts, order, &old(oldtype)?)?, newtype)
    }
}

/// `MPI_Type_create_darray`.
pub unsafe fn type_create_darray(
    size: c_int,
    rank: c_int,
    dimensions: c_int,
    sizes: Foreign<i64>,
    distributions: Foreign<c_int>,
    arguments: Foreign<c_int>,
    processes: Foreign<c_int>,
    order: c_int,
    oldtype: Datatype,
    newtype: Foreign<Datatype>,
) -> Result<()> {
    let count = dimensions_of(dimensions)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let grid: Vec<GridDimension> = (0..count)
            .map(|at| GridDimension {
                size: sizes.get(at),
                distribution: distributions.get(at),
                argument: arguments.get(at),
                processes: processes.get(at),
            })
            .collect();
        made(Type::darray(size, rank, &grid, order, &old(oldtype)?)?, newtype)
    }
}

fn dimensions_of(dimensions: c_int) -> Result<usize> {
    usize::try_from(dimensions).map_err(|_| Error::new(c::ERR_ARG, format!("ndims is {dimensions}")))
}
