//! What differs between processes of a real host and of a simulated one: how a connection is made, and how
//! memory is handed over. Who dials whom and when is in `discovery`, for both.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use tautline_device::shm::{GREETING_LEN, Greeting, Pool, Shm};

use crate::Rank;

/// Proves that a process knows the job's key.
pub(super) type Prove<'a> = &'a dyn Fn(&[u8]) -> [u8; 16];
/// Makes a greeting, and the memory to lend from whose size the greeting states.
pub(super) type Greet<'a> = &'a dyn Fn() -> ([u8; GREETING_LEN], Option<Pool>);

/// How the processes of one host connect.
pub(crate) trait LocalTransport: Debug + Send + Sync {
    /// A lane of this process uses it, too. Only simulated hosts need to know.
    fn attach(&self, _lane: u16) {}

    /// Connects to a rank's listener, and greets it. `bell` wakes this process.
    fn dial(&self, to: Rank, bell: BorrowedFd<'_>, greet: Greet<'_>) -> io::Result<Box<dyn OutgoingDial>>;

    /// The next connection to this process's listener, if there is one.
    fn accept(&self) -> io::Result<Option<Box<dyn IncomingDial>>>;

    /// Becomes readable when a process connects; none on a simulated host.
    fn listener_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether a process has dialled, answered, died or closed a channel since this lane last called
    /// [`LocalTransport::take_notice`]. Only simulated hosts need it: on a real one the kernel wakes the
    /// node.
    fn has_notice(&self, _lane: u16) -> bool {
        false
    }

    /// As [`LocalTransport::has_notice`], once.
    fn take_notice(&self, _lane: u16) -> bool {
        false
    }

    /// A channel to a living process was closed.
    fn channel_closed(&self) {}

    /// Unlinks the listener of a rank that died. Returns whether nothing of it is left.
    fn unlink_listener(&self, of: Rank) -> bool;
}

/// A dial that awaits its answer. Dropping it gives it up.
pub(crate) trait OutgoingDial: Debug + Send {
    /// The answer, if there is one. An error if it is invalid, or the peer refused or went away.
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>>;

    /// This side's end of the shared memory. Only after an answer.
    fn establish(self: Box<Self>, asymmetric: bool) -> io::Result<Shm>;

    /// Becomes readable when there is an answer; none on a simulated host.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A connection to this process's listener. Dropping it rejects it.
pub(crate) trait IncomingDial: Debug + Send {
    /// The greeting, if it has come. An error if it is invalid, or the peer went away.
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>>;

    /// Answers, and returns this side's end of the shared memory. Only after a greeting.
    fn accept(
        self: Box<Self>,
        answer: &[u8; GREETING_LEN],
        own: (BorrowedFd<'_>, Option<Pool>),
        asymmetric: bool,
    ) -> io::Result<Shm>;

    /// Becomes readable when there is a greeting; none on a simulated host.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}
