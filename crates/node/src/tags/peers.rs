//! What tags keep of each peer. All of it but the queue of a peer that is not connected yet ends with the
//! channel (N-4).

use std::collections::VecDeque;

use tautline_wire::tags::TagRecord;

use super::requests::Failure;
use crate::limits::{TAG_CREDIT, TAG_OVERHEAD};
use crate::memory::Name;
use crate::{PeerId, PeerTable, Rank};

/// Credit that is returned at the latest when it amounts to this much (E-6).
const RETURN_AT: u64 = TAG_CREDIT / 4;

/// Returns what an eager message of `len` bytes is charged (E-5).
#[inline]
pub(super) fn charge(len: u64) -> u64 {
    len.saturating_add(TAG_OVERHEAD)
}

/// What tags keep of one peer.
#[derive(Debug)]
pub(super) struct PeerTags {
    /// The incarnation that the channel leads to, or led to last.
    pub(super) id: PeerId,
    /// There is a channel.
    pub(super) up: bool,
    /// Why sends to it and receives from it fail, once the channel has ended.
    pub(super) ended: Option<Failure>,
    /// It is in the queue of peers to be served.
    pub(super) busy: bool,

    // What this node sends.
    /// Sends whose envelopes have not left, or whose bytes follow the envelope, in order (E-12).
    pub(super) queue: VecDeque<Name>,
    /// Sends that were matched and have bytes to send.
    pub(super) accepted: VecDeque<Name>,
    /// Credit for messages whose bytes go before they are matched.
    pub(super) credit: u64,
    /// Envelopes without bytes that were not matched yet.
    pub(super) announced: u32,

    // What the peer sends.
    /// Records to be sent, before everything else.
    pub(super) answers: VecDeque<Answer>,
    /// What the peer's messages were charged and was not returned.
    pub(super) charged: u64,
    /// Of that, what is to be returned.
    pub(super) returned: u64,
    /// The message of the peer whose bytes follow its envelope.
    pub(super) arriving: Option<Arriving>,
    /// Envelopes of the peer that were not matched yet.
    pub(super) envelopes: u32,
}

/// A record that answers the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Accept { id: u32, to: u64, len: u64 },
    Matched { id: u32 },
    Fence { first: u32, last: u32, all: bool },
}

impl Answer {
    pub(super) fn record(self) -> TagRecord<'static> {
        match self {
            Answer::Accept { id, to, len } => TagRecord::Accept { id, to, len },
            Answer::Matched { id } => TagRecord::Matched { id },
            Answer::Fence { first, last, all } => TagRecord::Fence { first, last, all },
        }
    }
}

/// A message whose bytes follow its envelope, until all have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    pub(super) into: Into,
    pub(super) total: u64,
    pub(super) got: u64,
}

/// Where the bytes of a message go as they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    Receive(Name),
    /// To the stored message of this number.
    Stored(u32),
    /// They are dropped.
    Nothing,
}

impl PeerTags {
    fn new(id: PeerId) -> PeerTags {
        PeerTags {
            id,
            up: false,
            ended: None,
            busy: false,
            queue: VecDeque::new(),
            accepted: VecDeque::new(),
            credit: TAG_CREDIT,
            announced: 0,
            answers: VecDeque::new(),
            charged: 0,
            returned: 0,
            arriving: None,
            envelopes: 0,
        }
    }

    /// Forgets the channel.
    pub(super) fn reset(&mut self) {
        let busy = self.busy;
        *self = PeerTags { busy, ..PeerTags::new(self.id) };
    }

    /// Returns whether a message of the peer is within the credit that the peer has.
    #[inline]
    pub(super) fn has_credit_for(&self, len: u64) -> bool {
        self.charged.saturating_add(charge(len)) <= TAG_CREDIT
    }

    /// Charges a message of the peer. False if it exceeds the credit that the peer has.
    #[inline]
    pub(super) fn charge(&mut self, len: u64) -> bool {
        self.charged = self.charged.saturating_add(charge(len));
        self.charged <= TAG_CREDIT
    }

    /// Returns the credit of a message of the peer that was matched. True if it is time to tell the peer.
    #[inline]
    pub(super) fn give_credit(&mut self, len: u64) -> bool {
        self.returned += charge(len);
        self.owes_credit()
    }

    #[inline]
    pub(super) fn owes_credit(&self) -> bool {
        self.returned >= RETURN_AT
    }

    /// Returns whether anything waits to be sent that may be sent.
    pub(super) fn has_waiting(&self) -> bool {
        let any = !self.queue.is_empty() || !self.accepted.is_empty() || !self.answers.is_empty();
        self.up && (any || self.owes_credit())
    }
}

/// Sparse tables of all peers that there was a channel to, or that a receive waits for.
#[derive(Debug, Default)]
pub(super) struct Peers {
    used: PeerTable<Box<PeerTags>>,
    /// The same peers, and those that no message went to or came from (N-27), of which nothing else is kept.
    known: PeerTable<Known>,
}

/// What is kept of a peer before there is a message; stale afterwards.
#[derive(Debug)]
struct Known {
    id: PeerId,
    up: bool,
}

impl Peers {
    /// Returns what is kept of a peer, if there was a message.
    #[inline]
    pub(super) fn get(&self, rank: Rank) -> Option<&PeerTags> {
        self.used.get(rank).map(|peer| &**peer)
    }

    /// As [`Peers::get`], to be changed.
    #[inline]
    pub(super) fn used_mut(&mut self, rank: Rank) -> Option<&mut PeerTags> {
        self.used.get_mut(rank).map(|peer| &mut **peer)
    }

    /// Returns what is kept of a peer, for a message.
    #[inline]
    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut PeerTags> {
        let place = match self.used.place(rank) {
            Some(place) => place,
            None => self.enter(rank)?,
        };
        self.used.at_mut(place).map(|peer| &mut **peer)
    }

    #[cold]
    #[inline(never)]
    fn enter(&mut self, rank: Rank) -> Option<usize> {
        let Known { id, up } = *self.known.get(rank)?;
        self.used.get_or_insert_with(rank, || Box::new(PeerTags { up, ..PeerTags::new(id) }));
        self.used.place(rank)
    }

    /// Returns the incarnation that the channel to a peer leads to, or led to last.
    pub(super) fn id(&self, rank: Rank) -> Option<PeerId> {
        self.get(rank).map(|peer| peer.id).or_else(|| Some(self.known.get(rank)?.id))
    }

    /// Returns whether there is a channel to a peer.
    pub(super) fn is_up(&self, rank: Rank) -> bool {
        match self.get(rank) {
            Some(peer) => peer.up,
            None => self.known.get(rank).is_some_and(|peer| peer.up),
        }
    }

    /// Returns why the channel to a peer has ended, if it has.
    #[inline]
    pub(super) fn ended(&self, rank: Rank) -> Option<Failure> {
        self.get(rank)?.ended
    }

    /// Enters a channel to an incarnation of a peer. A former one has ended.
    pub(super) fn start(&mut self, id: PeerId) {
        match self.used_mut(id.rank) {
            Some(peer) => (peer.id, peer.up, peer.ended) = (id, true, None),
            None => {
                let known = self.known.get_or_insert_with(id.rank, || Known { id, up: true });
                (known.id, known.up) = (id, true);
            }
        }
    }

    /// Adds a peer unless it is there.
    pub(super) fn add(&mut self, rank: Rank) {
        self.known.get_or_insert_with(rank, || Known { id: PeerId::new(rank, 0), up: false });
    }
}
