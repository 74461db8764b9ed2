//! Messages matched to receives by context, source and tag.
//!
//! `Tags` is all of it: the queues (`matching`, over `lists`), receives (`receives`), sends (`sends`), the
//! records of peers (`serve`), what is kept of each peer (`peers`), and contexts that are closed to one
//! (`fences`). It is given a channel to write to and
//! the records that arrive; it knows no device, no link and no clock. The lane calls it under its owner word,
//! in every poll, the watchdog's included (E-4). Program code never runs here.

mod buffer;
mod fences;
mod groups;
mod lists;
pub mod matching;
mod peers;
mod receives;
mod requests;
mod sends;
mod serve;
mod spare;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use buffer::Buffer;
pub(crate) use buffer::Room;
pub use matching::{Key, Pattern};
pub use requests::{Ended, Failure, Status};
pub(crate) use sends::Sent;
pub(crate) use spare::Spare;
pub use tautline_mem::Region;

use crate::limits::MAX_TAG_REQUESTS;
use crate::memory::{Name, Slab};
use crate::{Down, PeerId, Rank};
use fences::Fence;
use groups::Groups;
use matching::Matcher;
use peers::{Into, Peers};
use receives::{Receive, ReceiveState};
use requests::{Send, SendState};

/// A receive under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId(pub(super) Name);

/// A send under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendId(pub(super) Name);

/// A message that was taken out of the queue, and that no receive has taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimId(Name);

/// How a send is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When its bytes may be used again.
    Standard,
    /// When it was matched.
    Synchronous,
}

/// What is kept of a message that waits for a receive; its key is beside it in the queue.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// Low and high half of the length: as one number it would be aligned, and the entry longer (E-9).
    len: [u32; 2],
    /// The number of the stored message or, without [`STORED`], the sender's number for it.
    place: u32,
}

/// The bytes of a message are here, or on their way.
const STORED: u32 = 1 << 31;

impl Message {
    fn new(len: u64, place: u32) -> Message {
        Message { len: [len as u32, (len >> 32) as u32], place }
    }

    fn len(self) -> u64 {
        u64::from(self.len[0]) | u64::from(self.len[1]) << 32
    }
}

// E-9: an eighth more than the entries in use, and 8 B of tables.
const _: () = assert!(Matcher::<Name, Message>::MESSAGE_SIZE == 48 && 48 + 48 / 8 + 8 <= 64);

/// A message that is here and waits for a receive.
#[derive(Debug)]
struct Stored {
    from: PeerId,
    data: Vec<u8>,
    total: u64,
    /// The sender's number for it, if the sender wants to know when it is matched.
    report: Option<u32>,
}

/// The messages with tags of one lane.
///
/// The lane tells it of channels ([`Tags::peer_up`], [`Tags::peer_down`]), gives it what arrives
/// ([`Tags::handle_records`]), and gives peers their turns while [`Tags::is_busy`] ([`Tags::start_round`],
/// [`Tags::next_busy`], [`Tags::pump_peer`]).
#[derive(Debug)]
pub(crate) struct Tags {
    matcher: Matcher<Name, Message>,
    receives: Slab<Receive>,
    sends: Slab<Send>,
    stored: Slab<Stored>,
    claimed: Slab<(Key, Message, PeerId)>,
    /// Memory of stored messages, for the next ones.
    spare: Spare,
    peers: Peers,
    fences: Vec<Fence>,
    groups: Groups,
    /// There are fences, or groups that were revoked.
    is_restricted: bool,
    /// Peers to which something waits to be sent, in the order of their turns.
    busy: VecDeque<Rank>,
    /// Whether a turn of the last round ended with its budget, not for want of room.
    more: bool,
    /// Longer messages wait for their receives at the sender.
    eager_limit: u64,
    /// The program has used it.
    used: bool,
    /// Receives that may have been ended without being posted.
    direct: u32,
    activity: u64,
    /// A message has matched, and no other receive of its context waits.
    last_matched: bool,
    /// The last loss of a peer, until another one is up or is known to be left (E-16).
    last_loss: Option<Failure>,
}

impl Tags {
    /// `seed` must be unpredictable. Messages of up to `eager_limit` bytes may be sent before they are
    /// matched.
    pub(crate) fn new(seed: u64, eager_limit: u64) -> Tags {
        Tags {
            matcher: Matcher::new(seed),
            receives: Slab::new(MAX_TAG_REQUESTS),
            sends: Slab::new(MAX_TAG_REQUESTS),
            stored: Slab::new(STORED as usize),
            claimed: Slab::new(MAX_TAG_REQUESTS),
            spare: Spare::new(SPARE_LEN),
            peers: Peers::default(),
            fences: Vec::new(),
            groups: Groups::default(),
            is_restricted: false,
            busy: VecDeque::new(),
            more: false,
            eager_limit,
            used: false,
            direct: 0,
            activity: 0,
            last_matched: false,
            last_loss: None,
        }
    }

    /// Makes sure that a peer is there which a receive waits for, so that its end is noticed.
    pub(crate) fn add_peer(&mut self, rank: Rank) {
        self.peers.add(rank);
    }

    /// Enters a peer that messages are to go to soon.
    pub(crate) fn enter_peer(&mut self, rank: Rank) {
        self.peers.add(rank);
        self.peers.get_mut(rank);
    }

    /// Adds a peer that is gone, and may have gone before there was anything to do for it here.
    pub(crate) fn add_gone_peer(&mut self, rank: Rank, why: Failure) {
        self.peers.add(rank);
        if let Some(peer) = self.peers.get_mut(rank)
            && !peer.up
        {
            peer.ended.get_or_insert(why);
        }
    }

    /// Returns why nothing more comes from a peer in a context, if that is so.
    pub(crate) fn why_ended(&self, rank: Rank, context: u32) -> Option<Failure> {
        self.peers.ended(rank).or_else(|| self.why_fenced(rank, context))
    }

    /// Notes that the program uses tags: from now on they are served while it does not poll.
    #[inline]
    pub(crate) fn set_used(&mut self) {
        self.used = true;
    }

    /// Returns whether the program has used tags.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// Returns a number that changes whenever a send or receive has ended, or may go on.
    #[inline]
    pub(crate) fn activity(&self) -> u64 {
        self.activity
    }

    /// Returns how many receives wait for messages, and how many messages wait for receives.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        self.matcher.len()
    }

    /// Messages can be sent to an incarnation of a peer. Sends that waited for it begin.
    pub(crate) fn peer_up(&mut self, id: PeerId) {
        let current = self.peers.id(id.rank).filter(|_| self.peers.is_up(id.rank));
        if current == Some(id) {
            return;
        }
        if current.is_some() {
            self.peer_down(id.rank, Failure::PeerGone(id.rank, Down::Died(tautline_link::Death::Restarted)));
        }
        self.last_loss = None;
        self.peers.start(id);
        self.mark_busy(id.rank);
        self.tell_revoked(id.rank);
    }

    /// Ends the channel to a peer: sends to it fail, and so do receives from it, and those from any source
    /// whose message was on its way (E-10). Messages that arrived whole stay.
    pub(crate) fn peer_down(&mut self, rank: Rank, why: Failure) {
        self.last_loss = Some(why);
        self.forget_revocations(rank);
        let Some(peer) = self.peers.get_mut(rank) else { return };
        let (was_up, arriving) = (peer.up, peer.arriving);
        peer.reset();
        peer.ended = Some(why);
        for name in self.sends.names().collect::<Vec<_>>() {
            if self.sends.get(name).is_some_and(|send| send.to == rank) {
                self.end_send(name, Err(why));
            }
        }
        for name in self.receives.names().collect::<Vec<_>>() {
            let fails = match self.receives.get(name).map(|receive| receive.state) {
                Some(ReceiveState::Posted { posted, source }) if source == Some(rank) => {
                    self.matcher.cancel(posted);
                    true
                }
                Some(ReceiveState::Filling { from, .. }) => from.rank == rank,
                _ => false,
            };
            if fails {
                self.end_receive(name, Err(why));
            }
        }
        if was_up {
            self.drop_unfinished(rank);
            if let Some(Into::Stored(at)) = arriving.map(|it| it.into) {
                self.free_stored(at);
                // If it was claimed, its receive fails as that of an envelope does.
                for claim in self.claimed.names().collect::<Vec<_>>() {
                    if let Some((_, message, _)) = self.claimed.get_mut(claim)
                        && message.place == at | STORED
                    {
                        message.place = 0;
                    }
                }
            }
        }
    }

    /// Ends all sends and receives: the lane closes.
    pub(crate) fn close(&mut self) {
        for name in self.sends.names().collect::<Vec<_>>() {
            self.end_send(name, Err(Failure::Closed));
        }
        for name in self.receives.names().collect::<Vec<_>>() {
            match self.receives.get(name).map(|receive| receive.state) {
                Some(ReceiveState::Posted { posted, .. }) => {
                    self.matcher.cancel(posted);
                    self.end_receive(name, Err(Failure::Closed));
                }
                Some(ReceiveState::Filling { .. }) => self.end_receive(name, Err(Failure::Closed)),
                _ => {}
            }
        }
    }

    /// Removes what a peer announced and never sent.
    fn drop_unfinished(&mut self, rank: Rank) {
        let unfinished = |tags: &Tags, message: Message| {
            message.place & STORED == 0
                || tags
                    .stored
                    .at(message.place & !STORED)
                    .is_some_and(|(_, stored)| stored.total > stored.data.len() as u64)
        };
        for waiting in self.matcher.all_from(rank) {
            if unfinished(self, self.matcher.message(waiting).1) {
                self.matcher.take(waiting);
            }
        }
    }

    #[inline]
    fn mark_busy(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.used_mut(rank)
            && !peer.busy
            && peer.has_waiting()
        {
            peer.busy = true;
            self.busy.push_back(rank);
        }
    }

    fn store(&mut self, stored: Stored) -> Option<u32> {
        self.stored.insert(stored).map(|name| name.index)
    }

    fn free_stored(&mut self, at: u32) -> Option<Stored> {
        let (name, _) = self.stored.at(at)?;
        self.stored.remove(name)
    }

    /// Ends a send.
    fn end_send(&mut self, name: Name, result: Result<(), Failure>) {
        self.activity += 1;
        let Some(send) = self.sends.get_mut(name) else { return };
        if send.detached {
            self.sends.remove(name);
        } else if !matches!(send.state, SendState::Done(_)) {
            send.state = SendState::Done(result);
        }
    }

    /// Ends a receive.
    #[inline]
    fn end_receive(&mut self, name: Name, result: Result<Status, Failure>) {
        self.activity += 1;
        let Some(receive) = self.receives.get_mut(name) else { return };
        receive.state = ReceiveState::Done(result);
        if receive.detached {
            self.receives.remove(name);
        }
    }
}

/// Memory of longer messages is not kept for the next ones.
const SPARE_LEN: usize = 4 << 10;
