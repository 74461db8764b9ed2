//! Who belongs to the job, and how things stand with each: state, incarnation, handlers, channel.
//!
//! [`Peers`] is the one way to reach a peer. What does not live here: how channels are opened and end
//! (`lane`).

mod handlers;
mod peer;
mod roster;

pub use handlers::Key;
pub(crate) use handlers::{HandlerNames, SHORT_ONLY, UNKNOWN};
pub(crate) use peer::LocalHints;
pub(crate) use peer::Peer;
pub use peer::{Liveness, PeerState};

use std::io;

use tautline_device::Datagram;
use tautline_link::HandshakeFrame;
use tautline_wire::handshake::Handshake;

use crate::limits::{MAX_LANE_PEERS, MAX_LANES};
use crate::peer_table::PeerTable;
use crate::{Address, Job, Member, Rank};
use roster::Roster;

/// The peers of a lane, by number. A peer is added when it is first used, and stays.
#[derive(Debug)]
pub(crate) struct Peers {
    table: PeerTable<Peer>,
    roster: Roster,
}

impl Peers {
    /// The peers of a lane of `job`: at first, only the lane itself.
    pub(crate) fn new(
        job: &Job,
        lane: u16,
        device: &mut dyn Datagram,
        config: &tautline_link::Config,
    ) -> io::Result<Peers> {
        let own = device.local_addr();
        let other_version = |member: &&Member| member.addr.is_ipv4() != own.is_ipv4();
        if let Some(Member { addr, .. }) = job.members.iter().find(other_version) {
            let why = format!("the member at {addr} cannot be reached from {own}: another IP version");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut peers = Peers { table: PeerTable::default(), roster: Roster::new(job, lane, own, config) };
        let me = peers.roster.peer(device, config, peers.me())?;
        peers.table.get_or_insert_with(peers.roster.me(), || me);
        Ok(peers)
    }

    /// How many ranks the job has.
    pub(crate) fn size(&self) -> u32 {
        self.roster.size()
    }

    /// A number that members of this process's host have in common.
    pub(crate) fn host_number(&self) -> u64 {
        self.roster.host_number()
    }

    /// Whether every other rank of the job is gone, and no other lane of this process is connected. A rank
    /// that was never used is not lost: it may still connect, and be what a program waits for.
    pub(crate) fn are_all_lost(&self) -> bool {
        let (own, size) = (self.me(), self.size());
        let me = Address::from(own).rank;
        let mut ranks_lost = 0;
        let mut others = self.iter().filter(|peer| peer.rank != own);
        let all = others.all(|peer| {
            let Address { rank, lane } = peer.rank.into();
            ranks_lost += u32::from(lane == 0 && rank != me);
            match peer.state {
                PeerState::Down(_) => true,
                PeerState::Unknown => rank == me,
                PeerState::Connecting | PeerState::Up => false,
            }
        });
        all && size > 1 && ranks_lost + 1 == size
    }

    /// The number of this lane.
    pub(crate) fn me(&self) -> Rank {
        self.roster.me()
    }

    /// Who the peers may be, and where they are.
    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The same, which also keeps the routes to them.
    pub(crate) fn roster_mut(&mut self) -> &mut Roster {
        &mut self.roster
    }

    /// Whether a handshake frame comes from a rank of the job, added or not.
    pub(crate) fn is_authentic(&self, bytes: &HandshakeFrame, handshake: &Handshake) -> bool {
        self.roster.is_authentic(bytes, handshake)
    }

    /// A peer by its number; none if it has not been added.
    #[inline]
    pub(crate) fn get(&self, rank: Rank) -> Option<&Peer> {
        self.table.get(rank)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.table.get_mut(rank)
    }

    /// A peer that is known to have been added.
    ///
    /// # Panics
    /// If it has not.
    #[inline]
    pub(crate) fn member(&self, rank: Rank) -> &Peer {
        self.get(rank).expect("the peer has been added")
    }

    /// A peer that is known to have been added, to be changed.
    ///
    /// # Panics
    /// If it has not.
    #[inline]
    pub(crate) fn member_mut(&mut self, rank: Rank) -> &mut Peer {
        self.get_mut(rank).expect("the peer has been added")
    }

    /// The peer at a place, which frames of its channel name.
    #[inline]
    pub(crate) fn at_place(&mut self, place: usize) -> Option<&mut Peer> {
        self.table.at_mut(place)
    }

    /// The place of a peer that has been added.
    ///
    /// # Panics
    /// If it has not.
    pub(crate) fn place(&self, rank: Rank) -> usize {
        self.table.place(rank).expect("the peer has been added")
    }

    /// Adds a peer unless it is there. False if the job has no such rank, or there is no place left.
    pub(crate) fn add(
        &mut self,
        device: &mut dyn Datagram,
        config: &tautline_link::Config,
        rank: Rank,
    ) -> bool {
        if self.contains(rank) {
            return true;
        }
        if !self.may_contain(rank) || self.table.len() >= MAX_LANE_PEERS {
            return false;
        }
        let Ok(peer) = self.roster.peer(device, config, rank) else { return false };
        self.table.get_or_insert_with(rank, || peer);
        true
    }

    /// Whether the peer has been added.
    pub(crate) fn contains(&self, rank: Rank) -> bool {
        self.get(rank).is_some()
    }

    /// Whether the job has the rank of a peer, added or not, and ranks may have its lane.
    pub(crate) fn may_contain(&self, number: Rank) -> bool {
        let Address { rank, lane } = number.into();
        rank < self.roster.size() && usize::from(lane) < MAX_LANES
    }

    /// The peers that have been added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.table.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.table.iter_mut()
    }

    /// How many peers have been added: places are below this.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}
