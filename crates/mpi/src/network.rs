//! The job that this process is a member of, and its messages with tags. Joined by `MPI_Init`, left by
//! `MPI_Finalize`.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use tautline::group::Group;
use tautline::tags::Tags;
use tautline::{Endpoint, Handle, PeerState, launcher};

use crate::constants::{ERR_OTHER, ERR_PROC_ABORTED, ERR_TRUNCATE};
use crate::error::{Error, Result};

/// A process's access to its job.
pub struct Network {
    handle: Handle,
    tags: Tags,
    world: Group,
    /// The rank of this process in the job.
    pub rank: u32,
    /// The number of ranks of the job.
    pub size: u32,
    /// Which of the programs of the job this process runs, if the launcher says it.
    pub program: Option<c_int>,
    /// How many processes the job could have, as far as it is known.
    pub universe: c_int,
}

static NETWORK: OnceLock<Network> = OnceLock::new();

thread_local! {
    /// The endpoint belongs to the thread that called `MPI_Init`, which is also the one that calls
    /// `MPI_Finalize`. All others use a handle.
    static ENDPOINT: RefCell<Option<Endpoint>> = const { RefCell::new(None) };
}

/// Joins the job that this process was started in; a process that no launcher started is a job of one.
pub fn join() -> Result<()> {
    // For `MPI_Abort`.
    launcher::keep();
    let endpoint = Endpoint::builder().join().map_err(|error| Error::new(ERR_OTHER, error.to_string()))?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let number = |number: u32| c_int::try_from(number).ok();
    let network = Network {
        handle: endpoint.handle(),
        tags: endpoint.tags(0),
        world: endpoint.world().map_err(failure)?,
        rank,
        size,
        program: launcher::program_index(rank).and_then(number),
        universe: number(launcher::universe_size().unwrap_or(0).max(size)).unwrap_or(c_int::MAX),
    };
    ENDPOINT.with(|place| *place.borrow_mut() = Some(endpoint));
    NETWORK.set(network).map_err(|_| Error::new(ERR_OTHER, "this process has joined its job before"))
}

/// Leaves the job. Waits until peers have what was sent to them.
pub fn leave() -> Result<()> {
    match ENDPOINT.with(|place| place.borrow_mut().take()) {
        Some(endpoint) => {
            let closed = endpoint.close().map_err(failure);
            let released = launcher::release();
            closed.and(released.map_err(|error| Error::new(ERR_OTHER, format!("the launcher: {error}"))))
        }
        None => Err(Error::new(ERR_OTHER, "MPI_Finalize must be called by the thread that called MPI_Init")),
    }
}

/// The job. Functions that use it run between `MPI_Init` and `MPI_Finalize`, as `call` checks.
pub fn network() -> &'static Network {
    NETWORK.get().expect("the job is joined before any function that uses it runs")
}

/// How a line for people begins: the rank, if it is known.
pub fn shown_rank() -> String {
    NETWORK.get().map_or_else(String::new, |network| format!("rank {}: ", network.rank))
}

impl Network {
    /// Messages of a context that no communicator has: for waiting, and for making groups.
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// The group of all ranks.
    pub fn world(&self) -> &Group {
        &self.world
    }

    /// An error if one of these ranks of the job is known to be lost.
    pub fn check_alive(&self, ranks: &[u32]) -> Result<()> {
        for rank in ranks {
            if let Some(PeerState::Down(why)) = self.handle.peer_state(*rank) {
                return Err(Error::new(ERR_PROC_ABORTED, format!("rank {rank} of the job is gone: {why}")));
            }
        }
        Ok(())
    }
}

unsafe extern "C" {
    fn fflush(stream: *mut c_void) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn _exit(code: c_int) -> !;
}

/// How long output, and the launcher, can hold up the end of a process.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// Ends this process, and the job: the launcher ends the others. Functions that the program has registered
/// for its end are not called, because they may call MPI, and other threads run on.
pub fn abort(code: c_int) -> ! {
    // A process that ends with 0 has not failed for any launcher.
    let code = if code & 0xff == 0 { 1 } else { code };
    within(FLUSH_WITHIN, flush);
    within(ASK_WITHIN, move || {
        // A launcher that does not understand it sees that this process fails.
        let _ = launcher::abort(code & 0xff);
    });
    // SAFETY: no memory is touched. Peers see that this process died, not that it left.
    unsafe { _exit(code) }
}

/// Runs `work` on a thread of its own, which may be stuck: another thread may hold the lock of a stream that
/// it reads from.
fn within(time: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || {
        work();
        let _ = done.send(());
    });
    if thread.is_ok() {
        let _ = wait.recv_timeout(time);
    }
}

/// Writes what C's streams, and the units of Fortran if the program has any, have stored.
fn flush() {
    type FlushUnits = unsafe extern "C" fn(*mut i32);
    // SAFETY: the name ends with zero, and is that of a function of gfortran with this type, for which null
    // means all units, or of none; null means all streams.
    unsafe {
        let units = dlsym(std::ptr::null_mut(), c"_gfortran_flush_i4".as_ptr());
        if !units.is_null() {
            std::mem::transmute::<*mut c_void, FlushUnits>(units)(std::ptr::null_mut());
        }
        fflush(std::ptr::null_mut());
    }
}

/// An error of the library below, in terms of MPI.
#[allow(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
pub fn failure(error: tautline::Error) -> Error {
    let code = match &error {
        tautline::Error::Truncated(_) => ERR_TRUNCATE,
        tautline::Error::PeerGone(..) | tautline::Error::Excluded(_) => ERR_PROC_ABORTED,
        _ => ERR_OTHER,
    };
    Error::new(code, error.to_string())
}

/// A number that processes on this host, under one kernel and in one network namespace, have in common, and
/// others do not.
pub fn host_number() -> u32 {
    let mut hasher = DefaultHasher::new();
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hasher);
    std::fs::read_link("/proc/self/ns/net").unwrap_or_default().hash(&mut hasher);
    let hash = hasher.finish();
    (hash ^ hash >> 32) as u32
}
