//! Topologies: grids, in which the last dimension varies fastest, and graphs.

use std::ffi::c_int;

use crate::constants::{ERR_ARG, ERR_DIMS, ERR_RANK, PROC_NULL};
use crate::error::{Error, Result, ensure};

/// How the ranks of a communicator are related.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Topology {
    /// A grid.
    Grid(Cartesian),
    /// A graph that all ranks know.
    Graph {
        /// Where the neighbours of each rank end in the list of edges.
        index: Vec<c_int>,
        /// The neighbours of all ranks.
        edges: Vec<c_int>,
    },
    /// A graph of which each rank knows its own edges.
    Distributed {
        /// Whom messages come from, with the weights of the edges.
        sources: Vec<(c_int, c_int)>,
        /// Whom messages go to, likewise.
        destinations: Vec<(c_int, c_int)>,
        /// Whether the program gave weights.
        weighted: bool,
    },
}

impl Topology {
    /// The neighbours of `rank` in a graph that all ranks know.
    pub fn graph_neighbors(index: &[c_int], edges: &[c_int], rank: usize) -> Vec<c_int> {
        let start = if rank == 0 { 0 } else { index[rank - 1] };
        edges[start as usize..index[rank] as usize].to_vec()
    }

    /// Whom messages of a rank come from, and whom they go to.
    pub fn neighbors(&self, rank: usize) -> (Vec<c_int>, Vec<c_int>) {
        match self {
            Topology::Grid(grid) => (grid.neighbors(rank), grid.neighbors(rank)),
            Topology::Graph { index, edges } => {
                let neighbors = Topology::graph_neighbors(index, edges, rank);
                (neighbors.clone(), neighbors)
            }
            Topology::Distributed { sources, destinations, .. } => {
                let ranks = |list: &[(c_int, c_int)]| list.iter().map(|(rank, _)| *rank).collect();
                (ranks(sources), ranks(destinations))
            }
        }
    }

    /// The order in which messages of the sources are received. What a rank of a grid sends to its lower
    /// neighbour comes from that one's higher neighbour; where both are the same rank, the order tells them
    /// apart.
    pub fn arrivals(&self, sources: usize) -> Vec<usize> {
        (0..sources).map(|at| if matches!(self, Topology::Grid(_)) { at ^ 1 } else { at }).collect()
    }
}

/// A grid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cartesian {
    /// Points in each dimension.
    pub dims: Vec<c_int>,
    /// Which dimensions are rings.
    pub periods: Vec<bool>,
}

impl Cartesian {
    /// A grid of at most `most` points.
    pub fn new(dims: Vec<c_int>, periods: Vec<bool>, most: usize) -> Result<Cartesian> {
        ensure(dims.iter().all(|dim| *dim > 0), ERR_DIMS, || format!("the dimensions are {dims:?}"))?;
        let points = dims.iter().try_fold(1_usize, |points, dim| points.checked_mul(*dim as usize));
        ensure(points.is_some_and(|points| points <= most), ERR_DIMS, || {
            format!("a grid of {dims:?} has more points than the communicator's {most} ranks")
        })?;
        Ok(Cartesian { dims, periods })
    }

    /// The number of points.
    pub fn points(&self) -> usize {
        self.dims.iter().map(|dim| *dim as usize).product()
    }

    /// The coordinates of a rank.
    pub fn coordinates(&self, rank: usize) -> Vec<c_int> {
        let mut rest = rank;
        let mut coordinates = vec![0; self.dims.len()];
        for (place, dim) in coordinates.iter_mut().zip(&self.dims).rev() {
            *place = (rest % *dim as usize) as c_int;
            rest /= *dim as usize;
        }
        coordinates
    }

    /// The rank at coordinates; those of rings may be outside.
    pub fn rank(&self, coordinates: &[c_int]) -> Result<usize> {
        let mut rank = 0;
        for ((at, dim), ring) in coordinates.iter().zip(&self.dims).zip(&self.periods) {
            let at = if *ring { at.rem_euclid(*dim) } else { *at };
            ensure((0..*dim).contains(&at), ERR_RANK, || format!("{coordinates:?} is outside of the grid"))?;
            rank = rank * *dim as usize + at as usize;
        }
        Ok(rank)
    }

    /// The rank that is `distance` away from `rank` in a dimension; nobody if that is outside.
    pub fn neighbor(&self, rank: usize, dimension: usize, distance: c_int) -> c_int {
        let mut coordinates = self.coordinates(rank);
        let at = i64::from(coordinates[dimension]) + i64::from(distance);
        let dim = i64::from(self.dims[dimension]);
        let at = if self.periods[dimension] { at.rem_euclid(dim) } else { at };
        if !(0..dim).contains(&at) {
            return PROC_NULL;
        }
        coordinates[dimension] = at as c_int;
        self.rank(&coordinates).map_or(PROC_NULL, |rank| rank as c_int)
    }

    /// The neighbours of a rank: in each dimension the lower one, then the higher one.
    pub fn neighbors(&self, rank: usize) -> Vec<c_int> {
        let dimensions = 0..self.dims.len();
        dimensions.flat_map(|at| [self.neighbor(rank, at, -1), self.neighbor(rank, at, 1)]).collect()
    }

    /// The grid of the dimensions that remain.
    pub fn sub(&self, remain: &[bool]) -> Cartesian {
        let kept = |index: &usize| remain[*index];
        let indices: Vec<usize> = (0..self.dims.len()).filter(kept).collect();
        Cartesian {
            dims: indices.iter().map(|index| self.dims[*index]).collect(),
            periods: indices.iter().map(|index| self.periods[*index]).collect(),
        }
    }
}

/// `MPI_Dims_create`: sets the dimensions that are 0, as equal as possible and in descending order.
pub fn balance(nodes: c_int, dims: &mut [c_int]) -> Result<()> {
    ensure(nodes > 0, ERR_ARG, || format!("nnodes is {nodes}"))?;
    ensure(dims.iter().all(|dim| *dim >= 0), ERR_DIMS, || format!("the dimensions are {dims:?}"))?;
    let given = dims.iter().filter(|dim| **dim > 0).try_fold(1, |all: c_int, dim| all.checked_mul(*dim));
    let bad = || Error::new(ERR_DIMS, format!("{nodes} is no multiple of the dimensions {dims:?}"));
    let given = given.filter(|given| nodes % given == 0).ok_or_else(bad)?;
    let free = dims.iter().filter(|dim| **dim == 0).count();
    if free == 0 {
        return ensure(given == nodes, ERR_DIMS, || format!("{dims:?} has {given} points, not {nodes}"));
    }
    let mut best = most_equal(nodes / given, free).into_iter();
    dims.iter_mut().filter(|dim| **dim == 0).for_each(|dim| *dim = best.next().unwrap_or(1));
    Ok(())
}

/// The factors of `number` in descending order whose largest is as small as possible, and so on.
fn most_equal(number: c_int, count: usize) -> Vec<c_int> {
    fn search(rest: c_int, left: usize, most: c_int, taken: &mut Vec<c_int>, best: &mut Option<Vec<c_int>>) {
        if left == 1 {
            if rest <= most {
                taken.push(rest);
                if best.as_ref().is_none_or(|best| &*taken < best) {
                    *best = Some(taken.clone());
                }
                taken.pop();
            }
            return;
        }
        for factor in (1..=rest.min(most)).filter(|factor| rest % factor == 0) {
            // The others are at most as large.
            if f64::from(factor).powi(left as i32) + 0.5 < f64::from(rest) {
                continue;
            }
            if best
                .as_ref()
                .is_some_and(|best| factor > best[taken.len()] && taken[..] == best[..taken.len()])
            {
                break;
            }
            taken.push(factor);
            search(rest / factor, left - 1, factor, taken, best);
            taken.pop();
        }
    }
    let mut best = None;
    search(number, count, number, &mut Vec::new(), &mut best);
    best.unwrap_or_else(|| vec![number])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_as_equal_as_possible() {
        let cases: [(c_int, &[c_int], &[c_int]); 7] = [
            (6, &[0, 0], &[3, 2]),
            (7, &[0, 0], &[7, 1]),
            (6, &[0, 3, 0], &[2, 3, 1]),
            (60, &[0, 0, 0], &[5, 4, 3]),
            (1, &[0, 0], &[1, 1]),
            (16, &[0, 0, 0], &[4, 2, 2]),
            (36, &[0, 0], &[6, 6]),
        ];
        for (nodes, dims, want) in cases {
            let mut dims = dims.to_vec();
            balance(nodes, &mut dims).unwrap();
            assert_eq!(dims, want);
        }
        assert_eq!(balance(7, &mut [0, 3, 0]).unwrap_err().code, ERR_DIMS);
        assert_eq!(balance(6, &mut [3]).unwrap_err().code, ERR_DIMS);
    }

    #[test]
    fn ranks_and_coordinates_correspond() {
        let grid = Cartesian::new(vec![2, 3], vec![false, true], 6).unwrap();
        for rank in 0..6 {
            assert_eq!(grid.rank(&grid.coordinates(rank)).unwrap(), rank);
        }
        assert_eq!(grid.rank(&[1, -1]).unwrap(), 5);
        assert_eq!(grid.rank(&[2, 0]).unwrap_err().code, ERR_RANK);
        assert_eq!(grid.neighbors(0), [PROC_NULL, 3, 2, 1]);
        assert_eq!(grid.sub(&[false, true]).dims, [3]);
        assert_eq!(Cartesian::new(vec![4, 2], vec![false; 2], 6).unwrap_err().code, ERR_DIMS);
    }
}
