//! Datatypes for parts of arrays: a block of one, and what a process has of a distributed one.

use std::ffi::c_int;
use std::sync::Arc;

use super::bounds::{Bounds, add, mul};
use super::node::Node;
use super::{Recipe, Type};
use crate::constants as c;
use crate::error::{Error, Result, ensure};
use crate::foreign::Content;

/// The part of one dimension that a type covers: `count` blocks of `length` indices, `stride` apart, and a
/// last block of `rest` indices behind them.
struct Slices {
    start: i64,
    count: i64,
    length: i64,
    stride: i64,
    rest: i64,
}

/// What is covered so far, from the dimension that varies fastest on.
struct Cover {
    node: Option<Arc<Node>>,
    bounds: Bounds,
    /// The bytes of one index of the next dimension.
    step: i64,
}

impl Cover {
    fn new(old: &Type) -> Cover {
        // Bounds of the old type do not matter any more: the array has its own.
        Cover { node: Some(Arc::clone(&old.map)), bounds: old.bounds, step: old.extent() }
    }

    fn extend(self, slices: &Slices, size: i64) -> Result<Cover> {
        let Cover { node, bounds, step } = self;
        let start = mul(slices.start, step)?;
        let stride = mul(slices.stride, step)?;
        let behind = add(start, mul(slices.count, stride)?)?;
        let block = bounds.repeated(0, slices.length, step)?;
        let blocks = block.repeated(start, slices.count, stride)?;
        let bounds = blocks.joined(&bounds.repeated(behind, slices.rest, step)?);
        let node = node.and_then(|inner| {
            let block = Node::repeat(slices.length.cast_unsigned(), step, &inner)?;
            let blocks = Node::repeat(slices.count.cast_unsigned(), stride, &block)?;
            let rest = Node::repeat(slices.rest.cast_unsigned(), step, &inner)?;
            Node::sequence([(start, blocks), (behind, rest)])
        });
        Ok(Cover { node, bounds, step: mul(step, size)? })
    }
}

/// The dimensions from the one that varies fastest on.
fn fastest_first(dimensions: usize, order: c_int) -> Result<Vec<usize>> {
    match order {
        c::ORDER_C => Ok((0..dimensions).rev().collect()),
        c::ORDER_FORTRAN => Ok((0..dimensions).collect()),
        _ => Err(Error::new(c::ERR_ARG, format!("order is {order}, not MPI_ORDER_C or MPI_ORDER_FORTRAN"))),
    }
}

/// The number of elements of an array.
fn volume(sizes: &[i64]) -> Result<i64> {
    sizes.iter().try_fold(1, |all, size| mul(all, *size))
}

impl Type {
    /// `MPI_Type_create_subarray`.
    pub fn subarray(
        sizes: &[i64],
        subsizes: &[i64],
        starts: &[i64],
        order: c_int,
        old: &Arc<Type>,
    ) -> Result<Type> {
        ensure(!sizes.is_empty(), c::ERR_ARG, || "ndims is 0".to_owned())?;
        let mut cover = Cover::new(old);
        for dimension in fastest_first(sizes.len(), order)? {
            let (size, length, start) = (sizes[dimension], subsizes[dimension], starts[dimension]);
            let fits = size >= 1 && (1..=size).contains(&length) && (0..=size - length).contains(&start);
            ensure(fits, c::ERR_ARG, || {
                format!("dimension {dimension}: {length} indices from {start} on are not part of {size}")
            })?;
            cover = cover.extend(&Slices { start, count: 1, length, stride: length, rest: 0 }, size)?;
        }
        let recipe = Recipe {
            combiner: c::COMBINER_SUBARRAY,
            counts: [sizes, subsizes, starts].concat(),
            integers: vec![Content::Int(sizes.len() as c_int), Content::Order(order)],
            types: vec![Arc::clone(old)],
            ..Recipe::default()
        };
        Type::of_array(cover.node, old, cover.bounds, volume(sizes)?, recipe)
    }

    /// `MPI_Type_create_darray`.
    pub fn darray(
        size: c_int,
        rank: c_int,
        grid: &[GridDimension],
        order: c_int,
        old: &Arc<Type>,
    ) -> Result<Type> {
        ensure(!grid.is_empty(), c::ERR_ARG, || "ndims is 0".to_owned())?;
        ensure(grid.iter().all(|of| of.processes >= 1), c::ERR_ARG, || {
            "a size of the grid is below 1".to_owned()
        })?;
        let processes = grid.iter().try_fold(1i64, |all, of| mul(all, i64::from(of.processes)))?;
        ensure(processes == i64::from(size), c::ERR_ARG, || {
            format!("the grid has {processes} processes, not {size}")
        })?;
        ensure((0..size).contains(&rank), c::ERR_ARG, || format!("rank is {rank} of {size}"))?;
        // Ranks are laid out in row-major order, whatever the order of the array.
        let (mut rest, mut coordinates) = (rank, vec![0; grid.len()]);
        for (coordinate, of) in coordinates.iter_mut().zip(grid).rev() {
            *coordinate = i64::from(rest % of.processes);
            rest /= of.processes;
        }
        let mut cover = Cover::new(old);
        for dimension in fastest_first(grid.len(), order)? {
            let of = &grid[dimension];
            cover = cover.extend(&of.slices(coordinates[dimension])?, of.size)?;
        }
        let sizes: Vec<i64> = grid.iter().map(|of| of.size).collect();
        let list = |content: fn(&GridDimension) -> Content| grid.iter().map(content);
        let mut integers = vec![Content::Int(size), Content::Int(rank), Content::Int(grid.len() as c_int)];
        integers.extend(list(|of| Content::Distrib(of.distribution)));
        integers.extend(list(|of| Content::Darg(of.argument)));
        integers.extend(list(|of| Content::Int(of.processes)));
        integers.push(Content::Order(order));
        let recipe = Recipe {
            combiner: c::COMBINER_DARRAY,
            counts: sizes.clone(),
            integers,
            types: vec![Arc::clone(old)],
            ..Recipe::default()
        };
        Type::of_array(cover.node, old, cover.bounds, volume(&sizes)?, recipe)
    }
}

/// One dimension of a distributed array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GridDimension {
    /// The indices of the array.
    pub size: i64,
    /// How they are distributed: one of `MPI_DISTRIBUTE_…`.
    pub distribution: c_int,
    /// The length of a block, or `MPI_DISTRIBUTE_DFLT_DARG`.
    pub argument: c_int,
    /// The processes along this dimension.
    pub processes: c_int,
}

impl GridDimension {
    /// What the process at `coordinate` has.
    fn slices(&self, coordinate: i64) -> Result<Slices> {
        let GridDimension { size, distribution, argument, processes } = *self;
        let bad = |text: String| Error::new(c::ERR_ARG, text);
        if size < 1 {
            return Err(bad(format!("a size of the array is {size}")));
        }
        let processes = i64::from(processes);
        let default = argument == c::DISTRIBUTE_DFLT_DARG;
        if !default && argument < 1 && distribution != c::DISTRIBUTE_NONE {
            return Err(bad(format!("the argument of a distribution is {argument}")));
        }
        let length = match distribution {
            c::DISTRIBUTE_NONE if processes == 1 => size,
            c::DISTRIBUTE_NONE => {
                return Err(bad("a dimension that is not distributed has several processes".into()));
            }
            c::DISTRIBUTE_BLOCK if default => (size + processes - 1) / processes,
            c::DISTRIBUTE_BLOCK if i64::from(argument) * processes < size => {
                return Err(bad(format!("blocks of {argument} do not cover {size} indices")));
            }
            c::DISTRIBUTE_CYCLIC if default => 1,
            c::DISTRIBUTE_BLOCK | c::DISTRIBUTE_CYCLIC => i64::from(argument),
            _ => return Err(bad(format!("{distribution} is no distribution"))),
        };
        let (start, stride) = (coordinate * length, processes * length);
        let owned = (size - start).max(0);
        let (mut count, mut rest) = (owned / stride, owned % stride);
        if rest >= length {
            (count, rest) = (count + 1, 0);
        }
        Ok(Slices { start, count, length, stride, rest })
    }
}
