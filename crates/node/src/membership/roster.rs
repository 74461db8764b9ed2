//! Who may be a peer: the ranks of the job, their addresses, and the lanes that are found at them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tautline_device::{Datagram, RouteId};
use tautline_link::{Config, HandshakeFrame, JobKey, Peering, PeeringParams, Shared};
use tautline_wire::Kind;
use tautline_wire::handshake::Handshake;

use super::{LocalHints, Peer};
use crate::channel::{Channel, LinkChannel};
use crate::limits::{MAX_PEERS, MAX_REFUSED, MAX_ROUTES};
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
    /// The port of this lane, which peers cannot know; zero for lane 0, unless the rank joined the job.
    port: u16,
    /// This process is told of ranks that join the job.
    grows: bool,
    /// Routes to ranks that were refused because this process was not told of them.
    refused: usize,
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
            port: if lane == 0 && job.is_first_member() { 0 } else { own.port() },
            grows: job.may_grow,
            refused: 0,
            shared: config.clone().into(),
            routes: HashMap::new(),
        }
    }

    /// The number of this lane.
    pub(crate) fn me(&self) -> Rank {
        self.me.into()
    }

    /// A number that members of this process's host have in common.
    pub(crate) fn host_number(&self) -> u64 {
        self.member(self.me.rank).host_number()
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

    /// Whether a hello is one of a rank that joined the job, which this process is not told of (J-23).
    pub(crate) fn is_unknown(&self, bytes: &HandshakeFrame, hello: &Handshake) -> bool {
        // Lane 0 speaks for the others, whose ports the rank does not know.
        let for_us = hello.to == self.me.rank && [hello.to_lane, 0].contains(&self.me.lane);
        let for_us = for_us && hello.port != 0;
        let unknown = hello.kind == Kind::Hello && self.is_stranger(hello.from);
        unknown && for_us && hello.job == self.job && self.key.verify(bytes)
    }

    /// Whether a peer is a lane of a rank that the job may have, and this process will not be told of.
    pub(crate) fn is_stranger(&self, peer: Rank) -> bool {
        !self.grows && Address::from(peer).rank >= self.size()
    }

    /// The refusal of such a hello, which came from this address, and the route to its sender; none if there
    /// are too many.
    pub(crate) fn refuse_unknown(
        &mut self,
        device: &mut dyn Datagram,
        hello: &Handshake,
        source: SocketAddr,
    ) -> Option<(RouteId, HandshakeFrame)> {
        let mut to = source;
        to.set_port(hello.port);
        let route = match self.routes.get(&to) {
            Some(route) => *route,
            None if self.refused < MAX_REFUSED => {
                self.refused += 1;
                self.add_route(device, to).ok()?
            }
            None => return None,
        };
        let mut params = self.params(Address::new(hello.from, hello.from_lane), device.max_frame(route));
        params.lane = hello.to_lane;
        Some((route, Peering::new(params, self.shared.clone()).refuse_unknown(hello)))
    }

    /// What a peering with a lane elsewhere is made of.
    fn params(&self, peer: Address, max_frame: usize) -> PeeringParams {
        PeeringParams {
            key: self.key.clone(),
            me: self.me.rank,
            peer: peer.rank,
            lane: self.me.lane,
            peer_lane: peer.lane,
            port: self.port,
            max_frame,
        }
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
        let params = self.params(Address::new(process, lane), device.max_frame(route));
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
    pub(crate) fn address_count(&self, rank: Rank) -> u8 {
        self.member(Address::from(rank).rank).address_count()
    }

    /// One of the addresses of a peer's rank, by its number.
    pub(crate) fn address(&self, rank: Rank, number: u8) -> SocketAddr {
        let member = self.member(Address::from(rank).rank);
        member.addresses().nth(number.into()).unwrap_or(member.addr)
    }

    /// The number of the address of a peer's rank that a frame came from, if it is one of several. The port
    /// does not tell: frames come from others than the bound one (D-33).
    pub(crate) fn address_from(&self, rank: Rank, source: Option<SocketAddr>) -> Option<u8> {
        let member = self.member(Address::from(rank).rank);
        let source = source.filter(|_| member.address_count() > 1)?;
        (0..).zip(member.addresses()).find(|(_, addr)| addr.ip() == source.ip()).map(|(number, _)| number)
    }

    /// The route to a peer at the address of its rank with this number, whose lane has this port; to lane 0
    /// if the port is zero.
    pub(crate) fn route(
        &mut self,
        device: &mut dyn Datagram,
        rank: Rank,
        number: u8,
        port: u16,
    ) -> io::Result<RouteId> {
        let mut to = self.address(rank, number);
        if port != 0 {
            to.set_port(port);
        }
        match self.routes.get(&to) {
            Some(route) => Ok(*route),
            None => self.add_route(device, to),
        }
    }

    fn add_route(&mut self, device: &mut dyn Datagram, to: SocketAddr) -> io::Result<RouteId> {
        if self.routes.len() >= MAX_ROUTES {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let route = device.route(to)?;
        self.routes.insert(to, route);
        Ok(route)
    }
}
