//! Requests: operations that the program has started and not yet completed.

use std::sync::{Arc, Mutex};

use tautline::tags::RequestId;

use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Status;
use crate::grequest::General;
use crate::handle::Request;
use crate::objects::{Communicator, add, lock};
use crate::operation::{Completion, Operation};
use crate::pool::Pool;
use crate::waiting::{self, Search, Wait};

/// Starts a persistent operation.
pub type Start = Box<dyn Fn() -> Result<Operation> + Send + Sync>;

/// What a request stands for.
pub struct Pending {
    comm: Arc<Communicator>,
    /// How to start it again; only persistent requests have it.
    start: Option<Start>,
    progress: Mutex<Progress>,
}

enum Progress {
    /// A persistent request that is not started.
    Inactive,
    Active(Operation),
    /// It has ended; an operation of the program is freed with its request.
    Complete(Completion, Option<Arc<General>>),
}

impl Progress {
    /// Notes the end of an operation; adds what it waits for if it has not ended.
    fn poll(&mut self, ids: &mut Vec<RequestId>, search: Search) {
        if let Progress::Active(operation) = self {
            match operation.poll(search) {
                Some(completion) => {
                    let general = match operation {
                        Operation::General(general) => Some(Arc::clone(general)),
                        _ => None,
                    };
                    *self = Progress::Complete(completion, general);
                }
                None => operation.waits_for(ids),
            }
        }
    }
}

impl Pending {
    /// Makes progress in the background; whether it has ended. If another thread is at it, that one does.
    pub fn poll(&self, ids: &mut Vec<RequestId>, search: Search) -> bool {
        let Ok(mut progress) = self.progress.try_lock() else { return false };
        progress.poll(ids, search);
        !matches!(*progress, Progress::Active(_))
    }
}

static REQUESTS: Pool<Pending> = Pool::new();

fn find(handle: Request) -> Result<Arc<Pending>> {
    let found = REQUESTS.get(handle.0);
    found.ok_or_else(|| Error::new(c::ERR_REQUEST, format!("{:#x} is no request, or was freed", handle.0)))
}

/// A request for an operation under way.
pub fn started(comm: Arc<Communicator>, operation: Operation) -> Result<Request> {
    let progress = Mutex::new(Progress::Active(operation));
    add(&REQUESTS, Arc::new(Pending { comm, start: None, progress }))
}

/// A persistent request.
pub fn persistent(comm: Arc<Communicator>, start: Start) -> Result<Request> {
    let progress = Mutex::new(Progress::Inactive);
    add(&REQUESTS, Arc::new(Pending { comm, start: Some(start), progress }))
}

/// `MPI_Start`.
pub fn start(handle: Request) -> Result<()> {
    let pending = find(handle)?;
    let bad = |text: &str| Error::new(c::ERR_REQUEST, text).on(&pending.comm);
    let start = pending.start.as_ref().ok_or_else(|| bad("the request is not persistent"))?;
    let mut progress = lock(&pending.progress);
    if !matches!(*progress, Progress::Inactive) {
        return Err(bad("the request is active"));
    }
    *progress = Progress::Active(start().map_err(|error| error.on(&pending.comm))?);
    Ok(())
}

/// `MPI_Request_free`: the operation goes on.
pub fn free(handle: Request) -> Result<()> {
    let pending = find(handle)?;
    REQUESTS.remove(handle.0);
    // Sends go on by themselves; what arrives for others is still to be put into the program's memory.
    let arrives = matches!(*lock(&pending.progress), Progress::Active(ref operation) if operation.arrives());
    if arrives {
        waiting::add_background(pending);
    }
    Ok(())
}

/// `MPI_Cancel`.
pub fn cancel(handle: Request) -> Result<()> {
    let pending = find(handle)?;
    match &mut *lock(&pending.progress) {
        Progress::Active(operation) => operation.cancel().map_err(|error| error.on(&pending.comm)),
        Progress::Inactive | Progress::Complete(..) => Ok(()),
    }
}

/// The operation of the program behind a request.
pub fn general(handle: Request) -> Result<Arc<General>> {
    let pending = find(handle)?;
    match &*lock(&pending.progress) {
        Progress::Active(Operation::General(general)) => Ok(Arc::clone(general)),
        _ => Err(Error::new(c::ERR_REQUEST, "this is no generalized request")),
    }
}

/// How a completed request ended.
pub struct Outcome {
    /// The status; its error is `MPI_SUCCESS` or that of the operation.
    pub status: Status,
    /// Why the operation failed.
    pub error: Option<Error>,
    /// The communicator whose error handler is called.
    pub comm: Option<Arc<Communicator>>,
    /// Whether the request was null or inactive.
    pub inactive: bool,
}

const INACTIVE: Outcome = Outcome { status: Status::EMPTY, error: None, comm: None, inactive: true };

/// Whether the request is complete, and how it ended. It stays as it is; `wait` learns what it waits for.
pub fn peek(handle: Request, wait: &mut Wait) -> Result<Option<Outcome>> {
    if handle == c::REQUEST_NULL {
        return Ok(Some(INACTIVE));
    }
    let pending = find(handle)?;
    let mut progress = lock(&pending.progress);
    progress.poll(&mut wait.ids, wait.search);
    match &*progress {
        Progress::Inactive => Ok(Some(INACTIVE)),
        Progress::Complete(Completion { status, error }, _) => {
            let (status, error) = (*status, error.clone());
            Ok(Some(Outcome { status, error, comm: Some(Arc::clone(&pending.comm)), inactive: false }))
        }
        Progress::Active(operation) => {
            wait.own |= matches!(operation, Operation::General(_));
            Ok(None)
        }
    }
}

/// Ends a completed request: the handle that the program has afterwards, and why an operation of the program
/// could not be freed.
pub fn retire(handle: Request) -> Result<(Request, Option<Error>)> {
    if handle == c::REQUEST_NULL {
        return Ok((handle, None));
    }
    let pending = find(handle)?;
    if pending.start.is_some() {
        *lock(&pending.progress) = Progress::Inactive;
        return Ok((handle, None));
    }
    REQUESTS.remove(handle.0);
    let general = match &*lock(&pending.progress) {
        Progress::Complete(_, general) => general.clone(),
        Progress::Inactive | Progress::Active(_) => None,
    };
    let failed = general.and_then(|general| general.free().err());
    Ok((c::REQUEST_NULL, failed.map(|error| error.on(&pending.comm))))
}
