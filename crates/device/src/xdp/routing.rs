//! Which way each route goes: directly, or through the UDP socket; and why (D-13).

use std::net::{IpAddr, SocketAddr};

use super::Xdp;
use super::attach::Unavailable;
use super::headers::{Ends, Framing, Mac, Template};
use super::neighbour::{self, Hop, Link, News};
use super::watch::Watch;
use crate::sys::bpf::Addressee;
use crate::sys::{self, Errno};
use crate::{DeviceEvent, RouteId, Transport};

/// A destination.
pub(super) struct Route {
    pub to: SocketAddr,
    /// Its first hop, once asked for.
    hop: Option<Hop>,
    mac: Option<Mac>,
    /// The headers, while frames can go directly.
    pub template: Option<Template>,
    pub transport: Transport,
    /// Why this one.
    pub why: String,
    /// The way that the caller asked for.
    pub asked: Option<Transport>,
    /// Whoever is there takes raw frames, as far as we were told.
    pub takes_raw: bool,
    /// The route has told which way it goes, so changes are news.
    pub told: bool,
    /// Something was sent directly since the neighbour was last confirmed.
    pub used: bool,
    /// The next frame goes through the socket, although there is a better way: the kernel then looks after its neighbour.
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
            why: String::new(),
            asked: None,
            takes_raw: true,
            told: false,
            used: false,
            confirm: false,
            confirmed_at: sys::coarse_now(),
        }
    }
}

/// Whether the ring can be used at all, and why not.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The interface does not exist any more.
    pub gone: bool,
    /// The one below is, with all that was on it.
    pub lost: bool,
    /// It does, and has our address no more.
    pub moved: bool,
    /// It came back, and why it cannot be used.
    pub unusable: Option<String>,
    /// The same for us, and looks in vain until now.
    pub refusal: Option<Unavailable>,
    pub in_vain: u32,
    /// It has just come back.
    pub back: bool,
    /// When, and after how long a pause, it is looked for again, in nanoseconds.
    pub retry_at: u64,
    pub pause: u64,
    /// Whether the program is where it was attached.
    pub watch: Watch,
    /// It is down, or nothing is at its other end.
    pub down: bool,
    /// The program could not be told our hardware address.
    pub deaf: bool,
    /// What the system said when it refused to send.
    pub refused: Option<Errno>,
    /// Flushes in a row in which the kernel took nothing from a ring that had something.
    pub stalls: u32,
}

/// So many flushes without a frame taken, and the ring counts as stuck.
pub(super) const STALLS_MAX: u32 = 256;
/// A neighbour that is used is confirmed this often, in nanoseconds.
const CONFIRM_EVERY: u64 = 1_000_000_000;

impl Health {
    /// Whether frames that only the program takes can come.
    pub(super) fn hears(&self) -> bool {
        !self.gone && !self.deaf && self.watch.why.is_none()
    }

    fn why(&self) -> Option<String> {
        match self {
            Health { moved: true, unusable: Some(why), .. } => {
                Some(format!("the address is at another interface, which cannot be used: {why}"))
            }
            Health { gone: true, unusable: Some(why), .. } => {
                Some(format!("the interface came back and cannot be used: {why}"))
            }
            Health { moved: true, .. } => Some("the interface has lost the address".into()),
            Health { gone: true, .. } => Some("the interface is gone".into()),
            Health { watch: Watch { why: Some(why), .. }, .. } => Some(format!(
                "somebody has detached the steering program, and it cannot be attached again: {why}"
            )),
            Health { down: true, .. } => Some("the link is down".into()),
            Health { refused: Some(errno), .. } => Some(format!("the system refuses frames: {errno}")),
            Health { stalls: STALLS_MAX.., .. } => Some("the ring is stuck".into()),
            _ => None,
        }
    }
}

impl Xdp {
    /// Asks the kernel's tables where a route leads, and how large a frame may be on the way, and chooses the way.
    #[cold]
    pub(super) fn look_up(&mut self, id: RouteId) {
        self.udp.recheck(id);
        let to = self.routes[id.0 as usize].to;
        let hop = neighbour::route(&mut self.asks, self.local, to).ok();
        let mac = hop
            .filter(|hop| hop.interface == self.place.upper.index && !hop.local)
            .and_then(|hop| neighbour::neighbour(&mut self.asks, hop.interface, hop.neighbour));
        let route = &mut self.routes[id.0 as usize];
        (route.hop, route.mac) = (hop, mac);
        self.choose(id);
    }

    /// Chooses a route's way from what is known, and tells if it, or the reason to do without the ring, changed.
    pub(super) fn choose(&mut self, id: RouteId) {
        let verdict = self.verdict(id);
        let (transport, why, template) = match verdict {
            Ok(template) if self.health.back => (
                Transport::Xdp,
                "the interface is back and the neighbour is known".to_owned(),
                Some(template),
            ),
            Ok(template) => {
                (Transport::Xdp, "the neighbour is known and the link is up".to_owned(), Some(template))
            }
            Err(why) => (Transport::Udp, why, None),
        };
        let route = &mut self.routes[id.0 as usize];
        route.template = template;
        route.confirm = false;
        let other_way = std::mem::replace(&mut route.transport, transport) != transport;
        // Why it is not the better one is news, too: the link is down, then the interface is gone.
        let changed = other_way || transport == Transport::Udp && route.why != why;
        route.why.clone_from(&why);
        if changed && route.told {
            self.tell(DeviceEvent::Transport { route: id, transport, why });
        }
    }

    /// Keeps an event for the caller.
    pub(super) fn tell(&mut self, event: DeviceEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The headers for a route, or why there are none.
    fn verdict(&self, id: RouteId) -> Result<Template, String> {
        let route = &self.routes[id.0 as usize];
        if route.asked == Some(Transport::Udp) {
            return Err("asked for".into());
        }
        if let Some(why) = self.health.why() {
            return Err(why);
        }
        let hop = route.hop.ok_or("no route leads there")?;
        if hop.local {
            return Err("it is this very host".into());
        }
        if hop.interface != self.place.upper.index {
            return Err("its route leads through another interface".into());
        }
        if hop.gateway && self.config.framing == Framing::Raw {
            return Err(format!("it is behind the gateway {}, which forwards no raw frames", hop.neighbour));
        }
        if self.config.framing == Framing::Raw && !route.takes_raw {
            return Err("it takes no raw frames as far as it has said: it does without AF_XDP, has lost its interface, or was not told to use them".into());
        }
        let to_mac = route.mac.ok_or_else(|| unknown(hop.neighbour))?;
        let ends = Ends {
            from_mac: self.place.lower.mac,
            to_mac,
            vlan: self.place.upper.vlan,
            from: self.local,
            to: route.to,
        };
        let template = Template::new(&ends, self.config.framing);
        let template = if self.config.checksums { template } else { template.without_checksum() };
        Ok(if self.queues.takes_orders() { template.with_card() } else { template })
    }

    /// All routes look again at what is known.
    pub(super) fn choose_all(&mut self) {
        (0..self.routes.len() as u32).for_each(|id| self.choose(RouteId(id)));
        self.tell_raw();
    }

    /// Tells whether raw frames are taken, if that has changed: their senders must hear of it, for nothing else takes them (D-12).
    pub(super) fn tell_raw(&mut self) {
        let takes = self.health.hears();
        if self.config.framing == Framing::Raw && std::mem::replace(&mut self.raw_told, takes) != takes {
            self.tell(DeviceEvent::Raw);
        }
    }

    /// Takes news from the kernel's tables.
    #[cold]
    pub(super) fn hear_news(&mut self) {
        let mut heard = Vec::new();
        // What was lost may have been anything.
        let mut all = !self.news.hear(|kind, body| heard.extend(neighbour::read_news(kind, body)));
        let any = all || !heard.is_empty();
        let mut moved = all;
        for news in heard {
            match news {
                News::Neighbour(n) => self.neighbour_is(n.interface, n.ip, n.mac),
                News::Link(link) => self.link_is(&link),
                News::LinkGone(index) => self.link_gone(index),
                News::Routes => all = true,
                News::Address(ip) => {
                    all = true;
                    moved |= ip == self.local.ip();
                }
            }
        }
        if moved {
            self.look_for_address();
        }
        // Whatever it was: it may be the interface. One that was there and could not be had is waited for.
        if any && self.health.in_vain == 0 {
            self.health.retry_at = 0;
        }
        if all {
            (0..self.routes.len() as u32).for_each(|id| self.look_up(RouteId(id)));
        }
    }

    fn neighbour_is(&mut self, interface: u32, ip: IpAddr, mac: Option<Mac>) {
        self.senders.clear();
        for id in 0..self.routes.len() {
            let route = &mut self.routes[id];
            let is_hop = route.hop.is_some_and(|hop| hop.interface == interface && hop.neighbour == ip);
            if is_hop && route.mac != mac {
                route.mac = mac;
                self.choose(RouteId(id as u32));
            }
        }
    }

    fn link_is(&mut self, link: &Link) {
        let (upper, lower) = (self.place.upper.index, self.place.lower.index);
        if link.index != upper && link.index != lower {
            return;
        }
        let mac = self.place.upper.mac;
        if link.index == upper {
            self.place.upper = Link { vlan: self.place.upper.vlan, ..link.clone() };
        }
        if link.index == lower {
            self.place.lower = link.clone();
        }
        self.health.down = !(self.place.upper.running && self.place.lower.running);
        if !self.health.down {
            // Whatever was refused or stuck may go on now.
            (self.health.refused, self.health.stalls) = (None, 0);
            self.ring();
        }
        if self.place.upper.mac != mac {
            self.readdress();
        }
        (0..self.routes.len() as u32).for_each(|id| self.look_up(RouteId(id)));
    }

    /// The interface has another hardware address. A program that cannot be told lets frames pass to the socket, and raw ones to nobody.
    pub(super) fn readdress(&mut self) {
        let to = Addressee { mac: self.place.upper.mac, port: self.local.port() };
        let deaf = self.attached.readdress(&self.numbers, to).err();
        self.health.deaf = deaf.is_some();
        self.tell_raw();
    }

    fn link_gone(&mut self, index: u32) {
        if index == self.place.upper.index || index == self.place.lower.index {
            (self.health.gone, self.health.moved) = (true, false);
            self.health.lost |= index == self.place.lower.index;
            // One that is gone again is not unusable any more.
            (self.health.unusable, self.health.refusal, self.health.in_vain) = (None, None, 0);
            if self.health.lost {
                self.let_go_of_interface();
            }
            self.choose_all();
        }
    }

    /// An interface without our address is as good as gone: frames for us come by another one, or by none (D-13).
    fn look_for_address(&mut self) {
        let (ip, here) = (self.local.ip(), self.place.upper.index);
        let has = |at: Vec<u32>| at.contains(&here);
        if !self.health.gone && neighbour::interfaces_of(&mut self.asks, ip).is_ok_and(|at| !has(at)) {
            (self.health.gone, self.health.moved) = (true, true);
            self.choose_all();
        }
    }

    /// Lets the kernel see to its neighbours now and then: it knows nothing of frames that pass it by, and would take a
    /// neighbour that moved for one that is still there.
    #[cold]
    pub(super) fn confirm_neighbours(&mut self) {
        let now = sys::coarse_now();
        for route in &mut self.routes {
            if route.used && now.saturating_sub(route.confirmed_at) > CONFIRM_EVERY {
                (route.used, route.confirm, route.confirmed_at) = (false, true, now);
            }
        }
        self.look_after_program(false);
    }
}

/// Events kept for a caller that does not ask.
const EVENTS_MAX: usize = 1_024;

fn unknown(ip: IpAddr) -> String {
    format!("the hardware address of {ip} is not known")
}
