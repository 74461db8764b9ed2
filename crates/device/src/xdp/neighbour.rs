//! The kernel's tables of links, addresses, routes and neighbours: requests, and notifications of changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::headers::Mac;
use crate::sys::netlink::{self, FLAG_DUMP, Netlink, add_attribute, attributes, u16_at, u32_at};

/// A network interface, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    /// Up, and with a carrier.
    pub running: bool,
    pub loopback: bool,
    pub mtu: usize,
    pub mac: Mac,
    /// The lower link and the tag, if this is a VLAN.
    pub below: Option<u32>,
    pub vlan: Option<u16>,
    /// The number of receive queues.
    pub queues: u32,
    /// The ids of attached XDP programs.
    pub programs: Vec<u32>,
}

/// The first hop towards a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The outgoing interface; zero for none.
    pub interface: u32,
    /// The neighbour that gets the packet.
    pub neighbour: IpAddr,
    /// The neighbour is a gateway.
    pub gateway: bool,
    /// The destination is this host.
    pub local: bool,
}

/// A neighbour's hardware address, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub interface: u32,
    pub ip: IpAddr,
    pub mac: Option<Mac>,
}

/// A change in the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableChange {
    Neighbour(Neighbour),
    Link(Link),
    LinkGone(u32),
    /// A route; all routes must be looked up again.
    Routes,
    /// An address, which may be ours; all routes must be looked up again.
    Address(IpAddr),
}

/// The notification groups: links, neighbours, addresses and routes.
pub(crate) const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE) as u32;

// Bytes of the fixed parts of messages, and attributes that are not in `libc`.
const LINK_FIXED: usize = 16;
const ADDRESS_FIXED: usize = 8;
const ROUTE_FIXED: usize = 12;
const NEIGHBOUR_FIXED: usize = 12;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_XDP_PROG_IDS: std::ops::RangeInclusive<u16> = 4..=7;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
const ROUTE_LOCAL: u8 = 2;
const ROUTE_UNICAST: u8 = 1;
/// States in which a neighbour's hardware address may be used.
const USABLE: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_NOARP
    | libc::NUD_PERMANENT;

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|all| Ipv6Addr::from(all).into())
}

/// Returns the interfaces that have this address.
pub(crate) fn interfaces_of(netlink: &mut Netlink, ip: IpAddr) -> io::Result<Vec<u32>> {
    let body = [family(ip), 0, 0, 0, 0, 0, 0, 0];
    let mut found = Vec::new();
    netlink.request(libc::RTM_GETADDR, FLAG_DUMP, &body, |_, body| {
        if parse_address(body) == Some(ip) {
            found.extend(u32_at(body, 4));
        }
    })?;
    Ok(found)
}

/// Parses an interface's address. The local attribute comes first: the other one may be the address of the
/// remote end.
fn parse_address(body: &[u8]) -> Option<IpAddr> {
    let of = |wanted| attributes(body, ADDRESS_FIXED).find(|(kind, _)| *kind == wanted);
    of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS)).and_then(|(_, value)| ip_of(value))
}

/// Returns a link by its index.
pub(crate) fn link(netlink: &mut Netlink, index: u32) -> io::Result<Link> {
    let mut body = vec![0; LINK_FIXED];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut found = None;
    netlink.request(libc::RTM_GETLINK, 0, &body, |_, body| found = parse_link(body))?;
    found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Returns all links.
pub(crate) fn links(netlink: &mut Netlink) -> io::Result<Vec<Link>> {
    let mut found = Vec::new();
    netlink
        .request(libc::RTM_GETLINK, FLAG_DUMP, &[0; LINK_FIXED], |_, body| found.extend(parse_link(body)))?;
    Ok(found)
}

/// Returns the first hop of datagrams between these addresses. Routing rules may depend on protocol and
/// ports, so they are sent along if the kernel accepts them.
pub(crate) fn route(netlink: &mut Netlink, from: SocketAddr, to: SocketAddr) -> io::Result<Hop> {
    match request_route(netlink, from, to, true) {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            request_route(netlink, from, to, false)
        }
        answered => answered,
    }
}

fn request_route(netlink: &mut Netlink, from: SocketAddr, to: SocketAddr, ports: bool) -> io::Result<Hop> {
    let bits = if to.is_ipv4() { 32 } else { 128 };
    let mut body = vec![0; ROUTE_FIXED];
    (body[0], body[1]) = (family(to.ip()), bits);
    add_attribute(&mut body, libc::RTA_DST, &octets(to.ip()));
    if !from.ip().is_unspecified() {
        body[2] = bits;
        add_attribute(&mut body, libc::RTA_SRC, &octets(from.ip()));
    }
    if let Some(interface) = scope(to).or_else(|| scope(from)) {
        add_attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
    }
    if ports {
        add_attribute(&mut body, RTA_IP_PROTO, &[libc::IPPROTO_UDP as u8]);
        add_attribute(&mut body, RTA_SPORT, &from.port().to_be_bytes());
        add_attribute(&mut body, RTA_DPORT, &to.port().to_be_bytes());
    }
    let to = to.ip();
    let mut hop = None;
    netlink.request(libc::RTM_GETROUTE, 0, &body, |_, body| {
        let kind = body.get(7).copied().unwrap_or(0);
        let mut this = Hop { interface: 0, neighbour: to, gateway: false, local: kind == ROUTE_LOCAL };
        for (kind, value) in attributes(body, ROUTE_FIXED) {
            match kind {
                libc::RTA_OIF => this.interface = u32_at(value, 0).unwrap_or(0),
                libc::RTA_GATEWAY => (this.neighbour, this.gateway) = (ip_of(value).unwrap_or(to), true),
                _ => {}
            }
        }
        hop = matches!(kind, ROUTE_LOCAL | ROUTE_UNICAST).then_some(this);
    })?;
    hop.ok_or_else(|| io::Error::from(io::ErrorKind::NetworkUnreachable))
}

/// Returns the interface of a link-local address with a scope: other interfaces may have the same address.
pub(crate) fn scope(addr: SocketAddr) -> Option<u32> {
    match addr {
        SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() => {
            Some(addr.scope_id()).filter(|id| *id > 0)
        }
        _ => None,
    }
}

/// Returns a neighbour's hardware address, if the kernel knows it now.
pub(crate) fn neighbour(netlink: &mut Netlink, interface: u32, ip: IpAddr) -> Option<Mac> {
    let mut body = vec![0; NEIGHBOUR_FIXED];
    body[0] = family(ip);
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    add_attribute(&mut body, libc::NDA_DST, &octets(ip));
    let mut found = None;
    let asked = netlink.request(libc::RTM_GETNEIGH, 0, &body, |_, body| found = parse_neighbour(body, false));
    asked.ok().and(found).and_then(|neighbour| neighbour.mac)
}

/// Returns all neighbours of an interface whose hardware addresses are known.
pub(crate) fn neighbours(netlink: &mut Netlink, interface: u32) -> Vec<(Mac, IpAddr)> {
    let mut found = Vec::new();
    let asked = netlink.request(libc::RTM_GETNEIGH, FLAG_DUMP, &[0; NEIGHBOUR_FIXED], |_, body| {
        let this = parse_neighbour(body, false).filter(|n| n.interface == interface);
        found.extend(this.and_then(|n| n.mac.map(|mac| (mac, n.ip))));
    });
    if asked.is_err() {
        found.clear();
    }
    found
}

/// Parses a notification, if it matters.
pub(crate) fn parse_change(kind: u16, body: &[u8]) -> Option<TableChange> {
    match kind {
        libc::RTM_NEWNEIGH => parse_neighbour(body, false).map(TableChange::Neighbour),
        libc::RTM_DELNEIGH => parse_neighbour(body, true).map(TableChange::Neighbour),
        libc::RTM_NEWLINK => parse_link(body).map(TableChange::Link),
        // The removal of a bridge's port has the same type, with another family.
        libc::RTM_DELLINK if body.first() == Some(&0) => u32_at(body, 4).map(TableChange::LinkGone),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => Some(TableChange::Routes),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => {
            Some(parse_address(body).map_or(TableChange::Routes, TableChange::Address))
        }
        _ => None,
    }
}

fn parse_neighbour(body: &[u8], gone: bool) -> Option<Neighbour> {
    let interface = u32_at(body, 4)?;
    let state = u16_at(body, 8)?;
    let (mut ip, mut mac) = (None, None);
    for (kind, value) in attributes(body, NEIGHBOUR_FIXED) {
        match kind {
            libc::NDA_DST => ip = ip_of(value),
            libc::NDA_LLADDR => mac = <Mac>::try_from(value).ok(),
            _ => {}
        }
    }
    let mac = mac.filter(|_| !gone && state & USABLE != 0);
    Some(Neighbour { interface, ip: ip?, mac })
}

fn parse_link(body: &[u8]) -> Option<Link> {
    const RUNNING: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
    let flags = u32_at(body, 8)?;
    let mut link = Link {
        index: u32_at(body, 4)?,
        running: flags & RUNNING == RUNNING,
        loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        queues: 1,
        ..Link::default()
    };
    for (kind, value) in attributes(body, LINK_FIXED) {
        match kind {
            libc::IFLA_IFNAME => {
                let name = value.split(|b| *b == 0).next().unwrap_or_default();
                link.name = String::from_utf8_lossy(name).into_owned();
            }
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)? as usize,
            libc::IFLA_ADDRESS => link.mac = <Mac>::try_from(value).unwrap_or_default(),
            libc::IFLA_LINK => link.below = u32_at(value, 0),
            IFLA_NUM_RX_QUEUES => link.queues = u32_at(value, 0)?.max(1),
            libc::IFLA_LINKINFO => link.vlan = parse_vlan(value),
            libc::IFLA_XDP => {
                let numbers = attributes(value, 0).filter(|(kind, _)| IFLA_XDP_PROG_IDS.contains(kind));
                link.programs =
                    numbers.filter_map(|(_, value)| u32_at(value, 0)).filter(|n| *n > 0).collect();
                link.programs.dedup();
            }
            _ => {}
        }
    }
    Some(link)
}

fn parse_vlan(info: &[u8]) -> Option<u16> {
    let of = |wanted| attributes(info, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    if !of(IFLA_INFO_KIND)?.starts_with(b"vlan") {
        return None;
    }
    attributes(of(IFLA_INFO_DATA)?, 0)
        .find(|(kind, _)| *kind == IFLA_VLAN_ID)
        .and_then(|(_, id)| u16_at(id, 0))
}

/// Returns the name of an interface's driver.
pub(crate) fn driver(link: &Link) -> String {
    netlink::driver(&link.name).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the number of receive queues in use, as far as the driver tells.
pub(crate) fn queues(link: &Link) -> u32 {
    netlink::queues(&link.name).unwrap_or(link.queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link_with(info: &[u8]) -> Link {
        let mut body = vec![0; LINK_FIXED];
        body[4..8].copy_from_slice(&9_u32.to_ne_bytes());
        body.extend(attribute(libc::IFLA_IFNAME, b"v0.7\0"));
        body.extend(attribute(libc::IFLA_LINK, &5_u32.to_ne_bytes()));
        body.extend(attribute(libc::IFLA_LINKINFO, info));
        parse_link(&body).unwrap()
    }

    /// D-11: the tag of a VLAN interface, and the interface below it, as the kernel reports them. Kernels
    /// without VLANs skip the tests that use such interfaces.
    #[test]
    fn vlan_interfaces_are_recognised() {
        // Flags come before the tag, as from the kernel; the protocol follows.
        let data = [
            attribute(2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            attribute(5, &[0x81, 0]),
            attribute(1, &[7, 0]),
        ];
        let info = |kind: &[u8]| [attribute(1, kind), attribute(2, &data.concat())].concat();
        let link = link_with(&info(b"vlan\0"));
        assert_eq!((link.index, link.name.as_str(), link.below, link.vlan), (9, "v0.7", Some(5), Some(7)));
        assert_eq!(link_with(&info(b"veth\0")).vlan, None, "attribute 1 of another kind is no tag");
        assert_eq!(link_with(&attribute(1, b"vlan\0")).vlan, None, "no data");
    }
}
