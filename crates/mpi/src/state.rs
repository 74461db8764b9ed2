//! The library's life: before, between and after `MPI_Init` and `MPI_Finalize`.

use std::ffi::c_int;
use std::sync::{LazyLock, Mutex};
use std::thread::ThreadId;

use crate::constants::{ERR_OTHER, THREAD_MULTIPLE, THREAD_SINGLE};
use crate::error::{Error, Result};
use crate::fabric::Fabric;
use crate::loopback::Loopback;
use crate::objects::lock;

struct Life {
    initialized: bool,
    finalized: bool,
    level: c_int,
    main: Option<ThreadId>,
}

static LIFE: Mutex<Life> =
    Mutex::new(Life { initialized: false, finalized: false, level: THREAD_SINGLE, main: None });

static FABRIC: LazyLock<Box<dyn Fabric>> = LazyLock::new(|| Box::new(Loopback::default()));

/// What carries the messages of this job.
pub(crate) fn fabric() -> &'static dyn Fabric {
    &**FABRIC
}

/// `MPI_Init_thread`: every level is provided as it is asked for.
pub(crate) fn initialize(level: c_int) -> Result<c_int> {
    let mut life = lock(&LIFE);
    if life.initialized {
        return Err(Error::new(ERR_OTHER, "MPI was initialized before"));
    }
    life.initialized = true;
    life.level = level.clamp(THREAD_SINGLE, THREAD_MULTIPLE);
    life.main = Some(std::thread::current().id());
    Ok(life.level)
}

pub(crate) fn finalize() -> Result<()> {
    let mut life = lock(&LIFE);
    if !life.initialized || life.finalized {
        return Err(Error::new(ERR_OTHER, "MPI is not initialized, or was finalized before"));
    }
    life.finalized = true;
    Ok(())
}

pub(crate) fn is_initialized() -> bool {
    lock(&LIFE).initialized
}

pub(crate) fn is_finalized() -> bool {
    lock(&LIFE).finalized
}

pub(crate) fn level() -> c_int {
    lock(&LIFE).level
}

pub(crate) fn is_main_thread() -> bool {
    lock(&LIFE).main == Some(std::thread::current().id())
}
