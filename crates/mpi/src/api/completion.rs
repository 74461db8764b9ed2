//! Completing operations, and starting persistent ones.

use std::ffi::c_int;

use crate::constants as c;
use crate::errhandler;
use crate::error::{Error, Result, count as natural};
use crate::foreign::{Foreign, Status};
use crate::handle::Request;
use crate::request::{self, Outcome};
use crate::state::fabric;

/// Makes progress until `look` finds something.
pub(super) fn wait_for<T>(mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    loop {
        fabric().progress();
        if let Some(found) = look()? {
            return Ok(found);
        }
        fabric().wait();
    }
}

/// Sets a status as functions for one request do: the error stays as it is.
pub(super) unsafe fn set_status(status: Foreign<Status>, index: usize, value: Status) {
    if !status.is_null() {
        // SAFETY: the arguments are as the standard says.
        unsafe { status.set(index, Status { error: status.get(index).error, ..value }) };
    }
}

/// The error of an operation as the error of a call.
pub(super) fn check(code: c_int) -> Result<()> {
    if code == c::SUCCESS {
        return Ok(());
    }
    let text = errhandler::text_of(code).unwrap_or_default();
    Err(Error::new(code, text))
}

/// Gives one outcome to the program.
unsafe fn give(
    requests: Foreign<Request>,
    index: usize,
    outcome: &Outcome,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        set_status(status, 0, outcome.status);
        requests.set(index, request::retire(requests.get(index))?);
    }
    check(outcome.status.error).map_err(|error| outcome.comm.map_or(error.clone(), |comm| error.on(comm)))
}

/// `MPI_Wait`.
pub unsafe fn wait(request: Foreign<Request>, status: Foreign<Status>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = request.get(0);
        let outcome = wait_for(|| request::peek(handle))?;
        give(request, 0, &outcome, status)
    }
}

/// `MPI_Test`.
pub unsafe fn test(request: Foreign<Request>, flag: Foreign<c_int>, status: Foreign<Status>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        fabric().progress();
        let outcome = request::peek(request.get(0))?;
        flag.set(0, c_int::from(outcome.is_some()));
        match outcome {
            Some(outcome) => give(request, 0, &outcome, status),
            None => Ok(()),
        }
    }
}

/// `MPI_Request_get_status`.
pub unsafe fn request_get_status(
    request: Request,
    flag: Foreign<c_int>,
    status: Foreign<Status>,
) -> Result<()> {
    fabric().progress();
    let outcome = request::peek(request)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        flag.set(0, c_int::from(outcome.is_some()));
        outcome.iter().for_each(|outcome| set_status(status, 0, outcome.status));
    }
    Ok(())
}

/// All outcomes, if all requests are complete.
unsafe fn peek_all(count: usize, requests: Foreign<Request>) -> Result<Option<Vec<Outcome>>> {
    let mut outcomes = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the arguments are as the standard says.
        match request::peek(unsafe { requests.get(index) })? {
            Some(outcome) => outcomes.push(outcome),
            None => return Ok(None),
        }
    }
    Ok(Some(outcomes))
}

/// Gives all outcomes to the program; the statuses have the errors.
unsafe fn give_all(
    outcomes: &[Outcome],
    requests: Foreign<Request>,
    statuses: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        for (index, outcome) in outcomes.iter().enumerate() {
            requests.set(index, request::retire(requests.get(index))?);
            statuses.set(index, outcome.status);
        }
    }
    match outcomes.iter().find(|outcome| outcome.status.error != c::SUCCESS) {
        Some(failed) => {
            let error = Error::new(c::ERR_IN_STATUS, "an operation failed; the statuses say which");
            Err(failed.comm.map_or(error.clone(), |comm| error.on(comm)))
        }
        None => Ok(()),
    }
}

/// `MPI_Waitall`.
pub unsafe fn waitall(count: c_int, requests: Foreign<Request>, statuses: Foreign<Status>) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let outcomes = wait_for(|| peek_all(count, requests))?;
        give_all(&outcomes, requests, statuses)
    }
}

/// `MPI_Testall`.
pub unsafe fn testall(
    count: c_int,
    requests: Foreign<Request>,
    flag: Foreign<c_int>,
    statuses: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        fabric().progress();
        let outcomes = peek_all(count, requests)?;
        flag.set(0, c_int::from(outcomes.is_some()));
        outcomes.map_or(Ok(()), |outcomes| give_all(&outcomes, requests, statuses))
    }
}

/// The first complete request; the index is undefined if none is active.
unsafe fn peek_any(count: usize, requests: Foreign<Request>) -> Result<Option<(c_int, Option<Outcome>)>> {
    let mut active = false;
    for index in 0..count {
        // SAFETY: the arguments are as the standard says.
        match request::peek(unsafe { requests.get(index) })? {
            Some(outcome) if !outcome.inactive => return Ok(Some((index as c_int, Some(outcome)))),
            Some(_) => {}
            None => active = true,
        }
    }
    Ok(if active { None } else { Some((c::UNDEFINED, None)) })
}

unsafe fn give_any(
    (index, outcome): (c_int, Option<Outcome>),
    requests: Foreign<Request>,
    into: Foreign<c_int>,
    status: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        into.set(0, index);
        match outcome {
            Some(outcome) => give(requests, index as usize, &outcome, status),
            None => {
                set_status(status, 0, Status::EMPTY);
                Ok(())
            }
        }
    }
}

/// `MPI_Waitany`.
pub unsafe fn waitany(
    count: c_int,
    requests: Foreign<Request>,
    index: Foreign<c_int>,
    status: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = wait_for(|| peek_any(count, requests))?;
        give_any(found, requests, index, status)
    }
}

/// `MPI_Testany`.
pub unsafe fn testany(
    count: c_int,
    requests: Foreign<Request>,
    index: Foreign<c_int>,
    flag: Foreign<c_int>,
    status: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        fabric().progress();
        let found = peek_any(count, requests)?;
        flag.set(0, c_int::from(found.is_some()));
        match found {
            Some(found) => give_any(found, requests, index, status),
            None => {
                index.set(0, c::UNDEFINED);
                Ok(())
            }
        }
    }
}

/// `MPI_Start`.
pub unsafe fn start(request: Foreign<Request>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    request::start(unsafe { request.get(0) })
}

/// `MPI_Startall`.
pub unsafe fn startall(count: c_int, requests: Foreign<Request>) -> Result<()> {
    for index in 0..natural(count.into(), "count")? {
        // SAFETY: the arguments are as the standard says.
        request::start(unsafe { requests.get(index) })?;
    }
    Ok(())
}

/// `MPI_Request_free`.
pub unsafe fn request_free(request: Foreign<Request>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        request::free(request.get(0))?;
        request.set(0, c::REQUEST_NULL);
    }
    Ok(())
}

/// `MPI_Cancel`.
pub unsafe fn cancel(request: Foreign<Request>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    request::cancel(unsafe { request.get(0) })
}
