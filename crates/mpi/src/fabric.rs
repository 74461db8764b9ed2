//! The seam below point-to-point communication: what MPI needs of whatever carries messages between ranks. A
//! job of one rank uses [`crate::loopback::Loopback`].

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use crate::datatype::Message;
use crate::error::Result;

/// What a message carries besides its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The communicator: messages of one are never received in another.
    pub context: u32,
    /// The sender's rank in the communicator.
    pub source: u32,
    /// The tag.
    pub tag: c_int,
}

/// Which messages a receive takes. `None` is a wildcard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The communicator.
    pub context: u32,
    /// The sender's rank in the communicator.
    pub source: Option<u32>,
    /// The tag.
    pub tag: Option<c_int>,
}

impl Pattern {
    /// Whether a message with this envelope is taken.
    pub fn matches(&self, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && self.source.is_none_or(|source| source == envelope.source)
            && self.tag.is_none_or(|tag| tag == envelope.tag)
    }
}

/// When a send is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// When the data is out of the program's memory.
    Standard,
    /// When the message is matched by a receive.
    Synchronous,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The envelope of the message that was received; `None` for a send.
    pub envelope: Option<Envelope>,
    /// The bytes that were received.
    pub bytes: u64,
    /// An error class, or `MPI_SUCCESS`.
    pub error: c_int,
    /// Whether it was cancelled.
    pub cancelled: bool,
}

impl Completion {
    /// The end of a send.
    pub const SENT: Completion = Completion { envelope: None, bytes: 0, error: 0, cancelled: false };
}

/// An operation under way, shared by the request and the fabric.
#[derive(Debug, Default)]
pub struct Ticket {
    done: OnceLock<Completion>,
}

impl Ticket {
    /// How the operation ended, if it did.
    pub fn done(&self) -> Option<Completion> {
        self.done.get().copied()
    }

    /// Ends the operation. Only the first call counts.
    pub fn complete(&self, completion: Completion) {
        let _ = self.done.set(completion);
    }
}

/// A message that a matched probe took out of the order of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extracted {
    /// The fabric's number for it.
    pub number: u64,
    /// Its envelope.
    pub envelope: Envelope,
    /// Its size.
    pub bytes: u64,
}

/// Carries messages. All calls may come from several threads at once.
pub trait Fabric: Send + Sync {
    /// The rank of this process in the job.
    fn rank(&self) -> u32;

    /// The number of ranks of the job.
    fn size(&self) -> u32;

    /// Starts to send to a rank of the job.
    ///
    /// # Safety
    ///
    /// The program leaves the memory of `data` alone until the ticket is complete.
    unsafe fn send(&self, to: u32, envelope: Envelope, mode: Mode, data: Message) -> Result<Arc<Ticket>>;

    /// Starts to receive the first message that matches.
    ///
    /// # Safety
    ///
    /// The program does not use the memory of `into` until the ticket is complete.
    unsafe fn receive(&self, pattern: Pattern, into: Message) -> Result<Arc<Ticket>>;

    /// The first message that a receive with this pattern would take, and its size.
    fn probe(&self, pattern: Pattern) -> Option<(Envelope, u64)>;

    /// Takes that message out, so that only [`receive_extracted`](Self::receive_extracted) gets it.
    fn extract(&self, pattern: Pattern) -> Option<Extracted>;

    /// Receives a message that was taken out.
    ///
    /// # Safety
    ///
    /// As for [`receive`](Self::receive).
    unsafe fn receive_extracted(&self, message: Extracted, into: Message) -> Result<Arc<Ticket>>;

    /// Cancels a receive that no message has matched; says whether it did. Its ticket is complete then.
    fn cancel(&self, ticket: &Arc<Ticket>) -> bool;

    /// Makes progress without waiting.
    fn progress(&self);

    /// Makes progress, and may sleep until something has changed: a ticket was completed or a message came.
    fn wait(&self);

    /// Ends the job with an exit code.
    fn abort(&self, code: c_int) -> !;
}
