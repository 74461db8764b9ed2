//! The transport of each route of an AF_XDP device: UDP peers, neighbours, gateways, links, a detached
//! program.
#![allow(clippy::print_stdout)]

mod netns_device;
mod spaces;

use std::time::{Duration, Instant};

use netns_device::{
    assert_arrives, data_frame, in_namespaces, open, open_udp, poll, receive, send, until_transport,
};
use spaces::{Shape, ip};
use tautline_device::xdp::{Framing, Mode, XdpConfig};
use tautline_device::{Datagram, DeviceEvent, HEADROOM, Transport};

const UNACQUAINTED: Shape = Shape { mtu: 1_500, vlan: None, acquainted: false, queues: None };

/// An xdp device and a udp device exchange frames of all sizes, in both directions.
#[test]
fn xdp_and_udp_interoperate() {
    in_namespaces("xdp_and_udp_interoperate", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let mut a = open(spaces, 0, XdpConfig::with(|config| config.mode = mode));
            let mut b = open_udp(spaces, 1);
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            assert_eq!(a.transport(to_b), Some(Transport::Xdp));
            for len in [48, 49, 64, 1_000, a.max_frame(to_b)] {
                let frame = data_frame(len, len);
                send(&mut a, to_b, &frame);
                assert!(receive(&mut b, 1) == [frame.clone()], "{len} bytes, xdp to udp");
                send(&mut b, to_a, &frame);
                assert!(receive(&mut a, 1) == [frame], "{len} bytes, udp to xdp");
            }
            if mode == Mode::Native {
                assert_eq!(a.counters().receive_calls, 0, "all frames arrived by the ring");
            }
            // A train that only a card would segment; in generic mode there is none.
            let slot = b.arena().take().unwrap();
            b.arena().payload_mut(slot)[..1_000].copy_from_slice(&data_frame(1, 1_000));
            (0..20).for_each(|_| b.send(to_a, slot, HEADROOM..HEADROOM + 1_000));
            b.flush();
            b.arena().give(slot);
            assert_eq!(receive(&mut a, 20).len(), 20, "a train arrives frame by frame");
        }
    });
}

/// Receives what is still under way: frames may have waited for the neighbour's address.
fn drain(device: &mut impl Datagram) {
    while !receive(device, 1).is_empty() {}
}

/// D-13: an unknown neighbour is reached through the socket until the kernel knows it; a change of its
/// hardware address is followed.
#[test]
fn transports_follow_the_neighbour_table() {
    in_namespaces("transports_follow_the_neighbour_table", UNACQUAINTED, |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        assert_eq!(a.transport(route), Some(Transport::Udp));
        assert!(a.transport_reason(route).contains("10.211.9.2"), "{}", a.transport_reason(route));
        let events = until_transport(&mut a, &mut b, route, Transport::Xdp);
        drain(&mut b);
        assert!(
            matches!(&events[..], [DeviceEvent::Transport { transport: Transport::Xdp, .. }]),
            "{events:?}"
        );
        assert_arrives(&mut a, &mut b, route, 1);
        // Where no program steers frames, the kernel takes those for its own address only.
        let mut plain = open_udp(spaces, 1);
        let to_plain = a.route(plain.local_addr()).unwrap();
        assert_eq!(a.transport(to_plain), Some(Transport::Xdp));
        assert_arrives(&mut a, &mut plain, to_plain, 4);

        ip(&format!("-n {} link set v0 address 02:00:00:54:4c:99", spaces.names[1])).unwrap();
        ip(&format!(
            "-n {} neigh replace 10.211.9.2 lladdr 02:00:00:54:4c:99 dev v0 nud reachable",
            spaces.names[0]
        ))
        .unwrap();
        poll(&mut a);
        assert_eq!(a.transport(route), Some(Transport::Xdp));
        assert_arrives(&mut a, &mut b, route, 2);
        assert_arrives(&mut a, &mut plain, to_plain, 5);

        ip(&format!("-n {} neigh del 10.211.9.2 dev v0", spaces.names[0])).unwrap();
        poll(&mut a);
        assert_eq!(a.transport(route), Some(Transport::Udp), "the neighbour is unknown");
        until_transport(&mut a, &mut b, route, Transport::Xdp);
        drain(&mut b);
        assert_arrives(&mut a, &mut b, route, 3);
    });
}

/// D-23: a destination behind a gateway gets no raw frames, which the gateway would not forward, but uses the
/// socket; UDP framing uses AF_XDP.
#[test]
fn gateways_get_no_raw_frames() {
    in_namespaces("gateways_get_no_raw_frames", Shape::default(), |spaces| {
        ip(&format!("-n {} route add 10.212.9.0/24 via 10.211.9.2", spaces.names[0])).unwrap();
        let behind = "10.212.9.7:9000".parse().unwrap();
        for (framing, transport) in [(Framing::Raw, Transport::Udp), (Framing::Udp, Transport::Xdp)] {
            let mut a = open(spaces, 0, XdpConfig::with(|config| config.framing = framing));
            let near = a.route(std::net::SocketAddr::new(spaces.addr(1, false), 9_000)).unwrap();
            let far = a.route(behind).unwrap();
            assert_eq!(
                (a.transport(near), a.transport(far)),
                (Some(Transport::Xdp), Some(transport)),
                "{}",
                a.transport_reason(far)
            );
            assert_eq!(
                a.transport_reason(far).contains("gateway 10.211.9.2"),
                framing == Framing::Raw,
                "{}",
                a.transport_reason(far)
            );
        }
    });
}

/// D-27: a detached steering program is attached again, which is reported; meanwhile frames arrive through
/// the socket.
#[test]
fn a_detached_program_is_attached_again() {
    in_namespaces("a_detached_program_is_attached_again", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let mut a = open(spaces, 0, XdpConfig::with(|config| config.mode = mode));
            let mut b = open(spaces, 1, XdpConfig::with(|config| config.mode = mode));
            let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
            assert_arrives(&mut a, &mut b, to_b, 1);
            b.device.detach_program();
            assert!(!spaces.has_program(1));
            let until = Instant::now() + Duration::from_secs(5);
            let mut events = Vec::new();
            for number in 2.. {
                assert_arrives(&mut a, &mut b, to_b, number);
                assert_arrives(&mut b, &mut a, to_a, number);
                events.extend(std::iter::from_fn(|| b.poll_event()));
                if spaces.has_program(1) && !events.is_empty() {
                    break;
                }
                assert!(Instant::now() < until, "the program is not attached again");
            }
            let again = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Xdp, why, .. } if why.contains("attached again"));
            assert!(events.iter().all(again), "{events:?}");
            let before = b.device.frames_by_socket();
            (0..10).for_each(|number| assert_arrives(&mut a, &mut b, to_b, number));
            // Once per second a frame goes through the socket, to confirm the neighbour.
            assert!(b.device.frames_by_socket() < before + 10, "by the ring again");
        }
    });
}

/// D-13: a link that goes down and up is reported both times, and frames arrive afterwards.
#[test]
fn a_flapping_link_is_reported() {
    in_namespaces("a_flapping_link_is_reported", Shape::default(), |spaces| {
        for mode in [Mode::Generic, Mode::Native] {
            let mut a = open(spaces, 0, XdpConfig::with(|config| config.mode = mode));
            let mut b = open(spaces, 1, XdpConfig::with(|config| config.mode = mode));
            let route = a.route(b.local_addr()).unwrap();
            for flap in 0..2 {
                assert_arrives(&mut a, &mut b, route, flap);
                ip(&format!("-n {} link set v0 down", spaces.names[1])).unwrap();
                // The kernel reports it with a delay.
                let events = until_transport(&mut a, &mut b, route, Transport::Udp);
                let down = |e: &DeviceEvent| matches!(e, DeviceEvent::Transport { transport: Transport::Udp, why, .. } if why.contains("down"));
                assert!(events.iter().any(down), "{events:?}");
                send(&mut a, route, &data_frame(9, 100));
                ip(&format!("-n {} link set v0 up", spaces.names[1])).unwrap();
                spaces.acquaint().unwrap();
                until_transport(&mut a, &mut b, route, Transport::Xdp);
                while !receive(&mut b, 1).is_empty() {}
            }
            assert_arrives(&mut a, &mut b, route, 7);
            assert_eq!(a.arena_ref().available(), a.arena_ref().capacity(), "no slot is lost");
        }
    });
}

/// D-13, D-24: a hundred changes of transport during traffic lose no frame.
#[test]
fn transport_changes_lose_nothing() {
    in_namespaces("transport_changes_lose_nothing", Shape::default(), |spaces| {
        let mut a = open(spaces, 0, XdpConfig::default());
        let mut b = open(spaces, 1, XdpConfig::default());
        let route = a.route(b.local_addr()).unwrap();
        for change in 0..100 {
            let transport = if change % 2 == 0 { Transport::Udp } else { Transport::Xdp };
            let mut sent: Vec<_> = (0..8).map(|i| data_frame(change * 8 + i, 100 + i)).collect();
            for (i, frame) in sent.iter().enumerate() {
                if i == 4 {
                    a.prefer_transport(route, Some(transport));
                    assert_eq!(a.transport(route), Some(transport));
                    let event = a.poll_event();
                    let changed = |now: Transport| now == transport;
                    assert!(
                        matches!(event, Some(DeviceEvent::Transport { transport, .. }) if changed(transport)),
                        "{event:?}"
                    );
                }
                let slot = a.arena().take().unwrap();
                a.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
                a.send(route, slot, HEADROOM..HEADROOM + frame.len());
                if i % 3 == 0 {
                    a.flush();
                }
                // A queued slot is given back only after the flush.
                a.flush();
                a.arena().give(slot);
            }
            let mut got = receive(&mut b, sent.len());
            got.sort();
            sent.sort();
            assert!(got == sent, "change {change}: {} of {} frames", got.len(), sent.len());
        }
        assert_eq!(a.arena_ref().available(), a.arena_ref().capacity());
    });
}
