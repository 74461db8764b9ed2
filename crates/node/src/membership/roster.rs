//! Who may be a peer: the ranks of the job, their addresses, and the lanes that are found at them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use tautline_device::{Datagram, RouteId};
use tautline_link::{Config, JobKey, Peering, PeeringParams};

use super::Peer;
use crate::channel::{Channel, LinkChannel};
use crate::limits::MAX_ROUTES;
use crate::{Address, Job, Member, Rank};

/// What a lane knows of the job, and what it needs to make a peer of a lane elsewhere.
#[derive(Debug)]
pub(crate) struct Roster {
    me: Address,
    key: JobKey,
    members: Vec<Member>,
    /// The port of this lane, which peers cannot know; zero for lane 0.
    port: u16,
    routes: HashMap<SocketAddr, RouteId>,
}

impl Roster {
    /// The roster of a lane of `job` whose device has the address `own`.
    pub(crate) fn new(job: &Job, lane: u16, own: SocketAddr) -> Roster {
        Roster {
            me: Address::new(job.rank, lane),
            key: job.key.clone(),
            members: job.members.clone(),
            port: if lane == 0 { 0 } else { own.port() },
            routes: HashMap::new(),
        }
    }

    /// The number of this lane.
    pub(crate) fn me(&self) -> Rank {
        self.me.into()
    }

    /// Lane 0 of every rank.
    pub(crate) fn ranks(&self) -> std::ops::Range<Rank> {
        0..self.members.len() as Rank
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
        let route = self.route(device, rank, 0)?;
        let params = PeeringParams {
            key: self.key.clone(),
            me: self.me.rank,
            peer: process,
            lane: self.me.lane,
            peer_lane: lane,
            port: self.port,
            max_frame: device.max_frame(route),
        };
        let link = LinkChannel::new(Peering::new(params, config.clone()), route);
        let same_host = self.members[self.me.rank as usize].is_on_host_of(&self.members[process as usize]);
        Ok(Peer::new(rank, Channel::new(rank, link), same_host))
    }

    /// The route to a peer whose lane has this port; to lane 0 of its rank if that is zero.
    pub(crate) fn route(&mut self, device: &mut dyn Datagram, rank: Rank, port: u16) -> io::Result<RouteId> {
        let mut to = self.members[Address::from(rank).rank as usize].addr;
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
