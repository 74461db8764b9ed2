//! Errors of calls.

use serde::de::DeserializeOwned;

use crate::SendError;
use crate::error::Error;

/// Why a call has no answer. Both making a call and waiting for it return this.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The service returned an error: its text or, of a typed service, the serialised error.
    Failed(Vec<u8>),
    /// The service panicked, with this text.
    Panicked(String),
    /// One side could not deserialise what the other sent.
    Unreadable,
    /// Too many handlers are unfinished at the peer, and it did not begin the service. Call again later.
    Busy,
    /// The request is longer than the peer keeps whole, or the peer keeps as much of this process's messages
    /// as it may; it did not begin the service. See [`crate::Builder::max_whole`].
    TooLong,
    /// The deadline passed. The service may still run.
    DeadlinePassed,
    /// The call could not be sent or waited for. If the peer is gone ([`Error::PeerGone`]), the service may
    /// have run.
    Endpoint(Error),
}

impl CallError {
    /// Deserialises the error of a typed service, if it is one.
    pub fn service<E: DeserializeOwned>(&self) -> Option<E> {
        match self {
            CallError::Failed(bytes) => postcard::from_bytes(bytes).ok(),
            _ => None,
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Failed(why) => match std::str::from_utf8(why) {
                Ok(why) if !why.contains(|c: char| c.is_control() && !c.is_whitespace()) => {
                    write!(f, "the service failed: {why}")
                }
                _ => f.write_str("the service failed; `CallError::service` returns its error"),
            },
            CallError::Panicked(why) => write!(f, "the service panicked: {why}"),
            CallError::Unreadable => f.write_str("caller and service do not use the same types"),
            CallError::Busy => f.write_str(
                "the peer has too many unfinished handlers and did not begin the service; call again later",
            ),
            CallError::TooLong => f.write_str(
                "the request is longer than the peer keeps (`max_whole`, `max_held`), and it did not begin the service",
            ),
            CallError::DeadlinePassed => f.write_str("no answer arrived before the deadline"),
            CallError::Endpoint(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CallError::Endpoint(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> CallError {
        CallError::Endpoint(error)
    }
}

impl From<SendError> for CallError {
    fn from(error: SendError) -> CallError {
        CallError::Endpoint(error.into())
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Endpoint(error) => error,
            other => Error::other(other),
        }
    }
}
