//! What differs between processes of a real host and of a simulated one: how a connection is made, and how
//! memory is handed over. Who dials whom and when is in `discovery`, for both.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use tautline_device::shm::{Contribution, GREETING_LEN, Greeting, PeerMemoryProbe, Shm};

use crate::Rank;

/// Proves that a process knows the job's key.
pub(super) type Prove<'a> = &'a dyn Fn(&[u8]) -> [u8; 16];
/// Makes a greeting, and what it describes.
pub(super) type Greet<'a> = &'a dyn Fn() -> io::Result<([u8; GREETING_LEN], Contribution)>;

/// Makes a refusal for an error.
pub(super) type Refuse<'a> = &'a dyn Fn(&io::Error) -> [u8; GREETING_LEN];

/// What was found at the listener.
#[derive(Debug)]
pub(crate) enum NextDial {
    /// A connection.
    Dial(Box<dyn IncomingDial>),
    /// Nothing.
    None,
    /// A connection that was refused.
    Refused(io::Error),
    /// A connection that waits until this process has descriptors or memory.
    Waiting(io::Error),
}

/// How the processes of one host connect.
pub(crate) trait LocalTransport: Debug + Send + Sync {
    /// A lane of this process uses it, too. Only simulated hosts need to know.
    fn attach(&self, _lane: u16) {}

    /// Connects to a rank's listener, and greets it.
    fn dial(&self, to: Rank, greet: Greet<'_>) -> io::Result<Box<dyn OutgoingDial>>;

    /// The next connection to this process's listener, if there is one. `refuse` makes a refusal for those
    /// that cannot be used.
    fn accept(&self, refuse: Refuse<'_>) -> NextDial;

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

    /// Finds out whether a peer's memory can be read. The peer decides how long that takes, so nobody waits
    /// for it (S-32).
    fn probe(&self, probe: PeerMemoryProbe) {
        let thread = std::thread::Builder::new().name("tautline-probe".into()).stack_size(64 * 1024);
        if let Err(error) = thread.spawn(|| probe.run()) {
            tracing::warn!(%error, "messages are not copied out of a peer's process");
        }
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

    /// Whether an answer may still come, or has come.
    fn is_open(&self) -> bool;

    /// Becomes readable when there is an answer; none on a simulated host.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A connection to this process's listener. Dropping it rejects it.
pub(crate) trait IncomingDial: Debug + Send {
    /// The greeting, if it has come. An error if it is invalid, or the peer went away.
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>>;

    /// Why what came with the greeting cannot be used, if so.
    fn take_error(&mut self) -> Option<io::Error> {
        None
    }

    /// Refuses it, and says why.
    fn refuse(self: Box<Self>, _refusal: &[u8; GREETING_LEN]) {}

    /// Answers, and returns this side's end of the shared memory. Only after a greeting.
    fn accept(
        self: Box<Self>,
        answer: &[u8; GREETING_LEN],
        own: Contribution,
        asymmetric: bool,
    ) -> io::Result<Shm>;

    /// Becomes readable when there is a greeting; none on a simulated host.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}
