//! What this process or a peer on its host has too little of, and what to do about it.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tautline_device::shm::Refusal;

/// What is lacking to share memory with a peer on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shortage {
    /// This process may not open more descriptors, or its user has too many on their way through sockets.
    Descriptors,
    /// The peer has too few descriptors.
    PeerDescriptors,
    /// This process or the peer has too little memory or address space.
    Memory,
    /// Something of the peer, which let go of the memory before it used it.
    Peer,
}

impl Shortage {
    /// The shortage that an error of a dial, or of accepting one, tells of; none if it tells of something
    /// else.
    pub(crate) fn of(error: &std::io::Error) -> Option<Shortage> {
        match (Refusal::in_error(error), Refusal::of(error)) {
            (Some(Refusal::Descriptors), _) => Some(Shortage::PeerDescriptors),
            (None, Refusal::Descriptors) => Some(Shortage::Descriptors),
            (Some(Refusal::Memory), _) | (None, Refusal::Memory) => Some(Shortage::Memory),
            _ => None,
        }
    }
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shortage::Descriptors => f.write_str(&explain(&Errno::MFILE.into())),
            Shortage::PeerDescriptors => write!(f, "{}", Refusal::Descriptors),
            Shortage::Memory => f.write_str(
                "this process or the peer has no memory or address space left; raise the limits (ulimit -v, \
                 ulimit -m), or start fewer processes",
            ),
            Shortage::Peer => f.write_str(
                "the peer lacks descriptors (RLIMIT_NOFILE), memory or address space; its events say which",
            ),
        }
    }
}

/// The system's words, and what to do where they do not say it.
pub(crate) fn explain(error: &std::io::Error) -> String {
    let limit = getrlimit(Resource::Nofile).current;
    match (Errno::from_io_error(error), limit) {
        (Some(Errno::MFILE | Errno::TOOMANYREFS), Some(limit)) => format!(
            "{error}: this process may have {limit} open (RLIMIT_NOFILE), which is too few; raise the limit, for example: ulimit -n {}",
            (4 * limit).max(FILES)
        ),
        _ => error.to_string(),
    }
}

/// Open files that suffice for a small job.
const FILES: u64 = 256;
