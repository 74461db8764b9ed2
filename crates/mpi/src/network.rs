//! The job that this process is a member of, and its messages with tags. Joined by `MPI_Init`, left by
//! `MPI_Finalize`.

use std::cell::RefCell;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use tautline::group::Group;
use tautline::tags::Tags;
use tautline::{Endpoint, Handle, PeerState};

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
}

static NETWORK: OnceLock<Network> = OnceLock::new();

thread_local! {
    /// The endpoint belongs to the thread that called `MPI_Init`, which is also the one that calls
    /// `MPI_Finalize`. All others use a handle.
    static ENDPOINT: RefCell<Option<Endpoint>> = const { RefCell::new(None) };
}

/// Joins the job that this process was started in; a process that no launcher started is a job of one.
pub fn join() -> Result<()> {
    let endpoint = Endpoint::builder().join().map_err(|error| Error::new(ERR_OTHER, error.to_string()))?;
    let network = Network {
        handle: endpoint.handle(),
        tags: endpoint.tags(0),
        world: endpoint.world().map_err(failure)?,
        rank: endpoint.rank(),
        size: endpoint.size(),
    };
    ENDPOINT.with(|place| *place.borrow_mut() = Some(endpoint));
    NETWORK.set(network).map_err(|_| Error::new(ERR_OTHER, "this process has joined its job before"))
}

/// Leaves the job. Waits until peers have what was sent to them.
pub fn leave() -> Result<()> {
    match ENDPOINT.with(|place| place.borrow_mut().take()) {
        Some(endpoint) => endpoint.close().map_err(failure),
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

/// Ends this process, and by its exit code the job: the launcher ends the others.
pub fn abort(code: c_int) -> ! {
    // Peers must see that this process died, not that it left.
    ENDPOINT.with(|place| place.try_borrow_mut().map(|mut endpoint| std::mem::forget(endpoint.take())).ok());
    // A process that ends with 0 has not failed for any launcher.
    std::process::exit(if code & 0xff == 0 { 1 } else { code })
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
