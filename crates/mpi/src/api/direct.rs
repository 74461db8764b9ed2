//! Collectives in the usual case, without a plan: predefined operations on elements of predefined datatypes,
//! which lie in memory as they are packed. Everything else, and every error in the arguments, is left to the
//! plans.

use tautline::group::{Call, Reduction};

use super::Ptr;
use super::plans::in_place;
use super::reductions::{planned_allreduce, reducer};
use crate::error::Result;
use crate::handle::{Comm, Datatype, Op};
use crate::network::failure;
use crate::objects;

/// `MPI_Allreduce`.
pub unsafe fn allreduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        match try_allreduce(sendbuf, recvbuf, count, of, op, comm) {
            Some(done) => done,
            None => planned_allreduce(sendbuf, recvbuf, count, of, op, comm),
        }
    }
}

/// `MPI_Allreduce` in the usual case. None, with nothing done, if it is another one.
unsafe fn try_allreduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Option<Result<()>> {
    let object = objects::comm_ref(comm).ok()?;
    if object.remote.is_some() || in_place(recvbuf) {
        return None;
    }
    let (to, len) = objects::span(recvbuf, count, of).filter(|(_, len)| *len > 0)?;
    let call = Call::AllReduce { len, with: reduction(op, of)? };
    let group = object.group().ok()?;
    let done = if in_place(sendbuf) || sendbuf == recvbuf {
        // SAFETY: the arguments are as the standard says: there are `len` bytes, which the program leaves
        // alone until the collective is complete.
        group.run_in_place(&call, unsafe { std::slice::from_raw_parts_mut(to, len) })
    } else {
        let (from, _) = objects::span(sendbuf, count, of)?;
        if from.addr().abs_diff(to.addr()) < len {
            return None;
        }
        // SAFETY: as above, and the two are not the same memory.
        let (input, output) =
            unsafe { (std::slice::from_raw_parts(from, len), std::slice::from_raw_parts_mut(to, len)) };
        group.run_into(&call, input, output)
    };
    Some(done.map_err(failure))
}

/// The reduction of a predefined operation on a predefined datatype, if both are, and it is defined.
fn reduction(op: Op, of: Datatype) -> Option<Reduction> {
    let (kernel, size) = objects::kernel(op, of)?;
    let mask = size.next_power_of_two().min(16) - 1;
    Some(Reduction::new(size, true, move |lower, upper| {
        if (lower.as_ptr().addr() | upper.as_ptr().addr()) & mask == 0 {
            let count = lower.len().min(upper.len()) / size;
            // SAFETY: both hold `count` elements, which are packed as they lie in memory, and are aligned.
            unsafe { kernel(lower.as_ptr(), upper.as_mut_ptr(), count) };
        } else if let Ok(reducer) = reducer(op, of) {
            reducer.combine(lower, upper);
        }
    }))
}
