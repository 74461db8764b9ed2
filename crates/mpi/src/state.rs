//! The library's life: before, between and after `MPI_Init` and `MPI_Finalize`.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::ThreadId;

use crate::constants::{ERR_OTHER, THREAD_MULTIPLE, THREAD_SINGLE};
use crate::error::{Error, Result};
use crate::objects::lock;
use crate::{network, trace};

struct Life {
    level: c_int,
    main: Option<ThreadId>,
}

static LIFE: Mutex<Life> = Mutex::new(Life { level: THREAD_SINGLE, main: None });

const BEFORE: u8 = 0;
const RUNNING: u8 = 1;
const AFTER: u8 = 2;
/// As `RUNNING`, and calls are traced.
const TRACED: u8 = 3;

static PHASE: AtomicU8 = AtomicU8::new(BEFORE);

/// Whether `MPI_Init` has returned, and `MPI_Finalize` has not.
#[inline]
pub(crate) fn is_running() -> bool {
    matches!(PHASE.load(Ordering::Acquire), RUNNING | TRACED)
}

/// Whether the library runs and calls are not traced.
#[inline]
pub(crate) fn is_plain() -> bool {
    PHASE.load(Ordering::Acquire) == RUNNING
}

/// Why a function cannot be called now; `None` if it can. The standard allows some before `MPI_Init` and
/// after `MPI_Finalize`.
#[cold]
pub(crate) fn refuses(name: &str) -> Option<&'static str> {
    const ALWAYS: [&str; 12] = [
        "MPI_Initialized",
        "MPI_Finalized",
        "MPI_Get_version",
        "MPI_Get_library_version",
        "MPI_Error_class",
        "MPI_Error_string",
        "MPI_Add_error_class",
        "MPI_Add_error_code",
        "MPI_Add_error_string",
        "MPI_Pcontrol",
        "MPI_Alloc_mem",
        "MPI_Free_mem",
    ];
    let family = ["MPI_Info_", "MPI_Session_", "MPI_T_", "MPI_Abi_", "MPI_Remove_error_", "MPI_Status_"];
    let phase = PHASE.load(Ordering::Acquire);
    let starts = name == "MPI_Init" || name == "MPI_Init_thread";
    let allowed = ALWAYS.contains(&name) || family.iter().any(|start| name.starts_with(start));
    match phase {
        RUNNING | TRACED => None,
        _ if allowed => None,
        BEFORE => (!starts).then_some("was called before MPI_Init"),
        _ => Some("was called after MPI_Finalize"),
    }
}

/// `MPI_Init_thread`: joins the job. Every level is provided as it is asked for.
pub(crate) fn initialize(level: c_int) -> Result<c_int> {
    let mut life = lock(&LIFE);
    if PHASE.load(Ordering::Acquire) != BEFORE {
        return Err(Error::new(ERR_OTHER, "MPI was initialized before"));
    }
    network::join()?;
    life.level = level.clamp(THREAD_SINGLE, THREAD_MULTIPLE);
    life.main = Some(std::thread::current().id());
    let traced = trace::start(network::network().rank, network::network().size)?;
    PHASE.store(if traced { TRACED } else { RUNNING }, Ordering::Release);
    Ok(life.level)
}

/// `MPI_Finalize`: leaves the job.
pub(crate) fn finalize() -> Result<()> {
    trace::finish();
    let left = network::leave();
    PHASE.store(AFTER, Ordering::Release);
    left
}

pub(crate) fn is_initialized() -> bool {
    PHASE.load(Ordering::Acquire) != BEFORE
}

pub(crate) fn is_finalized() -> bool {
    PHASE.load(Ordering::Acquire) == AFTER
}

pub(crate) fn level() -> c_int {
    lock(&LIFE).level
}

pub(crate) fn is_main_thread() -> bool {
    lock(&LIFE).main == Some(std::thread::current().id())
}
