//! Buffered sends. Messages that cannot be sent at once are copied, so the program's buffer is not used; but
//! whoever detaches it may rely on all of them being sent.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tautline::tags::Send;

use super::Ptr;
use crate::constants as c;
use crate::error::{Error, Result, count as natural, ensure};
use crate::foreign::Foreign;
use crate::handle::{Comm, Request};
use crate::network::failure;
use crate::objects::{self, lock};
use crate::operation::{Completion, Operation};
use crate::{request, waiting};

/// Buffered sends that have not ended.
static SENDS: Mutex<Vec<Send>> = Mutex::new(Vec::new());

/// The buffers that are attached, to the process or to a communicator: their addresses and sizes.
static BUFFERS: Mutex<BTreeMap<Option<Comm>, (usize, i64)>> = Mutex::new(BTreeMap::new());

/// Keeps a send until it has ended.
pub(super) fn add(send: Send) {
    let mut sends = lock(&SENDS);
    sends.retain_mut(|send| matches!(send.poll(), Ok(None)));
    sends.push(send);
}

/// Waits until all buffered messages are sent.
pub(super) fn flush() -> Result<()> {
    waiting::wait_until(|wait| {
        let mut sends = lock(&SENDS);
        let mut failed = None;
        sends.retain_mut(|send| match send.poll() {
            Ok(None) => true,
            Ok(Some(result)) => {
                failed = result.err().or(failed.take());
                false
            }
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        wait.ids.extend(sends.iter().map(tautline::tags::Request::id));
        match failed {
            Some(error) => Err(failure(error)),
            None => Ok(sends.is_empty().then_some(())),
        }
    })
}

fn attach(to: Option<Comm>, buffer: Ptr, size: i64) -> Result<()> {
    natural(size, "size")?;
    let mut buffers = lock(&BUFFERS);
    ensure(!buffers.contains_key(&to), c::ERR_BUFFER, || "a buffer is attached already".to_owned())?;
    buffers.insert(to, (buffer.expose_provenance(), size));
    Ok(())
}

unsafe fn detach(from: Option<Comm>, buffer_addr: Ptr, size: Foreign<i64>) -> Result<()> {
    flush()?;
    let none = || Error::new(c::ERR_BUFFER, "no buffer is attached");
    let (at, bytes) = lock(&BUFFERS).remove(&from).ok_or_else(none)?;
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
    flush()
}

/// `MPI_Comm_iflush_buffer`.
pub unsafe fn comm_iflush_buffer(comm: Comm, request: Foreign<Request>) -> Result<()> {
    objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { buffer_iflush(request) }
}

/// `MPI_Buffer_flush`.
pub unsafe fn buffer_flush() -> Result<()> {
    flush()
}

/// `MPI_Buffer_iflush`.
pub unsafe fn buffer_iflush(request: Foreign<Request>) -> Result<()> {
    flush()?;
    let ended = Operation::Ended(Completion::EMPTY);
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::started(c::COMM_SELF, ended)?) };
    Ok(())
}
