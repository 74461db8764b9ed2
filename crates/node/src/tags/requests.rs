//! Sends under way, and how sends and receives end.

use super::buffer::Buffer;
use crate::{Address, Down, Rank};

/// The result of a send or receive that has ended, and its bytes.
pub type Ended<T> = (Result<T, Failure>, Buffer);

/// What a receive learns of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender's number: its rank, if it is lane 0.
    pub source: Rank,
    /// The tag.
    pub tag: u32,
    /// Bytes of the message.
    pub len: u64,
}

/// Why a send or receive failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The message has more bytes than the receive has room for. The first ones are in the buffer.
    Truncated(Status),
    /// The peer is gone.
    PeerGone(Rank, Down),
    /// The peer takes no more messages of this node in the context, and sends it none.
    Excluded(Rank),
    /// A member of the context's group has revoked it.
    Revoked,
    /// This node was closed.
    Closed,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Truncated(Status { source, len, .. }) => {
                let from = Address::from(*source);
                write!(f, "the message of {from} has {len} bytes, more than the receive has room for")
            }
            Failure::PeerGone(rank, why) => write!(f, "{} is gone: {why}", Address::from(*rank)),
            Failure::Excluded(rank) => write!(f, "{} goes on without this rank", Address::from(*rank)),
            Failure::Revoked => f.write_str("a member has revoked the group"),
            Failure::Closed => f.write_str("the node was closed"),
        }
    }
}

impl std::error::Error for Failure {}

/// A send.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) to: Rank,
    pub(super) context: u32,
    pub(super) tag: u32,
    /// The bytes; [`Buffer::Absent`] if they are with the caller.
    pub(super) data: Buffer,
    pub(super) len: u64,
    /// It ends when it is matched, however short it is.
    pub(super) synchronous: bool,
    pub(super) state: SendState,
    /// Nobody waits for it: it is removed when it ends.
    pub(super) detached: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SendState {
    /// Nothing of it was sent; it is in its peer's queue.
    Queued,
    /// The envelope and so many bytes were sent, without being asked for; it is first in its peer's queue.
    Eager { sent: u64 },
    /// The envelope was sent, and all bytes if `eager`.
    Announced { eager: bool },
    /// It was matched: of `len` bytes that are wanted, `sent` were sent.
    Accepted { to: u64, len: u64, sent: u64 },
    /// It has ended.
    Done(Result<(), Failure>),
}

impl SendState {
    /// Bytes of the message that were sent.
    pub(super) fn sent(&self) -> u64 {
        match self {
            SendState::Eager { sent } | SendState::Accepted { sent, .. } => *sent,
            _ => 0,
        }
    }
}
