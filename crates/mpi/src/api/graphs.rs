//! Graphs as topologies, and what is common to all topologies.

use std::ffi::c_int;
use std::sync::Arc;

use tautline::group::Call;

use super::communicators::make_subset;
use crate::constants as c;
use crate::error::{Error, Result, count as natural, ensure};
use crate::foreign::Foreign;
use crate::handle::{Comm, Info};
use crate::network::failure;
use crate::objects::{self, Communicator};
use crate::topology::Topology;

fn without(what: &str) -> Error {
    Error::new(c::ERR_TOPOLOGY, format!("the communicator has no {what}"))
}

/// The index and the edges of a graph.
fn graph(comm: Comm) -> Result<(Vec<c_int>, Vec<c_int>)> {
    match objects::comm(comm)?.topology.clone() {
        Some(Topology::Graph { index, edges }) => Ok((index, edges)),
        _ => Err(without("graph")),
    }
}

/// `MPI_Topo_test`.
pub unsafe fn topo_test(comm: Comm, status: Foreign<c_int>) -> Result<()> {
    let kind = match objects::comm(comm)?.topology {
        Some(Topology::Grid(_)) => c::CART,
        Some(Topology::Graph { .. }) => c::GRAPH,
        Some(Topology::Distributed { .. }) => c::DIST_GRAPH,
        None => c::UNDEFINED,
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { status.set(0, kind) };
    Ok(())
}

unsafe fn read(
    comm: &Communicator,
    nodes: c_int,
    index: Foreign<c_int>,
    edges: Foreign<c_int>,
) -> Result<(Vec<c_int>, Vec<c_int>)> {
    let count = natural(nodes.into(), "nnodes")?;
    ensure(count <= comm.size(), c::ERR_ARG, || {
        format!("a graph of {count} nodes does not fit a communicator of {}", comm.size())
    })?;
    // SAFETY: the arguments are as the standard says.
    let index = unsafe { index.to_vec(count) };
    let rising = index.iter().zip(std::iter::once(&0).chain(&index)).all(|(end, start)| end >= start);
    ensure(rising, c::ERR_ARG, || format!("the index {index:?} does not rise"))?;
    // SAFETY: as above.
    let edges = unsafe { edges.to_vec(index.last().map_or(0, |end| *end as usize)) };
    ensure(edges.iter().all(|edge| (0..nodes).contains(edge)), c::ERR_ARG, || {
        format!("an edge of {edges:?} leads to no node")
    })?;
    Ok((index, edges))
}

/// `MPI_Graph_create`: ranks are not reordered.
pub unsafe fn graph_create(
    comm: Comm,
    nodes: c_int,
    index: Foreign<c_int>,
    edges: Foreign<c_int>,
    _reorder: c_int,
    new: Foreign<Comm>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (index, edges) = read(&object, nodes, index, edges)?;
        let ranks: Vec<usize> = (0..index.len()).collect();
        new.set(0, make_subset(&object, &ranks, Some(Topology::Graph { index, edges }))?);
    }
    Ok(())
}

/// `MPI_Graph_map`: ranks stay where they are.
pub unsafe fn graph_map(
    comm: Comm,
    nodes: c_int,
    index: Foreign<c_int>,
    edges: Foreign<c_int>,
    new: Foreign<c_int>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        read(&object, nodes, index, edges)?;
        let rank = object.rank as c_int;
        new.set(0, if rank < nodes { rank } else { c::UNDEFINED });
    }
    Ok(())
}

/// `MPI_Graphdims_get`.
pub unsafe fn graphdims_get(comm: Comm, nodes: Foreign<c_int>, edges: Foreign<c_int>) -> Result<()> {
    let (index, list) = graph(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        nodes.set(0, index.len() as c_int);
        edges.set(0, list.len() as c_int);
    }
    Ok(())
}

/// `MPI_Graph_get`.
pub unsafe fn graph_get(
    comm: Comm,
    maxindex: c_int,
    maxedges: c_int,
    index: Foreign<c_int>,
    edges: Foreign<c_int>,
) -> Result<()> {
    let (all_index, all_edges) = graph(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        index.set_all(all_index.into_iter().take(natural(maxindex.into(), "maxindex")?));
        edges.set_all(all_edges.into_iter().take(natural(maxedges.into(), "maxedges")?));
    }
    Ok(())
}

fn neighbors_of(comm: Comm, rank: c_int) -> Result<Vec<c_int>> {
    let (index, edges) = graph(comm)?;
    let place = usize::try_from(rank).ok().filter(|rank| *rank < index.len());
    let place = place.ok_or_else(|| Error::new(c::ERR_RANK, format!("there is no rank {rank}")))?;
    Ok(Topology::graph_neighbors(&index, &edges, place))
}

/// `MPI_Graph_neighbors_count`.
pub unsafe fn graph_neighbors_count(comm: Comm, rank: c_int, count: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { count.set(0, neighbors_of(comm, rank)?.len() as c_int) };
    Ok(())
}

/// `MPI_Graph_neighbors`.
pub unsafe fn graph_neighbors(
    comm: Comm,
    rank: c_int,
    maxneighbors: c_int,
    neighbors: Foreign<c_int>,
) -> Result<()> {
    let most = natural(maxneighbors.into(), "maxneighbors")?;
    // SAFETY: the arguments are as the standard says.
    unsafe { neighbors.set_all(neighbors_of(comm, rank)?.into_iter().take(most)) };
    Ok(())
}

/// Edges with their weights, which are 1 if the program gives none.
unsafe fn edges_of(
    object: &Communicator,
    count: c_int,
    ranks: Foreign<c_int>,
    weights: Foreign<c_int>,
) -> Result<Vec<(c_int, c_int)>> {
    let count = natural(count.into(), "the number of edges")?;
    // SAFETY: the arguments are as the standard says.
    let (ranks, weights) = unsafe {
        let weights = if is_weighted(weights) { weights.to_vec(count) } else { vec![1; count] };
        (ranks.to_vec(count), weights)
    };
    check(object, &ranks, &weights)?;
    Ok(ranks.into_iter().zip(weights).collect())
}

fn check(object: &Communicator, ranks: &[c_int], weights: &[c_int]) -> Result<()> {
    let size = object.size() as c_int;
    let wrong = ranks.iter().find(|rank| !(0..size).contains(*rank));
    ensure(wrong.is_none(), c::ERR_RANK, || format!("{wrong:?} is no rank of a communicator of {size}"))?;
    ensure(weights.iter().all(|weight| *weight >= 0), c::ERR_ARG, || format!("the weights are {weights:?}"))
}

fn is_weighted(weights: Foreign<c_int>) -> bool {
    !weights.is_at(c::UNWEIGHTED) && !weights.is_at(c::WEIGHTS_EMPTY)
}

fn distribute(
    object: &Arc<Communicator>,
    sources: Vec<(c_int, c_int)>,
    destinations: Vec<(c_int, c_int)>,
    weighted: bool,
) -> Result<Comm> {
    let ranks: Vec<usize> = (0..object.size()).collect();
    make_subset(object, &ranks, Some(Topology::Distributed { sources, destinations, weighted }))
}

/// `MPI_Dist_graph_create_adjacent`.
pub unsafe fn dist_graph_create_adjacent(
    comm: Comm,
    indegree: c_int,
    sources: Foreign<c_int>,
    sourceweights: Foreign<c_int>,
    outdegree: c_int,
    destinations: Foreign<c_int>,
    destweights: Foreign<c_int>,
    _info: Info,
    _reorder: c_int,
    new: Foreign<Comm>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let weighted = !sourceweights.is_at(c::UNWEIGHTED);
        let from = edges_of(&object, indegree, sources, sourceweights)?;
        let to = edges_of(&object, outdegree, destinations, destweights)?;
        new.set(0, distribute(&object, from, to, weighted)?);
    }
    Ok(())
}

/// `MPI_Dist_graph_create`: any rank may name any edges; all ranks tell each other.
pub unsafe fn dist_graph_create(
    comm: Comm,
    n: c_int,
    sources: Foreign<c_int>,
    degrees: Foreign<c_int>,
    destinations: Foreign<c_int>,
    weights: Foreign<c_int>,
    _info: Info,
    _reorder: c_int,
    new: Foreign<Comm>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    let count = natural(n.into(), "n")?;
    let weighted = !weights.is_at(c::UNWEIGHTED);
    // SAFETY: the arguments are as the standard says.
    let (sources, degrees) = unsafe { (sources.to_vec(count), degrees.to_vec(count)) };
    ensure(degrees.iter().all(|degree| *degree >= 0), c::ERR_ARG, || format!("the degrees are {degrees:?}"))?;
    let total: c_int = degrees.iter().sum();
    // SAFETY: as above.
    let to = unsafe { edges_of(&object, total, destinations, weights)? };
    check(&object, &sources, &[])?;
    let from = sources
        .iter()
        .zip(&degrees)
        .flat_map(|(source, degree)| std::iter::repeat_n(*source, *degree as usize));
    let mut own = Vec::new();
    for (from, (to, weight)) in from.zip(to) {
        [from, to, weight].iter().for_each(|number| own.extend_from_slice(&number.to_le_bytes()));
    }
    let group = object.group()?;
    let lens = group.run(&Call::AllGather { len: 8 }, &(own.len() as u64).to_le_bytes()).map_err(failure)?;
    let lens = lens.as_chunks::<8>().0.iter().map(|len| u64::from_le_bytes(*len) as usize).collect();
    let all = group.run(&Call::AllGatherVaried { lens }, &own).map_err(failure)?;
    let numbers: Vec<c_int> =
        all.as_chunks::<4>().0.iter().map(|bytes| c_int::from_le_bytes(*bytes)).collect();
    let rank = object.rank as c_int;
    let (mut sources, mut destinations) = (Vec::new(), Vec::new());
    for [from, to, weight] in numbers.as_chunks::<3>().0 {
        if *to == rank {
            sources.push((*from, *weight));
        }
        if *from == rank {
            destinations.push((*to, *weight));
        }
    }
    // SAFETY: as above.
    unsafe { new.set(0, distribute(&object, sources, destinations, weighted)?) };
    Ok(())
}

/// `MPI_Dist_graph_neighbors_count`.
pub unsafe fn dist_graph_neighbors_count(
    comm: Comm,
    indegree: Foreign<c_int>,
    outdegree: Foreign<c_int>,
    is_weighted: Foreign<c_int>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    let Some(Topology::Distributed { sources, destinations, weighted }) = &object.topology else {
        return Err(without("distributed graph"));
    };
    // SAFETY: the arguments are as the standard says.
    unsafe {
        indegree.set(0, sources.len() as c_int);
        outdegree.set(0, destinations.len() as c_int);
        is_weighted.set(0, c_int::from(*weighted));
    }
    Ok(())
}

/// `MPI_Dist_graph_neighbors`.
pub unsafe fn dist_graph_neighbors(
    comm: Comm,
    maxindegree: c_int,
    sources: Foreign<c_int>,
    sourceweights: Foreign<c_int>,
    maxoutdegree: c_int,
    destinations: Foreign<c_int>,
    destweights: Foreign<c_int>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    let Some(Topology::Distributed { sources: from, destinations: to, weighted }) = &object.topology else {
        return Err(without("distributed graph"));
    };
    let give = |list: &[(c_int, c_int)], most: c_int, ranks: Foreign<c_int>, weights: Foreign<c_int>| {
        let most = natural(most.into(), "the number of edges")?;
        // SAFETY: the arguments are as the standard says.
        unsafe {
            ranks.set_all(list.iter().take(most).map(|(rank, _)| *rank));
            if *weighted && is_weighted(weights) {
                weights.set_all(list.iter().take(most).map(|(_, weight)| *weight));
            }
        }
        Ok(())
    };
    give(from, maxindegree, sources, sourceweights)?;
    give(to, maxoutdegree, destinations, destweights)
}
