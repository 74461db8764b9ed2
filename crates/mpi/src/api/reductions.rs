//! Collectives that combine values.

use std::ffi::c_int;

use tautline::group::{Call, Reduction};

use super::intercommunicators::ensure_intra;
use super::packing::message;
use super::plans::{Plan, data, in_place, rooted};
use super::{Ptr, inter};
use crate::constants as c;
use crate::datatype::Message;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::handle::{Comm, Datatype, Info, Op, Request};
use crate::objects;
use crate::op::Kernel;
use crate::reducer::Reducer;

collectives! {
    /// `MPI_Reduce`.
    pub unsafe fn reduce, ireduce, reduce_init: plan_reduce(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op, root: c_int
    );
    /// `MPI_Allreduce`.
    pub unsafe fn allreduce, iallreduce, allreduce_init: plan_allreduce(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op
    );
    /// `MPI_Reduce_scatter_block`.
    pub unsafe fn reduce_scatter_block, ireduce_scatter_block, reduce_scatter_block_init: plan_block(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op
    );
    /// `MPI_Reduce_scatter`.
    pub unsafe fn reduce_scatter, ireduce_scatter, reduce_scatter_init: plan_reduce_scatter(
        sendbuf: Ptr, recvbuf: Ptr, counts: Foreign<i64>, of: Datatype, op: Op
    );
    /// `MPI_Scan`.
    pub unsafe fn scan, iscan, scan_init: plan_scan(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op
    );
    /// `MPI_Exscan`: the first rank receives nothing.
    pub unsafe fn exscan, iexscan, exscan_init: plan_exscan(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op
    );
}

/// An operation on a datatype.
pub(super) fn reducer(op: Op, of: Datatype) -> Result<Reducer> {
    let (operation, object) = (objects::op(op)?, objects::datatype(of)?);
    operation.check(&object.of)?;
    Ok(Reducer { operation, of: object.of.clone(), handle: of })
}

/// The reduction of an operation on a datatype.
fn reduction(op: Op, of: Datatype) -> Result<Reduction> {
    if let Some((kernel, size)) = objects::kernel(op, of) {
        return Ok(predefined((kernel, size), (op, of)));
    }
    let reducer = reducer(op, of)?;
    let commutes = reducer.operation.commutes();
    // Elements without bytes are combined by doing nothing.
    let unit = reducer.element().max(1);
    Ok(Reduction::new(unit, commutes, move |lower, upper| reducer.combine(lower, upper)))
}

/// The reduction of a predefined operation on elements of a predefined datatype that lie in memory as they
/// are packed: most reductions of most programs.
fn predefined((kernel, size): (Kernel, usize), (op, of): (Op, Datatype)) -> Reduction {
    let mask = size.next_power_of_two().min(16) - 1;
    Reduction::new(size, true, move |lower, upper| {
        if (lower.as_ptr().addr() | upper.as_ptr().addr()) & mask == 0 {
            let count = lower.len().min(upper.len()) / size;
            // SAFETY: both hold `count` elements, which are packed as they lie in memory, and are aligned.
            unsafe { kernel(lower.as_ptr(), upper.as_mut_ptr(), count) };
        } else if let Ok(reducer) = reducer(op, of) {
            reducer.combine(lower, upper);
        }
    })
}

/// What this rank gives, and where it gets the result.
fn own(sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype) -> Result<(Message, Message)> {
    let result = data((recvbuf, count, of))?;
    Ok((if in_place(sendbuf) { result.clone() } else { data((sendbuf, count, of))? }, result))
}

unsafe fn plan_reduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    root: c_int,
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return inter.reduce((sendbuf, recvbuf), (count, of), op, root);
    }
    let (root, with) = (rooted(&object, root)?, reduction(op, of)?);
    if object.rank as usize != root {
        let value = data((sendbuf, count, of))?;
        let call = Call::Reduce { root, len: value.size() as usize, with };
        return Ok(Plan::new(&object, call, vec![value], Vec::new()));
    }
    let (value, result) = own(sendbuf, recvbuf, count, of)?;
    let call = Call::Reduce { root, len: value.size() as usize, with };
    Ok(Plan::new(&object, call, vec![value], vec![result]))
}

unsafe fn plan_allreduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return inter.allreduce((sendbuf, recvbuf), (count, of), op);
    }
    let with = reduction(op, of)?;
    let (value, result) = own(sendbuf, recvbuf, count, of)?;
    let call = Call::AllReduce { len: value.size() as usize, with };
    Ok(Plan::new(&object, call, vec![value], vec![result]))
}

unsafe fn plan_scan(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<Plan> {
    let (object, with) = (objects::comm(comm)?, reduction(op, of)?);
    ensure_intra(&object)?;
    let (value, result) = own(sendbuf, recvbuf, count, of)?;
    let call = Call::Scan { len: value.size() as usize, with };
    Ok(Plan::new(&object, call, vec![value], vec![result]))
}

unsafe fn plan_exscan(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<Plan> {
    let (object, with) = (objects::comm(comm)?, reduction(op, of)?);
    ensure_intra(&object)?;
    let first = object.rank == 0;
    // The first rank may pass no memory for a result that it does not get.
    let (value, result) = match first && !in_place(sendbuf) {
        true => (data((sendbuf, count, of))?, Vec::new()),
        false => own(sendbuf, recvbuf, count, of).map(|(value, result)| (value, vec![result]))?,
    };
    let call = Call::ExclusiveScan { len: value.size() as usize, with };
    Ok(Plan::new(&object, call, vec![value], if first { Vec::new() } else { result }))
}

/// A reduction whose result is divided among the ranks.
unsafe fn scattered(
    (sendbuf, recvbuf): (Ptr, Ptr),
    counts: &[i64],
    (of, op): (Datatype, Op),
    comm: Comm,
) -> Result<Plan> {
    let object = objects::comm(comm)?;
    if let Some(inter) = inter::of(&object) {
        return inter.reduce_scatter((sendbuf, recvbuf), counts, (op, of));
    }
    let with = reduction(op, of)?;
    let total = counts.iter().try_fold(0_i64, |total, count| total.checked_add(*count));
    let total = total.ok_or_else(|| Error::new(c::ERR_COUNT, "the counts are too large"))?;
    let result = data((recvbuf, counts[object.rank as usize], of))?;
    let value = if in_place(sendbuf) { message(recvbuf, total, of)? } else { data((sendbuf, total, of))? };
    let size = objects::datatype(of)?.of.size() as usize;
    let lens: Result<Vec<usize>> =
        (counts.iter()).map(|count| Ok(crate::error::count(*count, "recvcount")? * size)).collect();
    Ok(Plan::new(&object, Call::ReduceScatter { lens: lens?, with }, vec![value], vec![result]))
}

unsafe fn plan_block(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<Plan> {
    let counts = vec![count; objects::comm(comm)?.size()];
    // SAFETY: the arguments are as the standard says.
    unsafe { scattered((sendbuf, recvbuf), &counts, (of, op), comm) }
}

unsafe fn plan_reduce_scatter(
    sendbuf: Ptr,
    recvbuf: Ptr,
    counts: Foreign<i64>,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<Plan> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let counts = counts.to_vec(objects::comm(comm)?.size());
        scattered((sendbuf, recvbuf), &counts, (of, op), comm)
    }
}
