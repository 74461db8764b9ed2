//! Error handlers, and the error codes that programs add.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::call::Object;
use crate::constants as c;
use crate::error::{self, Error};
use crate::foreign::Callback;
use crate::handle::File;
use crate::objects::{self, lock};
use crate::{call, network};

/// What happens when a call fails.
pub enum Handler {
    /// The job ends.
    Fatal,
    /// The processes of the communicator end.
    Abort,
    /// The call returns the code.
    Return,
    /// A function of the program.
    User(Callback),
}

/// A class or code that the program added.
struct Added {
    code: c_int,
    class: c_int,
    text: String,
}

static ADDED: Mutex<Vec<Added>> = Mutex::new(Vec::new());

/// Adds a class, or a code of `class`.
pub(crate) fn add(class: Option<c_int>) -> c_int {
    let mut added = lock(&ADDED);
    let code = added.last().map_or(c::ERR_LASTCODE, |last| last.code) + 1;
    added.push(Added { code, class: class.unwrap_or(code), text: String::new() });
    code
}

/// The last code that was added, or the last of the standard.
pub(crate) fn last_code() -> c_int {
    lock(&ADDED).last().map_or(c::ERR_LASTCODE, |last| last.code)
}

/// Sets the text of a code that was added; says whether there is such a code.
pub(crate) fn set_text(code: c_int, text: String) -> bool {
    let mut added = lock(&ADDED);
    let found = added.iter_mut().find(|added| added.code == code);
    found.map(|added| added.text = text).is_some()
}

/// Removes a class, or a code of a class, that was added; says whether it did. One that has a text, or that
/// codes have as their class, stays.
pub(crate) fn remove(code: c_int, is_class: bool) -> bool {
    let mut added = lock(&ADDED);
    let used = added.iter().any(|other| other.class == code && other.code != code);
    let Some(at) = added.iter().position(|one| one.code == code) else { return false };
    if used || !added[at].text.is_empty() || (added[at].class == code) != is_class {
        return false;
    }
    added.remove(at);
    true
}

/// The class of a code; `None` if there is no such code.
pub(crate) fn class_of(code: c_int) -> Option<c_int> {
    if error::name(code).is_some() {
        return Some(code);
    }
    lock(&ADDED).iter().find(|added| added.code == code).map(|added| added.class)
}

thread_local! {
    /// The last error of a call of this thread, and what it was.
    static LAST: RefCell<(c_int, String)> = const { RefCell::new((c::SUCCESS, String::new())) };
}

/// Keeps the cause of an error for [`text_of`].
pub(crate) fn remember(name: &str, error: &Error) {
    let text = format!("{name}: {}", error.text);
    // A thread that ends may call functions of MPI in destructors of its own.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (error.code, text));
}

/// The text of a code; `None` if there is no such code. If the last error of this thread had this code, the
/// text names its cause.
pub(crate) fn text_of(code: c_int) -> Option<String> {
    if let Some(name) = error::name(code) {
        let text = format!("{name}: {}", error::meaning(code));
        let last = LAST.try_with(|last| last.borrow().clone()).unwrap_or_default();
        return Some(if code != c::SUCCESS && last.0 == code {
            format!("{text} ({})", last.1)
        } else {
            text
        });
    }
    lock(&ADDED).iter().find(|added| added.code == code).map(|added| added.text.clone())
}

/// The error handler of files, which is that of `MPI_FILE_NULL` as long as there are no files.
static FILES: Mutex<Option<Arc<Handler>>> = Mutex::new(None);

/// The error handler of `MPI_FILE_NULL`: errors are returned unless the program wants otherwise.
pub(crate) fn of_files() -> Arc<Handler> {
    lock(&FILES).clone().unwrap_or_else(|| Arc::new(Handler::Return))
}

/// Sets the error handler of `MPI_FILE_NULL`.
pub(crate) fn set_of_files(handler: Arc<Handler>) {
    *lock(&FILES) = Some(handler);
}

/// The object that an error is about.
pub(crate) enum Subject<'a> {
    Comm(&'a objects::Communicator),
    File(File),
}

/// Calls the error handler of an object and returns the code for the program.
pub(crate) fn raise(name: &str, object: Object, error: &Error) -> c_int {
    let kept = error.comm.as_ref().map(|kept| Arc::clone(&kept.0));
    let comm = match object {
        _ if kept.is_some() => kept,
        Object::Comm(comm) => objects::comm(comm).ok(),
        Object::File(file) => {
            let text = || format!("{name} failed: {error}");
            invoke(&of_files(), &Subject::File(file), error.code, &text);
            return error.code;
        }
        // Windows and sessions will have handlers of their own; the tool interface calls none.
        Object::Win(_) | Object::Session(_) | Object::Tool | Object::None => None,
    };
    let comm = comm.unwrap_or_else(default_comm);
    let handler = Arc::clone(&lock(&comm.errhandler));
    invoke(&handler, &Subject::Comm(&comm), error.code, &|| format!("{name} failed: {error}"));
    error.code
}

/// The communicator whose handler is called for errors that belong to no object: `MPI_COMM_SELF`. Before MPI
/// 4.0 it was `MPI_COMM_WORLD`; programs that set a handler there and none on `MPI_COMM_SELF` mean that one.
fn default_comm() -> Arc<objects::Communicator> {
    let unset = matches!(**lock(&objects::SELF.errhandler), Handler::Fatal);
    Arc::clone(if unset { &objects::WORLD } else { &objects::SELF })
}

impl Subject<'_> {
    /// What people call it.
    fn name(&self) -> String {
        match self {
            Subject::Comm(comm) => {
                let name = lock(&comm.name).clone();
                if name.is_empty() { "a communicator without a name".to_owned() } else { name }
            }
            Subject::File(_) => "MPI_FILE_NULL".to_owned(),
        }
    }
}

/// Does what a handler says.
pub(crate) fn invoke(handler: &Handler, subject: &Subject<'_>, code: c_int, text: &dyn Fn() -> String) {
    match handler {
        Handler::Return => {}
        Handler::Fatal | Handler::Abort => {
            let place = subject.name();
            let rank = network::network().rank;
            call::report(&format!("rank {rank}: {} (on {place}; errors are fatal)", text()));
            network::abort(code)
        }
        Handler::User(callback) => {
            type Function = unsafe extern "C" fn(*mut usize, *mut c_int, ...);
            let mut handle = match subject {
                Subject::Comm(comm) => (callback.abi.comm)(comm.handle()),
                Subject::File(file) => (callback.abi.file)(*file),
            };
            let mut code = (callback.abi.code)(code);
            // SAFETY: the program passed a function of this type.
            unsafe {
                let function = std::mem::transmute::<*const c_void, Function>(callback.address);
                function(&raw mut handle, &raw mut code);
            }
        }
    }
}
