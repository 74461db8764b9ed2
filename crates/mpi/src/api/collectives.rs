//! Collectives that move data.

use std::ffi::c_int;

use tautline::group::Call;

use super::plans::{Plan, block, blocks, data, in_place, joined, lens, mixed, rooted, varied};
use super::{Ptr, inter};
use crate::constants as c;
use crate::error::{Result, ensure};
use crate::foreign::Foreign;
use crate::handle::{Comm, Datatype, Info, Request};
use crate::objects;

collectives! {
    /// `MPI_Barrier`.
    pub unsafe fn barrier, ibarrier, barrier_init: plan_barrier();
    /// `MPI_Bcast`.
    pub unsafe fn bcast, ibcast, bcast_init: plan_bcast(buffer: Ptr, count: i64, of: Datatype, root: c_int);
    /// `MPI_Gather`.
    pub unsafe fn gather, igather, gather_init: plan_gather(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype, root: c_int
    );
    /// `MPI_Gatherv`.
    pub unsafe fn gatherv, igatherv, gatherv_init: plan_gatherv(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcounts: Foreign<i64>, displs: Foreign<i64>, recvtype: Datatype, root: c_int
    );
    /// `MPI_Scatter`.
    pub unsafe fn scatter, iscatter, scatter_init: plan_scatter(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype, root: c_int
    );
    /// `MPI_Scatterv`.
    pub unsafe fn scatterv, iscatterv, scatterv_init: plan_scatterv(
        sendbuf: Ptr, sendcounts: Foreign<i64>, displs: Foreign<i64>, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype, root: c_int
    );
    /// `MPI_Allgather`.
    pub unsafe fn allgather, iallgather, allgather_init: plan_allgather(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype
    );
    /// `MPI_Allgatherv`.
    pub unsafe fn allgatherv, iallgatherv, allgatherv_init: plan_allgatherv(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcounts: Foreign<i64>, displs: Foreign<i64>, recvtype: Datatype
    );
    /// `MPI_Alltoall`.
    pub unsafe fn alltoall, ialltoall, alltoall_init: plan_alltoall(
        sendbuf: Ptr, sendcount: i64, sendtype: Datatype,
        recvbuf: Ptr, recvcount: i64, recvtype: Datatype
    );
    /// `MPI_Alltoallv`.
    pub unsafe fn alltoallv, ialltoallv, alltoallv_init: plan_alltoallv(
        sendbuf: Ptr, sendcounts: Foreign<i64>, sdispls: Foreign<i64>, sendtype: Datatype,
        recvbuf: Ptr, recvcounts: Foreign<i64>, rdispls: Foreign<i64>, recvtype: Datatype
    );
    /// `MPI_Alltoallw`.
    pub unsafe fn alltoallw, ialltoallw, alltoallw_init: plan_alltoallw(
        sendbuf: Ptr, sendcounts: Foreign<i64>, sdispls: Foreign<i64>, sendtypes: Foreign<Datatype>,
        recvbuf: Ptr, recvcounts: Foreign<i64>, rdispls: Foreign<i64>, recvtypes: Foreign<Datatype>
    );
}

unsafe fn plan_barrier(comm: Comm) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return Ok(inter.barrier());
    }
    Ok(Plan::new(&object, Call::Barrier, Vec::new(), Vec::new()))
}

unsafe fn plan_bcast(buffer: Ptr, count: i64, of: Datatype, root: c_int, comm: Comm) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return inter.bcast((buffer, count, of), root);
    }
    let root = rooted(&object, root)?;
    let message = data((buffer, count, of))?;
    let call = Call::Broadcast { root, len: message.size() as usize };
    Ok(if object.rank as usize == root {
        // What the root gets is what it has.
        Plan::new(&object, call, vec![message], Vec::new())
    } else {
        Plan::new(&object, call, Vec::new(), vec![message])
    })
}

unsafe fn plan_gather(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    root: c_int,
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        let received = |size| blocks((recvbuf, recvcount, recvtype), size);
        return inter.gather((sendbuf, sendcount, sendtype), received, root);
    }
    let root = rooted(&object, root)?;
    if object.rank as usize != root {
        let own = data((sendbuf, sendcount, sendtype))?;
        let call = Call::Gather { root, len: own.size() as usize };
        return Ok(Plan::new(&object, call, vec![own], Vec::new()));
    }
    let received = (recvbuf, recvcount, recvtype);
    let (output, part) = (joined(received, object.size())?, block(received, root)?);
    let call = Call::Gather { root, len: part.size() as usize };
    let own = if in_place(sendbuf) { part } else { data((sendbuf, sendcount, sendtype))? };
    Ok(Plan::new(&object, call, vec![own], vec![output]))
}

unsafe fn plan_gatherv(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcounts: Foreign<i64>,
    displs: Foreign<i64>,
    recvtype: Datatype,
    root: c_int,
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        // SAFETY: the arguments are as the standard says.
        let received = |size| unsafe { varied(recvbuf, recvcounts, displs, recvtype, size) };
        return inter.gather((sendbuf, sendcount, sendtype), received, root);
    }
    let root = rooted(&object, root)?;
    if object.rank as usize != root {
        let own = data((sendbuf, sendcount, sendtype))?;
        let call = Call::GatherVaried { root, len: own.size() as usize, lens: Vec::new() };
        return Ok(Plan::new(&object, call, vec![own], Vec::new()));
    }
    // SAFETY: the arguments are as the standard says.
    let output = unsafe { varied(recvbuf, recvcounts, displs, recvtype, object.size())? };
    let own = if in_place(sendbuf) { output[root].clone() } else { data((sendbuf, sendcount, sendtype))? };
    let call = Call::GatherVaried { root, len: own.size() as usize, lens: lens(&output) };
    Ok(Plan::new(&object, call, vec![own], output))
}

unsafe fn plan_scatter(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    root: c_int,
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        let sent = |size| blocks((sendbuf, sendcount, sendtype), size);
        return inter.scatter(sent, (recvbuf, recvcount, recvtype), root);
    }
    let root = rooted(&object, root)?;
    if object.rank as usize != root {
        let own = data((recvbuf, recvcount, recvtype))?;
        let call = Call::Scatter { root, len: own.size() as usize };
        return Ok(Plan::new(&object, call, Vec::new(), vec![own]));
    }
    let sent = (sendbuf, sendcount, sendtype);
    let output = if in_place(recvbuf) { Vec::new() } else { vec![data((recvbuf, recvcount, recvtype))?] };
    let call = Call::Scatter { root, len: block(sent, root)?.size() as usize };
    Ok(Plan::new(&object, call, vec![joined(sent, object.size())?], output))
}

unsafe fn plan_scatterv(
    sendbuf: Ptr,
    sendcounts: Foreign<i64>,
    displs: Foreign<i64>,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    root: c_int,
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        // SAFETY: the arguments are as the standard says.
        let sent = |size| unsafe { varied(sendbuf, sendcounts, displs, sendtype, size) };
        return inter.scatter(sent, (recvbuf, recvcount, recvtype), root);
    }
    let root = rooted(&object, root)?;
    if object.rank as usize != root {
        let own = data((recvbuf, recvcount, recvtype))?;
        let call = Call::ScatterVaried { root, len: own.size() as usize, lens: Vec::new() };
        return Ok(Plan::new(&object, call, Vec::new(), vec![own]));
    }
    // SAFETY: the arguments are as the standard says.
    let input = unsafe { varied(sendbuf, sendcounts, displs, sendtype, object.size())? };
    let output = if in_place(recvbuf) { Vec::new() } else { vec![data((recvbuf, recvcount, recvtype))?] };
    let call = Call::ScatterVaried { root, len: input[root].size() as usize, lens: lens(&input) };
    Ok(Plan::new(&object, call, input, output))
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
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return inter.allgather((sendbuf, sendcount, sendtype), (recvbuf, recvcount, recvtype));
    }
    let received = (recvbuf, recvcount, recvtype);
    let output = joined(received, object.size())?;
    let own = match in_place(sendbuf) {
        true => block(received, object.rank as usize)?,
        false => data((sendbuf, sendcount, sendtype))?,
    };
    let call = Call::AllGather { len: own.size() as usize };
    Ok(Plan::new(&object, call, vec![own], vec![output]))
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
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        let own = (sendbuf, sendcount, sendtype);
        // SAFETY: the arguments are as the standard says.
        return unsafe { inter.allgatherv(own, recvbuf, (recvcounts, displs), recvtype) };
    }
    // SAFETY: the arguments are as the standard says.
    let output = unsafe { varied(recvbuf, recvcounts, displs, recvtype, object.size())? };
    let own = match in_place(sendbuf) {
        true => output[object.rank as usize].clone(),
        false => data((sendbuf, sendcount, sendtype))?,
    };
    Ok(Plan::new(&object, Call::AllGatherVaried { lens: lens(&output) }, vec![own], output))
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
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return inter.alltoall((sendbuf, sendcount, sendtype), (recvbuf, recvcount, recvtype));
    }
    let size = object.size();
    let output = joined((recvbuf, recvcount, recvtype), size)?;
    let input = match in_place(sendbuf) {
        true => output.clone(),
        false => joined((sendbuf, sendcount, sendtype), size)?,
    };
    let [len, received] = [&input, &output].map(|message| message.size() as usize / size);
    ensure(len == received, c::ERR_TRUNCATE, || {
        format!("{len} bytes are sent to each rank, and {received} received")
    })?;
    Ok(Plan::new(&object, Call::AllToAll { len }, vec![input], vec![output]))
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
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        let sent = (sendbuf, sendcounts, sdispls, sendtype);
        // SAFETY: the arguments are as the standard says.
        return unsafe { inter.alltoallv(sent, (recvbuf, recvcounts, rdispls, recvtype)) };
    }
    let size = object.size();
    // SAFETY: the arguments are as the standard says.
    let (input, output) = unsafe {
        let output = varied(recvbuf, recvcounts, rdispls, recvtype, size)?;
        let sent = || varied(sendbuf, sendcounts, sdispls, sendtype, size);
        (if in_place(sendbuf) { output.clone() } else { sent()? }, output)
    };
    let call = Call::AllToAllVaried { send: lens(&input), receive: lens(&output) };
    Ok(Plan::new(&object, call, input, output))
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
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        let sent = (sendbuf, sendcounts, sdispls, sendtypes);
        // SAFETY: the arguments are as the standard says.
        return unsafe { inter.alltoallw(sent, (recvbuf, recvcounts, rdispls, recvtypes)) };
    }
    let size = object.size();
    // SAFETY: the arguments are as the standard says.
    let (input, output) = unsafe {
        let output = mixed(recvbuf, recvcounts, rdispls, recvtypes, size)?;
        let sent = || mixed(sendbuf, sendcounts, sdispls, sendtypes, size);
        (if in_place(sendbuf) { output.clone() } else { sent()? }, output)
    };
    let call = Call::AllToAllVaried { send: lens(&input), receive: lens(&output) };
    Ok(Plan::new(&object, call, input, output))
}
