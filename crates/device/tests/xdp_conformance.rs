//! The conformance suite for the AF_XDP device, between two network namespaces.
#![allow(clippy::print_stdout, clippy::needless_pass_by_value)]

mod netns_device;
mod spaces;

use std::net::SocketAddr;
use std::sync::Arc;

use netns_device::{NetnsDevice, alone, data_frame, receive, send};
use spaces::{Shape, Spaces, spaces};
use tautline_device::conformance::{DatagramOptions, datagram_suite};
use tautline_device::fault::{Fault, Faults};
use tautline_device::pcap::Pcap;
use tautline_device::trace::{Trace, lines};
use tautline_device::udp::UdpConfig;
use tautline_device::xdp::{Framing, Mode, Receive, Xdp, XdpConfig};
use tautline_device::{Datagram, Transport};

fn open(spaces: &Arc<Spaces>, side: usize, v6: bool, mut config: XdpConfig) -> NetnsDevice<Xdp> {
    spaces.enter(side);
    let bind = SocketAddr::new(spaces.addr(side, v6), 0);
    config.udp = UdpConfig::with(|config| (config.bind, config.tx_slots) = (bind, 256));
    config.rx_chunks = 512;
    let device = Xdp::open(config).unwrap_or_else(|r| panic!("{}", r.why));
    NetnsDevice { device, spaces: spaces.clone(), side }
}

/// Frames arrive by the rings in both directions, without a system call to receive.
#[test]
fn frames_cross_without_system_calls_to_receive() {
    let _alone = alone();
    let Some(spaces) = spaces("frames_cross_without_system_calls_to_receive", Shape::default()) else {
        return;
    };
    let mut a = open(&spaces, 0, false, XdpConfig::default());
    println!("{}", a.device.describe());
    let mut b = open(&spaces, 1, false, XdpConfig::default());
    let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
    assert_eq!((a.transport(to_b), b.transport(to_a)), (Some(Transport::Xdp), Some(Transport::Xdp)));
    let (ping, pong) = (data_frame(1, 100), data_frame(2, 1_472));
    send(&mut a, to_b, &ping);
    assert_eq!(receive(&mut b, 1), [ping]);
    send(&mut b, to_a, &pong);
    assert_eq!(receive(&mut a, 1), [pong]);
    assert_eq!((a.counters().receive_calls, b.counters().receive_calls), (0, 0), "no call to receive");
}

/// Runs the suite in a thread of its own, because a thread that entered a namespace stays there.
#[track_caller]
fn suite(test: &'static str, shape: Shape, v6: bool, config: fn() -> XdpConfig) {
    let _alone = alone();
    let Some(spaces) = spaces(test, shape) else { return };
    let spaces = &spaces;
    let run = || {
        // The kernel answers a frame to a port without a listener by an ICMP message, and nothing else.
        let dead = SocketAddr::new(spaces.addr(1, v6), 9);
        let pair = || -> (Box<dyn Datagram>, Box<dyn Datagram>) {
            let open = |side| {
                let mut any = config();
                any.any_shape = true;
                open(spaces, side, v6, any)
            };
            (Box::new(open(0)), Box::new(open(1)))
        };
        datagram_suite(pair, &DatagramOptions { dead: Some(dead), ..DatagramOptions::default() });
        frames_arrive_by_rings(spaces, v6, config);
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("the suite");
    assert!(spaces.is_left_alone(), "no program is left");
}

/// D-10, D-25: frames up to the limit arrive in bursts, all by the rings, and are read in place; a dropped
/// batch returns its chunks. From time to time a frame comes by the socket, to confirm the neighbour: none
/// before the sixteenth doorbell, and at most one for as many.
fn frames_arrive_by_rings(spaces: &Arc<Spaces>, v6: bool, config: fn() -> XdpConfig) {
    let mut a = open(spaces, 0, v6, config());
    let mut b = open(spaces, 1, v6, config());
    let route = a.route(b.local_addr()).unwrap();
    b.route(a.local_addr()).unwrap();
    assert_eq!(a.transport(route), Some(Transport::Xdp), "{}", a.device.describe());
    let max = a.max_frame(route);
    let frames: Vec<_> = (0..100).map(|i| data_frame(i, [max, 48, max - i, 200][i % 4])).collect();
    let busy = config().receive == Receive::BusyPoll;
    let is_undisturbed = |b: &NetnsDevice<Xdp>| {
        let quiet = b.device.frames_by_socket() == 0;
        assert!(busy || !quiet || b.counters().receive_calls == 0, "no call to receive");
        quiet
    };
    for (number, burst) in frames.chunks(25).enumerate() {
        let mut by_ring = Vec::new();
        let slots: Vec<_> = burst
            .iter()
            .map(|frame| {
                let slot = a.arena().take().unwrap();
                a.arena().payload_mut(slot)[..frame.len()].copy_from_slice(frame);
                a.send(route, slot, tautline_device::HEADROOM..tautline_device::HEADROOM + frame.len());
                if a.arena_ref().is_held(slot) {
                    by_ring.push(frame);
                }
                slot
            })
            .collect();
        a.flush();
        slots.into_iter().for_each(|slot| a.arena().give(slot));
        let received = receive(&mut b, burst.len());
        assert_eq!(received.len(), burst.len(), "every frame");
        let in_order: Vec<_> = received.iter().filter(|got| by_ring.contains(got)).collect();
        let order: Vec<_> = received.iter().map(|got| burst.iter().position(|f| f == got)).collect();
        assert!(in_order == by_ring, "every byte, in order {order:?}");
        assert!(is_undisturbed(&b) || number > 0, "the first frames arrive by the rings");
    }
    // Far more frames than there are chunks; each batch is dropped with its frames.
    for round in 0..100 {
        let frame = data_frame(round, 300);
        (0..8).for_each(|_| send(&mut a, route, &frame));
        let received = receive(&mut b, 8);
        assert!(received.len() == 8 && received.iter().all(|got| *got == frame), "round {round}");
        is_undisturbed(&b);
    }
    assert!(b.device.refused_frames() == tautline_device::xdp::RefusedFrames::default());
    let by_socket = b.device.frames_by_socket();
    assert!(by_socket <= 900 / 16, "{by_socket} of 900 frames by the socket");
}

const JUMBO: Shape = Shape { mtu: 9_000, vlan: None, acquainted: true, queues: None };
const TAGGED: Shape = Shape { mtu: 1_500, vlan: Some(7), acquainted: true, queues: None };
const PLAIN: Shape = Shape { mtu: 1_500, vlan: None, acquainted: true, queues: None };

fn mode(mode: Mode) -> XdpConfig {
    XdpConfig::with(|config| config.mode = mode)
}

/// Wrappers handle frames that lie in the device's memory.
#[test]
fn wrapped_devices() {
    let _alone = alone();
    let Some(spaces) = spaces("wrapped_devices", Shape::default()) else { return };
    let run = || {
        let wrap = |side| -> Box<dyn Datagram> {
            let inner = open(&spaces, side, false, XdpConfig::with(|config| config.any_shape = true));
            let captured =
                Pcap::new(Fault::new(inner, 1, Faults::default(), Faults::default()), Vec::new()).unwrap();
            Box::new(Trace::new(captured, lines(std::io::sink())))
        };
        datagram_suite(|| (wrap(0), wrap(1)), &DatagramOptions::default());
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("the suite");
}

#[test]
fn generic_v4() {
    suite("generic_v4", PLAIN, false, || mode(Mode::Generic));
}

#[test]
fn generic_v6() {
    suite("generic_v6", PLAIN, true, || mode(Mode::Generic));
}

#[test]
fn native_v4() {
    suite("native_v4", PLAIN, false, || mode(Mode::Native));
}

#[test]
fn native_v6() {
    suite("native_v6", PLAIN, true, || mode(Mode::Native));
}

#[test]
fn generic_jumbo_v4() {
    suite("generic_jumbo_v4", JUMBO, false, || mode(Mode::Generic));
}

#[test]
fn native_jumbo_v6() {
    suite("native_jumbo_v6", JUMBO, true, || mode(Mode::Native));
}

#[test]
fn generic_tagged_v4() {
    suite("generic_tagged_v4", TAGGED, false, || mode(Mode::Generic));
}

#[test]
fn generic_tagged_v6() {
    suite("generic_tagged_v6", TAGGED, true, || mode(Mode::Generic));
}

#[test]
fn native_tagged_v4() {
    suite("native_tagged_v4", TAGGED, false, || mode(Mode::Native));
}

#[test]
fn generic_busy_polled() {
    suite("generic_busy_polled", PLAIN, false, || {
        XdpConfig::with(|config| (config.mode, config.receive) = (Mode::Generic, Receive::BusyPoll))
    });
}

#[test]
fn native_busy_polled() {
    suite("native_busy_polled", PLAIN, false, || {
        XdpConfig::with(|config| (config.mode, config.receive) = (Mode::Native, Receive::BusyPoll))
    });
}

#[test]
fn generic_raw_frames() {
    suite("generic_raw_frames", PLAIN, false, || {
        XdpConfig::with(|config| (config.mode, config.framing) = (Mode::Generic, Framing::Raw))
    });
}

#[test]
fn native_raw_frames_tagged() {
    suite("native_raw_frames_tagged", TAGGED, true, || {
        XdpConfig::with(|config| (config.mode, config.framing) = (Mode::Native, Framing::Raw))
    });
}

#[test]
fn generic_own_tags_v4() {
    suite("generic_own_tags_v4", PLAIN, false, || {
        XdpConfig::with(|config| (config.mode, config.vlan) = (Mode::Generic, Some(7)))
    });
}

#[test]
fn native_own_tags_v6() {
    suite("native_own_tags_v6", PLAIN, true, || {
        XdpConfig::with(|config| (config.mode, config.vlan) = (Mode::Native, Some(4_094)))
    });
}

#[test]
fn native_own_tags_jumbo_v4() {
    suite("native_own_tags_jumbo_v4", JUMBO, false, || {
        XdpConfig::with(|config| (config.mode, config.vlan) = (Mode::Native, Some(7)))
    });
}

#[test]
fn native_card_sums_v6() {
    suite("native_card_sums_v6", PLAIN, true, || {
        XdpConfig::with(|config| (config.mode, config.checksum_offload) = (Mode::Native, Some(true)))
    });
}

#[test]
fn generic_small_ring() {
    suite("generic_small_ring", PLAIN, false, || {
        XdpConfig::with(|config| (config.mode, config.tx_ring) = (Mode::Generic, 4))
    });
}
