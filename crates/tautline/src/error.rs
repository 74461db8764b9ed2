//! Everything that can go wrong, with what to do about it.

use crate::memory::Failure;
use crate::{Down, JoinError, Rank, SendError};

/// What the calls of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[non_exhaustive]
pub enum Error {
    /// The process could not join its job.
    Join(JoinError),
    /// A send was refused.
    Send(SendError),
    /// More bytes were added to a message than were announced; nothing of the last piece was sent.
    PieceTooLong {
        /// Bytes that the message still lacks.
        room: u64,
        /// Bytes of the piece.
        piece: u64,
    },
    /// The message ended before all announced bytes were added; it was given up.
    MessageTooShort {
        /// Bytes that were missing.
        missing: u64,
    },
    /// The handler wanted more bytes than the message has left; nothing was taken.
    EndOfMessage {
        /// Bytes left.
        left: u64,
    },
    /// The sender gave the message up, or the other end of a queue or stream is gone, or this end was closed.
    Aborted,
    /// The sender is gone; the rest of the message will not come.
    PeerGone(Rank, Down),
    /// A handler tried to extract.
    Reentrant,
    /// This is over: the message has been dealt with and its handler kept it too long, or the operation's result was taken.
    Stale,
    /// An operation on another node's memory failed.
    Operation(Failure),
    /// A range is not within the memory it is meant for, or a word is not aligned.
    OutOfRange,
    /// There are too many of these already.
    TooMany(&'static str),
    /// The tripwire, or the tripset, fires no more.
    Disarmed(&'static str),
    /// The owner of mapped memory has revoked the share.
    Revoked,
    /// Memory was mapped to be read only.
    ReadOnly,
    /// Nothing can be mapped with this cookie.
    NoShare(&'static str),
    /// An entry does not fit its queue.
    EntryTooLong {
        /// Bytes of the entry.
        entry: u64,
        /// Bytes of the longest one.
        longest: u64,
    },
    /// The other end of a queue or stream wrote what no correct one writes.
    Nonsense(&'static str),
    /// What a handler reports of its own.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of the program's own, for handlers to return.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(error.into())
    }

    /// Whether trying again later may succeed.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Error::Send(SendError::WouldBlock))
    }
}

/// The same text as [`std::fmt::Display`]: it is what a `main` that returns an error shows to its user.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Join(error) => error.fmt(f),
            Error::Send(error) => error.fmt(f),
            Error::PieceTooLong { room, piece } => {
                write!(
                    f,
                    "a piece of {piece} bytes does not fit: the message was announced with only {room} more"
                )
            }
            Error::MessageTooShort { missing } => {
                write!(f, "the message ended {missing} bytes before its announced size and was given up")
            }
            Error::EndOfMessage { left } => write!(f, "the message has only {left} bytes left"),
            Error::Aborted => f.write_str("the other side gave it up, or this side has ended it"),
            Error::PeerGone(rank, why) => write!(f, "rank {rank} is gone: {why}"),
            Error::Reentrant => f.write_str("a handler may not extract; it may send, and await"),
            Error::Stale => f.write_str("this is over: the message was dealt with, or the result taken"),
            Error::Operation(failure) => failure.fmt(f),
            Error::OutOfRange => f.write_str("the range is not within the memory, or a word is not aligned"),
            Error::TooMany(what) => write!(f, "there are too many {what} already"),
            Error::Disarmed(why) => write!(f, "this fires no more: {why}"),
            Error::Revoked => f.write_str("the owner of the memory has revoked the share"),
            Error::ReadOnly => f.write_str("the memory is mapped to be read only"),
            Error::NoShare(why) => write!(f, "nothing can be mapped with this cookie: {why}"),
            Error::EntryTooLong { entry, longest } => {
                write!(f, "an entry of {entry} bytes does not fit the queue, whose longest has {longest}")
            }
            Error::Nonsense(what) => write!(f, "the other end wrote nonsense: {what}"),
            Error::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Join(error) => Some(error),
            Error::Send(error) => Some(error),
            Error::Operation(failure) => Some(failure),
            Error::Other(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<JoinError> for Error {
    fn from(error: JoinError) -> Error {
        Error::Join(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Operation(failure)
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Error {
        Error::Send(error)
    }
}
