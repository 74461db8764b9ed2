//! Errors, with what to do about them.

use tautline_node::memory::Failure;

use crate::{Address, Down, JoinError, Rank, SendError, Undelivered};

/// The result of most calls in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A handler that returned an error or panicked; see [`crate::Endpoint::poll_failure`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerFailure {
    /// The handler's name.
    pub handler: String,
    /// The sender's number: its rank, if it is lane 0 ([`Address::from`] takes it apart).
    pub from: Rank,
    /// The text of the error or of the panic.
    pub reason: String,
    /// Whether the handler panicked.
    pub panicked: bool,
}

impl std::fmt::Display for HandlerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HandlerFailure { handler, from, reason, panicked } = self;
        let how = if *panicked { "panicked" } else { "failed" };
        let from = Address::from(*from);
        write!(f, "the handler \"{handler}\" {how} on a message of {from}: {reason}")
    }
}

/// Why a call failed.
///
/// `Debug` shows the variant and the text, because a `main` that returns an error prints it, and the text
/// says what to do (J-1).
#[non_exhaustive]
pub enum Error {
    /// The process could not join its job.
    Join(JoinError),
    /// A send was refused. Never [`SendError::PeerGone`]: that is [`Error::PeerGone`].
    Send(SendError),
    /// A peer is gone: nothing can be sent to it, nothing more will arrive from it, and requests to its
    /// memory fail.
    PeerGone(Rank, Down),
    /// A piece exceeds the announced size of its message; nothing of it was sent.
    PieceTooLong {
        /// Bytes that the message still lacks.
        room: u64,
        /// Bytes of the piece.
        piece: u64,
    },
    /// The message was ended before all announced bytes were added; it was aborted.
    MessageTooShort {
        /// Bytes that were missing.
        missing: u64,
    },
    /// A handler asked for more bytes than the message has left; nothing was taken.
    EndOfMessage {
        /// Bytes left.
        left: u64,
    },
    /// A message is longer than this rank keeps whole ([`crate::Builder::max_whole`]). A handler can still
    /// take it piece by piece.
    TooLong {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the longest message that is kept whole.
        limit: u64,
    },
    /// A message is lost: this rank keeps as many bytes of its sender's messages as it may
    /// ([`crate::Builder::max_held`]).
    TooMuchHeld {
        /// The sender.
        peer: Rank,
        /// Bytes that may be kept.
        limit: u64,
    },
    /// A message is lost: its bytes lie in the memory of the rank that sent it, and that memory can no longer
    /// be read.
    Unreadable(Rank),
    /// The sender aborted the message, or the other end of a queue or stream is closed, or this end is.
    Aborted,
    /// A handler tried to extract, or called something that blocks and would have had to wait.
    Reentrant,
    /// A handler failed, and what the program waits for may never happen because of it. Each failure is
    /// returned once, and then no longer by [`crate::Endpoint::poll_failure`]; a further wait continues.
    HandlerFailed(Box<HandlerFailure>),
    /// The object is used up: the message's handler has finished, or the operation's result was taken.
    Stale,
    /// An operation on another node's memory failed. Never [`Failure::PeerGone`]: that is
    /// [`Error::PeerGone`].
    Operation(Failure),
    /// A range is not within the memory it is meant for, or a word is not aligned.
    OutOfRange,
    /// A limit is reached: there are too many of these already.
    TooMany(&'static str),
    /// The tripwire or tripset will not fire again.
    Disarmed(&'static str),
    /// The owner of mapped memory has revoked the share, or a member has revoked the group.
    Revoked,
    /// The memory is mapped for reading only.
    ReadOnly,
    /// Nothing can be mapped with this cookie.
    CannotMap(&'static str),
    /// A message with a tag is longer than the buffer of its receive. Its first bytes are in the buffer.
    Truncated(crate::tags::Status),
    /// The other members of a group agreed to go on without this rank; the rank that said so first.
    Excluded(crate::Rank),
    /// An entry is too long for its queue.
    EntryTooLong {
        /// Bytes of the entry.
        entry: u64,
        /// Bytes of the longest possible entry.
        longest: u64,
    },
    /// The endpoint is closed, and peers had not acknowledged everything that was sent to them: the time to
    /// close was over, or a peer died meanwhile. One entry for each peer.
    Undelivered(Vec<Undelivered>),
    /// The other end of a queue or stream violates the protocol.
    Violation(&'static str),
    /// An error of the program's own, for handlers to return, or one of the system.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of the program's own, for handlers to return.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(error.into())
    }

    /// Whether the same call may succeed later.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Error::Send(SendError::WouldBlock))
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Join(error) => write!(f, "Join({error:?})"),
            Error::Send(error) => write!(f, "Send({error:?})"),
            Error::PeerGone(rank, why) => write!(f, "PeerGone({rank}, {why:?})"),
            Error::PieceTooLong { .. } => f.write_str("PieceTooLong"),
            Error::MessageTooShort { .. } => f.write_str("MessageTooShort"),
            Error::EndOfMessage { .. } => f.write_str("EndOfMessage"),
            Error::TooLong { .. } => f.write_str("TooLong"),
            Error::TooMuchHeld { .. } => f.write_str("TooMuchHeld"),
            Error::Unreadable(rank) => write!(f, "Unreadable({rank})"),
            Error::Aborted => f.write_str("Aborted"),
            Error::Reentrant => f.write_str("Reentrant"),
            Error::HandlerFailed(_) => f.write_str("HandlerFailed"),
            Error::Stale => f.write_str("Stale"),
            Error::Operation(failure) => write!(f, "Operation({failure:?})"),
            Error::OutOfRange => f.write_str("OutOfRange"),
            Error::TooMany(_) => f.write_str("TooMany"),
            Error::Disarmed(_) => f.write_str("Disarmed"),
            Error::Revoked => f.write_str("Revoked"),
            Error::ReadOnly => f.write_str("ReadOnly"),
            Error::CannotMap(_) => f.write_str("CannotMap"),
            Error::Truncated(_) => f.write_str("Truncated"),
            Error::Excluded(rank) => write!(f, "Excluded({rank})"),
            Error::EntryTooLong { .. } => f.write_str("EntryTooLong"),
            Error::Undelivered(_) => f.write_str("Undelivered"),
            Error::Violation(_) => f.write_str("Violation"),
            Error::Other(error) => write!(f, "Other({error:?})"),
        }?;
        write!(f, ": {self}")
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Join(error) => error.fmt(f),
            Error::Send(error) => error.fmt(f),
            Error::PeerGone(rank, why) => write!(f, "{} is gone: {why}", Address::from(*rank)),
            Error::PieceTooLong { room, piece } => write!(
                f,
                "a piece of {piece} bytes does not fit: the message was announced with only {room} more"
            ),
            Error::MessageTooShort { missing } => {
                write!(f, "the message ended {missing} bytes before its announced size and was aborted")
            }
            Error::EndOfMessage { left } => write!(f, "the message has only {left} bytes left"),
            Error::TooLong { len, limit } => write!(
                f,
                "the message has {len} bytes, and this rank keeps at most {limit} whole; send it in parts, take it \
                 piece by piece in a handler, or raise `max_whole`"
            ),
            Error::TooMuchHeld { peer, limit } => write!(
                f,
                "this rank keeps {limit} bytes of unfinished messages of {} at most; take them sooner, or raise \
                 `max_held`",
                Address::from(*peer)
            ),
            Error::Unreadable(rank) => write!(
                f,
                "the message of {0} is lost: its memory can no longer be read; most likely {0} is gone",
                Address::from(*rank)
            ),
            Error::Aborted => f.write_str("the other side aborted it, or one side has closed it"),
            Error::Reentrant => {
                f.write_str("a handler must not extract or block; it awaits the calls of its AsyncEndpoint")
            }
            Error::HandlerFailed(failure) => failure.fmt(f),
            Error::Stale => f.write_str("the handler has finished, or the result was taken already"),
            Error::Operation(failure) => failure.fmt(f),
            Error::OutOfRange => f.write_str("the range is not within the memory, or a word is not aligned"),
            Error::TooMany(what) => write!(f, "there are too many {what} already"),
            Error::Disarmed(why) => write!(f, "it will not fire again: {why}"),
            Error::Revoked => {
                f.write_str("it was revoked: mapped memory by its owner, or a group by one of its members")
            }
            Error::ReadOnly => f.write_str("the memory is mapped for reading only"),
            Error::CannotMap(why) => write!(f, "nothing can be mapped with this cookie: {why}"),
            Error::Truncated(crate::tags::Status { source, tag, len }) => write!(
                f,
                "the message of {} with tag {tag} has {len} bytes, more than the buffer; probe for its length first",
                Address::from(*source)
            ),
            Error::Excluded(rank) => write!(
                f,
                "{} and other members of the group took this rank for lost and go on without it",
                Address::from(*rank)
            ),
            Error::EntryTooLong { entry, longest } => {
                write!(f, "an entry of {entry} bytes is too long for the queue, which takes up to {longest}")
            }
            Error::Undelivered(peers) => explain_undelivered(f, peers),
            Error::Violation(what) => write!(f, "the other end violates the protocol: {what}"),
            Error::Other(error) => error.fmt(f),
        }
    }
}

/// Peers that the text of an error names.
const NAMED: usize = 8;

fn explain_undelivered(f: &mut std::fmt::Formatter<'_>, peers: &[Undelivered]) -> std::fmt::Result {
    f.write_str("closed before everything was acknowledged: ")?;
    for (i, peer) in peers.iter().take(NAMED).enumerate() {
        write!(f, "{}{peer}", if i > 0 { "; " } else { "" })?;
    }
    if peers.len() > NAMED {
        write!(f, "; and to {} other peers", peers.len() - NAMED)?;
    }
    if peers.iter().any(|peer| peer.why.is_none()) {
        f.write_str("; give closing more time (`close_within`), or have the peers extract")?;
    }
    Ok(())
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
        match failure {
            Failure::PeerGone(rank, why) => Error::PeerGone(rank, why),
            failure => Error::Operation(failure),
        }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Error {
        match error {
            SendError::PeerGone(rank, why) => Error::PeerGone(rank, why),
            error => Error::Send(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lost peer is `PeerGone`, whichever layer reports it, and `Debug` shows the variant and the text.
    #[test]
    fn one_variant_for_lost_peers() {
        let sent = Error::from(SendError::PeerGone(3, Down::Closed));
        let operated = Error::from(Failure::PeerGone(3, Down::Closed));
        for error in [sent, operated] {
            assert!(matches!(error, Error::PeerGone(3, Down::Closed)));
            assert_eq!(format!("{error:?}"), "PeerGone(3, Closed): rank 3 is gone: it closed");
            assert_eq!(error.to_string(), "rank 3 is gone: it closed");
        }
    }
}
