//! What one root sends, as one member of its tree sees it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::Rank;
use crate::memory::Name;

/// What a message is charged beside its bytes.
pub(super) const OVERHEAD: u64 = 64;

/// Bytes of a packet: as they arrived, or part of a message of this member.
#[derive(Debug)]
pub(super) enum Data {
    Own(Vec<u8>),
    Shared(Arc<Vec<u8>>, Range<usize>),
}

impl Data {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Data::Own(bytes) => bytes,
            Data::Shared(bytes, range) => &bytes[range.clone()],
        }
    }
}

/// Bytes that wait to be forwarded, or to be taken by the program.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) data: Data,
    /// Their position.
    pub(super) at: u64,
    pub(super) last: bool,
    pub(super) flush: bool,
}

impl Packet {
    /// The position after the packet.
    pub(super) fn end(&self) -> u64 {
        self.at + self.data.bytes().len() as u64 + if self.last { OVERHEAD } else { 0 }
    }
}

/// A member to which packets are forwarded.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) rank: Rank,
    /// The number of the packet of which something is to be sent next, and how much of it was sent.
    pub(super) next: u64,
    pub(super) offset: usize,
    /// The position before which the child and all below it have taken everything.
    pub(super) acked: u64,
    /// It is in the queue of its peer.
    pub(super) queued: bool,
}

/// What one root sends.
#[derive(Debug)]
pub(super) struct Stream {
    /// Who sends it here. None for the root.
    pub(super) parent: Option<Rank>,
    pub(super) children: Vec<Child>,
    pub(super) packets: VecDeque<Packet>,
    /// The number of the first of them.
    first: u64,
    /// The position after the last byte that came.
    pub(super) end: u64,
    /// The number of the packet that the program takes next, and the position before which it took all.
    next: u64,
    pub(super) taken: u64,
    /// Bytes that came of the message that is not whole.
    pub(super) begun: u64,
    /// Whole messages that the program has not taken.
    pub(super) whole: usize,
    /// What the parent was told; at the root, what all members have taken.
    pub(super) acked: u64,
    /// Acknowledgements of positions up to here are wanted at once.
    pub(super) flush: u64,
    /// The receive that the current message goes to, and how many bytes of it came.
    pub(super) filling: Option<Name>,
    pub(super) got: u64,
}

impl Stream {
    pub(super) fn new(parent: Option<Rank>, children: Vec<Rank>) -> Stream {
        let child = |rank| Child { rank, next: 0, offset: 0, acked: 0, queued: false };
        Stream {
            parent,
            children: children.into_iter().map(child).collect(),
            packets: VecDeque::new(),
            first: 0,
            end: 0,
            next: 0,
            taken: 0,
            begun: 0,
            whole: 0,
            acked: 0,
            flush: 0,
            filling: None,
            got: 0,
        }
    }

    /// The position before which this member and all below it have taken everything. Of the first message
    /// that the program has not taken, what has come counts as taken until it is whole.
    pub(super) fn settled(&self) -> u64 {
        let own = if self.parent.is_none() || self.whole == 0 { self.end } else { self.taken };
        self.children.iter().map(|child| child.acked).fold(own, u64::min).max(self.acked)
    }

    /// Adds a packet, which the program is to take unless `taken`. It is kept only if somebody needs it.
    pub(super) fn push(&mut self, packet: Packet, taken: bool) -> Option<Packet> {
        self.end = packet.end();
        if packet.flush {
            self.flush = self.end;
        }
        if taken {
            debug_assert_eq!(self.next, self.first + self.packets.len() as u64);
            (self.next, self.taken) = (self.next + 1, self.end);
        } else {
            self.whole += usize::from(packet.last);
        }
        self.packets.push_back(packet);
        self.trim()
    }

    /// A packet that the program has taken, and that nobody else needs, goes up to a position.
    pub(super) fn pass(&mut self, end: u64, flush: bool) {
        (self.end, self.taken) = (end, end);
        if flush {
            self.flush = end;
        }
    }

    /// The packet that the program takes next.
    pub(super) fn untaken(&self) -> Option<&Packet> {
        self.packets.get((self.next - self.first) as usize)
    }

    /// The program has taken the next packet.
    pub(super) fn take(&mut self) {
        if let Some(packet) = self.untaken() {
            let (end, last) = (packet.end(), packet.last);
            (self.next, self.taken) = (self.next + 1, end);
            self.whole -= usize::from(last);
        }
    }

    /// The packet that a child gets next.
    pub(super) fn unsent(&self, child: usize) -> Option<&Packet> {
        self.packets.get((self.children[child].next - self.first) as usize)
    }

    /// Whether something is to be sent to a child.
    pub(super) fn has_unsent(&self, child: usize) -> bool {
        self.children[child].next < self.first + self.packets.len() as u64
    }

    /// Drops packets that nobody needs any longer, and returns one of them.
    pub(super) fn trim(&mut self) -> Option<Packet> {
        let own = if self.parent.is_none() { u64::MAX } else { self.next };
        let needed = self.children.iter().map(|child| child.next).fold(own, u64::min);
        let mut dropped = None;
        while self.first < needed
            && let Some(packet) = self.packets.pop_front()
        {
            self.first += 1;
            dropped = Some(packet);
        }
        dropped
    }
}
