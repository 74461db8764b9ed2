//! Who may be a peer: the ranks of the job, their addresses, and the lanes that are found at them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tautline_device::{Datagram, RouteId};
use tautline_link::{Config, HandshakeFrame, JobKey, Peering, PeeringParams, Shared};
use tautline_wire::handshake::Handshake;

use super::{LocalHints, Peer};
use crate::channel::{Channel, LinkChannel};
use crate::limits::{MAX_PEERS, MAX_ROUTES};
use crate::{Address, Job, Member, Rank};

/// What a lane knows of the job, and what it needs to make a peer of a lane elsewhere.
#[derive(Debug)]
pub(crate) struct Roster {
    me: Address,
    key: JobKey,
    /// The number of the job, as handshakes have it.
    job: u64,
    members: Arc<[Member]>,
    /// Those that joined the running job.
    joined: Vec<Member>,
    /// The port of this lane, which peers cannot know; zero for lane 0.
    port: u16,
    /// What all links share.
    shared: Arc<Shared>,
    routes: HashMap<SocketAddr, RouteId>,
}

impl Roster {
    /// The roster of a lane of `job` whose device has the address `own`.
    pub(crate) fn new(job: &Job, lane: u16, own: SocketAddr, config: &Config) -> Roster {
        Roster {
            me: Address::new(job.rank, lane),
            key: job.key.clone(),
            job: job.key.job_id(),
            members: job.members.clone(),
            joined: Vec::new(),
            port: if lane == 0 { 0 } else { own.port() },
            shared: config.clone().into(),
            routes: HashMap::new(),
        }
    }

    /// The number of this lane.
    pub(crate) fn me(&self) -> Rank {
        self.me.into()
    }

    /// How many ranks there are.
    pub(crate) fn size(&self) -> u32 {
        (self.members.len() + self.joined.len()) as u32
    }

    /// The job has one more rank, if it is the next one and can be reached from here.
    pub(crate) fn join(&mut self, rank: Rank, member: Member) {
        let same_version = self.members[self.me.rank as usize].addr.is_ipv4() == member.addr.is_ipv4();
        if rank == self.size() && (rank as usize) < MAX_PEERS && same_version {
            self.joined.push(member);
        }
    }

    /// # Panics
    /// If there is no such rank.
    fn member(&self, rank: Rank) -> &Member {
        let rank = rank as usize;
        self.members.get(rank).unwrap_or_else(|| &self.joined[rank - self.members.len()])
    }

    /// Whether a handshake frame comes from a rank of the job: its lanes all have the job's key.
    pub(crate) fn is_authentic(&self, bytes: &HandshakeFrame, handshake: &Handshake) -> bool {
        handshake.job == self.job && handshake.from < self.size() && self.key.verify(bytes)
    }

    /// A peer that nothing is known of yet but its rank. Its first hello goes to lane 0 of that rank, which
    /// knows where the others are (H-13).
    pub(crate) fn peer(
        &mut self,
        device: &mut dyn Datagram,
        config: &Config,
        rank: Rank,
    ) -> io::Result<Peer> {
        let Address { rank: process, lane } = rank.into();
        let route = self.route(device, rank, 0, 0)?;
        let params = PeeringParams {
            key: self.key.clone(),
            me: self.me.rank,
            peer: process,
            lane: self.me.lane,
            peer_lane: lane,
            port: self.port,
            max_frame: device.max_frame(route),
        };
        let mut peering = Peering::new(params, self.shared.clone());
        // The device may accept them no longer, or again.
        peering.set_raw_frames(config.raw_frames);
        let link = LinkChannel::new(peering, route);
        let (own, member) = (self.member(self.me.rank), self.member(process));
        let local = LocalHints {
            same_host: own.is_on_host_of(member),
            may_share: own.may_share_with(member),
            same_ip: own.addr.ip() == member.addr.ip(),
            ..LocalHints::default()
        };
        Ok(Peer::new(rank, Channel::new(rank, link), local))
    }

    /// Whether another member has several addresses (J-28).
    pub(crate) fn has_several_addresses(&self) -> bool {
        let mut others = self.members.iter().enumerate().filter(|(rank, _)| *rank != self.me.rank as usize);
        others.any(|(_, member)| member.address_count() > 1)
    }

    /// How many addresses the rank of a peer has.
    pub(crate) fn address_count(&self, rank: Rank) -> usize {
        self.member(Address::from(rank).rank).address_count()
    }

    /// One of the addresses of a peer's rank, by its number.
    pub(crate) fn address(&self, rank: Rank, number: usize) -> SocketAddr {
        let member = self.member(Address::from(rank).rank);
        member.addresses().nth(number).unwrap_or(member.addr)
    }

    /// The number of the address of a peer's rank that a frame came from, if it is one of several. The port
    /// does not tell: frames come from others than the bound one (D-33).
    pub(crate) fn address_from(&self, rank: Rank, source: Option<SocketAddr>) -> Option<usize> {
        let member = self.member(Address::from(rank).rank);
        let source = source.filter(|_| member.address_count() > 1)?;
        member.addresses().position(|addr| addr.ip() == source.ip())
    }

    /// The route to a peer at the address of its rank with this number, whose lane has this port; to lane 0
    /// if the port is zero.
    pub(crate) fn route(
        &mut self,
        device: &mut dyn Datagram,
        rank: Rank,
        number: usize,
        port: u16,
    ) -> io::Result<RouteId> {
        let mut to = self.address(rank, number);
        if port != 0 {
            to.set_port(port);
        }
        if let Some(route) = self.routes.get(&to) {
            return Ok(*route);
        }
        if self.routes.len() >= MAX_ROUTES {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let route = device.route(to)?;
        self.routes.insert(to, route);
        Ok(route)
    }
}
