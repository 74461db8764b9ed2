//! The life of the tool interface, which is independent of `MPI_Init` and `MPI_Finalize`.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::constants as c;
use crate::error::{Error, Result, ensure};

/// How often the interface was initialized and not finalized.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// `MPI_T_init_thread`.
pub(crate) fn start() {
    STARTED.fetch_add(1, Ordering::AcqRel);
}

/// `MPI_T_finalize`.
pub(crate) fn finish() -> Result<()> {
    let less = STARTED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    less.map(drop).map_err(|_| not_started())
}

/// Fails unless the interface is initialized.
pub(crate) fn ensure_started() -> Result<()> {
    ensure(STARTED.load(Ordering::Acquire) > 0, c::T_ERR_NOT_INITIALIZED, || not_started().text)
}

fn not_started() -> Error {
    Error::new(c::T_ERR_NOT_INITIALIZED, "the tool interface is not initialized")
}
