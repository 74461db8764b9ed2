//! Tests of what the conformance suite cannot see from outside.
#![allow(clippy::print_stdout)]

use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::{FRAME_CAP, Udp, UdpConfig, path, probe};
use crate::{Datagram, DeviceEvent, HEADROOM, RouteId, RxBatch, sys};

const POLLS: usize = 10_000;

fn open() -> Udp {
    Udp::open(UdpConfig { tx_slots: 128, ..UdpConfig::default() }).unwrap()
}

fn send(device: &mut Udp, route: RouteId, count: usize, len: usize) {
    let slots: Vec<_> = (0..count).map(|_| device.arena().take().unwrap()).collect();
    for slot in &slots {
        device.send(route, *slot, HEADROOM..HEADROOM + len);
    }
    device.flush();
    slots.into_iter().for_each(|slot| device.arena().give(slot));
}

/// Receives up to `want` frames. Returns their number, and whether any arrived coalesced.
fn receive(device: &mut Udp, want: usize) -> (usize, bool) {
    let mut batch = RxBatch::new(16);
    let (mut got, mut joined) = (0, false);
    for _ in 0..POLLS {
        got += device.recv(&mut batch).unwrap();
        joined |= batch.frames().iter().any(|frame| frame.start > 0);
        if got >= want {
            break;
        }
    }
    (got, joined)
}

/// On a path whose device cannot segment trains, nothing is lost, and no more trains are sent.
#[test]
fn refused_trains_are_sent_frame_by_frame() {
    let (mut a, mut b) = (open(), open());
    let route = a.route(b.local_addr()).unwrap();
    if !a.features.gso.is_on() {
        return tautline_skips::skip("refused_trains_are_sent_frame_by_frame", a.describe());
    }
    a.connect_new(0);
    sys::refuse_gso(a.routes[0].connected.as_ref().expect("a connected socket").as_fd()).unwrap();
    send(&mut a, route, 20, 100);
    assert_eq!(receive(&mut b, 20).0, 20);
    assert!(!a.routes[0].gso);
    assert_eq!((a.counters().frames_sent, a.counters().send_failures), (20, 0));
    let calls = a.counters().send_calls;
    send(&mut a, route, 20, 100);
    assert_eq!(receive(&mut b, 20).0, 20);
    assert_eq!(a.counters().send_calls, calls + 1);
    assert_eq!(a.poll_event(), None);
}

/// D-3: a batch is one call, whatever is in it.
#[test]
fn a_batch_is_one_call() {
    for gso in [true, false] {
        let mut a = Udp::open(UdpConfig { gso, ..UdpConfig::default() }).unwrap();
        let mut b = open();
        let (r, s) = (a.route(b.local_addr()).unwrap(), a.route(b.local_addr()).unwrap());
        let slot = a.arena().take().unwrap();
        for i in 0..60 {
            a.send(if i % 9 < 7 { r } else { s }, slot, HEADROOM..HEADROOM + 50 + i % 2);
        }
        a.flush();
        assert_eq!(a.counters().send_calls, 1);
        assert_eq!(receive(&mut b, 60).0, 60);
    }
}

/// D-32: trains of packed slots arrive as they were written, in one piece of memory or in several.
#[test]
fn packed_trains_arrive_as_written() {
    const HEADERS: usize = 48;
    const FRAME: usize = 1_000;
    for gso in [true, false] {
        let config =
            UdpConfig { gso, slot_payload: Some(FRAME), packed: Some(HEADERS), ..UdpConfig::default() };
        let (mut a, mut b) = (Udp::open(config).unwrap(), open());
        let route = a.route(b.local_addr()).unwrap();
        assert_eq!((a.max_frame(route), a.arena().headers()), (FRAME, HEADERS));
        let mut slots: Vec<_> = (0..30).map(|_| a.arena().take().unwrap()).collect();
        // Neighbours, gaps, and neighbours in the wrong order.
        slots.swap(3, 20);
        slots.swap(10, 11);
        let whole = HEADROOM - HEADERS..HEADROOM - HEADERS + FRAME;
        for (i, slot) in slots.iter().enumerate() {
            a.arena().slot_mut(*slot)[whole.clone()].fill(i as u8);
        }
        for (i, slot) in slots.iter().enumerate() {
            // The last one is shorter, as at the end of a message.
            let len = if i == 29 { 500 } else { FRAME };
            a.send(route, *slot, whole.start..whole.start + len);
        }
        a.flush();
        let (mut batch, mut seen) = (RxBatch::new(16), Vec::new());
        for _ in 0..POLLS {
            b.recv(&mut batch).unwrap();
            for frame in batch.frames() {
                let bytes = batch.bytes(*frame);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one frame has bytes of several");
                seen.push((bytes[0], bytes.len()));
            }
            batch.clear();
            if seen.len() == slots.len() {
                break;
            }
        }
        let sent: Vec<_> = (0..30).map(|i| (i, if i == 29 { 500 } else { FRAME })).collect();
        assert_eq!(seen, sent);
    }
}

/// Bursts turn coalescing on, quiet turns it off, and neither loses a frame.
#[test]
fn coalescing_follows_the_traffic() {
    let (mut a, mut b) = (open(), open());
    let route = a.route(b.local_addr()).unwrap();
    if !a.features.gso.is_on() || !b.features.gro.is_on() {
        return tautline_skips::skip("coalescing_follows_the_traffic", a.describe());
    }
    for _ in 0..3 {
        send(&mut a, route, 30, 200);
        assert_eq!(receive(&mut b, 30), (30, false), "quiet: frames arrive singly");
        send(&mut a, route, 30, 200);
        assert_eq!(receive(&mut b, 30), (30, true), "after a burst: frames arrive coalesced");
        for _ in 0..2_500 {
            send(&mut a, route, 1, 10);
            assert_eq!(receive(&mut b, 1).0, 1);
        }
    }
    assert_eq!(b.counters().frames_received, 3 * 2_560);
}

/// Drops for lack of room are counted, and later frames are received.
#[test]
fn overflows_are_counted() {
    let mut a = open();
    let mut b = Udp::open(UdpConfig { rcvbuf: Some(8_192), gro: false, ..UdpConfig::default() }).unwrap();
    assert!(b.receive_buffer() < 100_000, "the real size is returned: {}", b.receive_buffer());
    let route = a.route(b.local_addr()).unwrap();
    for _ in 0..100 {
        send(&mut a, route, 1, 1_000);
    }
    let got = receive(&mut b, 100).0;
    assert!(got < 100);
    assert_eq!(b.counters().receive_overflows as usize, 100 - got);
    send(&mut a, route, 1, 1_000);
    send(&mut a, route, 1, 999);
    assert_eq!(receive(&mut b, 2).0, 2);
    assert_eq!(b.counters().receive_overflows as usize, 100 - got);
}

/// D-5: a frame that is too long for the path is lost and counted, and the limit is reported.
#[test]
fn too_long_frames_are_reported() {
    let mut a = Udp::open(UdpConfig { slot_payload: Some(65_507), ..UdpConfig::default() }).unwrap();
    let mut b = open();
    let route = a.route(b.local_addr()).unwrap();
    assert_eq!(a.max_frame(route), FRAME_CAP);
    // With part of the headroom, a slot can hold more than any datagram.
    let slot = a.arena().take().unwrap();
    a.send(route, slot, HEADROOM - 100..HEADROOM + 65_507);
    a.flush();
    assert_eq!(a.counters().send_failures, 1);
    assert!(matches!(a.poll_event(), None | Some(DeviceEvent::PathLimit { .. })));
    a.send(route, slot, HEADROOM..HEADROOM + 5);
    a.flush();
    assert_eq!(receive(&mut b, 1).0, 1);
}

/// Checks all routes, as if a second had passed since the last time.
fn check_routes(device: &mut Udp) {
    device.refresh.begun_at = sys::coarse_now().saturating_sub(path::REFRESH_EVERY);
    device.refresh.next = device.routes.len();
    device.refresh_paths();
    while device.refresh.next < device.routes.len() {
        device.refresh_paths();
    }
}

/// Returns which routes have connected sockets, each a descriptor of its own that is open.
fn connected_routes(device: &Udp) -> Vec<usize> {
    let routes = device.routes.iter().enumerate();
    let connected: Vec<_> = routes.filter(|(_, route)| route.connected.is_some()).collect();
    let sockets: std::collections::HashSet<_> = connected
        .iter()
        .map(|(_, route)| {
            let number = route.connected.as_ref().unwrap().as_raw_fd();
            std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap()
        })
        .collect();
    assert_eq!(sockets.len(), connected.len());
    connected.into_iter().map(|(at, _)| at).collect()
}

/// D-33: the routes in use have connected sockets, at most 64 of them, and those that only heartbeats use, or
/// nobody, have none.
#[test]
fn routes_in_use_are_connected() {
    // Without segmentation each frame is a train.
    let config = UdpConfig { gso: false, tx_slots: 128, ..UdpConfig::default() };
    let (mut a, mut b) = (Udp::open(config).unwrap(), open());
    let routes: Vec<_> = (0..150).map(|_| a.route(b.local_addr()).unwrap()).collect();
    assert_eq!(connected_routes(&a), [], "before the first frame");
    let mut round = |a: &mut Udp, busy: std::ops::Range<usize>, frames: usize| {
        for (at, route) in routes.iter().enumerate() {
            let count = if busy.contains(&at) { frames } else { 6 };
            send(a, *route, count, 10);
            receive(&mut b, count);
        }
        check_routes(a);
        connected_routes(a)
    };
    // Further routes get none before the first were quiet for four checks, and then all of theirs.
    for _ in 0..3 {
        assert_eq!(round(&mut a, 70..134, 40), (0..64).collect::<Vec<_>>());
    }
    round(&mut a, 70..134, 40);
    assert_eq!(round(&mut a, 70..134, 40), (70..134).collect::<Vec<_>>());
    // No more than 64, and those that have one keep it.
    for _ in 0..6 {
        assert_eq!(round(&mut a, 60..140, 40), (70..134).collect::<Vec<_>>());
    }
    // One busy check in four is enough to keep it.
    for at in 0..8 {
        let frames = if at % 4 == 3 { 40 } else { 6 };
        assert_eq!(round(&mut a, 70..134, frames), (70..134).collect::<Vec<_>>());
    }
    for _ in 0..4 {
        round(&mut a, 0..0, 0);
    }
    assert_eq!(connected_routes(&a), []);
    assert_eq!(round(&mut a, 149..150, 40), [149]);
    assert_eq!(a.counters().send_failures, 0);
}

/// An inherited bound socket works as our own; any other descriptor is refused.
#[test]
fn inherited_sockets() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let local = socket.local_addr().unwrap();
    let config = |socket: OwnedFd| UdpConfig { socket: Some(socket), ..UdpConfig::default() };
    let mut a = Udp::open(config(socket.into())).unwrap();
    assert_eq!(a.local_addr(), local);
    let mut b = open();
    let route = b.route(local).unwrap();
    send(&mut b, route, 1, 10);
    assert_eq!(receive(&mut a, 1).0, 1);
    assert_eq!(receive(&mut a, 1).0, 0, "it does not block");
    let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
    assert!(Udp::open(config(stream.into())).is_err());
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(Udp::open(config(file.into())).is_err());
}

/// Invalid options are refused when the device is opened, and an address of the other family when the route
/// is created.
#[test]
fn invalid_options_are_refused() {
    let refused = |config| Udp::open(config).is_err();
    assert!(refused(UdpConfig { batch: 0, ..UdpConfig::default() }));
    assert!(refused(UdpConfig { batch: 5_000, ..UdpConfig::default() }));
    assert!(refused(UdpConfig { tx_slots: 0, ..UdpConfig::default() }));
    assert!(refused(UdpConfig { slot_payload: Some(70_000), ..UdpConfig::default() }));
    assert!(open().route("[::1]:9".parse().unwrap()).is_err());
}

/// An empty datagram is not a frame.
#[test]
fn empty_datagrams_are_ignored() {
    let mut b = open();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..10 {
        socket.send_to(&[], b.local_addr()).unwrap();
    }
    assert_eq!(receive(&mut b, 1).0, 0);
    socket.send_to(&[1], b.local_addr()).unwrap();
    assert_eq!(receive(&mut b, 1).0, 1);
    assert_eq!(b.counters().frames_received, 1);
}

/// Without a particular address, slots have Ethernet's size, whatever loopback allows.
#[test]
fn slots_fit_the_interface() {
    let any = Udp::open(UdpConfig { bind: "0.0.0.0:0".parse().unwrap(), ..UdpConfig::default() }).unwrap();
    assert_eq!(any.arena_ref().payload_len(), 1_472);
    assert_eq!(open().arena_ref().payload_len(), FRAME_CAP);
}

#[test]
fn the_probe_finds_what_the_devices_use() {
    let found = probe();
    assert_eq!(found.ipv4, Ok(()));
    assert!(found.receive_buffer > 0);
    assert_eq!(found.gso.is_ok(), open().features.gso.is_on());
    assert_eq!(found.gro.is_ok(), open().features.gro.is_on(), "{found:?}");
}
