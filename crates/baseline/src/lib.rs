//! The bare limits and the rivals that `tautline bench` compares with.
//!
//! This crate depends on no other crate of the workspace, so a bug in Tautline cannot distort the reference.
//! The limits do the work that a user's program does (rewritten buffers, ordinary socket buffers, and bytes
//! that are read); otherwise they would not be comparable.
//!
//! | module | what lives there |
//! |---|---|
//! | [`transport`] | the two-sided [`Transport`] trait, how two processes open one, and the [`Kind`]s there are |
//! | [`drive`] | ping-pong, stream, request-and-answer and paced drivers over any [`Transport`], ours included |
//! | [`content`] | what messages hold, and the account of what was written and read |
//! | [`udp_gso`] | one-way streams of large messages over raw UDP, the limit for bandwidth |
//! | [`offload`] | what an interface does for the protocol stack, switched on and off |
//! | [`packet`] | a raw Ethernet socket, for frames that no protocol stack would send |
//! | [`packed`] | small records packed into datagrams, the limit for message rate |
//! | [`shm`] | what two processes can do with memory that they share, the limits on one host |
//! | [`xdp`] | bare AF_XDP frames between two interfaces, the limits of OS bypass |
//! | [`limits`] | a system call, a clock read, `memcpy`, a cache line between two cores |
//! | [`cpu`] | pinning, CPU time, the CPU burner, the state of the machine |
//! | [`stats`] | percentiles of one round, spread over rounds |
//! | [`rivals`] | which other systems are installed here, and the same work done by them |
//!
//! Not here: formatting of rows, interleaving of rounds, or judgement; those belong to the bench.

mod bytes;
pub mod content;
pub mod cpu;
mod descriptors;
pub mod drive;
mod flow;
#[cfg(feature = "iceoryx2")]
mod iceoryx;
pub mod limits;
mod mmsg;
pub mod offload;
pub mod packed;
pub mod packet;
pub mod rivals;
mod semaphores;
pub mod shm;
pub mod stats;
mod sysv;
#[cfg(feature = "tarpc")]
mod tarpc;
pub mod transport;
mod udp;
pub mod udp_gso;
pub mod xdp;
mod zeromq;

pub use cpu::Measured;
pub use transport::{Kind, Setup, Side, Transport, open};

/// The version of iceoryx2 that this crate was built with, by its feature of that name.
pub const ICEORYX2: Option<&str> = if cfg!(feature = "iceoryx2") { Some("iceoryx2 0.10") } else { None };

#[cfg(feature = "iceoryx2")]
pub use iceoryx::loan_ping_pong;

/// Without the feature `iceoryx2` there are no loans.
///
/// # Errors
/// Always.
#[cfg(not(feature = "iceoryx2"))]
pub fn loan_ping_pong(_: &mut Setup<'_>, _: usize, _: u64, _: u64) -> std::io::Result<Vec<u64>> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "built without the feature iceoryx2"))
}

/// The version of tarpc that this crate was built with, by its feature of that name.
pub const TARPC: Option<&str> = if cfg!(feature = "tarpc") { Some("tarpc 0.38") } else { None };

#[cfg(feature = "tarpc")]
pub use tarpc::calls as tarpc_calls;

/// Without the feature `tarpc` there are no calls of it.
///
/// # Errors
/// Always.
#[cfg(not(feature = "tarpc"))]
pub fn tarpc_calls(_: &mut Setup<'_>, _: bool, _: usize, _: [u64; 2], _: u64) -> std::io::Result<Measured> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "built without the feature tarpc"))
}
