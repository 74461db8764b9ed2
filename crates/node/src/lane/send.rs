//! Sending: which channel a message goes to, and when what was written leaves.

use tautline_link::Nanos;

use super::Lane;
use crate::channel::{ChannelWriter, Port};
use crate::membership::{Key, Peer, SHORT_ONLY, UNKNOWN};
use crate::tags::{SendId, Sent};
use crate::{MessageId, PeerId, PeerState, Rank, SendError};

/// Rounds of memory service in one poll.
const MEMORY_ROUNDS: usize = 16;
/// The same for messages with tags.
const TAG_ROUNDS: usize = 16;

impl Lane {
    /// Sends a whole small message in the way that most messages go: straight into shared memory, or inside a
    /// batch into the open frame. No clock is read. False, with nothing done, if it takes more than that.
    #[inline(never)]
    pub(crate) fn send_direct(&mut self, rank: Rank, key: Key, data: &[u8]) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        let number = peer.handlers.number(key);
        if number == UNKNOWN || self.port.closed {
            return false;
        }
        peer.channel.send_direct(&mut self.port, number & !SHORT_ONLY, data)
    }

    /// Sends a whole small message at once in a frame of its own. False, with nothing done, if something is
    /// in its way.
    #[inline]
    pub(crate) fn send_at_once(&mut self, now: Nanos, rank: Rank, key: Key, data: &[u8]) -> bool {
        let Some(peer) = self.peers.get_mut(rank).filter(|peer| peer.is_up()) else { return false };
        let number = peer.handlers.number(key);
        number != UNKNOWN && peer.channel.send_at_once(&mut self.port, now, number & !SHORT_ONLY, data)
    }

    /// The peer's number for a handler, if a message of `len` bytes may go there now. Starts to connect if
    /// need be.
    #[inline]
    pub(crate) fn handler(&mut self, now: Nanos, rank: Rank, key: Key, len: u64) -> Result<u16, SendError> {
        self.reach(now, rank)?;
        let peer = self.peers.member(rank);
        let number = peer.handlers.number(key);
        if number == UNKNOWN {
            return Err(SendError::UnknownHandler(rank));
        }
        if number & SHORT_ONLY != 0 {
            let limit = peer.channel.short_limit(&self.port);
            if len > limit as u64 {
                return Err(SendError::TooLongForHandler(limit));
            }
        }
        Ok(number & !SHORT_ONLY)
    }

    /// Checks that a peer can be reached now; starts to connect if need be.
    #[inline]
    pub(crate) fn reach(&mut self, now: Nanos, rank: Rank) -> Result<(), SendError> {
        let up = self.peers.get(rank).is_some_and(Peer::is_up);
        if up && !self.port.closed { Ok(()) } else { Err(self.unreachable(now, rank)) }
    }

    #[cold]
    fn unreachable(&mut self, now: Nanos, rank: Rank) -> SendError {
        if self.port.closed {
            return SendError::Closed;
        }
        if !self.add_peer(rank) {
            return SendError::NoSuchPeer(rank);
        }
        self.connect(now, rank);
        match self.peers.member(rank).state {
            PeerState::Down(why) => SendError::PeerGone(rank, why),
            _ => SendError::WouldBlock,
        }
    }

    /// Checks that what was begun with this incarnation of a peer can go on.
    #[inline]
    pub(crate) fn check(&self, id: PeerId) -> Result<(), SendError> {
        let peer = self.peers.get(id.rank).ok_or(SendError::NoSuchPeer(id.rank))?;
        match peer.state {
            _ if self.port.closed => Err(SendError::Closed),
            PeerState::Up if peer.incarnation == id.incarnation => Ok(()),
            PeerState::Down(why) => Err(SendError::PeerGone(id.rank, why)),
            _ => Err(SendError::PeerGone(id.rank, crate::Down::Died(tautline_link::Death::Restarted))),
        }
    }

    /// Whether a peer closed after all that was written for it had left: it may have taken it.
    pub(crate) fn had_left(&self, id: PeerId) -> bool {
        let closed = PeerState::Down(crate::Down::Closed);
        self.peers.get(id.rank).is_some_and(|peer| {
            (peer.state, peer.incarnation) == (closed, id.incarnation)
                && peer.channel.all_left()
                && !self.port.closed
        })
    }

    /// A send would block: makes the progress that may change that, because the watchdog does nothing while
    /// the program is here (N-5). Only extraction makes room on the loopback channel, but slots, which it
    /// takes for a moment, become free as peers acknowledge them.
    #[cold]
    pub(crate) fn make_progress(&mut self, now: Nanos, to: Rank) {
        self.service(now);
        if !self.waits_for_extraction(to) {
            self.poll(now);
        }
    }

    /// Whether nothing but extraction makes room for messages to a peer: it is this lane itself.
    pub(crate) fn waits_for_extraction(&mut self, to: Rank) -> bool {
        to == self.rank && self.peers.member_mut(to).channel.waits_for_extraction(&self.port)
    }

    /// The peer of a rank that is known to be a member, and what its channel writes to.
    #[inline]
    pub(crate) fn channel(&mut self, rank: Rank) -> (&mut Peer, &mut Port) {
        (self.peers.member_mut(rank), &mut self.port)
    }

    /// A message has ended: its frame leaves, unless a batch is open (N-2).
    #[inline]
    pub(crate) fn send_now(&mut self, now: Nanos, rank: Rank) {
        let (peer, port) = self.channel(rank);
        if peer.channel.send_now(port) {
            self.service(now);
        }
    }

    /// Lets leave what a batch has gathered, although the batch goes on.
    #[inline]
    pub(crate) fn flush_batch(&mut self, now: Nanos) {
        if self.port.batch_depth > 0 {
            let depth = std::mem::replace(&mut self.port.batch_depth, 0);
            self.end_batch(now);
            self.port.batch_depth = depth;
        }
    }

    /// Lets leave what has been gathered for whomever. A poll inside a batch may have served channels whose
    /// frames stayed open, so all are asked.
    pub(crate) fn end_batch(&mut self, now: Nanos) {
        for peer in self.peers.iter_mut() {
            peer.channel.end_batch(&mut self.port);
        }
        self.service(now);
    }

    /// Gives a message up; its receiver is told now or, if there is no room, as soon as there is (M-6).
    pub(crate) fn give_up(&mut self, to: MessageId) {
        self.aborts.push_back(to);
        self.retry_aborts();
    }

    #[cold]
    pub(super) fn retry_aborts(&mut self) {
        for _ in 0..self.aborts.len() {
            let Some(to) = self.aborts.pop_front() else { break };
            if self.check(to.peer).is_err() {
                continue;
            }
            let (peer, port) = self.channel(to.peer.rank);
            match peer.channel.abort(port, to.number) {
                Err(_) => self.aborts.push_back(to),
                Ok(()) => {
                    peer.channel.send_now(port);
                }
            }
        }
    }

    /// Sends answers and requests of memory as far as there is room, and what that made ready to leave.
    #[cold]
    pub(super) fn serve_memory(&mut self, now: Nanos) {
        for _ in 0..MEMORY_ROUNDS {
            self.pump_memory();
            self.serve_dirty(now);
            if !self.memory.has_more() {
                break;
            }
        }
    }

    /// Gives every peer for which answers or requests of memory wait its turn.
    pub(super) fn pump_memory(&mut self) {
        for _ in 0..self.memory.start_round() {
            let Some(rank) = self.memory.next_busy() else { break };
            let Lane { peers, port, memory, .. } = self;
            memory.pump_peer(rank, &mut ChannelWriter::new(&mut peers.member_mut(rank).channel, port));
        }
    }

    /// The channel of a peer, for memory and tags to write to.
    #[inline]
    pub(crate) fn writer(&mut self, rank: Rank) -> ChannelWriter<'_> {
        let (peer, port) = self.channel(rank);
        ChannelWriter::new(&mut peer.channel, port)
    }

    // Messages with tags.

    /// Sends a short message at once if nothing is in the way. False, with nothing done, otherwise.
    #[inline(always)]
    pub(crate) fn send_tagged(
        &mut self,
        now: impl FnOnce() -> Nanos,
        to: (Rank, u32, u32),
        bytes: &[u8],
    ) -> bool {
        let Lane { peers, port, tags, .. } = self;
        let Some(peer) = peers.get_mut(to.0).filter(|_| !port.closed) else { return false };
        tags.send_at_once(&mut ChannelWriter::new(&mut peer.channel, port), now, to, bytes)
    }

    /// Sends bytes of a message that are with the caller, as far as it is their turn and there is room.
    /// [`Sent::All`] if the send has ended.
    pub(crate) fn push_tagged(
        &mut self,
        now: Nanos,
        (rank, id): (Rank, SendId),
        mut read: impl FnMut(u64, &mut [u8]),
    ) -> Sent {
        loop {
            let Lane { peers, port, tags, .. } = self;
            let Some(peer) = peers.get_mut(rank) else { return Sent::Blocked };
            let sent = tags.push(&mut ChannelWriter::new(&mut peer.channel, port), id, &mut read);
            self.service(now);
            if sent != Sent::More {
                return sent;
            }
        }
    }

    /// Starts to connect with a peer that messages go to or come from, unless it is gone. An error if it is,
    /// or the job has no such rank.
    pub(crate) fn reach_tagged(&mut self, now: Nanos, rank: Rank) -> Result<(), SendError> {
        match self.peers.get(rank).map(|peer| peer.state) {
            Some(PeerState::Up) if !self.port.closed => return Ok(()),
            Some(PeerState::Down(why)) if !self.port.closed => return Err(SendError::PeerGone(rank, why)),
            _ => {}
        }
        match self.reach(now, rank) {
            Ok(()) | Err(SendError::WouldBlock) => {
                self.tags.add_peer(rank);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Sends what waits, as far as there is room, and what that made ready to leave.
    #[cold]
    pub(super) fn serve_tags(&mut self, now: Nanos) {
        for _ in 0..TAG_ROUNDS {
            self.pump_tags();
            self.serve_dirty(now);
            if !self.tags.has_more() {
                break;
            }
        }
    }

    /// Gives every peer to which something waits to be sent its turn.
    pub(super) fn pump_tags(&mut self) {
        for _ in 0..self.tags.start_round() {
            let Some(rank) = self.tags.next_busy() else { break };
            let Lane { peers, port, tags, .. } = self;
            tags.pump_peer(rank, &mut ChannelWriter::new(&mut peers.member_mut(rank).channel, port));
        }
    }

    // Multicast.

    /// Opens the channels that multicasts need, and sends what waits as far as there is room.
    #[cold]
    pub(super) fn serve_multicast(&mut self, now: Nanos) {
        while let Some(rank) = self.multicast.next_unreached() {
            match self.reach_tagged(now, rank) {
                Ok(()) => {
                    if let Some(peer) = self.peers.get(rank).filter(|peer| peer.is_up()) {
                        self.multicast.peer_up(peer.id());
                    }
                }
                Err(SendError::PeerGone(rank, why)) => {
                    self.multicast.peer_down(rank, crate::tags::Failure::PeerGone(rank, why));
                }
                Err(_) => self.multicast.peer_down(rank, crate::tags::Failure::Closed),
            }
        }
        for _ in 0..TAG_ROUNDS {
            for _ in 0..self.multicast.start_round() {
                self.pump_next_multicast();
                // The frames of each peer leave before the next one's turn: the first children have the most
                // members below them.
                self.serve_dirty(now);
            }
            if !self.multicast.has_more() {
                break;
            }
        }
    }

    /// Gives every peer for which multicasts have something its turn.
    pub(super) fn pump_multicast(&mut self) {
        for _ in 0..self.multicast.start_round() {
            self.pump_next_multicast();
        }
    }

    fn pump_next_multicast(&mut self) {
        let Some(rank) = self.multicast.next_busy() else { return };
        let Lane { peers, port, multicast, .. } = self;
        multicast.pump_peer(rank, &mut ChannelWriter::new(&mut peers.member_mut(rank).channel, port));
    }
}
