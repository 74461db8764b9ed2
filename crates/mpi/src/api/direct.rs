//! Collectives in the usual case, without a plan: predefined operations on elements of predefined datatypes,
//! which lie in memory as they are packed. Everything else, and every error in the arguments, is left to the
//! plans.

use std::ffi::c_int;

use tautline::group::{Call, Reduction};

use super::Ptr;
use super::collectives::{plan_barrier, plan_bcast};
use super::plans::{in_place, rooted};
use super::reductions::{plan_allreduce, plan_reduce, reducer};
use crate::error::Result;
use crate::handle::{Comm, Datatype, Op};
use crate::network::failure;
use crate::objects::{self, CommRef};

/// Defines the functions: each tries the usual case, and makes a plan for any other.
macro_rules! direct {
    ($($(#[$doc:meta])* pub unsafe fn $run:ident: $usual:ident, or $plan:ident(
        $($arg:ident: $type:ty),*
    );)*) => {$(
        $(#[$doc])*
        pub unsafe fn $run($($arg: $type,)* comm: Comm) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe {
                match $usual($($arg,)* comm) {
                    Some(done) => done.map_err(failure),
                    None => $plan($($arg,)* comm)?.run(),
                }
            }
        }
    )*};
}

direct! {
    /// `MPI_Barrier`.
    pub unsafe fn barrier: usual_barrier, or plan_barrier();
    /// `MPI_Bcast`.
    pub unsafe fn bcast: usual_bcast, or plan_bcast(buffer: Ptr, count: i64, of: Datatype, root: c_int);
    /// `MPI_Reduce`.
    pub unsafe fn reduce: usual_reduce, or plan_reduce(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op, root: c_int
    );
    /// `MPI_Allreduce`.
    pub unsafe fn allreduce: usual_allreduce, or plan_allreduce(
        sendbuf: Ptr, recvbuf: Ptr, count: i64, of: Datatype, op: Op
    );
}

/// The result of a collective that was carried out.
type Done = std::result::Result<(), tautline::Error>;

/// A communicator whose collectives are those of its group.
fn intra(comm: Comm) -> Option<CommRef> {
    objects::comm_ref(comm).ok().filter(|object| object.remote.is_none())
}

/// Memory of the program that is not empty, and in which elements lie as they are packed.
fn span(at: Ptr, count: i64, of: Datatype) -> Option<(*mut u8, usize)> {
    let span = objects::span(at, count, of)?;
    (!in_place(at) && span.1 > 0).then_some(span)
}

unsafe fn usual_barrier(comm: Comm) -> Option<Done> {
    Some(intra(comm)?.group().ok()?.run_into(&Call::Barrier, &[], &mut []))
}

unsafe fn usual_bcast(buffer: Ptr, count: i64, of: Datatype, root: c_int, comm: Comm) -> Option<Done> {
    let object = intra(comm)?;
    let ((at, len), root) = (span(buffer, count, of)?, rooted(&object, root).ok()?);
    let group = object.group().ok()?;
    let call = Call::Broadcast { root, len };
    // SAFETY: the arguments are as the standard says: there are `len` bytes, which the program leaves alone
    // until the collective is complete.
    unsafe {
        Some(if object.rank as usize == root {
            group.run_into(&call, std::slice::from_raw_parts(at, len), &mut [])
        } else {
            group.run_into(&call, &[], std::slice::from_raw_parts_mut(at, len))
        })
    }
}

unsafe fn usual_reduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    root: c_int,
    comm: Comm,
) -> Option<Done> {
    let object = intra(comm)?;
    let root = rooted(&object, root).ok()?;
    let with = reduction(op, of)?;
    if object.rank as usize == root {
        // SAFETY: the arguments are as the standard says.
        return unsafe {
            reduced(&object, (sendbuf, recvbuf), (count, of), |len| Call::Reduce { root, len, with })
        };
    }
    let (from, len) = span(sendbuf, count, of)?;
    // SAFETY: the arguments are as the standard says: there are `len` bytes, which nobody changes meanwhile.
    let input = unsafe { std::slice::from_raw_parts(from, len) };
    Some(object.group().ok()?.run_into(&Call::Reduce { root, len, with }, input, &mut []))
}

unsafe fn usual_allreduce(
    sendbuf: Ptr,
    recvbuf: Ptr,
    count: i64,
    of: Datatype,
    op: Op,
    comm: Comm,
) -> Option<Done> {
    let (object, with) = (intra(comm)?, reduction(op, of)?);
    // SAFETY: the arguments are as the standard says.
    unsafe { reduced(&object, (sendbuf, recvbuf), (count, of), |len| Call::AllReduce { len, with }) }
}

/// A reduction whose result this rank gets.
unsafe fn reduced(
    object: &CommRef,
    (sendbuf, recvbuf): (Ptr, Ptr),
    (count, of): (i64, Datatype),
    call: impl FnOnce(usize) -> Call,
) -> Option<Done> {
    let (to, len) = span(recvbuf, count, of)?;
    let group = object.group().ok()?;
    if in_place(sendbuf) || sendbuf == recvbuf {
        // SAFETY: the arguments are as the standard says: there are `len` bytes, which the program leaves
        // alone until the collective is complete.
        return Some(group.run_in_place(&call(len), unsafe { std::slice::from_raw_parts_mut(to, len) }));
    }
    let (from, _) = span(sendbuf, count, of)?;
    if from.addr().abs_diff(to.addr()) < len {
        return None;
    }
    // SAFETY: as above, and the two are not the same memory.
    let (input, output) =
        unsafe { (std::slice::from_raw_parts(from, len), std::slice::from_raw_parts_mut(to, len)) };
    Some(group.run_into(&call(len), input, output))
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
