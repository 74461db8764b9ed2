//! What a member is told in the beginning and of its channels, and what it has done.

use crate::{Message, Nanos, Rank};

/// How a member begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Its rank.
    pub rank: Rank,
    /// How many members there were in the beginning.
    pub members: u32,
    /// How many have joined since, as far as whoever starts this one knows: they have the ranks after those.
    pub joined: u32,
    /// A number that no other process draws.
    pub process: u64,
    /// All members have been started: one that cannot be reached is dead.
    pub present: bool,
    /// For how long a link is silent before its peer counts as dead.
    pub bound: Nanos,
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a channel to a member, and say what comes of it: [`handle_up`] or
    /// [`handle_down`].
    ///
    /// [`handle_up`]: crate::Membership::handle_up
    /// [`handle_down`]: crate::Membership::handle_down
    Connect(Rank),
    /// Send this to a member that is up.
    Send(Rank, Message),
    /// Tell the program.
    Tell(Notice),
}

/// What the program is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Notice {
    /// A member was lost.
    Died(Rank),
    /// A member closed in good order.
    Left(Rank),
    /// A member that had ended is there again, in a new incarnation.
    Started(Rank),
    /// A member has joined the running job.
    Joined(Rank),
    /// Others took this member for dead. It goes on in this incarnation.
    Fenced {
        /// The new incarnation.
        incarnation: u32,
    },
}

/// How a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It fell silent, or the peer's process has ended.
    Lost,
    /// The peer has opened another one: either it is another process, or it took this one for dead.
    Replaced,
    /// The peer closed it in good order.
    Closed,
    /// It was never opened.
    Unreachable,
}
