//! Messages that fit one frame, in the usual case: `MPI_Send` and `MPI_Recv` of a message that lies in memory
//! as it is packed, to or from a named rank of `MPI_COMM_WORLD`, while calls are not traced. Everything else,
//! and every error in the arguments, is left to [`api`].
//!
//! This code is copied into the exported functions: it has no calls in the common case.

#![allow(clippy::missing_safety_doc, reason = "the contract is that of `api`")]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use tautline::tags::{Region, Tags};

use crate::constants as c;
use crate::error::Result;
use crate::foreign::{Foreign, Status};
use crate::handle::{Comm, Datatype};
use crate::objects;
use crate::{api, waiting};

/// A pointer of the program.
type Ptr = *mut c_void;

/// The messages of a communicator, a rank of the job, and memory, which is not null.
type Place = (&'static Tags, u32, NonNull<u8>, usize);

/// Where a message goes to or comes from: a named rank of `MPI_COMM_WORLD`, and memory in which it lies as it
/// is packed. None if it is another one, or an argument is wrong.
#[inline(always)]
fn in_world(data: (Ptr, i64, Datatype), rank: c_int, comm: Comm) -> Option<Place> {
    if comm != c::COMM_WORLD {
        return None;
    }
    let (at, len) = objects::short_span(data.0, data.1, data.2)?;
    let world = objects::world();
    // No communicator has as many members as a negative number would be.
    let rank = *world.members.0.get(rank.cast_unsigned() as usize)?;
    let at = match NonNull::new(at) {
        None => NonNull::dangling(),
        Some(at) => at,
    };
    Some((world.tags().ok()?, rank, at, len))
}

/// `MPI_Send` of a message that can leave at once, in the usual case. None, with nothing done, if it cannot,
/// or an argument is not the usual one.
#[inline(always)]
pub unsafe fn send(
    buf: Ptr,
    count: i64,
    of: Datatype,
    dest: c_int,
    tag: c_int,
    comm: Comm,
) -> Option<Result<()>> {
    let (tags, to, at, len) = in_world((buf, count, of), dest, comm)?;
    let tag = u32::try_from(tag).ok()?;
    // SAFETY: the arguments are as the standard says: there are `len` bytes, which nobody writes to
    // meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
    tags.send_at_once(to, tag, bytes).then_some(Ok(()))
}

/// Whether [`recv`] tries to receive messages of a communicator.
#[inline(always)]
pub(crate) fn takes_receives(comm: Comm) -> bool {
    comm == c::COMM_WORLD && !waiting::may_have_others()
}

/// `MPI_Recv` of a message that fits one frame, from a named source, and is here or comes within a moment, in
/// the usual case. None, with nothing done, otherwise.
#[inline(always)]
pub unsafe fn recv(
    buf: Ptr,
    count: i64,
    of: Datatype,
    source: c_int,
    tag: c_int,
    comm: Comm,
    status: Foreign<Status>,
) -> Option<Result<()>> {
    if !takes_receives(comm) {
        return None;
    }
    let (tags, from, at, len) = in_world((buf, count, of), source, comm)?;
    let wanted = if tag == c::ANY_TAG { None } else { Some(u32::try_from(tag).ok()?) };
    // SAFETY: the arguments are as the standard says; the program leaves the memory alone meanwhile.
    let mut room = unsafe { Region::new(at.as_ptr(), len) };
    Some(match tags.receive_at_once(from, wanted, &mut room)? {
        Ok(found) => {
            let (tag, bytes) = (found.tag.cast_signed(), found.len);
            let found = Status { source, tag, error: c::SUCCESS, bytes, cancelled: false };
            // SAFETY: the arguments are as the standard says.
            unsafe { api::set_status(status, 0, found) };
            Ok(())
        }
        // SAFETY: as above.
        Err(error) => unsafe { api::fail_receive(objects::world(), len as u64, error.into(), status) },
    })
}
