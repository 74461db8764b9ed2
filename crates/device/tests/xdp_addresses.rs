//! The AF_XDP device and the addresses of its host: their interfaces, routes, hardware addresses and MTUs,
//! and raw frames.
#![allow(clippy::print_stdout)]

mod netns_device;
mod spaces;

use std::time::{Duration, Instant};

use netns_device::{
    NetnsDevice, assert_arrives, in_namespaces, open, open_udp, poll, receive, until_reopened,
    until_transport,
};
use spaces::{Shape, ip};
use tautline_device::udp::UdpConfig;
use tautline_device::xdp::{Framing, Xdp, XdpConfig};
use tautline_device::{Datagram, DeviceEvent, Transport};

/// D-13: a link-local address belongs to one interface, even if others have the same.
#[test]
fn link_local_addresses_belong_to_one_interface() {
    in_namespaces("link_local_addresses_belong_to_one_interface", Shape::default(), |spaces| {
        let [at_a, at_b] = &spaces.names;
        ip(&format!("-n {at_a} link add e0 index 77 type veth peer name e0 index 78 netns {at_b}")).unwrap();
        for (name, mac) in spaces.names.iter().zip(spaces::MACS) {
            ip(&format!("-n {name} link set e0 address {mac} up")).unwrap();
        }
        let at = |side: usize, port| {
            let host = format!("fe80::ff:fe54:4c{:02x}", side + 1).parse().unwrap();
            std::net::SocketAddr::V6(std::net::SocketAddrV6::new(host, port, 0, 77 + side as u32))
        };
        let config_at = |bind| UdpConfig::with(|config| (config.bind, config.tx_slots) = (bind, 64));
        // A new address cannot be used at once.
        let wait_for_address = |side: usize| {
            spaces.enter(side);
            let until = Instant::now() + Duration::from_secs(10);
            while std::net::UdpSocket::bind(at(side, 0)).is_err() {
                assert!(Instant::now() < until, "no address");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        wait_for_address(1);
        let b = tautline_device::udp::Udp::open(config_at(at(1, 0))).unwrap();
        let mut b = NetnsDevice { device: b, spaces: spaces.clone(), side: 1 };
        wait_for_address(0);
        let a =
            Xdp::open(XdpConfig::with(|config| (config.udp, config.rx_chunks) = (config_at(at(0, 0)), 512)));
        let a = a.unwrap_or_else(|r| panic!("{}", r.why));
        let mut a = NetnsDevice { device: a, spaces: spaces.clone(), side: 0 };
        assert!(a.device.describe().contains(" on e0 "), "{}", a.device.describe());
        let to_b = std::net::SocketAddrV6::new(
            match b.local_addr() {
                std::net::SocketAddr::V6(addr) => *addr.ip(),
                other => panic!("{other}"),
            },
            b.local_addr().port(),
            0,
            77,
        );
        let route = a.route(to_b.into()).unwrap();
        until_transport(&mut a, &mut b, route, Transport::Xdp);
        while !receive(&mut b, 1).is_empty() {}
        assert_arrives(&mut a, &mut b, route, 5);
    });
}

/// D-11: frames for the present hardware address of the interface arrive by the ring, and no others.
#[test]
fn a_new_hardware_address_is_used() {
    for framing in [Framing::Udp, Framing::Raw] {
        in_namespaces("a_new_hardware_address_is_used", Shape::default(), |spaces| {
            let config = || XdpConfig::with(|config| config.framing = framing);
            let (mut a, mut b) = (open(spaces, 0, config()), open(spaces, 1, config()));
            let route = a.route(b.local_addr()).unwrap();
            assert_arrives(&mut a, &mut b, route, 1);
            let know = |mac: &str| {
                ip(&format!(
                    "-n {} neigh replace 10.211.9.2 lladdr {mac} dev v0 nud permanent",
                    spaces.names[0]
                ))
                .unwrap();
            };
            let other = "02:00:00:54:4c:99";
            ip(&format!("-n {} link set v0 address {other}", spaces.names[1])).unwrap();
            know(other);
            poll(&mut a);
            poll(&mut b);
            let by_socket = b.device.frames_by_socket();
            (0..50).for_each(|number| assert_arrives(&mut a, &mut b, route, number));
            // Once per second a frame goes through the socket, to confirm the neighbour.
            assert!(b.device.frames_by_socket() - by_socket < 25, "by the ring");
            know(spaces::MACS[1]);
            poll(&mut a);
            netns_device::send(&mut a, route, &netns_device::data_frame(1, 100));
            assert!(receive(&mut b, 1).is_empty(), "for another host");
        });
    }
}

/// D-13: routing rules may depend on protocol and ports; the kernel's answer takes them into account.
#[test]
fn routing_rules_may_depend_on_ports() {
    in_namespaces("routing_rules_may_depend_on_ports", Shape::default(), |spaces| {
        let at_a = &spaces.names[0];
        ip(&format!("-n {at_a} link add e0 type veth peer name e1")).unwrap();
        ["e0", "e1"].iter().for_each(|name| drop(ip(&format!("-n {at_a} link set {name} up")).unwrap()));
        ip(&format!("-n {at_a} route add 10.211.9.2/32 dev e0 table 100")).unwrap();
        if let Err(why) = ip(&format!("-n {at_a} rule add ipproto udp dport 9000 lookup 100")) {
            return tautline_skips::skip("routing_rules_may_depend_on_ports", why);
        }
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut transport = |port| {
            let route = a.route(std::net::SocketAddr::new(spaces.addr(1, false), port)).unwrap();
            (a.transport(route), a.transport_reason(route).contains("another interface"))
        };
        assert_eq!(
            [transport(9_000), transport(9_001)],
            [(Some(Transport::Udp), true), (Some(Transport::Xdp), false)]
        );
    });
}

/// D-22: whether raw frames are taken follows the interface, and each change is reported once.
#[test]
fn raw_acceptance_follows_the_interface() {
    in_namespaces("raw_acceptance_follows_the_interface", Shape::default(), |spaces| {
        let raw = || XdpConfig::with(|config| config.framing = Framing::Raw);
        let (mut a, mut b) = (open(spaces, 0, raw()), open(spaces, 1, raw()));
        let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
        assert!(a.device.takes_raw());
        assert_arrives(&mut b, &mut a, to_a, 1);
        let changes = |events: &[DeviceEvent]| events.iter().filter(|e| **e == DeviceEvent::Raw).count();
        ip(&format!("-n {} link del v0", spaces.names[0])).unwrap();
        poll(&mut a);
        let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        assert!(!a.device.takes_raw() && changes(&events) == 1, "{events:?}");
        spaces.join().unwrap();
        let events = until_reopened(&mut a, &mut b, to_b);
        assert!(a.device.takes_raw() && changes(&events) == 1, "{events:?}");
        until_reopened(&mut b, &mut a, to_a);
        while !receive(&mut a, 1).is_empty() {}
        assert_arrives(&mut b, &mut a, to_a, 2);
        // A device whose peer takes no raw frames uses the socket, until it takes them again.
        b.device.set_peer_takes_raw(to_a, false);
        assert_eq!(b.transport(to_a), Some(Transport::Udp), "{}", b.transport_reason(to_a));
        assert_arrives(&mut b, &mut a, to_a, 3);
        b.device.set_peer_takes_raw(to_a, true);
        assert_eq!(b.transport(to_a), Some(Transport::Xdp), "{}", b.transport_reason(to_a));
        assert_arrives(&mut b, &mut a, to_a, 4);
    });
}

/// D-26: the device follows an address that moves to another interface of its host, and uses the socket
/// meanwhile. It waits for an address that is gone.
#[test]
fn the_device_follows_its_address() {
    in_namespaces("the_device_follows_its_address", Shape::default(), |spaces| {
        let [at_a, at_b] = &spaces.names;
        ip(&format!("-n {at_a} link add v1 type veth peer name v1 netns {at_b}")).unwrap();
        ip(&format!("-n {at_a} link set v1 address 02:00:00:54:4c:11 up")).unwrap();
        ip(&format!("-n {at_b} link set v1 address 02:00:00:54:4c:12 up")).unwrap();
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open_udp(spaces, 1);
        let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
        assert_arrives(&mut a, &mut b, to_b, 1);
        for (from, to, macs) in [("v0", "v1", ["4c:11", "4c:12"]), ("v1", "v0", ["4c:01", "4c:02"])] {
            ip(&format!("-n {at_a} addr del 10.211.9.1/24 dev {from}")).unwrap();
            poll(&mut a);
            let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
            let lost = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("has lost the address"));
            assert!(events.iter().any(lost), "{events:?}");
            ip(&format!("-n {at_a} addr add 10.211.9.1/24 dev {to}")).unwrap();
            ip(&format!("-n {at_b} route replace 10.211.9.1/32 dev {to}")).unwrap();
            for (side, ip_of, mac) in [(at_a, 2, macs[1]), (at_b, 1, macs[0])] {
                ip(&format!(
                    "-n {side} neigh replace 10.211.9.{ip_of} lladdr 02:00:00:54:{mac} dev {to} nud permanent"
                ))
                .unwrap();
            }
            until_reopened(&mut a, &mut b, to_b);
            while !receive(&mut b, 1).is_empty() {}
            let program = |name| ip(&format!("-n {at_a} link show {name}")).unwrap().contains("xdp");
            assert_eq!([program(from), program(to)], [false, true]);
            (0..600).for_each(|number| assert_arrives(&mut a, &mut b, to_b, number));
            (0..600).for_each(|number| assert_arrives(&mut b, &mut a, to_a, number));
        }
        assert!(a.arena_ref().available() + 4 >= a.arena_ref().capacity(), "no slot is lost");
    });
}

/// D-5: an MTU that changes while the link is down is used when it is up again, also by a route that was
/// created meanwhile.
#[test]
fn an_mtu_changed_while_the_link_is_down_counts() {
    let jumbo = Shape { mtu: 9_000, ..Shape::default() };
    in_namespaces("an_mtu_changed_while_the_link_is_down_counts", jumbo, |spaces| {
        let both = |what: &str| {
            spaces.names.iter().for_each(|name| drop(ip(&format!("-n {name} link set v0 {what}")).unwrap()));
        };
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open(spaces, 1, XdpConfig::default());
        let early = a.route(b.local_addr()).unwrap();
        assert_eq!(a.max_frame(early), 8_972);
        both("down");
        both("mtu 8000");
        poll(&mut a);
        assert_eq!(a.max_frame(early), 8_972, "unreachable, so the limit is kept");
        let late = a.route(b.local_addr()).unwrap();
        assert_eq!(a.max_frame(late), 1_232, "what every path takes");
        both("up");
        spaces.acquaint().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while [early, late].iter().any(|route| a.max_frame(*route) != 7_972) {
            assert!(Instant::now() < until, "{} and {}", a.max_frame(early), a.max_frame(late));
            poll(&mut a);
        }
        let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        for route in [early, late] {
            assert!(events.contains(&DeviceEvent::PathLimit { route, max_frame: 7_972 }), "{events:?}");
        }
        until_transport(&mut a, &mut b, early, Transport::Xdp);
        while !receive(&mut b, 1).is_empty() {}
        let frame = netns_device::data_frame(1, 7_972);
        netns_device::send(&mut a, early, &frame);
        assert!(receive(&mut b, 1) == [frame], "the longest frame");
    });
}
