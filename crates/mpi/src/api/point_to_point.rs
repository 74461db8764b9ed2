//! Sending and receiving.

use std::borrow::Cow;
use std::ffi::c_int;
use std::sync::Arc;

use tautline::tags::Region;

use super::attributes::TAG_UB;
use super::packing::message;
use super::{Ptr, completion};
use crate::constants as c;
use crate::datatype::Message;
use crate::error::{Error, Result, ensure};
use crate::foreign::{Foreign, Status};
use crate::handle::{Comm, Datatype, Request};
use crate::network::failure;
use crate::objects::{self, Communicator};
use crate::operation::{Completion, Operation, Receiving};
use crate::{buffered, request, short, state, trace, waiting};

/// The status of a receive from `MPI_PROC_NULL`.
pub(super) const FROM_NOBODY: Status = Status { source: c::PROC_NULL, ..Status::EMPTY };

/// When a send is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// When the data is out of the program's memory.
    Standard,
    /// When the message is matched by a receive.
    Synchronous,
    /// At once: the data is copied.
    Buffered,
}

/// A rank of a communicator as a rank of the job.
pub(super) fn rank_in(comm: &Communicator, rank: c_int) -> Result<u32> {
    let found = usize::try_from(rank).ok().and_then(|rank| comm.peers().0.get(rank));
    found.copied().ok_or_else(|| {
        Error::new(c::ERR_RANK, format!("rank {rank} is not in a communicator of {}", comm.peers().0.len()))
    })
}

pub(super) fn check_tag(tag: c_int) -> Result<u32> {
    ensure((0..=TAG_UB).contains(&tag), c::ERR_TAG, || format!("the tag is {tag}"))?;
    Ok(tag.cast_unsigned())
}

/// The program's memory, for the time of an operation.
///
/// # Safety
///
/// The program leaves the memory alone until the operation is complete.
unsafe fn region(message: &Message) -> Option<Region> {
    let len = message.size() as usize;
    // SAFETY: as promised by the caller; the memory is as the datatype says.
    message.contiguous().map(|at| unsafe { Region::new(at, len) })
}

/// The packed bytes of a message, in place if they lie there.
///
/// # Safety
///
/// Nobody writes to the program's memory meanwhile.
unsafe fn bytes(message: &Message) -> Cow<'_, [u8]> {
    match message.contiguous() {
        // SAFETY: as promised by the caller; memory that is not empty is not null.
        Some(at) if message.size() > 0 => unsafe {
            Cow::Borrowed(std::slice::from_raw_parts(at, message.size() as usize))
        },
        Some(_) => Cow::Borrowed(&[]),
        // SAFETY: as promised by the caller.
        None => Cow::Owned(unsafe { message.to_vec() }),
    }
}

/// Where a message goes: communicator, rank of the job, `None` for `MPI_PROC_NULL`, and tag.
type Destination = (Arc<Communicator>, Option<u32>, u32);

fn destination((dest, tag, comm): (c_int, c_int, Comm)) -> Result<Destination> {
    let object = objects::comm(comm)?;
    let tag = check_tag(tag)?;
    let to = if dest == c::PROC_NULL { None } else { Some(rank_in(&object, dest)?) };
    Ok((object, to, tag))
}

/// Starts a send.
unsafe fn start_send(data: (Ptr, i64, Datatype), to: (c_int, c_int, Comm), mode: Mode) -> Result<Operation> {
    let to = destination(to)?;
    // SAFETY: as promised by the caller.
    unsafe { send_message(&message(data.0, data.1, data.2)?, &to, mode) }
}

/// Starts a send and waits for its end.
#[inline(never)]
unsafe fn send_and_wait(data: (Ptr, i64, Datatype), to: (c_int, c_int, Comm), mode: Mode) -> Result<()> {
    // SAFETY: as promised by the caller.
    let mut operation = unsafe { start_send(data, to, mode)? };
    completion::finish(&mut operation)
}

/// Starts to send a message.
unsafe fn send_message(message: &Message, (object, to, tag): &Destination, mode: Mode) -> Result<Operation> {
    let (tags, tag) = (object.tags()?, *tag);
    let Some(to) = *to else { return Ok(Operation::Ended(Completion::EMPTY)) };
    trace::sent(to, message.size());
    // SAFETY: the program leaves the memory alone until the send is complete.
    let bytes = unsafe { bytes(message) };
    if mode != Mode::Synchronous && tags.try_send(to, tag, &bytes).map_err(failure)? {
        return Ok(Operation::Ended(Completion::EMPTY));
    }
    // SAFETY: as above.
    let place = unsafe { region(message) };
    let send = match (mode, place) {
        (Mode::Buffered, _) => {
            let send = tags.start_send(to, tag, bytes.into_owned()).map_err(failure)?;
            buffered::add(send, object.handle());
            return Ok(Operation::Ended(Completion::EMPTY));
        }
        (Mode::Standard, Some(place)) => tags.start_send_lent(to, tag, place),
        (Mode::Standard, None) => tags.start_send(to, tag, bytes.into_owned()),
        (Mode::Synchronous, Some(place)) => tags.start_send_lent_synchronous(to, tag, place),
        (Mode::Synchronous, None) => tags.start_send_synchronous(to, tag, bytes.into_owned()),
    };
    send.map(Operation::Send).map_err(failure)
}

/// Sends a message that lies in memory as it is packed, if it can leave at once. False, with nothing done,
/// if it cannot, or an argument is not the usual one.
///
/// # Safety
///
/// The arguments are as the standard says.
#[inline(always)]
unsafe fn send_at_once(data: (Ptr, i64, Datatype), (dest, tag, comm): (c_int, c_int, Comm)) -> Result<bool> {
    let Some((at, len)) = objects::span(data.0, data.1, data.2) else { return Ok(false) };
    let comm = objects::comm_ref(comm)?;
    let Some(&to) = usize::try_from(dest).ok().and_then(|dest| comm.peers().0.get(dest)) else {
        return Ok(false);
    };
    let at = if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { at };
    // SAFETY: as promised by the caller; there are `len` bytes, and memory that is not empty is not null.
    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
    let sent = comm.tags()?.try_send(to, check_tag(tag)?, bytes).map_err(failure)?;
    if sent {
        trace::sent(to, len as u64);
    }
    Ok(sent)
}

/// The end of a receive that has failed.
#[cold]
#[inline(never)]
pub(crate) unsafe fn fail_receive(
    comm: &Communicator,
    room: u64,
    error: tautline::Error,
    status: Foreign<Status>,
) -> Result<()> {
    let failed = Receiving::failed(comm, room, error);
    // SAFETY: the arguments are as the standard says.
    unsafe { finish(&mut Operation::Ended(failed), status) }
}

/// What [`receive_at_once`] has done.
enum Quick {
    /// It has received a message.
    Received(Status),
    /// The operation goes on, or has failed.
    Started(Box<Operation>),
    /// Nothing.
    Nothing,
}

/// Receives a message from a named source to memory in which it lies as it is packed. If it has not come
/// after some time, the operation goes on. Nothing is done if an argument is not the usual one, or other
/// operations have to make progress meanwhile. `was_tried` if [`short::recv`] has not received it.
///
/// # Safety
///
/// The arguments are as the standard says.
unsafe fn receive_at_once(
    data: (Ptr, i64, Datatype),
    (source, tag, comm): (c_int, c_int, Comm),
    was_tried: bool,
) -> Result<Quick> {
    let Some((at, len)) = objects::span(data.0, data.1, data.2) else { return Ok(Quick::Nothing) };
    let (Some(time), Ok(index)) = (waiting::time_alone(), usize::try_from(source)) else {
        return Ok(Quick::Nothing);
    };
    let object = objects::comm_ref(comm)?;
    let Some(&from) = object.peers().0.get(index) else { return Ok(Quick::Nothing) };
    let wanted = if tag == c::ANY_TAG { None } else { Some(check_tag(tag)?) };
    // SAFETY: as promised by the caller; the program leaves the memory alone until the call returns, and the
    // receive is over or dropped by then.
    let mut room = unsafe { Region::new(at, len) };
    let tags = object.tags()?;
    let received = if was_tried { None } else { tags.receive_at_once(from, wanted, &mut room) };
    let received = match received {
        Some(ended) => ended.map(Ok).map_err(tautline::Error::from),
        None => tags.receive_lent(from, wanted, room, time),
    };
    match received {
        Ok(Ok(found)) => {
            trace::received(found.source, found.len);
            let (tag, bytes) = (found.tag.cast_signed(), found.len);
            Ok(Quick::Received(Status { source, tag, error: c::SUCCESS, bytes, cancelled: false }))
        }
        Ok(Err(receive)) => {
            let (comm, room) = (objects::comm(comm)?, len as u64);
            let receiving = Receiving { receive, comm, any: false, into: None, room };
            Ok(Quick::Started(Box::new(Operation::Receive(receiving))))
        }
        Err(error) => {
            let failed = Receiving::failed(&object, len as u64, error);
            Ok(Quick::Started(Box::new(Operation::Ended(failed))))
        }
    }
}

/// Which messages a receive takes: source in the job and tag, `None` for any.
#[derive(Clone)]
pub(super) struct Pattern {
    pub comm: Arc<Communicator>,
    pub source: Option<u32>,
    pub tag: Option<u32>,
}

/// The pattern of a receive; `None` if it is from nobody.
pub(super) fn pattern(source: c_int, tag: c_int, comm: Comm) -> Result<Option<Pattern>> {
    let object = objects::comm(comm)?;
    let tag = if tag == c::ANY_TAG { None } else { Some(check_tag(tag)?) };
    let source = match source {
        c::PROC_NULL => return Ok(None),
        c::ANY_SOURCE => None,
        rank => Some(rank_in(&object, rank)?),
    };
    Ok(Some(Pattern { comm: object, source, tag }))
}

/// Starts to receive a message into the program's memory, by `lent` or by `owned`.
pub(super) unsafe fn receive_with(
    comm: Arc<Communicator>,
    any: bool,
    message: Message,
    lent: impl FnOnce(Region) -> tautline::Result<tautline::tags::Receive>,
    owned: impl FnOnce(Vec<u8>) -> tautline::Result<tautline::tags::Receive>,
) -> Result<Receiving> {
    let room = message.size();
    // SAFETY: the program leaves the memory alone until the receive is complete.
    let (receive, into) = match unsafe { region(&message) } {
        Some(place) => (lent(place), None),
        None => (owned(vec![0; room as usize]), Some(message)),
    };
    Ok(Receiving { receive: receive.map_err(failure)?, comm, any, into, room })
}

unsafe fn start_receive(
    data: (Ptr, i64, Datatype),
    (source, tag, comm): (c_int, c_int, Comm),
) -> Result<Operation> {
    let pattern = pattern(source, tag, comm)?;
    // SAFETY: as promised by the caller.
    unsafe { receive_message(message(data.0, data.1, data.2)?, pattern) }
}

/// Starts to receive a message that the pattern describes; from nobody without one.
unsafe fn receive_message(message: Message, pattern: Option<Pattern>) -> Result<Operation> {
    let Some(Pattern { comm, source, tag }) = pattern else {
        return Ok(Operation::Ended(Completion::with(FROM_NOBODY)));
    };
    let tags = comm.tags()?.clone();
    let lent = |place| tags.start_receive_lent(source, tag, place);
    let owned = |room| tags.start_receive(source, tag, room);
    // SAFETY: the program keeps to the standard.
    unsafe { receive_with(comm, source.is_none(), message, lent, owned) }.map(Operation::Receive)
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
            if $mode == Mode::Standard && unsafe { send_at_once((buf, count, of), (dest, tag, comm))? } {
                return Ok(());
            }
            // SAFETY: as above.
            unsafe { send_and_wait((buf, count, of), (dest, tag, comm), $mode) }
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
                let operation = start_send((buf, count, of), (dest, tag, comm), $mode)?;
                request.set(0, request::started(objects::comm(comm)?, operation)?);
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
            // The request keeps the datatype and the communicator, whatever becomes of their handles.
            let to = destination((dest, tag, comm))?;
            let message = message(buf, count, of)?;
            // SAFETY: the program keeps to the standard.
            let start = move || unsafe { send_message(&message, &to, $mode) };
            // SAFETY: the arguments are as the standard says.
            unsafe { request.set(0, request::persistent(objects::comm(comm)?, Box::new(start))?) };
            Ok(())
        }
    };
}

sends! {
    /// `MPI_Send`.
    pub unsafe fn send, isend, send_init: Mode::Standard;
    /// `MPI_Bsend`: the data is copied, so that no buffer of the program is needed.
    pub unsafe fn bsend, ibsend, bsend_init: Mode::Buffered;
    /// `MPI_Ssend`.
    pub unsafe fn ssend, issend, ssend_init: Mode::Synchronous;
    /// `MPI_Rsend`.
    pub unsafe fn rsend, irsend, rsend_init: Mode::Standard;
}

/// Waits for a receive and sets the program's status.
pub(super) unsafe fn finish(operation: &mut Operation, status: Foreign<Status>) -> Result<()> {
    let completion = completion::finish_with_status(operation)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { completion::set_status(status, 0, completion.status) };
    completion.error.map_or(Ok(()), Err)
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
        let was_tried = state::is_plain() && short::takes_receives(comm);
        receive(((buf, count, of), (source, tag, comm)), was_tried, status)
    }
}

/// Receives a message; `was_tried` if [`short::recv`] has not received it.
unsafe fn receive((data, from): Transfer, was_tried: bool, status: Foreign<Status>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        match receive_at_once(data, from, was_tried)? {
            Quick::Received(received) => {
                completion::set_status(status, 0, received);
                Ok(())
            }
            Quick::Started(operation) => finish_started(*operation, status),
            Quick::Nothing => finish_started(start_receive(data, from)?, status),
        }
    }
}

// A call, so that a message that is here does not pay for its registers.
#[inline(never)]
unsafe fn finish_started(mut operation: Operation, status: Foreign<Status>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { finish(&mut operation, status) }
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
        let operation = start_receive((buf, count, of), (source, tag, comm))?;
        request.set(0, request::started(objects::comm(comm)?, operation)?);
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
    let pattern = pattern(source, tag, comm)?;
    let message = message(buf, count, of)?;
    // SAFETY: the program keeps to the standard.
    let start = move || unsafe { receive_message(message.clone(), pattern.clone()) };
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::persistent(objects::comm(comm)?, Box::new(start))?) };
    Ok(())
}

/// What is sent, and where to, or what is received, and where from.
type Transfer = ((Ptr, i64, Datatype), (c_int, c_int, Comm));

/// Starts a receive, and then a send.
unsafe fn start_both(send: Transfer, receive: Transfer) -> Result<Operation> {
    // SAFETY: the arguments are as the standard says.
    let received = unsafe { start_receive(receive.0, receive.1)? };
    // If this fails, the receive is dropped and thereby cancelled.
    // SAFETY: as above.
    let sent = unsafe { start_send(send.0, send.1, Mode::Standard)? };
    let sent = match sent {
        Operation::Send(send) => Some(send),
        _ => None,
    };
    Ok(both(sent, received))
}

/// A send and a receive as one operation.
fn both(sent: Option<tautline::tags::Send>, received: Operation) -> Operation {
    match received {
        Operation::Receive(receiving) => Operation::Both(sent, Some(receiving), None),
        _ => Operation::Both(sent, None, Some(Completion::with(FROM_NOBODY))),
    }
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
    let send = ((sendbuf, sendcount, sendtype), (dest, sendtag, comm));
    let receive = ((recvbuf, recvcount, recvtype), (source, recvtag, comm));
    // SAFETY: the arguments are as the standard says.
    unsafe {
        if is_receivable(receive) && leaves_at_once(send)? {
            // Nothing is left but to receive.
            return self::receive(receive, false, status);
        }
        let mut operation = start_both(send, receive)?;
        finish(&mut operation, status)
    }
}

/// Whether a receive has the usual arguments, so that it can begin: no error comes after the send then.
fn is_receivable((data, (source, tag, comm)): Transfer) -> bool {
    let Ok(object) = objects::comm_ref(comm) else { return false };
    objects::span(data.0, data.1, data.2).is_some()
        && (source == c::PROC_NULL || usize::try_from(source).is_ok_and(|at| at < object.peers().0.len()))
        && (tag == c::ANY_TAG || check_tag(tag).is_ok())
}

/// Sends a message if that does not take an operation. False, with nothing done, otherwise.
unsafe fn leaves_at_once((data, to): Transfer) -> Result<bool> {
    // SAFETY: as promised by the caller.
    unsafe {
        if to.0 == c::PROC_NULL {
            return start_send(data, to, Mode::Standard).map(|_| true);
        }
        send_at_once(data, to)
    }
}

/// `MPI_Isendrecv`.
pub unsafe fn isendrecv(
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
    request: Foreign<Request>,
) -> Result<()> {
    let send = ((sendbuf, sendcount, sendtype), (dest, sendtag, comm));
    let receive = ((recvbuf, recvcount, recvtype), (source, recvtag, comm));
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::started(objects::comm(comm)?, start_both(send, receive)?)?) };
    Ok(())
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
        let ended =
            sendrecv(at, bytes, c::BYTE, dest, sendtag, buf, count, of, source, recvtag, comm, status);
        if ended.is_err() {
            // The send may go on, and read it.
            std::mem::forget(copy);
        }
        ended
    }
}

/// `MPI_Isendrecv_replace`: a copy is sent.
pub unsafe fn isendrecv_replace(
    buf: Ptr,
    count: i64,
    of: Datatype,
    dest: c_int,
    sendtag: c_int,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    request: Foreign<Request>,
) -> Result<()> {
    let object = objects::comm(comm)?;
    let tag = check_tag(sendtag)?;
    let to = if dest == c::PROC_NULL { None } else { Some(rank_in(&object, dest)?) };
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let copy = message(buf, count, of)?.to_vec();
        let received = start_receive((buf, count, of), (source, recvtag, comm))?;
        let tags = object.tags()?;
        let sent = match to {
            Some(to) if !tags.try_send(to, tag, &copy).map_err(failure)? => {
                Some(tags.start_send(to, tag, copy).map_err(failure)?)
            }
            _ => None,
        };
        request.set(0, request::started(object, both(sent, received))?);
    }
    Ok(())
}
