//! Buffered sends. Messages that cannot be sent at once are copied, so the program's buffer is not used; but
//! whoever detaches it may rely on all of them being sent.

use std::sync::Arc;

use super::{Ptr, completion};
use crate::buffered::{self, Owner};
use crate::error::{Result, count as natural};
use crate::foreign::Foreign;
use crate::handle::{Comm, Request};
use crate::objects;
use crate::operation::Operation;
use crate::request;

/// Waits until all buffered messages are sent.
pub(super) fn flush() -> Result<()> {
    completion::finish(&mut Operation::Flush(buffered::all(), None))
}

/// Waits until the messages in a buffer are sent that are there now.
fn flush_buffer(owner: Owner) -> Result<()> {
    completion::finish(&mut Operation::Flush(buffered::of(owner), None))
}

fn attach(to: Owner, buffer: Ptr, size: i64) -> Result<()> {
    natural(size, "size")?;
    buffered::attach(to, buffer.expose_provenance(), size)
}

unsafe fn detach(from: Owner, buffer_addr: Ptr, size: Foreign<i64>) -> Result<()> {
    flush_buffer(from)?;
    let (at, bytes) = buffered::detach(from)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        if !buffer_addr.is_null() {
            buffer_addr.cast::<Ptr>().write_unaligned(std::ptr::with_exposed_provenance_mut(at));
        }
        size.set(0, bytes);
    }
    Ok(())
}

/// `MPI_Buffer_attach`.
pub unsafe fn buffer_attach(buffer: Ptr, size: i64) -> Result<()> {
    attach(None, buffer, size)
}

/// `MPI_Buffer_detach`.
pub unsafe fn buffer_detach(buffer_addr: Ptr, size: Foreign<i64>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { detach(None, buffer_addr, size) }
}

/// `MPI_Comm_attach_buffer`.
pub unsafe fn comm_attach_buffer(comm: Comm, buffer: Ptr, size: i64) -> Result<()> {
    objects::comm(comm)?;
    attach(Some(comm), buffer, size)
}

/// `MPI_Comm_detach_buffer`.
pub unsafe fn comm_detach_buffer(comm: Comm, buffer_addr: Ptr, size: Foreign<i64>) -> Result<()> {
    objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { detach(Some(comm), buffer_addr, size) }
}

/// `MPI_Comm_flush_buffer`.
pub unsafe fn comm_flush_buffer(comm: Comm) -> Result<()> {
    objects::comm(comm)?;
    flush_buffer(Some(comm))
}

/// `MPI_Comm_iflush_buffer`.
pub unsafe fn comm_iflush_buffer(comm: Comm, request: Foreign<Request>) -> Result<()> {
    let operation = Operation::Flush(buffered::of(Some(comm)), None);
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::started(objects::comm(comm)?, operation)?) };
    Ok(())
}

/// `MPI_Buffer_flush`.
pub unsafe fn buffer_flush() -> Result<()> {
    flush_buffer(None)
}

/// `MPI_Buffer_iflush`.
pub unsafe fn buffer_iflush(request: Foreign<Request>) -> Result<()> {
    let operation = Operation::Flush(buffered::of(None), None);
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::started(Arc::clone(&objects::SELF), operation)?) };
    Ok(())
}
