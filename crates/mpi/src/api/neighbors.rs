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

/// The neighbours of a rank.
struct Around {
    comm: Arc<Communicator>,
    /// Whom messages come from and go to; `MPI_PROC_NULL` where there is nobody.
    sources: Vec<i32>,
    destinations: Vec<i32>,
    /// The order in which messages of the sources are received.
    arrivals: Vec<usize>,
}

fn around(comm: Comm) -> Result<Around> {
    let comm = objects::comm(comm)?;
    let none = || Error::new(c::ERR_TOPOLOGY, "the communicator has no topology");
    let topology = comm.topology.as_ref().ok_or_else(none)?;
    let (sources, destinations) = topology.neighbors(comm.rank as usize);
    let arrivals = topology.arrivals(sources.len());
    Ok(Around { sources, destinations, arrivals, comm })
}

fn exchange(around: &Around, input: Vec<Message>, output: &[Message]) -> Plan {
    let there = around.destinations.iter().map(|rank| usize::try_from(*rank).ok());
    let (destinations, input): (Vec<_>, Vec<_>) = there
        .zip(input)
        .filter_map(|(rank, message)| Some(((rank?, message.size() as usize), message)))
        .unzip();
    let (sources, output): (Vec<_>, Vec<_>) = (around.arrivals.iter())
        .filter_map(|at| Some((usize::try_from(around.sources[*at]).ok()?, &output[*at])))
        .map(|(rank, message)| ((rank, message.size() as usize), message.clone()))
        .unzip();
    Plan::new(&around.comm, Call::NeighbourAllToAll { sources, destinations }, input, output)
}

/// The same message for every neighbour.
fn gather(around: &Around, own: Message, output: &[Message]) -> Plan {
    exchange(around, vec![own; around.destinations.len()], output)
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
    let around = around(comm)?;
    let output = blocks((recvbuf, recvcount, recvtype), around.sources.len())?;
    Ok(gather(&around, data((sendbuf, sendcount, sendtype))?, &output))
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
    let around = around(comm)?;
    // SAFETY: the arguments are as the standard says.
    let output = unsafe { varied(recvbuf, recvcounts, displs, recvtype, around.sources.len())? };
    Ok(gather(&around, data((sendbuf, sendcount, sendtype))?, &output))
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
    let around = around(comm)?;
    let (from, to) = (around.sources.len(), around.destinations.len());
    let input = blocks((sendbuf, sendcount, sendtype), to)?;
    Ok(exchange(&around, input, &blocks((recvbuf, recvcount, recvtype), from)?))
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
    let around = around(comm)?;
    let (from, to) = (around.sources.len(), around.destinations.len());
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let input = varied(sendbuf, sendcounts, sdispls, sendtype, to)?;
        Ok(exchange(&around, input, &varied(recvbuf, recvcounts, rdispls, recvtype, from)?))
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
    let around = around(comm)?;
    let (from, to) = (around.sources.len(), around.destinations.len());
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let input = mixed(sendbuf, sendcounts, sdispls, sendtypes, to)?;
        Ok(exchange(&around, input, &mixed(recvbuf, recvcounts, rdispls, recvtypes, from)?))
    }
}
