//! The frame around every exported function: panics end here, and errors go to the error handler of the
//! object that the call is about.

use std::ffi::c_int;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::constants::{
    ERR_ARG, ERR_INTERN, ERR_OTHER, ERR_UNSUPPORTED_OPERATION, FILE_NULL, SUCCESS, T_ERR_INVALID,
    T_ERR_INVALID_HANDLE, T_ERR_INVALID_INDEX, T_ERR_INVALID_NAME,
};
use crate::errhandler;
use crate::error::{Error, Result};
use crate::handle::{Comm, File, Session, Win};
use crate::{network, state, tools, trace};

/// The object whose error handler a call uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// A communicator.
    Comm(Comm),
    /// A window.
    Win(Win),
    /// A file.
    File(File),
    /// A session.
    Session(Session),
    /// None, and no error handler is called: the tool interface returns codes of its own, and can be used
    /// before `MPI_Init`.
    Tool,
    /// None: the handler of `MPI_COMM_SELF` is called.
    None,
}

impl Object {
    /// What calls that open or delete a file are about.
    pub const FILES: Object = Object::File(FILE_NULL);
}

/// Something of the tool interface that a call names. There is none: the library has no variables, categories
/// and events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// It has no index.
    Index,
    /// It has no name.
    Name,
    /// It has no handle.
    Handle,
}

/// What a function of the tool interface returns that needs a variable, a category or an event.
pub fn absent(what: Absent) -> Result<()> {
    tools::ensure_started()?;
    Err(match what {
        Absent::Index => Error::new(T_ERR_INVALID_INDEX, "there is nothing of this index"),
        Absent::Name => Error::new(T_ERR_INVALID_NAME, "there is nothing of this name"),
        Absent::Handle => Error::new(T_ERR_INVALID_HANDLE, "there are no such handles"),
    })
}

/// Runs the body of the function `name` and returns its error code.
#[inline]
pub fn call(name: &'static str, object: Object, body: impl FnOnce() -> Result<()>) -> c_int {
    let began = if state::is_plain() { None } else { enter(name) };
    let code =
        guarded(name, object, || body().map_or_else(|error| failed(name, object, &error), |()| SUCCESS));
    if let Some(began) = began {
        trace::leave(name, began, code);
    }
    code
}

/// As [`call`], for a function that short messages make frequent. `short` does its work in the usual case; if
/// it returns `None`, it has done nothing, and `body` is called.
#[inline(always)]
pub fn call_short(
    name: &'static str,
    object: Object,
    short: impl FnOnce() -> Option<Result<()>>,
    body: impl FnOnce() -> Result<()>,
) -> c_int {
    const NOTHING_DONE: c_int = c_int::MIN;
    if state::is_plain() {
        let code = guarded(name, object, || match short() {
            Some(Ok(())) => SUCCESS,
            Some(Err(error)) => failed(name, object, &error),
            None => NOTHING_DONE,
        });
        if code != NOTHING_DONE {
            return code;
        }
    }
    call_apart(name, object, body)
}

// A call, so that short messages do not pay for its registers.
#[inline(never)]
fn call_apart(name: &'static str, object: Object, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, object, body)
}

/// Panics end here, and so does what [`crate::foreign::Foreign`] throws for null pointers.
#[inline(always)]
fn guarded(name: &'static str, object: Object, body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|thrown| match thrown.downcast::<Error>() {
        Ok(error) => failed(name, object, &error),
        Err(_) => failed(name, object, &Error::new(ERR_INTERN, "the library panicked; see standard error")),
    })
}

/// What a function that is not implemented does.
#[cold]
pub fn unsupported(name: &'static str, object: Object) -> c_int {
    if !state::is_running() {
        refuse(name);
    }
    failed(name, object, &Error::new(ERR_UNSUPPORTED_OPERATION, format!("{name} is not implemented")))
}

/// Begins a call that is traced, or before `MPI_Init`, or after `MPI_Finalize`.
#[cold]
fn enter(name: &str) -> Option<Instant> {
    if !state::is_running() {
        refuse(name);
    }
    trace::enter(name)
}

/// Ends the process if the standard does not allow a call now.
#[cold]
fn refuse(name: &str) {
    if let Some(why) = state::refuses(name) {
        report(&format!("{}{name} {why}", network::shown_rank()));
        network::abort(ERR_OTHER)
    }
}

/// Writes a line for people.
pub(crate) fn report(text: &str) {
    let _ = std::io::stderr().write_all(format!("tautline-mpi: {text}\n").as_bytes());
}

#[cold]
#[inline(never)]
fn failed(name: &'static str, object: Object, error: &Error) -> c_int {
    if object == Object::Tool {
        return if error.code == ERR_ARG { T_ERR_INVALID } else { error.code };
    }
    if !state::is_running() {
        // There is no communicator whose error handler could be called.
        report(&format!("{}{name} failed: {error}", network::shown_rank()));
        network::abort(error.code)
    }
    errhandler::remember(name, error);
    // The program's handler may unwind in a language of its own; that must not pass through us.
    catch_unwind(AssertUnwindSafe(|| errhandler::raise(name, object, error))).unwrap_or(ERR_INTERN)
}
