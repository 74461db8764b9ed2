//! Error codes and error handlers.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Ptr, set_string, string};
use crate::constants as c;
use crate::errhandler::{self, Handler, Subject};
use crate::error::{Error, Result};
use crate::foreign::{Callback, Foreign};
use crate::handle::{Comm, Errhandler, File};
use crate::objects::{self, ERRHANDLERS, lock};

fn unknown(code: c_int) -> Error {
    Error::new(c::ERR_ARG, format!("{code} is no error code"))
}

/// `MPI_Error_class`.
pub unsafe fn error_class(code: c_int, class: Foreign<c_int>) -> Result<()> {
    let found = errhandler::class_of(code).ok_or_else(|| unknown(code))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { class.set(0, found) };
    Ok(())
}

/// `MPI_Error_string`.
pub unsafe fn error_string(code: c_int, text: Ptr, length: Foreign<c_int>) -> Result<()> {
    let found = errhandler::text_of(code).ok_or_else(|| unknown(code))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { set_string(text, c::MAX_ERROR_STRING, &found, length) }
}

/// `MPI_Add_error_class`.
pub unsafe fn add_error_class(class: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { class.set(0, errhandler::add(None)) };
    Ok(())
}

/// `MPI_Add_error_code`.
pub unsafe fn add_error_code(class: c_int, code: Foreign<c_int>) -> Result<()> {
    if errhandler::class_of(class) != Some(class) {
        return Err(Error::new(c::ERR_ARG, format!("{class} is no error class")));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { code.set(0, errhandler::add(Some(class))) };
    Ok(())
}

/// `MPI_Add_error_string`.
pub unsafe fn add_error_string(code: c_int, text: Ptr) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    let text = unsafe { string(text, "string")? };
    if errhandler::set_text(code, text) { Ok(()) } else { Err(unknown(code)) }
}

/// `MPI_Comm_create_errhandler`.
pub unsafe fn comm_create_errhandler(function: Callback, handler: Foreign<Errhandler>) -> Result<()> {
    if function.is_null() {
        return Err(Error::new(c::ERR_ARG, "the function is a null pointer"));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { handler.set(0, objects::add(&ERRHANDLERS, Arc::new(Handler::User(function)))?) };
    Ok(())
}

/// `MPI_Comm_set_errhandler`.
pub unsafe fn comm_set_errhandler(comm: Comm, handler: Errhandler) -> Result<()> {
    let object = objects::comm(comm)?;
    *lock(&object.errhandler) = objects::errhandler(handler)?;
    Ok(())
}

/// `MPI_Comm_get_errhandler`: the program frees the handle.
pub unsafe fn comm_get_errhandler(comm: Comm, handler: Foreign<Errhandler>) -> Result<()> {
    let current = Arc::clone(&lock(&objects::comm(comm)?.errhandler));
    // SAFETY: the arguments are as the standard says.
    unsafe { handler.set(0, handle_of(current)?) };
    Ok(())
}

/// A handle of an error handler.
fn handle_of(handler: Arc<Handler>) -> Result<Errhandler> {
    Ok(match *handler {
        Handler::Fatal => c::ERRORS_ARE_FATAL,
        Handler::Abort => c::ERRORS_ABORT,
        Handler::Return => c::ERRORS_RETURN,
        Handler::User(_) => objects::add(&ERRHANDLERS, handler)?,
    })
}

/// `MPI_Comm_call_errhandler`.
pub unsafe fn comm_call_errhandler(comm: Comm, code: c_int) -> Result<()> {
    let object = objects::comm(comm)?;
    let handler = Arc::clone(&lock(&object.errhandler));
    call_handler("MPI_Comm_call_errhandler", &handler, &Subject::Comm(&object), code);
    Ok(())
}

/// Calls an error handler for the program.
fn call_handler(name: &str, handler: &Handler, subject: &Subject<'_>, code: c_int) {
    let text = || errhandler::text_of(code).unwrap_or_else(|| format!("error code {code}"));
    errhandler::invoke(handler, subject, code, &|| format!("{name}: {}", text()));
}

/// The only file there is: `MPI_FILE_NULL`, whose error handler is that of calls that open files.
fn no_file(file: File) -> Result<()> {
    let found = file == c::FILE_NULL;
    if found { Ok(()) } else { Err(Error::new(c::ERR_FILE, format!("{:#x} is no file", file.0))) }
}

/// `MPI_File_create_errhandler`.
pub unsafe fn file_create_errhandler(function: Callback, handler: Foreign<Errhandler>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { comm_create_errhandler(function, handler) }
}

/// `MPI_File_set_errhandler`.
pub unsafe fn file_set_errhandler(file: File, handler: Errhandler) -> Result<()> {
    no_file(file)?;
    errhandler::set_of_files(objects::errhandler(handler)?);
    Ok(())
}

/// `MPI_File_get_errhandler`: the program frees the handle.
pub unsafe fn file_get_errhandler(file: File, handler: Foreign<Errhandler>) -> Result<()> {
    no_file(file)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { handler.set(0, handle_of(errhandler::of_files())?) };
    Ok(())
}

/// `MPI_File_call_errhandler`.
pub unsafe fn file_call_errhandler(file: File, code: c_int) -> Result<()> {
    no_file(file)?;
    call_handler("MPI_File_call_errhandler", &errhandler::of_files(), &Subject::File(file), code);
    Ok(())
}

/// `MPI_Errhandler_free`.
pub unsafe fn errhandler_free(handler: Foreign<Errhandler>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = handler.get(0);
        objects::errhandler(handle)?;
        // Predefined handlers stay; only the program's variable changes.
        ERRHANDLERS.remove(handle.0);
        handler.set(0, c::ERRHANDLER_NULL);
    }
    Ok(())
}

fn remove(code: c_int, is_class: bool) -> Result<()> {
    if errhandler::remove(code, is_class) {
        return Ok(());
    }
    let kind = if is_class { "class" } else { "code" };
    Err(Error::new(
        c::ERR_ARG,
        format!("{code} is no error {kind} of the program, is in use, or has a string"),
    ))
}

/// `MPI_Remove_error_class`.
pub unsafe fn remove_error_class(class: c_int) -> Result<()> {
    remove(class, true)
}

/// `MPI_Remove_error_code`.
pub unsafe fn remove_error_code(code: c_int) -> Result<()> {
    remove(code, false)
}

/// `MPI_Remove_error_string`.
pub unsafe fn remove_error_string(code: c_int) -> Result<()> {
    if errhandler::set_text(code, String::new()) { Ok(()) } else { Err(unknown(code)) }
}
