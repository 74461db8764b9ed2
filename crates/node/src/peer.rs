//! What a node keeps of one other rank.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tautline_device::{RouteId, SlotId};
use tautline_link::{Peering, Reassembly};
use tautline_wire::Seq;

use crate::memory::{PeerMemory, Placed};
use crate::near::Near;
use crate::{Down, Rank};

/// A handler's name as this side knows it; see [`crate::Endpoint::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(crate) u32);

/// Set in an announced number: the handler takes only messages that fit one frame (M-2).
pub(crate) const SHORT_ONLY: u16 = 1 << 15;
pub(crate) const UNKNOWN: u16 = u16::MAX;

/// One incarnation of a rank: a process that was restarted is another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    /// The process.
    pub rank: Rank,
    /// Which of its incarnations, counted from one as this node met them.
    pub incarnation: u32,
}

impl PeerId {
    /// The incarnation `incarnation` of `rank`.
    pub const fn new(rank: Rank, incarnation: u32) -> PeerId {
        PeerId { rank, incarnation }
    }

    /// One of this peer's messages.
    pub const fn message(self, number: u32) -> MessageId {
        MessageId { peer: self, number }
    }
}

/// A message to or from a peer. Numbers are counted per channel and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// The peer that it goes to or comes from.
    pub peer: PeerId,
    /// Its number on the channel.
    pub number: u32,
}

/// How things stand with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// No channel has been asked for yet.
    Unknown,
    /// A channel is being opened.
    Connecting,
    /// Messages can be sent.
    Up,
    /// The peer is gone.
    Down(Down),
}

/// Whether a channel to a peer lasts: what can be looked at without the interface.
#[derive(Debug, Default)]
pub struct Liveness(AtomicBool);

impl Liveness {
    /// Whether it is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The slot that records are being added to.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) slot: SlotId,
    pub(crate) used: usize,
    pub(crate) capacity: usize,
    /// The last record, if it may still grow: its message and where its header starts.
    pub(crate) tail: Option<(u32, usize)>,
    /// One past the last slot that was pushed before this one was opened.
    pub(crate) behind: Seq,
    /// It holds records of memory, and no others.
    pub(crate) memory: bool,
}

/// A slot that arrived ahead of a gap.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// All of it.
    Bytes(Vec<u8>),
    /// Part of a put whose bytes are in their place already.
    Placed(Placed),
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    pub(crate) peering: Peering,
    pub(crate) route: RouteId,
    pub(crate) state: PeerState,
    pub(crate) incarnation: u32,
    pub(crate) connect_by: u64,
    pub(crate) open: Option<Open>,
    /// When its channel ended, nothing waited in an open slot to leave.
    pub(crate) all_left: bool,
    pub(crate) next_message: u32,
    /// Messages to it that are begun and not ended (M-10).
    pub(crate) begun: u32,
    /// Limits of messages under way that are longer than the peer's first window.
    pub(crate) windows: HashMap<u32, u64>,
    /// Slots that arrived ahead of a gap; the first is the one after the slot that is due.
    pub(crate) ahead: VecDeque<Option<Ahead>>,
    pub(crate) parts: Vec<(Seq, Reassembly)>,
    pub(crate) table: HashMap<String, u16>,
    pub(crate) numbers: Vec<u16>,
    pub(crate) table_complete: bool,
    pub(crate) announced: bool,
    pub(crate) dirty: bool,
    /// Its door is not knocked at before: it could not be entered the last time.
    pub(crate) knock_after: u64,
    /// It has an address of this host, as far as its address tells.
    pub(crate) at_home: bool,
    /// Why no memory could be shared with it when that was tried last.
    pub(crate) not_near: Option<String>,
    /// The memory that is shared with it, if it lives on this host.
    pub(crate) near: Option<Box<Near>>,
    /// What is asked of its memory, and what it asks of ours.
    pub(crate) memory: PeerMemory,
    /// What those look at who want to know whether the channel lasts.
    life: Option<Arc<Liveness>>,
}

impl Peer {
    pub(crate) fn new(rank: Rank, peering: Peering, route: RouteId, keys: usize) -> Peer {
        Peer {
            rank,
            peering,
            route,
            state: PeerState::Unknown,
            incarnation: 0,
            connect_by: 0,
            open: None,
            all_left: false,
            next_message: 0,
            begun: 0,
            windows: HashMap::new(),
            ahead: VecDeque::new(),
            parts: Vec::new(),
            table: HashMap::new(),
            numbers: vec![UNKNOWN; keys],
            table_complete: false,
            announced: false,
            dirty: false,
            knock_after: 0,
            at_home: false,
            not_near: None,
            near: None,
            memory: PeerMemory::default(),
            life: None,
        }
    }

    /// Tells when the channel that there is, or will be next, is over.
    pub(crate) fn life(&mut self) -> Arc<Liveness> {
        self.life.get_or_insert_default().clone()
    }

    /// The channel is over.
    pub(crate) fn end_life(&mut self) {
        if let Some(life) = self.life.take() {
            life.end();
        }
    }

    /// A new channel begins: nothing of the old one may leak into it (N-4).
    pub(crate) fn reset_channel(&mut self) {
        self.next_message = 0;
        self.begun = 0;
        self.windows.clear();
        self.ahead.clear();
        self.parts.clear();
        self.table.clear();
        self.numbers.fill(UNKNOWN);
        self.table_complete = false;
        self.announced = false;
        self.memory.reset();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == PeerState::Up
    }

    /// Learns a handler of the peer's.
    pub(crate) fn learn(&mut self, name: &str, number: u16, keys: &[String]) {
        self.table.insert(name.to_owned(), number);
        if let Some(at) = keys.iter().position(|k| k == name) {
            self.numbers[at] = number;
        }
    }
}

impl crate::interface::Interface {
    /// The last incarnation of a peer that there was, whether it can be reached or not; zero if there was none.
    pub fn last_incarnation(&self, rank: Rank) -> u32 {
        self.peers.get(rank as usize).map_or(0, |peer| peer.incarnation)
    }
}
