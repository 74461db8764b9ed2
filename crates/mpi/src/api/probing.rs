//! Looking for messages, and taking them out of the queue for one receive.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use tautline::tags::Claimed;

use super::packing::message;
use super::point_to_point::{FROM_NOBODY, Pattern, finish, pattern, receive_with};
use super::{Ptr, completion};
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::{Foreign, Status};
use crate::handle::{Comm, Datatype, Message, Request};
use crate::network::{failure, network};
use crate::objects::{self, Communicator, lock};
use crate::operation::{Completion, Operation};
use crate::pool::Pool;
use crate::waiting::Search;
use crate::{request, waiting};

/// A message that a matched probe returned, and its communicator.
struct Matched {
    message: Mutex<Option<Claimed>>,
    comm: Arc<Communicator>,
}

static MESSAGES: Pool<Matched> = Pool::new();

/// Waits until `look` finds a message of the pattern.
fn wait_for<T>(pattern: &Pattern, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let tags = pattern.comm.tags()?;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        waiting::progress()?;
        let here = tags.probe_within(pattern.source, pattern.tag, waiting::probe_time()).map_err(failure)?;
        if here.is_none() && pattern.source.is_none() {
            network().check_alive(&pattern.comm.peers().0)?;
        }
    }
}

/// Looks for a message once. If there is none, that may be since a rank is lost.
fn look_once<T>(pattern: &Pattern, look: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    waiting::progress()?;
    // What a lost rank has sent is there before its loss is known.
    let lost = if pattern.source.is_none() { pattern.comm.lost_peer(Search::AtTimes) } else { None };
    let found = look()?;
    match (found, lost) {
        (None, Some(lost)) => Err(lost),
        (found, _) => Ok(found),
    }
}

fn try_probe(pattern: &Pattern) -> Result<Option<Status>> {
    let found = pattern.comm.tags()?.try_probe(pattern.source, pattern.tag).map_err(failure)?;
    Ok(found.map(|found| pattern.comm.status(&found)))
}

fn try_claim(pattern: &Pattern) -> Result<Option<Claimed>> {
    pattern.comm.tags()?.try_claim(pattern.source, pattern.tag).map_err(failure)
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
        Some(pattern) => look_once(&pattern, || try_probe(&pattern))?,
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
        Some(pattern) => wait_for(&pattern, || try_probe(&pattern))?,
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { completion::set_status(status, 0, found) };
    Ok(())
}

/// Gives the program a message that was taken out.
unsafe fn give(
    found: Claimed,
    comm: Arc<Communicator>,
    message: Foreign<Message>,
    status: Foreign<Status>,
) -> Result<()> {
    let about = comm.status(&found.status());
    let matched = Matched { message: Mutex::new(Some(found)), comm };
    // SAFETY: the arguments are as the standard says.
    unsafe {
        message.set(0, objects::add(&MESSAGES, Arc::new(matched))?);
        completion::set_status(status, 0, about);
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
        let found = look_once(&pattern, || try_claim(&pattern))?;
        flag.set(0, c_int::from(found.is_some()));
        match found {
            Some(found) => give(found, pattern.comm, message, status),
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
        let found = wait_for(&pattern, || try_claim(&pattern))?;
        give(found, pattern.comm, message, status)
    }
}

/// Starts to receive a message that was taken out.
unsafe fn start_matched(
    data: (Ptr, i64, Datatype),
    handle: Foreign<Message>,
) -> Result<(Operation, Arc<Communicator>)> {
    // SAFETY: the arguments are as the standard says.
    let number = unsafe { handle.get(0) };
    let into = message(data.0, data.1, data.2)?;
    if number == c::MESSAGE_NO_PROC {
        // SAFETY: as above.
        unsafe { handle.set(0, c::MESSAGE_NULL) };
        return Ok((Operation::Ended(Completion::with(FROM_NOBODY)), Arc::clone(&objects::SELF)));
    }
    let none = || Error::new(c::ERR_REQUEST, "there is no such message");
    let found = MESSAGES.remove(number.0).ok_or_else(none)?;
    let claimed = lock(&found.message).take().ok_or_else(none)?;
    let (comm, on) = (Arc::clone(&found.comm), Arc::clone(&found.comm));
    // One of the two is called.
    let claimed = std::cell::Cell::new(Some(claimed));
    let take = || claimed.take().ok_or(tautline::Error::Stale);
    // SAFETY: the program keeps to the standard.
    unsafe {
        handle.set(0, c::MESSAGE_NULL);
        let receiving = receive_with(
            comm,
            false,
            into,
            |place| take()?.receive_lent(place),
            |room| take()?.receive(room),
        );
        Ok((Operation::Receive(receiving.map_err(|error| error.on(&on))?), on))
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
        let (mut operation, comm) = start_matched((buf, count, of), message)?;
        finish(&mut operation, status).map_err(|error| error.on(&comm))
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
        let (operation, comm) = start_matched((buf, count, of), message)?;
        request.set(0, request::started(comm, operation)?);
    }
    Ok(())
}
