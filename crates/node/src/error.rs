//! Errors, one type per operation; each says what was wrong and what to do.

use crate::shortage::explain;
use crate::{Address, Down, Rank};

/// Why a send did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// No room now: the peer's credit, the message's window or the arena is used up. Try again after
    /// extracting.
    WouldBlock,
    /// The peer is gone.
    PeerGone(Rank, Down),
    /// There is no such rank in the job.
    NoSuchPeer(Rank),
    /// The peer has no handler of that name.
    UnknownHandler(Rank),
    /// The peer's handler takes messages of at most this many bytes.
    TooLongForHandler(usize),
    /// This process is a forked child of the one that joined; it has no node (N-10).
    Forked,
    /// The peer began to read the message in this process's memory, and could not read all of it. Its handler
    /// was told.
    Unread(Rank),
    /// This program has left as many of the peer's messages untaken as it may, and the answers that it waits
    /// for stand behind them: extract, then try again.
    Unextracted(Rank),
    /// There are too many of these already.
    TooMany(&'static str),
    /// The node was closed.
    Closed,
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SendError::WouldBlock => f.write_str("no room to send now, or not connected yet; extract, or wait, and try again"),
            SendError::PeerGone(rank, why) => write!(f, "{} is gone: {why}", Address::from(*rank)),
            SendError::NoSuchPeer(rank) => write!(f, "there is no {} in this job", Address::from(*rank)),
            SendError::UnknownHandler(rank) => {
                write!(
                    f,
                    "{} has registered no handler or service of that name; check the spelling on both sides",
                    Address::from(*rank)
                )
            }
            SendError::TooLongForHandler(limit) => {
                write!(
                    f,
                    "a message that goes in one frame has at most {limit} bytes here; begin it, and register its handler with `on`"
                )
            }
            SendError::Forked => f.write_str(
                "this process was forked from the one that joined and has no node; start it as a rank of its own",
            ),
            SendError::Unread(rank) => write!(
                f,
                "{} could not read the message in this process's memory to its end; send it without `single_copy`",
                Address::from(*rank)
            ),
            SendError::Unextracted(rank) => write!(
                f,
                "answers of {} stand behind its messages, which this program has not extracted; extract, and try again",
                Address::from(*rank)
            ),
            SendError::TooMany(what) => write!(f, "there are too many {what} already"),
            SendError::Closed => f.write_str("the node is closed"),
        }
    }
}

impl std::error::Error for SendError {}

/// Why a process could not join its job.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The job's description could not be read.
    Unreadable(String),
    /// The launcher that started this process did not let it join.
    Launcher(String),
    /// The job's description makes no sense.
    Nonsense(String),
    /// The configuration cannot work.
    Config(String),
    /// The handlers cannot be registered.
    Handlers(String),
    /// No device could be opened; each with its reason.
    NoDevice(Vec<crate::PassedOver>),
    /// The node is closed, so that it has no further lanes.
    Closed,
    /// The system refused something else.
    System(std::io::Error),
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JoinError::Unreadable(why) => write!(f, "cannot read the job description: {why}"),
            JoinError::Launcher(why) => write!(f, "cannot join the launcher's job: {why}"),
            JoinError::Nonsense(why) => write!(f, "the job description makes no sense: {why}"),
            JoinError::Config(why) => write!(f, "this configuration cannot work: {why}"),
            JoinError::Handlers(why) => write!(f, "these handlers cannot be registered: {why}"),
            JoinError::NoDevice(tried) => {
                f.write_str("no device could be opened:")?;
                let mut between = "";
                tried.iter().try_for_each(|t| {
                    write!(f, "{} {}: {}", std::mem::replace(&mut between, ";"), t.device, t.reason)
                })
            }
            JoinError::Closed => f.write_str("the node is closed, and opens no further lanes"),
            JoinError::System(error) => write!(f, "cannot join: {}", explain(error)),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<std::io::Error> for JoinError {
    fn from(error: std::io::Error) -> JoinError {
        JoinError::System(error)
    }
}
