//! The tool interface: it can be initialized, and has no variables, categories, events and sources.

use std::ffi::c_int;

use crate::constants as c;
use crate::error::{Result, ensure};
use crate::foreign::Foreign;
use crate::tools;

/// The handle of every session of performance variables, which has nothing to distinguish it from others.
const SESSION: usize = 0x1000;

/// `MPI_T_init_thread`.
pub unsafe fn t_init_thread(required: c_int, provided: Foreign<c_int>) -> Result<()> {
    tools::start();
    // SAFETY: the arguments are as the standard says.
    unsafe { provided.set(0, required.clamp(c::THREAD_SINGLE, c::THREAD_MULTIPLE)) };
    Ok(())
}

/// `MPI_T_finalize`.
pub unsafe fn t_finalize() -> Result<()> {
    tools::finish()
}

/// There are none.
unsafe fn none(number: Foreign<c_int>) -> Result<()> {
    tools::ensure_started()?;
    // SAFETY: the arguments are as the standard says.
    unsafe { number.set(0, 0) };
    Ok(())
}

/// `MPI_T_cvar_get_num`.
pub unsafe fn t_cvar_get_num(number: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { none(number) }
}

/// `MPI_T_pvar_get_num`.
pub unsafe fn t_pvar_get_num(number: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { none(number) }
}

/// `MPI_T_category_get_num`.
pub unsafe fn t_category_get_num(number: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { none(number) }
}

/// `MPI_T_category_changed`: the number of changes so far.
pub unsafe fn t_category_changed(changes: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { none(changes) }
}

/// `MPI_T_event_get_num`.
pub unsafe fn t_event_get_num(number: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { none(number) }
}

/// `MPI_T_source_get_num`.
pub unsafe fn t_source_get_num(number: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { none(number) }
}

/// `MPI_T_pvar_session_create`.
pub unsafe fn t_pvar_session_create(session: Foreign<usize>) -> Result<()> {
    tools::ensure_started()?;
    // SAFETY: the arguments are as the standard says.
    unsafe { session.set(0, SESSION) };
    Ok(())
}

/// `MPI_T_pvar_session_free`.
pub unsafe fn t_pvar_session_free(session: Foreign<usize>) -> Result<()> {
    tools::ensure_started()?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = session.get(0);
        ensure(found == SESSION, c::T_ERR_INVALID_SESSION, || format!("{found:#x} is no session"))?;
        session.set(0, 0);
    }
    Ok(())
}
