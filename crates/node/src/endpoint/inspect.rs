//! What there is to see of a node: states, counters, transports. And what an upper crate says of a peer.

use std::sync::Arc;

use tautline_device::Transport;
use tautline_link::Nanos;

use super::Endpoint;
use crate::lane::Lane;

use crate::{ChannelNumbers, Config, Counters, Liveness, PeerId, PeerState, Rank, SendError};

impl Endpoint {
    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// The number of this endpoint's lane: the rank, for lane 0. See [`crate::Address`].
    #[inline]
    pub fn number(&self) -> Rank {
        self.shared.number
    }

    /// The numbers of all peers that were ever used, or used this lane; this lane included.
    pub fn peers(&self) -> Result<Vec<Rank>, SendError> {
        self.with(|lane| lane.peers.iter().map(|peer| peer.rank).collect())
    }

    /// How many processes the job has.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// An error in a forked child, which has no node (N-10).
    #[inline]
    pub fn check_fork(&self) -> Result<(), SendError> {
        if self.shared.fork.is_mine() { Ok(()) } else { Err(SendError::Forked) }
    }

    /// The node's configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Whether the node's time is simulated, so that waiting makes no sense.
    pub fn is_virtual(&self) -> bool {
        self.shared.clock.is_virtual()
    }

    /// The time on the node's clock.
    pub fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// Changes whenever a frame came or a peer's state changed: reason to try again what would have blocked.
    #[inline]
    pub fn activity(&self) -> Result<u64, SendError> {
        self.with(|lane| lane.activity())
    }

    /// Changes whenever a request of a peer for this node's memory was served.
    #[inline]
    pub fn memory_activity(&self) -> Result<u64, SendError> {
        self.with(|lane| lane.memory.served())
    }

    /// Whether slots wait to be taken.
    pub fn has_slots(&self) -> Result<bool, SendError> {
        self.with(|lane| {
            // The bit of a ring that is not polled may be one of a lost peer: it stays for a while.
            lane.local.poll.find_new();
            lane.has_slots()
        })
    }

    /// When [`Endpoint::progress`] must be called at the latest, if nothing arrives. For nodes on a virtual
    /// clock.
    pub fn next_deadline(&self) -> Result<Option<Nanos>, SendError> {
        self.with(Lane::next_deadline)
    }

    /// Whether the node was closed, and every channel is over.
    pub fn is_closed(&self) -> Result<bool, SendError> {
        self.with(|lane| lane.is_closed())
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.with(|lane| lane.counters()).unwrap_or_default()
    }

    /// How things stand with a peer.
    pub fn peer_state(&self, peer: Rank) -> Option<PeerState> {
        let state = self.with(|lane| match lane.peers.get(peer) {
            Some(peer) => Some(peer.state),
            None => lane.peers.may_contain(peer).then_some(PeerState::Unknown),
        });
        state.ok().flatten()
    }

    /// Whether every other rank of the job is gone, and no other lane of this process is connected.
    pub fn all_peers_lost(&self) -> bool {
        self.with(|lane| lane.peers.are_all_lost()).unwrap_or(false)
    }

    /// The incarnation of a peer that can be reached now, if any.
    pub fn incarnation(&self, peer: Rank) -> Option<u32> {
        let up =
            self.with(|lane| lane.peers.get(peer).filter(|peer| peer.is_up()).map(|peer| peer.incarnation));
        up.ok().flatten()
    }

    /// The last incarnation of a peer that there was, whether it can be reached or not; zero if there was
    /// none.
    pub fn last_incarnation(&self, peer: Rank) -> Result<u32, SendError> {
        self.with(|lane| lane.peers.get(peer).map_or(0, |peer| peer.incarnation))
    }

    /// Whether what was begun with this incarnation of a peer can still go on.
    pub fn check(&self, peer: PeerId) -> Result<(), SendError> {
        self.with(|lane| lane.check(peer))?
    }

    /// Something that says, without a call, whether the channel to a peer lasts that there is, or will be
    /// next. An error if the peer is gone.
    pub fn liveness(&self, peer: Rank) -> Result<Arc<Liveness>, SendError> {
        self.with(|lane| match (lane.port.closed, lane.peer(peer)) {
            (_, None) => Err(SendError::NoSuchPeer(peer)),
            (true, _) => Err(SendError::Closed),
            (false, Some(it)) => match it.state {
                PeerState::Down(why) => Err(SendError::PeerGone(peer, why)),
                _ => Ok(it.liveness()),
            },
        })?
    }

    /// Bytes of a message that a peer may send before this side grants more (M-5).
    pub fn first_window(&self, peer: Rank) -> Result<u64, SendError> {
        self.with(|lane| {
            let (shm, link) = (lane.config.local_window, lane.config.link.message_window);
            lane.peers.get(peer).map_or(link.into(), |peer| peer.channel.first_window(shm, link))
        })
    }

    /// The peer sent what no correct peer sends: its channel ends.
    pub fn report_violation(&self, peer: PeerId) -> Result<(), SendError> {
        self.with(|lane| lane.violation(peer))
    }

    /// Whether messages to a peer are cheaper when they share frames: where a frame costs a system call.
    #[inline]
    pub fn prefers_batches(&self, peer: Rank) -> bool {
        self.with(|lane| lane.peers.get(peer).is_none_or(|peer| peer.channel.prefers_batches()))
            .unwrap_or(true)
    }

    /// Whether a peer is reached through shared memory.
    pub fn is_local(&self, peer: Rank) -> bool {
        let local = self.with(|lane| lane.peers.get(peer).is_some_and(|peer| peer.channel.is_shared()));
        local.unwrap_or(false)
    }

    /// The transport that frames for a peer use now, where the device has several, and why.
    pub fn transport(&self, peer: Rank) -> Result<(Option<Transport>, String), SendError> {
        self.with(|lane| match lane.peer(peer).map(|peer| peer.channel.link.route) {
            Some(route) => {
                let device = &lane.port.device;
                (device.transport(route), device.transport_reason(route).to_owned())
            }
            None => (None, "there is no such rank".to_owned()),
        })
    }

    /// Asks that frames for a peer use another transport, where the device has several; `None` for the best.
    /// What becomes of it is an event.
    pub fn prefer_transport(&self, peer: Rank, transport: Option<Transport>) -> Result<(), SendError> {
        self.with(|lane| {
            if let Some(route) = lane.peer(peer).map(|peer| peer.channel.link.route) {
                lane.port.device.prefer_transport(route, transport);
            }
        })
    }

    /// The numbers of the live channel to a peer. For tools and tests.
    pub fn channel_numbers(&self, peer: Rank) -> Option<ChannelNumbers> {
        let numbers = self.with(|lane| lane.peers.get(peer)?.channel.numbers());
        numbers.ok().flatten().filter(|(_, live)| *live).map(|(numbers, _)| numbers)
    }

    /// This side's number for the channel to a peer, live or over. For tools and tests.
    pub fn channel_number(&self, peer: Rank) -> Option<u32> {
        let numbers = self.with(|lane| lane.peers.get(peer)?.channel.numbers());
        numbers.ok().flatten().map(|(numbers, _)| numbers.ours)
    }

    /// Whether this node or a peer on its simulated host has sent frames to it, or a peer has made room:
    /// reason to call [`Endpoint::progress`], since nothing else wakes a node on a virtual clock.
    pub fn has_local_work(&self) -> Result<bool, SendError> {
        self.with(|lane| {
            lane.port.loopback_frames > 0 || lane.has_local_frames() || lane.has_new_local_room()
        })
    }

    /// Free slots of the send arena, and all of them. For tools and tests.
    pub fn send_slots(&self) -> Result<(usize, usize), SendError> {
        self.with(|lane| {
            let arena = lane.port.device.arena_ref();
            (arena.available(), arena.capacity())
        })
    }

    /// A number that members of this process's host have in common: what the launcher told, or the address.
    pub fn host_number(&self) -> Result<u64, SendError> {
        self.with(|lane| lane.peers.host_number())
    }

    /// Bytes that nobody can guess.
    pub fn fresh_secret(&self) -> Result<[u8; 16], SendError> {
        self.with(|lane| lane.secrets.bytes())
    }
}
