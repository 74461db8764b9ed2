//! Sending and receiving.

use std::ffi::c_int;
use std::sync::Arc;

use super::attributes::TAG_UB;
use super::packing::message;
use super::{Ptr, completion};
use crate::constants as c;
use crate::error::{Error, Result, ensure};
use crate::fabric::{Completion, Envelope, Extracted, Mode, Pattern, Ticket};
use crate::foreign::{Foreign, Status};
use crate::handle::{Comm, Datatype, Message, Request};
use crate::objects::{self, Communicator};
use crate::pool::Pool;
use crate::request;
use crate::state::fabric;

/// The status of a receive from `MPI_PROC_NULL`.
const FROM_NOBODY: Status = Status { source: c::PROC_NULL, ..Status::EMPTY };

/// A message that a matched probe returned, and its communicator.
static MESSAGES: Pool<(Extracted, Comm)> = Pool::new();

fn rank_in(comm: &Communicator, rank: c_int) -> Result<usize> {
    let found = usize::try_from(rank).ok().filter(|rank| *rank < comm.size());
    found.ok_or_else(|| {
        Error::new(c::ERR_RANK, format!("rank {rank} is not in a communicator of {}", comm.size()))
    })
}

/// Starts a send. There is no ticket for one to nobody.
unsafe fn start_send(
    data: (Ptr, i64, Datatype),
    (dest, tag, comm): (c_int, c_int, Comm),
    mode: Mode,
) -> Result<Option<Arc<Ticket>>> {
    let object = objects::comm(comm)?;
    let message = message(data.0, data.1, data.2)?;
    ensure((0..=TAG_UB).contains(&tag), c::ERR_TAG, || format!("the tag is {tag}"))?;
    if dest == c::PROC_NULL {
        return Ok(None);
    }
    let to = object.members.0[rank_in(&object, dest)?];
    let envelope = Envelope { context: object.context, source: object.rank, tag };
    // SAFETY: the program keeps to the standard.
    unsafe { fabric().send(to, envelope, mode, message) }.map(Some)
}

fn pattern(source: c_int, tag: c_int, comm: Comm) -> Result<Option<Pattern>> {
    let object = objects::comm(comm)?;
    ensure((0..=TAG_UB).contains(&tag) || tag == c::ANY_TAG, c::ERR_TAG, || format!("the tag is {tag}"))?;
    let source = match source {
        c::PROC_NULL => return Ok(None),
        c::ANY_SOURCE => None,
        rank => Some(rank_in(&object, rank)? as u32),
    };
    Ok(Some(Pattern { context: object.context, source, tag: (tag != c::ANY_TAG).then_some(tag) }))
}

unsafe fn start_receive(
    data: (Ptr, i64, Datatype),
    (source, tag, comm): (c_int, c_int, Comm),
) -> Result<Arc<Ticket>> {
    let pattern = pattern(source, tag, comm)?;
    let message = message(data.0, data.1, data.2)?;
    match pattern {
        // SAFETY: the program keeps to the standard.
        Some(pattern) => unsafe { fabric().receive(pattern, message) },
        None => Ok(from_nobody()),
    }
}

/// A receive that is complete: a message of nobody.
fn from_nobody() -> Arc<Ticket> {
    let ticket = Ticket::default();
    // The source is no rank, so the status is made of what the cast back gives.
    let envelope = Envelope { context: 0, source: c::PROC_NULL.cast_unsigned(), tag: c::ANY_TAG };
    ticket.complete(Completion { envelope: Some(envelope), ..Completion::SENT });
    Arc::new(ticket)
}

/// Waits for a receive and sets the program's status.
unsafe fn finish(ticket: &Ticket, status: Foreign<Status>) -> Result<()> {
    let done = completion::wait_for(|| Ok(ticket.done()))?;
    let result = request::status_of(&done);
    // SAFETY: the arguments are as the standard says.
    unsafe { completion::set_status(status, 0, result) };
    completion::check(result.error)
}

macro_rules! sends {
    ($($(#[$doc:meta])* pub unsafe fn $blocking:ident, $immediate:ident, $init:ident: $mode:expr;)*) => {$(
        sends!(@blocking $(#[$doc])* $blocking $mode);
        sends!(@immediate $immediate $mode);
        sends!(@init $init $mode);
    )*};
    (@blocking $(#[$doc:meta])* $name:ident $mode:expr) => {
        $(#[$doc])*
        pub unsafe fn $name(buf: Ptr, count: i64, of: Datatype, dest: c_int, tag: c_int, comm: Comm) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            let ticket = unsafe { start_send((buf, count, of), (dest, tag, comm), $mode)? };
            if let Some(ticket) = ticket {
                let done = completion::wait_for(|| Ok(ticket.done()))?;
                completion::check(done.error)?;
            }
            Ok(())
        }
    };
    (@immediate $name:ident $mode:expr) => {
        /// The non-blocking form.
        pub unsafe fn $name(
            buf: Ptr,
            count: i64,
            of: Datatype,
            dest: c_int,
            tag: c_int,
            comm: Comm,
            request: Foreign<Request>,
        ) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe {
                let ticket = start_send((buf, count, of), (dest, tag, comm), $mode)?;
                request.set(0, request::started(comm, ticket)?);
            }
            Ok(())
        }
    };
    (@init $name:ident $mode:expr) => {
        /// The persistent form.
        pub unsafe fn $name(
            buf: Ptr,
            count: i64,
            of: Datatype,
            dest: c_int,
            tag: c_int,
            comm: Comm,
            request: Foreign<Request>,
        ) -> Result<()> {
            let object = objects::comm(comm)?;
            message(buf, count, of)?;
            if dest != c::PROC_NULL {
                rank_in(&object, dest)?;
            }
            let at = buf.expose_provenance();
            let start = move || {
                let buf = std::ptr::with_exposed_provenance_mut(at);
                // SAFETY: the program keeps to the standard.
                unsafe { start_send((buf, count, of), (dest, tag, comm), $mode) }
            };
            // SAFETY: the arguments are as the standard says.
            unsafe { request.set(0, request::persistent(comm, Box::new(start))?) };
            Ok(())
        }
    };
}

sends! {
    /// `MPI_Send`.
    pub unsafe fn send, isend, send_init: Mode::Standard;
    /// `MPI_Bsend`: the data is copied, so that no buffer of the program is needed.
    pub unsafe fn bsend, ibsend, bsend_init: Mode::Standard;
    /// `MPI_Ssend`.
    pub unsafe fn ssend, issend, ssend_init: Mode::Synchronous;
    /// `MPI_Rsend`.
    pub unsafe fn rsend, irsend, rsend_init: Mode::Standard;
}

/// `MPI_Recv`.
pub unsafe fn recv(
    buf: Ptr,
    count: i64,
    of: Datatype,
    source: c_int,
    tag: c_int,
    comm: Comm,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let ticket = start_receive((buf, count, of), (source, tag, comm))?;
        finish(&ticket, status)
    }
}

/// `MPI_Irecv`.
pub unsafe fn irecv(
    buf: Ptr,
    count: i64,
    of: Datatype,
    source: c_int,
    tag: c_int,
    comm: Comm,
    request: Foreign<Request>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let ticket = start_receive((buf, count, of), (source, tag, comm))?;
        request.set(0, request::started(comm, Some(ticket))?);
    }
    Ok(())
}

/// `MPI_Recv_init`.
pub unsafe fn recv_init(
    buf: Ptr,
    count: i64,
    of: Datatype,
    source: c_int,
    tag: c_int,
    comm: Comm,
    request: Foreign<Request>,
) -> Result<()> {
    pattern(source, tag, comm)?;
    message(buf, count, of)?;
    let at = buf.expose_provenance();
    let start = move || {
        let buf = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the program keeps to the standard.
        unsafe { start_receive((buf, count, of), (source, tag, comm)) }.map(Some)
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::persistent(comm, Box::new(start))?) };
    Ok(())
}

/// `MPI_Sendrecv`.
pub unsafe fn sendrecv(
    sendbuf: Ptr,
    sendcount: i64,
    sendtype: Datatype,
    dest: c_int,
    sendtag: c_int,
    recvbuf: Ptr,
    recvcount: i64,
    recvtype: Datatype,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let receive = start_receive((recvbuf, recvcount, recvtype), (source, recvtag, comm))?;
        let sent = start_send((sendbuf, sendcount, sendtype), (dest, sendtag, comm), Mode::Standard);
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => {
                fabric().cancel(&receive);
                return Err(error);
            }
        };
        if let Some(sent) = sent {
            completion::wait_for(|| Ok(sent.done()))?;
        }
        finish(&receive, status)
    }
}

/// `MPI_Sendrecv_replace`.
pub unsafe fn sendrecv_replace(
    buf: Ptr,
    count: i64,
    of: Datatype,
    dest: c_int,
    sendtag: c_int,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says; the copy lives until the send is complete.
    unsafe {
        let mut copy = message(buf, count, of)?.to_vec();
        let (at, bytes) = (copy.as_mut_ptr().cast(), copy.len() as i64);
        sendrecv(at, bytes, c::BYTE, dest, sendtag, buf, count, of, source, recvtag, comm, status)
    }
}

/// The status of a message that a probe found.
fn probed(envelope: &Envelope, bytes: u64) -> Status {
    Status { source: envelope.source as c_int, tag: envelope.tag, bytes, ..Status::EMPTY }
}

/// `MPI_Iprobe`.
pub unsafe fn iprobe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    flag: Foreign<c_int>,
    status: Foreign<Status>,
) -> Result<()> {
    let found = match pattern(source, tag, comm)? {
        None => Some(FROM_NOBODY),
        Some(pattern) => {
            fabric().progress();
            fabric().probe(pattern).map(|(envelope, bytes)| probed(&envelope, bytes))
        }
    };
    // SAFETY: the arguments are as the standard says.
    unsafe {
        flag.set(0, c_int::from(found.is_some()));
        found.iter().for_each(|found| completion::set_status(status, 0, *found));
    }
    Ok(())
}

/// `MPI_Probe`.
pub unsafe fn probe(source: c_int, tag: c_int, comm: Comm, status: Foreign<Status>) -> Result<()> {
    let found = match pattern(source, tag, comm)? {
        None => FROM_NOBODY,
        Some(pattern) => {
            let (envelope, bytes) = completion::wait_for(|| Ok(fabric().probe(pattern)))?;
            probed(&envelope, bytes)
        }
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { completion::set_status(status, 0, found) };
    Ok(())
}

/// Gives the program a message that was taken out.
unsafe fn give(
    found: Extracted,
    comm: Comm,
    message: Foreign<Message>,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        message.set(0, objects::add(&MESSAGES, Arc::new((found, comm)))?);
        completion::set_status(status, 0, probed(&found.envelope, found.bytes));
    }
    Ok(())
}

/// `MPI_Improbe`.
pub unsafe fn improbe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    flag: Foreign<c_int>,
    message: Foreign<Message>,
    status: Foreign<Status>,
) -> Result<()> {
    let pattern = pattern(source, tag, comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let Some(pattern) = pattern else {
            flag.set(0, 1);
            message.set(0, c::MESSAGE_NO_PROC);
            completion::set_status(status, 0, FROM_NOBODY);
            return Ok(());
        };
        fabric().progress();
        let found = fabric().extract(pattern);
        flag.set(0, c_int::from(found.is_some()));
        match found {
            Some(found) => give(found, comm, message, status),
            None => {
                message.set(0, c::MESSAGE_NULL);
                Ok(())
            }
        }
    }
}

/// `MPI_Mprobe`.
pub unsafe fn mprobe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    message: Foreign<Message>,
    status: Foreign<Status>,
) -> Result<()> {
    let pattern = pattern(source, tag, comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let Some(pattern) = pattern else {
            message.set(0, c::MESSAGE_NO_PROC);
            completion::set_status(status, 0, FROM_NOBODY);
            return Ok(());
        };
        let found = completion::wait_for(|| Ok(fabric().extract(pattern)))?;
        give(found, comm, message, status)
    }
}

/// Starts to receive a message that was taken out.
unsafe fn start_matched(data: (Ptr, i64, Datatype), handle: Foreign<Message>) -> Result<(Arc<Ticket>, Comm)> {
    let into = message(data.0, data.1, data.2)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        if handle.get(0) == c::MESSAGE_NO_PROC {
            handle.set(0, c::MESSAGE_NULL);
            return Ok((from_nobody(), c::COMM_SELF));
        }
        let found = MESSAGES.remove(handle.get(0).0);
        let found = found.ok_or_else(|| Error::new(c::ERR_REQUEST, "there is no such message"))?;
        handle.set(0, c::MESSAGE_NULL);
        let ticket = fabric().receive_extracted(found.0, into).map_err(|error| error.on(found.1))?;
        Ok((ticket, found.1))
    }
}

/// `MPI_Mrecv`.
pub unsafe fn mrecv(
    buf: Ptr,
    count: i64,
    of: Datatype,
    message: Foreign<Message>,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (ticket, comm) = start_matched((buf, count, of), message)?;
        finish(&ticket, status).map_err(|error| error.on(comm))
    }
}

/// `MPI_Imrecv`.
pub unsafe fn imrecv(
    buf: Ptr,
    count: i64,
    of: Datatype,
    message: Foreign<Message>,
    request: Foreign<Request>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (ticket, comm) = start_matched((buf, count, of), message)?;
        request.set(0, request::started(comm, Some(ticket))?);
    }
    Ok(())
}
