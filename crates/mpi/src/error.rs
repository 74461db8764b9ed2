//! What a call may fail with: an error class of the standard and a sentence for people.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use crate::constants::{
    CLASSES, ERR_ARG, ERR_BASE, ERR_BUFFER, ERR_COMM, ERR_COUNT, ERR_DIMS, ERR_DISP, ERR_ERRHANDLER,
    ERR_FILE, ERR_GROUP, ERR_IN_STATUS, ERR_INFO, ERR_INFO_KEY, ERR_INFO_NOKEY, ERR_INFO_VALUE, ERR_INTERN,
    ERR_KEYVAL, ERR_NAME, ERR_NO_MEM, ERR_OP, ERR_OTHER, ERR_PENDING, ERR_PORT, ERR_PROC_ABORTED, ERR_RANK,
    ERR_REQUEST, ERR_ROOT, ERR_SERVICE, ERR_SESSION, ERR_SIZE, ERR_SPAWN, ERR_TAG, ERR_TOPOLOGY,
    ERR_TRUNCATE, ERR_TYPE, ERR_UNKNOWN, ERR_UNSUPPORTED_OPERATION, ERR_VALUE_TOO_LARGE, ERR_WIN, SUCCESS,
};
use crate::objects::Communicator;

/// The result of a function of the core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The code that the program gets: a class of the standard, or one that the program added.
    pub code: c_int,
    /// What was wrong.
    pub text: String,
    /// The communicator whose error handler is called, if the arguments of the call do not tell. Its handle
    /// may have been freed.
    pub(crate) comm: Option<Kept>,
}

impl Error {
    /// An error of the class `code`.
    pub fn new(code: c_int, text: impl Into<String>) -> Error {
        Error { code, text: text.into(), comm: None }
    }

    /// The same error for the error handler of `comm`.
    pub(crate) fn on(mut self, comm: &Arc<Communicator>) -> Error {
        self.comm = Some(Kept(Arc::clone(comm)));
        self
    }
}

/// The communicator of an error: the same as another only if it is the same object.
#[derive(Clone)]
pub(crate) struct Kept(pub(crate) Arc<Communicator>);

impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Kept {}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.handle())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", name(self.code).unwrap_or("user error"), self.text)
    }
}

impl std::error::Error for Error {}

/// Fails with the class `code` unless `holds`.
pub fn ensure(holds: bool, code: c_int, text: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(code, text())) }
}

/// A count as a size in memory.
pub fn count(count: i64, what: &str) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::new(ERR_COUNT, format!("{what} is {count}")))
}

/// The name of a class of the standard.
pub fn name(class: c_int) -> Option<&'static str> {
    CLASSES.iter().find(|(value, _)| *value == class).map(|(_, name)| *name)
}

/// A sentence on a class of the standard, which follows its name in `MPI_Error_string`.
pub fn meaning(class: c_int) -> &'static str {
    match class {
        SUCCESS => "no error",
        ERR_BUFFER => "invalid buffer pointer",
        ERR_COUNT => "invalid count",
        ERR_TYPE => "invalid datatype",
        ERR_TAG => "invalid tag",
        ERR_COMM => "invalid communicator",
        ERR_RANK => "invalid rank",
        ERR_REQUEST => "invalid request",
        ERR_ROOT => "invalid root",
        ERR_GROUP => "invalid group",
        ERR_OP => "invalid operation, or one that the datatype does not allow",
        ERR_TOPOLOGY => "invalid topology",
        ERR_DIMS => "invalid dimensions",
        ERR_ARG => "invalid argument",
        ERR_TRUNCATE => "the message is longer than the receive buffer",
        ERR_OTHER => "another error",
        ERR_INTERN => "an error inside the library",
        ERR_PENDING => "the request is not complete",
        ERR_NO_MEM => "no memory",
        ERR_INFO => "invalid info object",
        ERR_INFO_KEY => "invalid info key",
        ERR_INFO_VALUE => "invalid info value",
        ERR_INFO_NOKEY => "the info object has no such key",
        ERR_KEYVAL => "invalid attribute key",
        ERR_ERRHANDLER => "invalid error handler",
        ERR_UNSUPPORTED_OPERATION => "the operation is not supported",
        ERR_VALUE_TOO_LARGE => "the value does not fit its type",
        ERR_PROC_ABORTED => "a process that the call needs is gone",
        ERR_IN_STATUS => "the error codes are in the statuses",
        ERR_UNKNOWN => "an unknown error",
        ERR_BASE => "invalid base address",
        ERR_SIZE => "invalid size",
        ERR_DISP => "invalid displacement",
        ERR_WIN => "invalid window",
        ERR_FILE => "invalid file handle",
        ERR_SESSION => "invalid session",
        ERR_NAME => "no service of this name is published",
        ERR_PORT => "invalid port",
        ERR_SERVICE => "the service is not published",
        ERR_SPAWN => "processes could not be started",
        _ => "an error of this class",
    }
}
