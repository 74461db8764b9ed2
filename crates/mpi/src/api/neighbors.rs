//! Collectives among the neighbours of a topology.

use std::sync::Arc;

use tautline::group::Call;

use super::Ptr;
use super::plans::{Plan, blocks, data, mixed, varied};
use crate::constants as c;
use crate::datatype::Message;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::handle::{Comm, Datatype, Info, Request};
use crate::objects::{self, Communicator};

collectives! {
    /// `MPI_Neighbor_allgather`.
    pub unsafe fn neighbor_allgather, ineighbor_allgather, neighbor_allgather_init: plan_allgather(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype
    );
    /// `MPI_Neighbor_allgatherv`.
    pub unsafe fn neighbor_allgatherv, ineighbor_allgatherv, neighbor_allgatherv_init: plan_allgatherv(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcounts: Foreign<i64>, displs: Foreign<i64>, recvtype: Datatype
    );
    /// `MPI_Neighbor_alltoall`.
    pub unsafe fn neighbor_alltoall, ineighbor_alltoall, neighbor_alltoall_init: plan_alltoall(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype
    );
    /// `MPI_Neighbor_alltoallv`.
    pub unsafe fn neighbor_alltoallv, ineighbor_alltoallv, neighbor_alltoallv_init: plan_alltoallv(
        sendbuf: Ptr, sendcounts: Foreign<i64>, sdispls: Foreign<i64>, sendtype: Datatype,
        recvbuf: Ptr, recvcounts: Foreign<i64>, rdispls: Foreign<i64>, recvtype: Datatype
    );
    /// `MPI_Neighbor_alltoallw`.
    pub unsafe fn neighbor_alltoallw, ineighbor_alltoallw, neighbor_alltoallw_init: plan_alltoallw(
        sendbuf: Ptr, sendcounts: Foreign<i64>, sdispls: Foreign<i64>, sendtypes: Foreign<Datatype>,
        recvbuf: Ptr, recvcounts: Foreign<i64>, rdispls: Foreign<i64>, recvtypes: Foreign<Datatype>
    );
}

/// A communicator and the ranks of its neighbours; `MPI_PROC_NULL` where there is none.
fn neighbors(comm: Comm) -> Result<(Arc<Communicator>, Vec<i32>)> {
    let object = objects::comm(comm)?;
    let none = || Error::new(c::ERR_TOPOLOGY, "the communicator has no topology");
    let list = object.topology.as_ref().ok_or_else(none)?.neighbors(object.rank as usize);
    Ok((object, list))
}

/// The order in which messages of the neighbours are received. What a rank sends to its lower neighbour comes
/// from that one's higher neighbour; where both are the same rank, the order tells them apart.
fn arrivals(neighbors: &[i32]) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..neighbors.len()).map(|at| at ^ 1).filter_map(|at| Some((at, usize::try_from(neighbors[at]).ok()?)))
}

fn exchange(
    (object, neighbors): (Arc<Communicator>, Vec<i32>),
    input: Vec<Message>,
    output: Vec<Message>,
) -> Plan {
    let there = neighbors.iter().map(|rank| usize::try_from(*rank).ok());
    let (destinations, input): (Vec<_>, Vec<_>) = there
        .zip(input)
        .filter_map(|(rank, message)| Some(((rank?, message.size() as usize), message)))
        .unzip();
    let (sources, output): (Vec<_>, Vec<_>) = arrivals(&neighbors)
        .map(|(at, rank)| ((rank, output[at].size() as usize), output[at].clone()))
        .unzip();
    Plan::new(&object, Call::NeighbourAllToAll { sources, destinations }, input, output)
}

/// The same message for every neighbour.
fn gather((object, neighbors): (Arc<Communicator>, Vec<i32>), own: Message, output: Vec<Message>) -> Plan {
    let input = vec![own; neighbors.len()];
    exchange((object, neighbors), input, output)
}

unsafe fn plan_allgather(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    comm: Comm,
) -> Result<Plan> {
    let around = neighbors(comm)?;
    let output = blocks((recvbuf, recvcount, recvtype), around.1.len())?;
    Ok(gather(around, data((sendbuf, sendcount, sendtype))?, output))
}

unsafe fn plan_allgatherv(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcounts: Foreign<i64>,
    displs: Foreign<i64>,
    recvtype: Datatype,
    comm: Comm,
) -> Result<Plan> {
    let around = neighbors(comm)?;
    // SAFETY: the arguments are as the standard says.
    let output = unsafe { varied(recvbuf, recvcounts, displs, recvtype, around.1.len())? };
    Ok(gather(around, data((sendbuf, sendcount, sendtype))?, output))
}

unsafe fn plan_alltoall(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    comm: Comm,
) -> Result<Plan> {
    let around = neighbors(comm)?;
    let count = around.1.len();
    let input = blocks((sendbuf, sendcount, sendtype), count)?;
    Ok(exchange(around, input, blocks((recvbuf, recvcount, recvtype), count)?))
}

unsafe fn plan_alltoallv(
    sendbuf: Ptr,
    sendcounts: Foreign<i64>,
    sdispls: Foreign<i64>,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcounts: Foreign<i64>,
    rdispls: Foreign<i64>,
    recvtype: Datatype,
    comm: Comm,
) -> Result<Plan> {
    let around = neighbors(comm)?;
    let count = around.1.len();
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let input = varied(sendbuf, sendcounts, sdispls, sendtype, count)?;
        Ok(exchange(around, input, varied(recvbuf, recvcounts, rdispls, recvtype, count)?))
    }
}

unsafe fn plan_alltoallw(
    sendbuf: Ptr,
    sendcounts: Foreign<i64>,
    sdispls: Foreign<i64>,
    sendtypes: Foreign<Datatype>,
    recvbuf: Ptr,
    recvcounts: Foreign<i64>,
    rdispls: Foreign<i64>,
    recvtypes: Foreign<Datatype>,
    comm: Comm,
) -> Result<Plan> {
    let around = neighbors(comm)?;
    let count = around.1.len();
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let input = mixed(sendbuf, sendcounts, sdispls, sendtypes, count)?;
        Ok(exchange(around, input, mixed(recvbuf, recvcounts, rdispls, recvtypes, count)?))
    }
}
