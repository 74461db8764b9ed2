//! Multicast within groups, forwarded by the nodes.
//!
//! A root's bytes go along a tree of the members (`tree`). Each member keeps what it receives until it has
//! sent it on to its children and the program has taken it (`stream`). It is given a channel to write to and
//! the records that arrive (`serve`); it knows no device, no link and no clock. The lane calls it under its
//! owner word, in every poll, the watchdog's included, so a program that computes still forwards. A
//! root sends no more than its window before all members have taken it, and only a limited number of members
//! are roots at once (`grants`), so every node has room for whatever arrives, and trees with different roots
//! never wait for each other.

mod grants;
mod receives;
mod sends;
mod serve;
mod stream;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tautline_wire::multicast::{MulticastRecord, Stream as StreamId};

use crate::limits::MAX_TAG_REQUESTS;
use crate::memory::{Name, Slab};
use crate::tags::{Failure, Spare};
use crate::{Down, PeerId, PeerTable, Rank};
use grants::{Grant, Keeper};
use receives::Receive;
use sends::Send;
use stream::Stream;
pub use tree::Shape;

/// A multicast send under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastSendId(Name);

/// A multicast receive under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastReceiveId(Name);

/// The smallest window of a group.
pub const MIN_WINDOW: u64 = 512;

/// Groups that were closed after they had failed, whose causes are remembered.
const FORMER: usize = 64;

/// Memory of longer packets is not kept for the next ones.
const SPARE_LEN: usize = 16 << 10;

/// How a group sends; the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastOptions {
    /// The trees.
    pub shape: Shape,
    /// Bytes that a root may send before all members have taken them, at least [`MIN_WINDOW`].
    pub window: u64,
    /// Members that may be roots at once, at least one.
    pub roots: usize,
}

/// A group whose members send multicasts to each other.
#[derive(Debug)]
struct Group {
    id: u32,
    members: Box<[Rank]>,
    me: u32,
    options: MulticastOptions,
    failed: Option<Failure>,
    /// What the roots send, this member included, by number.
    streams: BTreeMap<u32, Stream>,
    /// Streams of others that are not settled.
    active: usize,
    /// Sends of this member, in order.
    sends: VecDeque<Name>,
    /// Receives that no message goes to yet, in order.
    posted: VecDeque<Name>,
    grant: Grant,
    /// At the first member.
    keeper: Keeper,
}

impl Group {
    /// The stream of a root, made unless it is there.
    fn stream(&mut self, root: u32) -> &mut Stream {
        let Group { members, me, options, streams, .. } = self;
        streams.entry(root).or_insert_with(|| {
            let (shape, size) = (options.shape, members.len() as u32);
            let rank = |member: u32| members[member as usize];
            let children = shape.children(size, root, *me).into_iter().map(rank).collect();
            Stream::new(shape.parent(size, root, *me).map(rank), children)
        })
    }

    fn id_of(&self, root: u32) -> StreamId {
        StreamId { group: self.id, root }
    }
}

/// What is kept of a peer.
#[derive(Debug, Default)]
struct Peer {
    id: Option<PeerId>,
    /// There is a channel.
    up: bool,
    /// It is in the queue of peers to be served.
    busy: bool,
    /// Records to be sent, before everything else.
    answers: VecDeque<MulticastRecord<'static>>,
    /// Groups and roots of which something is to be forwarded to it, in the order of their turns.
    streams: VecDeque<(u32, u32)>,
}

impl Peer {
    fn has_waiting(&self) -> bool {
        !self.answers.is_empty() || !self.streams.is_empty()
    }
}

/// The multicasts of one lane.
///
/// The lane tells it of channels ([`Multicast::peer_up`], [`Multicast::peer_down`]), gives it what arrives
/// ([`Multicast::handle_records`]), opens the channels that it needs ([`Multicast::next_unreached`]), and
/// gives peers their turns while [`Multicast::is_busy`].
#[derive(Debug)]
pub(crate) struct Multicast {
    /// This node's number.
    own: Rank,
    groups: BTreeMap<u32, Group>,
    /// Groups that were closed after they had failed, and who was gone then, the latest first.
    former: VecDeque<(u32, Rank, Down)>,
    sends: Slab<Send>,
    receives: Slab<Receive>,
    peers: PeerTable<Box<Peer>>,
    /// Peers to which something waits to be sent, in the order of their turns.
    busy: VecDeque<Rank>,
    /// Peers that are needed and have no channel.
    unreached: VecDeque<Rank>,
    /// Whether a turn of the last round ended with its budget, not for want of room.
    more: bool,
    /// Memory of packets, for the next ones.
    spare: Spare,
    activity: u64,
}

impl Multicast {
    pub(crate) fn new(own: Rank) -> Multicast {
        Multicast {
            own,
            groups: BTreeMap::new(),
            former: VecDeque::new(),
            sends: Slab::new(MAX_TAG_REQUESTS),
            receives: Slab::new(MAX_TAG_REQUESTS),
            peers: PeerTable::default(),
            busy: VecDeque::new(),
            unreached: VecDeque::new(),
            more: false,
            spare: Spare::new(SPARE_LEN),
            activity: 0,
        }
    }

    /// Opens a group; `me` is this node's place in `members`. False if there is one with this id.
    pub(crate) fn open(&mut self, id: u32, members: Vec<Rank>, me: u32, options: MulticastOptions) -> bool {
        let options = MulticastOptions {
            window: options.window.max(MIN_WINDOW),
            roots: options.roots.max(1),
            ..options
        };
        // in a small group every member may be a root.
        let grant = if members.len() <= options.roots { Grant::Always } else { Grant::No };
        let group = Group {
            id,
            members: members.into(),
            me,
            options,
            failed: None,
            streams: BTreeMap::new(),
            active: 0,
            sends: VecDeque::new(),
            posted: VecDeque::new(),
            grant,
            keeper: Keeper::default(),
        };
        if self.groups.contains_key(&id) {
            return false;
        }
        self.former.retain(|(former, ..)| *former != id);
        self.groups.insert(id, group);
        true
    }

    /// Closes a group. Sends and receives of it fail.
    pub(crate) fn close_group(&mut self, id: u32) {
        self.end_all(id, Failure::Closed);
        let Some(group) = self.groups.remove(&id) else { return };
        if let Some(Failure::PeerGone(gone, why)) = group.failed {
            self.former.truncate(FORMER - 1);
            self.former.push_front((id, gone, why));
        }
    }

    /// Returns whether the node must serve multicasts while the program does not poll.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns a number that changes whenever a send or receive has ended, or may go on.
    #[inline]
    pub(crate) fn activity(&self) -> u64 {
        self.activity
    }

    /// There is a channel to an incarnation of a peer.
    pub(crate) fn peer_up(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(id.rank) else { return };
        if peer.up && peer.id == Some(id) {
            // Something came through the channel before it was reported.
            return self.mark_busy(id.rank);
        }
        if peer.up {
            let why = Down::Died(tautline_link::Death::Restarted);
            self.peer_down(id.rank, Failure::PeerGone(id.rank, why));
        }
        let peer = self.peer(id.rank);
        (peer.up, peer.id) = (true, Some(id));
        self.mark_busy(id.rank);
    }

    /// The channel to a peer has ended: multicasts of its groups fail.
    pub(crate) fn peer_down(&mut self, rank: Rank, why: Failure) {
        if let Some(peer) = self.peers.get_mut(rank) {
            let busy = peer.busy;
            **peer = Peer { busy, ..Peer::default() };
        }
        let with: Vec<u32> =
            self.groups.values().filter(|it| it.members.contains(&rank)).map(|it| it.id).collect();
        for id in with {
            self.fail(id, why);
        }
    }

    /// All groups are closed: the lane closes.
    pub(crate) fn close(&mut self) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.close_group(id);
        }
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers.get_or_insert_with(rank, Box::default)
    }

    /// Returns whether a group has failed, and why.
    pub(crate) fn why_failed(&self, id: u32) -> Option<Failure> {
        self.groups.get(&id).map_or(Some(Failure::Closed), |group| group.failed)
    }

    /// Multicast in a group fails from now on, here and at all that take part in a tree with this member
    ///
    pub(crate) fn fail(&mut self, id: u32, why: Failure) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.failed.is_some() {
            return;
        }
        group.failed = Some(why);
        let mut others = BTreeSet::from([group.members[0]]);
        for stream in group.streams.values() {
            others.extend(stream.parent.iter().chain(stream.children.iter().map(|child| &child.rank)));
        }
        if group.me == 0 {
            others.extend(group.keeper.known().map(|member| group.members[member as usize]));
        }
        others.remove(&group.members[group.me as usize]);
        self.end_all(id, why);
        if let Failure::PeerGone(gone, why) = why {
            for rank in others.into_iter().filter(|rank| *rank != gone) {
                self.answer(rank, MulticastRecord::Failed { group: id, gone, why: why.to_byte() });
            }
        }
    }

    /// Ends all sends and receives of a group, and forgets what was to be forwarded.
    fn end_all(&mut self, id: u32, why: Failure) {
        self.activity += 1;
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.streams.clear();
        group.posted.clear();
        for name in std::mem::take(&mut group.sends) {
            self.end_send(name, Err(why));
        }
        for name in self.receives.names().collect::<Vec<_>>() {
            if self.receives.get(name).is_some_and(|receive| receive.group == id) {
                self.end_receive(name, Err(why));
            }
        }
    }

    /// Queues a record for a peer.
    fn answer(&mut self, rank: Rank, record: MulticastRecord<'static>) {
        self.peer(rank).answers.push_back(record);
        self.mark_busy(rank);
    }

    fn mark_busy(&mut self, rank: Rank) {
        let peer = self.peers.get_or_insert_with(rank, Box::default);
        if !peer.busy && peer.has_waiting() {
            peer.busy = true;
            if peer.up {
                self.busy.push_back(rank);
            } else {
                self.unreached.push_back(rank);
            }
        }
    }

    /// Returns a peer that is needed and has no channel. Once it has, [`Multicast::peer_up`] is called; if it
    /// cannot have one, [`Multicast::peer_down`].
    pub(crate) fn next_unreached(&mut self) -> Option<Rank> {
        let rank = self.unreached.pop_front()?;
        self.peer(rank).busy = false;
        Some(rank)
    }

    /// Returns whether anything is to be sent, or a channel to be opened.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty() || !self.unreached.is_empty()
    }

    /// Returns whether a turn of the last round ended with its budget, so that another round should follow at
    /// once.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.more
    }

    /// Returns whether anything waits to be sent that does not wait for other members.
    pub(crate) fn has_unsent(&self) -> bool {
        self.busy.iter().filter_map(|rank| self.peers.get(*rank)).any(|peer| peer.up && peer.has_waiting())
    }

    /// Starts a round of service: as many calls of [`Multicast::next_busy`] and [`Multicast::pump_peer`] as
    /// this returns.
    pub(crate) fn start_round(&mut self) -> usize {
        self.more = false;
        self.busy.len()
    }

    /// Returns the peer whose turn it is.
    pub(crate) fn next_busy(&mut self) -> Option<Rank> {
        let rank = self.busy.pop_front()?;
        self.peer(rank).busy = false;
        Some(rank)
    }
}
