//! Requests: operations that the program has started and not yet completed.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use crate::constants as c;
use crate::error::{Error, Result};
use crate::fabric::{Completion, Ticket};
use crate::foreign::Status;
use crate::handle::{Comm, Request};
use crate::objects::{add, lock};
use crate::pool::Pool;
use crate::state;

/// Starts a persistent operation.
pub type Start = Box<dyn Fn() -> Result<Option<Arc<Ticket>>> + Send + Sync>;

/// What a request stands for.
pub struct Pending {
    comm: Comm,
    /// How to start it again; only persistent requests have it.
    start: Option<Start>,
    progress: Mutex<Progress>,
}

enum Progress {
    /// A persistent request that is not started.
    Inactive,
    Active(Arc<Ticket>),
    /// An operation that needed nobody else.
    Complete,
}

static REQUESTS: Pool<Pending> = Pool::new();

fn find(handle: Request) -> Result<Arc<Pending>> {
    let found = REQUESTS.get(handle.0);
    found.ok_or_else(|| Error::new(c::ERR_REQUEST, format!("{:#x} is no request, or was freed", handle.0)))
}

/// A request for an operation under way; without a ticket it is complete.
pub fn started(comm: Comm, ticket: Option<Arc<Ticket>>) -> Result<Request> {
    let progress = Mutex::new(ticket.map_or(Progress::Complete, Progress::Active));
    add(&REQUESTS, Arc::new(Pending { comm, start: None, progress }))
}

/// A persistent request.
pub fn persistent(comm: Comm, start: Start) -> Result<Request> {
    let progress = Mutex::new(Progress::Inactive);
    add(&REQUESTS, Arc::new(Pending { comm, start: Some(start), progress }))
}

/// `MPI_Start`.
pub fn start(handle: Request) -> Result<()> {
    let pending = find(handle)?;
    let bad = |text: &str| Error::new(c::ERR_REQUEST, text).on(pending.comm);
    let start = pending.start.as_ref().ok_or_else(|| bad("the request is not persistent"))?;
    let mut progress = lock(&pending.progress);
    if !matches!(*progress, Progress::Inactive) {
        return Err(bad("the request is active"));
    }
    *progress = start().map_err(|error| error.on(pending.comm))?.map_or(Progress::Complete, Progress::Active);
    Ok(())
}

/// `MPI_Request_free`: the operation goes on.
pub fn free(handle: Request) -> Result<()> {
    find(handle)?;
    REQUESTS.remove(handle.0);
    Ok(())
}

/// `MPI_Cancel`.
pub fn cancel(handle: Request) -> Result<()> {
    let pending = find(handle)?;
    if let Progress::Active(ticket) = &*lock(&pending.progress) {
        state::fabric().cancel(ticket);
    }
    Ok(())
}

/// How a completed request ended.
pub struct Outcome {
    /// The status; its error is `MPI_SUCCESS` or that of the operation.
    pub status: Status,
    /// The communicator whose error handler is called.
    pub comm: Option<Comm>,
    /// Whether the request was null or inactive.
    pub inactive: bool,
}

const INACTIVE: Outcome = Outcome { status: Status::EMPTY, comm: None, inactive: true };

/// Whether the request is complete, and how it ended. It stays as it is.
pub fn peek(handle: Request) -> Result<Option<Outcome>> {
    if handle == c::REQUEST_NULL {
        return Ok(Some(INACTIVE));
    }
    let pending = find(handle)?;
    let done = match &*lock(&pending.progress) {
        Progress::Inactive => return Ok(Some(INACTIVE)),
        Progress::Complete => Completion::SENT,
        Progress::Active(ticket) => match ticket.done() {
            Some(done) => done,
            None => return Ok(None),
        },
    };
    let status = status_of(&done);
    Ok(Some(Outcome { status, comm: Some(pending.comm), inactive: false }))
}

/// The status of a completed operation.
pub fn status_of(done: &Completion) -> Status {
    let (source, tag) = done
        .envelope
        .map_or((Status::EMPTY.source, Status::EMPTY.tag), |from| (from.source as c_int, from.tag));
    Status { source, tag, error: done.error, bytes: done.bytes, cancelled: done.cancelled }
}

/// Ends a completed request: the handle that the program has afterwards.
pub fn retire(handle: Request) -> Result<Request> {
    if handle == c::REQUEST_NULL {
        return Ok(handle);
    }
    let pending = find(handle)?;
    if pending.start.is_some() {
        *lock(&pending.progress) = Progress::Inactive;
        return Ok(handle);
    }
    REQUESTS.remove(handle.0);
    Ok(c::REQUEST_NULL)
}
