//! Grids.

use std::ffi::c_int;
use std::sync::Arc;

use super::communicators::make_subset;
use crate::constants as c;
use crate::error::{Error, Result, count as natural, ensure};
use crate::foreign::Foreign;
use crate::handle::Comm;
use crate::objects::{self, Communicator};
use crate::topology::{Cartesian, Topology, balance};

/// A communicator and its grid.
fn grid(comm: Comm) -> Result<(Arc<Communicator>, Cartesian)> {
    let object = objects::comm(comm)?;
    let none = || Error::new(c::ERR_TOPOLOGY, "the communicator has no Cartesian topology");
    match object.topology.clone() {
        Some(Topology::Grid(grid)) => Ok((object, grid)),
        _ => Err(none()),
    }
}

unsafe fn read(
    comm: &Communicator,
    ndims: c_int,
    dims: Foreign<c_int>,
    periods: Foreign<c_int>,
) -> Result<Cartesian> {
    let ndims = usize::try_from(ndims).map_err(|_| Error::new(c::ERR_DIMS, format!("ndims is {ndims}")))?;
    // SAFETY: the arguments are as the standard says.
    let (dims, periods) = unsafe { (dims.to_vec(ndims), periods.to_vec(ndims)) };
    Cartesian::new(dims, periods.into_iter().map(|ring| ring != 0).collect(), comm.size())
}

/// `MPI_Cart_create`: ranks are not reordered.
pub unsafe fn cart_create(
    comm: Comm,
    ndims: c_int,
    dims: Foreign<c_int>,
    periods: Foreign<c_int>,
    _reorder: c_int,
    new: Foreign<Comm>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let grid = read(&object, ndims, dims, periods)?;
        let ranks: Vec<usize> = (0..grid.points()).collect();
        new.set(0, make_subset(&object, &ranks, Some(Topology::Grid(grid)))?);
    }
    Ok(())
}

/// `MPI_Cart_map`: ranks stay where they are.
pub unsafe fn cart_map(
    comm: Comm,
    ndims: c_int,
    dims: Foreign<c_int>,
    periods: Foreign<c_int>,
    new: Foreign<c_int>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let points = read(&object, ndims, dims, periods)?.points();
        new.set(0, if (object.rank as usize) < points { object.rank as c_int } else { c::UNDEFINED });
    }
    Ok(())
}

/// `MPI_Cartdim_get`.
pub unsafe fn cartdim_get(comm: Comm, ndims: Foreign<c_int>) -> Result<()> {
    let (_, grid) = grid(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { ndims.set(0, grid.dims.len() as c_int) };
    Ok(())
}

/// `MPI_Cart_get`.
pub unsafe fn cart_get(
    comm: Comm,
    maxdims: c_int,
    dims: Foreign<c_int>,
    periods: Foreign<c_int>,
    coords: Foreign<c_int>,
) -> Result<()> {
    let (object, grid) = grid(comm)?;
    let most = natural(maxdims.into(), "maxdims")?;
    let own = grid.coordinates(object.rank as usize);
    // SAFETY: the arguments are as the standard says.
    unsafe {
        dims.set_all(grid.dims.into_iter().take(most));
        periods.set_all(grid.periods.into_iter().map(c_int::from).take(most));
        coords.set_all(own.into_iter().take(most));
    }
    Ok(())
}

/// `MPI_Cart_rank`.
pub unsafe fn cart_rank(comm: Comm, coords: Foreign<c_int>, rank: Foreign<c_int>) -> Result<()> {
    let (_, grid) = grid(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { rank.set(0, grid.rank(&coords.to_vec(grid.dims.len()))? as c_int) };
    Ok(())
}

/// `MPI_Cart_coords`.
pub unsafe fn cart_coords(comm: Comm, rank: c_int, maxdims: c_int, coords: Foreign<c_int>) -> Result<()> {
    let (object, grid) = grid(comm)?;
    let most = natural(maxdims.into(), "maxdims")?;
    let place = usize::try_from(rank).ok().filter(|rank| *rank < object.size());
    let place = place.ok_or_else(|| Error::new(c::ERR_RANK, format!("there is no rank {rank}")))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { coords.set_all(grid.coordinates(place).into_iter().take(most)) };
    Ok(())
}

/// `MPI_Cart_shift`.
pub unsafe fn cart_shift(
    comm: Comm,
    direction: c_int,
    disp: c_int,
    source: Foreign<c_int>,
    dest: Foreign<c_int>,
) -> Result<()> {
    let (object, grid) = grid(comm)?;
    let dimension = usize::try_from(direction).ok().filter(|at| *at < grid.dims.len());
    let dimension =
        dimension.ok_or_else(|| Error::new(c::ERR_ARG, format!("there is no dimension {direction}")))?;
    let rank = object.rank as usize;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        source.set(0, grid.neighbor(rank, dimension, disp.wrapping_neg()));
        dest.set(0, grid.neighbor(rank, dimension, disp));
    }
    Ok(())
}

/// `MPI_Cart_sub`.
pub unsafe fn cart_sub(comm: Comm, remain_dims: Foreign<c_int>, new: Foreign<Comm>) -> Result<()> {
    let (object, grid) = grid(comm)?;
    // SAFETY: the arguments are as the standard says.
    let remain: Vec<bool> =
        unsafe { remain_dims.to_vec(grid.dims.len()) }.into_iter().map(|remains| remains != 0).collect();
    let fixed = |rank: usize| -> Vec<c_int> {
        let all = grid.coordinates(rank).into_iter().zip(&remain);
        all.filter(|(_, remains)| !**remains).map(|(at, _)| at).collect()
    };
    let own = fixed(object.rank as usize);
    let ranks: Vec<usize> = (0..object.size()).filter(|rank| fixed(*rank) == own).collect();
    // SAFETY: as above.
    unsafe { new.set(0, make_subset(&object, &ranks, Some(Topology::Grid(grid.sub(&remain))))?) };
    Ok(())
}

/// `MPI_Dims_create`.
pub unsafe fn dims_create(nnodes: c_int, ndims: c_int, dims: Foreign<c_int>) -> Result<()> {
    ensure(ndims >= 0, c::ERR_DIMS, || format!("ndims is {ndims}"))?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let mut list = dims.to_vec(ndims as usize);
        balance(nnodes, &mut list)?;
        dims.set_all(list);
    }
    Ok(())
}
