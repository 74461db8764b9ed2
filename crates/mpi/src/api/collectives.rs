//! Collectives over one rank: what is sent is received by the sender.

use std::ffi::c_int;

use super::Ptr;
use super::communicators::alone;
use super::packing::message;
use crate::constants as c;
use crate::error::{Error, Result, ensure};
use crate::handle::{Comm, Datatype, Op};
use crate::objects;

/// Data of a collective: memory, count and datatype.
type Data = (Ptr, i64, Datatype);

fn in_place(at: Ptr) -> bool {
    at.addr() == c::IN_PLACE
}

fn check_root(root: c_int) -> Result<()> {
    ensure(root == 0, c::ERR_ROOT, || format!("root {root} is not in a communicator of 1"))
}

/// What a rank sends to itself.
unsafe fn exchange(from: Data, to: Data) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let bytes = message(from.0, from.1, from.2)?.to_vec();
        let into = message(to.0, to.1, to.2)?;
        if into.unpack(0, &bytes) < bytes.len() {
            return Err(Error::new(c::ERR_TRUNCATE, "more was sent than is received"));
        }
    }
    Ok(())
}

/// `MPI_Barrier`.
pub unsafe fn barrier(comm: Comm) -> Result<()> {
    alone(comm).map(|_| ())
}

/// `MPI_Bcast`.
pub unsafe fn bcast(buffer: Ptr, count: i64, of: Datatype, root: c_int, comm: Comm) -> Result<()> {
    alone(comm)?;
    check_root(root)?;
    message(buffer, count, of).map(|_| ())
}

/// `MPI_Allgather`.
pub unsafe fn allgather(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    comm: Comm,
) -> Result<()> {
    alone(comm)?;
    if in_place(sendbuf) {
        return message(recvbuf, recvcount, recvtype).map(|_| ());
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { exchange((sendbuf, sendcount, sendtype), (recvbuf, recvcount, recvtype)) }
}

/// `MPI_Alltoall`.
pub unsafe fn alltoall(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    comm: Comm,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm) }
}

/// `MPI_Gather`.
pub unsafe fn gather(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    root: c_int,
    comm: Comm,
) -> Result<()> {
    alone(comm)?;
    check_root(root)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm) }
}

/// `MPI_Scatter`: the receive buffer may be in place.
pub unsafe fn scatter(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    root: c_int,
    comm: Comm,
) -> Result<()> {
    alone(comm)?;
    check_root(root)?;
    if in_place(recvbuf) {
        return message(sendbuf, sendcount, sendtype).map(|_| ());
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { exchange((sendbuf, sendcount, sendtype), (recvbuf, recvcount, recvtype)) }
}

/// `MPI_Allreduce`: the reduction of one value is the value.
pub unsafe fn allreduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<()> {
    alone(comm)?;
    objects::op(op)?.check(&objects::datatype(of)?.of)?;
    if in_place(sendbuf) {
        return message(recvbuf, count, of).map(|_| ());
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { exchange((sendbuf, count, of), (recvbuf, count, of)) }
}

/// `MPI_Reduce`.
pub unsafe fn reduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    root: c_int,
    comm: Comm,
) -> Result<()> {
    alone(comm)?;
    check_root(root)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { allreduce(sendbuf, recvbuf, count, of, op, comm) }
}

/// `MPI_Scan`.
pub unsafe fn scan(sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op, comm: Comm) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { allreduce(sendbuf, recvbuf, count, of, op, comm) }
}

/// `MPI_Exscan`: the first rank receives nothing.
pub unsafe fn exscan(
    _sendbuf: Ptr,
    _recvbuf: Ptr,
    _count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<()> {
    alone(comm)?;
    objects::op(op)?.check(&objects::datatype(of)?.of)
}

/// `MPI_Reduce_scatter_block`.
pub unsafe fn reduce_scatter_block(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { allreduce(sendbuf, recvbuf, count, of, op, comm) }
}
