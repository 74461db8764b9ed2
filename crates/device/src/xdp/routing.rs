//! The transport of each route: AF_XDP, or the UDP socket; and why (D-13).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::Xdp;
use super::headers::{FrameAddresses, Framing, Mac, Template};
use super::neighbour::{self, Hop, Link, TableChange};
use super::shared::PendingRequests;
use super::unavailable::Unavailable;
use super::watch::ProgramWatch;
use crate::sys::netlink::Netlink;
use crate::sys::{self, Errno};
use crate::{DeviceEvent, RouteId, Transport};

/// The routes, and what their transports are chosen by.
pub(super) struct Routing {
    pub routes: Vec<Route>,
    pub health: Health,
    /// Notifications of changes in the kernel's tables.
    pub notifications: Netlink,
    /// Requests about the kernel's tables.
    pub queries: Netlink,
    /// The IP addresses of hardware addresses, as far as raw frames made us look them up.
    pub senders: Vec<(Mac, IpAddr)>,
    events: VecDeque<DeviceEvent>,
    /// Whether raw frames are taken, as last reported to the caller.
    raw_reported: bool,
    pub flushes: u32,
}

/// A destination.
pub(super) struct Route {
    to: SocketAddr,
    /// The first hop, once it was looked up.
    hop: Option<Hop>,
    mac: Option<Mac>,
    /// The headers, while AF_XDP can be used.
    pub template: Option<Template>,
    pub transport: Transport,
    /// Why this transport is used.
    pub reason: String,
    /// The transport that the caller asked for.
    pub preferred: Option<Transport>,
    /// The peer takes raw frames, as far as is known.
    pub peer_accepts_raw: bool,
    /// The caller knows the transport, so changes are reported.
    pub reported: bool,
    /// A frame was sent by AF_XDP since the neighbour was last confirmed.
    pub used: bool,
    /// The next frame goes through the socket, so that the kernel confirms its neighbour.
    pub confirm: bool,
    confirmed_at: u64,
}

impl Route {
    pub(super) fn new(to: SocketAddr) -> Route {
        Route {
            to,
            hop: None,
            mac: None,
            template: None,
            transport: Transport::Udp,
            reason: String::new(),
            preferred: None,
            peer_accepts_raw: true,
            reported: false,
            used: false,
            confirm: false,
            confirmed_at: sys::coarse_now(),
        }
    }
}

/// Whether the rings can be used at all, and if not, why.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The interface, or its address, is gone.
    pub gone: bool,
    /// The lower interface is gone, and with it the program and the sockets.
    pub lost: bool,
    /// The interface exists, but no longer has our address.
    pub moved: bool,
    /// The interface has just come back.
    pub back: bool,
    pub reopen: Reopen,
    pub watch: ProgramWatch,
    /// Requests to share the program of another process.
    pub requests: PendingRequests,
    /// The link is down.
    pub down: bool,
    /// The program does not know our new hardware address.
    pub stale_address: bool,
    /// The system's error when it refused to send.
    pub send_error: Option<Errno>,
    /// Consecutive flushes in which the kernel took nothing from a ring that was not empty.
    pub stalls: u32,
}

/// Attempts to reopen the interface.
#[derive(Debug, Default)]
pub(super) struct Reopen {
    /// Why the interface cannot be used although it is back, for people.
    pub problem: Option<String>,
    /// The same, to recognise a new reason.
    pub error: Option<Unavailable>,
    /// Attempts that failed although the interface was there.
    pub failures: u32,
    /// When the next attempt is due, and the pause before it, in nanoseconds.
    pub retry_at: u64,
    pub pause: u64,
}

/// Flushes without progress after which the ring counts as stuck.
pub(super) const STALLS_MAX: u32 = 256;
/// How often a neighbour in use is confirmed, in nanoseconds (D-25).
const CONFIRM_EVERY: u64 = 1_000_000_000;
/// The most events that are kept for a caller that does not poll them.
const EVENTS_MAX: usize = 1_024;

impl Health {
    /// Whether raw frames can arrive.
    pub(super) fn receives_raw(&self) -> bool {
        !self.gone && !self.stale_address && self.watch.problem.is_none()
    }

    fn problem(&self) -> Option<String> {
        match self {
            Health { moved: true, reopen: Reopen { problem: Some(why), .. }, .. } => {
                Some(format!("the address is at another interface, which cannot be used: {why}"))
            }
            Health { gone: true, reopen: Reopen { problem: Some(why), .. }, .. } => {
                Some(format!("the interface came back and cannot be used: {why}"))
            }
            Health { moved: true, .. } => Some("the interface has lost the address".into()),
            Health { gone: true, .. } => Some("the interface is gone".into()),
            Health { watch: ProgramWatch { problem: Some(why), .. }, .. } => Some(format!(
                "another process has detached the steering program, and it cannot be attached again: {why}"
            )),
            Health { down: true, .. } => Some("the link is down".into()),
            Health { send_error: Some(errno), .. } => Some(format!("the system refuses frames: {errno}")),
            Health { stalls: STALLS_MAX.., .. } => Some("the ring is stuck".into()),
            _ => None,
        }
    }
}

impl Routing {
    pub(super) fn new(notifications: Netlink, queries: Netlink) -> Routing {
        Routing {
            routes: Vec::new(),
            health: Health::default(),
            notifications,
            queries,
            senders: Vec::new(),
            events: VecDeque::new(),
            raw_reported: true,
            flushes: 0,
        }
    }

    /// Returns the next event for the caller.
    #[inline]
    pub(super) fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }

    /// Keeps an event for the caller.
    pub(super) fn report(&mut self, event: DeviceEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Reports a reason on every route that uses AF_XDP.
    pub(super) fn report_direct_routes(&mut self, why: &str) {
        for id in 0..self.routes.len() {
            let route = &self.routes[id];
            if route.reported && route.transport == Transport::Xdp {
                let (route, why) = (RouteId(id as u32), why.to_owned());
                self.report(DeviceEvent::Transport { route, transport: Transport::Xdp, why });
            }
        }
    }

    /// Sends the next frame of each used route through the socket, once per second. The kernel does not see
    /// AF_XDP frames, so it would not notice that a neighbour's hardware address has changed.
    #[cold]
    pub(super) fn confirm_neighbours(&mut self) {
        let now = sys::coarse_now();
        for route in &mut self.routes {
            if route.used && now.saturating_sub(route.confirmed_at) > CONFIRM_EVERY {
                (route.used, route.confirm, route.confirmed_at) = (false, true, now);
            }
        }
    }
}

impl Xdp {
    /// Looks up a route's first hop and its largest frame in the kernel's tables, and chooses its transport.
    #[cold]
    pub(super) fn resolve(&mut self, id: RouteId) {
        self.udp.recheck(id);
        let routing = &mut self.routing;
        let to = routing.routes[id.0 as usize].to;
        let hop = neighbour::route(&mut routing.queries, self.local, to).ok();
        let mac = hop
            .filter(|hop| hop.interface == self.point.upper.index && !hop.local)
            .and_then(|hop| neighbour::neighbour(&mut routing.queries, hop.interface, hop.neighbour));
        let route = &mut routing.routes[id.0 as usize];
        (route.hop, route.mac) = (hop, mac);
        self.choose(id);
    }

    /// Resolves all routes again.
    pub(super) fn resolve_all(&mut self) {
        (0..self.routing.routes.len() as u32).for_each(|id| self.resolve(RouteId(id)));
    }

    /// Chooses a route's transport, and reports a change of it, or of the reason not to use AF_XDP.
    pub(super) fn choose(&mut self, id: RouteId) {
        let (transport, why, template) = match self.template(id) {
            Ok(template) if self.routing.health.back => (
                Transport::Xdp,
                "the interface is back and the neighbour is known".to_owned(),
                Some(template),
            ),
            Ok(template) => {
                (Transport::Xdp, "the neighbour is known and the link is up".to_owned(), Some(template))
            }
            Err(why) => (Transport::Udp, why, None),
        };
        let route = &mut self.routing.routes[id.0 as usize];
        route.template = template;
        route.confirm = false;
        let switched = std::mem::replace(&mut route.transport, transport) != transport;
        // A new reason is reported, too: first the link is down, then the interface is gone.
        let changed = switched || transport == Transport::Udp && route.reason != why;
        route.reason.clone_from(&why);
        if changed && route.reported {
            self.routing.report(DeviceEvent::Transport { route: id, transport, why });
        }
    }

    /// Returns the headers for a route, or why AF_XDP cannot be used.
    fn template(&self, id: RouteId) -> Result<Template, String> {
        let route = &self.routing.routes[id.0 as usize];
        if route.preferred == Some(Transport::Udp) {
            return Err("asked for".into());
        }
        if let Some(why) = self.routing.health.problem() {
            return Err(why);
        }
        let hop = route.hop.ok_or("no route leads there")?;
        if hop.local {
            return Err("the address is one of this host's".into());
        }
        if hop.interface != self.point.upper.index {
            return Err("its route leads through another interface".into());
        }
        if hop.gateway && self.config.framing == Framing::Raw {
            return Err(format!("it is behind the gateway {}, which forwards no raw frames", hop.neighbour));
        }
        if self.config.framing == Framing::Raw && !route.peer_accepts_raw {
            return Err("the peer takes no raw frames: it does not use AF_XDP, has lost its interface, or is not configured for them".into());
        }
        let to_mac = route.mac.ok_or_else(|| unknown(hop.neighbour))?;
        let addresses = FrameAddresses {
            from_mac: self.point.lower.mac,
            to_mac,
            vlan: self.point.upper.vlan,
            from: self.local,
            to: route.to,
        };
        let template = Template::new(&addresses, self.config.framing);
        let template = if self.config.checksums { template } else { template.without_checksum() };
        Ok(if self.rings.queues.has_tx_metadata() { template.with_offload() } else { template })
    }

    /// Chooses the transport of all routes again.
    pub(super) fn choose_all(&mut self) {
        (0..self.routing.routes.len() as u32).for_each(|id| self.choose(RouteId(id)));
        self.report_raw();
    }

    /// Reports whether raw frames are taken, if that has changed. Their senders must know, because nothing
    /// else takes raw frames (D-22).
    pub(super) fn report_raw(&mut self) {
        let takes = self.routing.health.receives_raw();
        if self.config.framing == Framing::Raw
            && std::mem::replace(&mut self.routing.raw_reported, takes) != takes
        {
            self.routing.report(DeviceEvent::Raw);
        }
    }

    /// Handles changes of the kernel's tables.
    #[cold]
    pub(super) fn poll_table_changes(&mut self) {
        let mut changes = Vec::new();
        // Notifications that were lost may have been about anything.
        let mut all = !self
            .routing
            .notifications
            .poll(|kind, body| changes.extend(neighbour::parse_change(kind, body)));
        let any = all || !changes.is_empty();
        let mut address = all;
        for change in changes {
            match change {
                TableChange::Neighbour(n) => self.update_neighbour(n.interface, n.ip, n.mac),
                TableChange::Link(link) => self.update_link(&link),
                TableChange::LinkGone(index) => self.remove_link(index),
                TableChange::Routes => all = true,
                TableChange::Address(ip) => {
                    all = true;
                    address |= ip == self.local.ip();
                }
            }
        }
        if address {
            self.check_address();
        }
        // The change may be the interface that came back. One that is there and could not be opened keeps its
        // pause.
        if any && self.routing.health.reopen.failures == 0 {
            self.routing.health.reopen.retry_at = 0;
        }
        if all {
            self.resolve_all();
        }
    }

    fn update_neighbour(&mut self, interface: u32, ip: IpAddr, mac: Option<Mac>) {
        self.routing.senders.clear();
        for id in 0..self.routing.routes.len() {
            let route = &mut self.routing.routes[id];
            let is_hop = route.hop.is_some_and(|hop| hop.interface == interface && hop.neighbour == ip);
            if is_hop && route.mac != mac {
                route.mac = mac;
                self.choose(RouteId(id as u32));
            }
        }
    }

    fn update_link(&mut self, link: &Link) {
        let (upper, lower) = (self.point.upper.index, self.point.lower.index);
        if link.index != upper && link.index != lower {
            return;
        }
        let mac = self.point.upper.mac;
        if link.index == upper {
            self.point.upper = Link { vlan: self.point.upper.vlan, ..link.clone() };
        }
        if link.index == lower {
            self.point.lower = link.clone();
        }
        self.routing.health.down = !(self.point.upper.running && self.point.lower.running);
        if !self.routing.health.down {
            // What the system refused, or what was stuck, may work now.
            (self.routing.health.send_error, self.routing.health.stalls) = (None, 0);
            self.ring();
        }
        if self.point.upper.mac != mac {
            self.update_addressee();
        }
        self.resolve_all();
    }

    /// Tells the program our present hardware address. If that fails, frames pass to the socket, and raw
    /// frames are lost.
    pub(super) fn update_addressee(&mut self) {
        let to = self.config.addressee(self.point.upper.mac, self.local.port());
        self.routing.health.stale_address = self.attached.set_addressee(&self.rings.numbers, to).is_err();
        self.report_raw();
    }

    fn remove_link(&mut self, index: u32) {
        if index == self.point.upper.index || index == self.point.lower.index {
            let health = &mut self.routing.health;
            (health.gone, health.moved) = (true, false);
            health.lost |= index == self.point.lower.index;
            // An interface that is gone again is no longer unusable.
            (health.reopen.problem, health.reopen.error, health.reopen.failures) = (None, None, 0);
            if health.lost {
                self.release_interface();
            }
            self.choose_all();
        }
    }

    /// Treats an interface that has lost our address as gone: frames for us arrive by another one, or by none
    /// (D-26).
    fn check_address(&mut self) {
        let (ip, here) = (self.local.ip(), self.point.upper.index);
        let has = |indexes: Vec<u32>| indexes.contains(&here);
        let routing = &mut self.routing;
        if !routing.health.gone
            && neighbour::interfaces_of(&mut routing.queries, ip).is_ok_and(|indexes| !has(indexes))
        {
            (routing.health.gone, routing.health.moved) = (true, true);
            self.choose_all();
        }
    }
}

fn unknown(ip: IpAddr) -> String {
    format!("the hardware address of {ip} is not known")
}
