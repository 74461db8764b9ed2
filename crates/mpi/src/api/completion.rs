//! Completing operations, and starting persistent ones.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Ptr;
use crate::constants as c;
use crate::error::{Error, Result, count as natural};
use crate::foreign::{Callback, Foreign, Status};
use crate::grequest::General;
use crate::handle::Request;
use crate::objects::SELF;
use crate::operation::{self, Completion, Operation};
use crate::request::{self, Outcome};
use crate::waiting::{self, Search, Wait};

/// Waits for the end of an operation.
pub(super) fn finish_with_status(operation: &mut Operation) -> Result<Completion> {
    if let Operation::Ended(completion) = operation {
        return Ok(std::mem::replace(completion, Completion::EMPTY));
    }
    waiting::wait_until(|wait| {
        let ended = operation.poll(wait.search);
        if ended.is_none() {
            operation.waits_for(&mut wait.ids);
        }
        Ok(ended)
    })
}

/// Waits for the end of an operation without a status.
pub(super) fn finish(operation: &mut Operation) -> Result<()> {
    if let Operation::Ended(Completion { error: None, .. }) = operation {
        return Ok(());
    }
    finish_with_status(operation)?.error.map_or(Ok(()), Err)
}

/// Sets a status as functions for one request do: the error stays as it is.
#[inline(always)]
pub(crate) unsafe fn set_status(status: Foreign<Status>, index: usize, value: Status) {
    if !status.is_null() {
        // SAFETY: the arguments are as the standard says.
        unsafe { status.set(index, Status { error: status.get(index).error, ..value }) };
    }
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
        let (handle, not_freed) = request::retire(requests.get(index))?;
        requests.set(index, handle);
        match (&outcome.error, not_freed) {
            (Some(error), _) => {
                Err(outcome.comm.as_ref().map_or(error.clone(), |comm| error.clone().on(comm)))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(()),
        }
    }
}

/// Ends a completed request; the status gets the error if an operation of the program could not be freed.
unsafe fn end(requests: Foreign<Request>, index: usize, outcome: &Outcome) -> Result<Status> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let (handle, not_freed) = request::retire(requests.get(index))?;
        requests.set(index, handle);
        let mut status = outcome.status;
        if let (c::SUCCESS, Some(error)) = (status.error, not_freed) {
            status.error = error.code;
        }
        Ok(status)
    }
}

/// `MPI_Wait`.
pub unsafe fn wait(request: Foreign<Request>, status: Foreign<Status>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = request.get(0);
        let outcome = waiting::wait_until(|wait| request::peek(handle, wait))?;
        give(request, 0, &outcome, status)
    }
}

/// `MPI_Test`.
pub unsafe fn test(request: Foreign<Request>, flag: Foreign<c_int>, status: Foreign<Status>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = request.get(0);
        let outcome = look_twice(|wait| request::peek(handle, wait))?;
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
    let outcome = look_twice(|wait| request::peek(request, wait))?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        flag.set(0, c_int::from(outcome.is_some()));
        outcome.iter().for_each(|outcome| set_status(status, 0, outcome.status));
    }
    Ok(())
}

/// Looks; if there is nothing, makes progress and looks again.
fn look_twice<T>(mut look: impl FnMut(&mut Wait) -> Result<Option<T>>) -> Result<Option<T>> {
    if let Some(found) = look(&mut Wait::default())? {
        return Ok(Some(found));
    }
    waiting::progress()?;
    look(&mut Wait { search: Search::AtTimes, ..Wait::default() })
}

/// All outcomes, if all requests are complete.
unsafe fn peek_all(
    count: usize,
    requests: Foreign<Request>,
    wait: &mut Wait,
) -> Result<Option<Vec<Outcome>>> {
    // SAFETY: the arguments are as the standard says.
    let outcomes = unsafe { peek_each(count, requests, wait)? };
    Ok(outcomes.into_iter().collect())
}

/// The outcome of each request, as far as they are complete.
unsafe fn peek_each(
    count: usize,
    requests: Foreign<Request>,
    wait: &mut Wait,
) -> Result<Vec<Option<Outcome>>> {
    let mut outcomes = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the arguments are as the standard says.
        outcomes.push(request::peek(unsafe { requests.get(index) }, wait)?);
    }
    wait.count = Some(wait.ids.len());
    Ok(outcomes)
}

/// The outcome of each request if all are complete, or if one has failed since a rank is gone: the others may
/// never end then.
unsafe fn peek_ended(
    count: usize,
    requests: Foreign<Request>,
    wait: &mut Wait,
) -> Result<Option<Vec<Option<Outcome>>>> {
    // SAFETY: the arguments are as the standard says.
    let outcomes = unsafe { peek_each(count, requests, wait)? };
    let lost = |outcome: &Option<Outcome>| {
        outcome.as_ref().is_some_and(|outcome| operation::is_loss(outcome.error.as_ref()))
    };
    Ok((outcomes.iter().all(Option::is_some) || outcomes.iter().any(lost)).then_some(outcomes))
}

/// Gives all outcomes to the program; the statuses have the errors. Requests without an outcome stay.
unsafe fn give_all(
    outcomes: &[Option<Outcome>],
    requests: Foreign<Request>,
    statuses: Foreign<Status>,
) -> Result<()> {
    let mut failed = None;
    for (index, outcome) in outcomes.iter().enumerate() {
        // SAFETY: the arguments are as the standard says.
        unsafe {
            let Some(outcome) = outcome else {
                statuses.set(index, Status { error: c::ERR_PENDING, ..Status::EMPTY });
                continue;
            };
            let status = end(requests, index, outcome)?;
            statuses.set(index, status);
            failed = failed.or((status.error != c::SUCCESS).then_some(outcome));
        }
    }
    in_status(failed)
}

/// The error of a call for several operations, of which this one was the first to fail.
fn in_status(failed: Option<&Outcome>) -> Result<()> {
    let Some(outcome) = failed else { return Ok(()) };
    let why = outcome.error.as_ref().map_or_else(|| "its free function failed".to_owned(), Error::to_string);
    let error = Error::new(c::ERR_IN_STATUS, format!("an operation failed, the first with {why}"));
    Err(outcome.comm.as_ref().map_or(error.clone(), |comm| error.on(comm)))
}

/// `MPI_Waitall`.
pub unsafe fn waitall(count: c_int, requests: Foreign<Request>, statuses: Foreign<Status>) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let outcomes = waiting::wait_until(|wait| peek_ended(count, requests, wait))?;
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
        let outcomes = look_twice(|wait| peek_ended(count, requests, wait))?;
        flag.set(0, c_int::from(outcomes.is_some()));
        outcomes.map_or(Ok(()), |outcomes| give_all(&outcomes, requests, statuses))
    }
}

/// The first complete request; the index is undefined if none is active.
unsafe fn peek_any(
    count: usize,
    requests: Foreign<Request>,
    wait: &mut Wait,
) -> Result<Option<(c_int, Option<Outcome>)>> {
    let mut active = false;
    for index in 0..count {
        // SAFETY: the arguments are as the standard says.
        match request::peek(unsafe { requests.get(index) }, wait)? {
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
                status.set(0, Status::EMPTY);
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
        let found = waiting::wait_until(|wait| peek_any(count, requests, wait))?;
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
        let found = look_twice(|wait| peek_any(count, requests, wait))?;
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

/// All requests that are complete; `None` if some are active and none is complete, an empty list if none is
/// active.
unsafe fn peek_some(
    count: usize,
    requests: Foreign<Request>,
    wait: &mut Wait,
) -> Result<Option<Vec<(usize, Outcome)>>> {
    let (mut found, mut active) = (Vec::new(), false);
    for index in 0..count {
        // SAFETY: the arguments are as the standard says.
        match request::peek(unsafe { requests.get(index) }, wait)? {
            Some(outcome) if !outcome.inactive => found.push((index, outcome)),
            Some(_) => {}
            None => active = true,
        }
    }
    Ok((!found.is_empty() || !active).then_some(found))
}

/// Tells the program which operations have ended. The count is undefined if no request is active.
unsafe fn show_some(
    found: Option<&[(usize, Outcome)]>,
    (outcount, indices): (Foreign<c_int>, Foreign<c_int>),
    statuses: Foreign<Status>,
) {
    let number = found.map_or(0, |found| if found.is_empty() { c::UNDEFINED } else { found.len() as c_int });
    // SAFETY: the arguments are as the standard says.
    unsafe {
        outcount.set(0, number);
        for (place, (index, outcome)) in found.into_iter().flatten().enumerate() {
            indices.set(place, *index as c_int);
            statuses.set(place, outcome.status);
        }
    }
}

/// Gives the outcomes of some requests to the program.
unsafe fn give_some(
    found: Option<&[(usize, Outcome)]>,
    requests: Foreign<Request>,
    places: (Foreign<c_int>, Foreign<c_int>),
    statuses: Foreign<Status>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        show_some(found, places, statuses);
        let mut failed = None;
        for (place, (index, outcome)) in found.into_iter().flatten().enumerate() {
            let status = end(requests, *index, outcome)?;
            statuses.set(place, status);
            failed = failed.or((status.error != c::SUCCESS).then_some(outcome));
        }
        in_status(failed)
    }
}

/// `MPI_Waitsome`.
pub unsafe fn waitsome(
    count: c_int,
    requests: Foreign<Request>,
    outcount: Foreign<c_int>,
    indices: Foreign<c_int>,
    statuses: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "incount")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = waiting::wait_until(|wait| peek_some(count, requests, wait))?;
        give_some(Some(&found), requests, (outcount, indices), statuses)
    }
}

/// `MPI_Testsome`.
pub unsafe fn testsome(
    count: c_int,
    requests: Foreign<Request>,
    outcount: Foreign<c_int>,
    indices: Foreign<c_int>,
    statuses: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "incount")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = look_twice(|wait| peek_some(count, requests, wait))?;
        give_some(found.as_deref(), requests, (outcount, indices), statuses)
    }
}

/// `MPI_Request_get_status_all`.
pub unsafe fn request_get_status_all(
    count: c_int,
    requests: Foreign<Request>,
    flag: Foreign<c_int>,
    statuses: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let outcomes = look_twice(|wait| peek_all(count, requests, wait))?;
        flag.set(0, c_int::from(outcomes.is_some()));
        statuses.set_all(outcomes.into_iter().flatten().map(|outcome| outcome.status));
    }
    Ok(())
}

/// `MPI_Request_get_status_any`.
pub unsafe fn request_get_status_any(
    count: c_int,
    requests: Foreign<Request>,
    index: Foreign<c_int>,
    flag: Foreign<c_int>,
    status: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "count")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = look_twice(|wait| peek_any(count, requests, wait))?;
        flag.set(0, c_int::from(found.is_some()));
        if let Some((at, outcome)) = found {
            index.set(0, at);
            match outcome {
                Some(outcome) => set_status(status, 0, outcome.status),
                None => status.set(0, Status::EMPTY),
            }
        } else {
            index.set(0, c::UNDEFINED);
        }
    }
    Ok(())
}

/// `MPI_Request_get_status_some`.
pub unsafe fn request_get_status_some(
    count: c_int,
    requests: Foreign<Request>,
    outcount: Foreign<c_int>,
    indices: Foreign<c_int>,
    statuses: Foreign<Status>,
) -> Result<()> {
    let count = natural(count.into(), "incount")?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = look_twice(|wait| peek_some(count, requests, wait))?;
        show_some(found.as_deref(), (outcount, indices), statuses);
    }
    Ok(())
}

/// `MPI_Grequest_start`.
pub unsafe fn grequest_start(
    query: Callback,
    free: Callback,
    cancel: Callback,
    extra_state: Ptr,
    request: Foreign<Request>,
) -> Result<()> {
    let extra_state = extra_state.expose_provenance();
    let general = General {
        by_reference: AtomicBool::new(false),
        query,
        free,
        cancel,
        extra_state,
        complete: AtomicBool::new(false),
        freed: AtomicBool::new(false),
    };
    let operation = Operation::General(Arc::new(general));
    // SAFETY: the arguments are as the standard says.
    unsafe { request.set(0, request::started(Arc::clone(&SELF), operation)?) };
    Ok(())
}

/// `MPI_Grequest_complete`.
pub unsafe fn grequest_complete(request: Request) -> Result<()> {
    request::general(request)?.complete.store(true, Ordering::Release);
    Ok(())
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
