//! The AF_XDP device between two network namespaces, held to the same rules as every other.
#![allow(clippy::print_stdout)]

mod spaces;

use std::net::SocketAddr;
use std::sync::Arc;

use spaces::{Resident, Shape, Spaces, data_frame, receive, send, spaces};
use tautline_device::conformance::{DatagramOptions, datagram_suite};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{Done, Framing, Mode, Receive, Xdp, XdpConfig};
use tautline_device::{Datagram, Way};

fn open(spaces: &Arc<Spaces>, side: usize, v6: bool, config: XdpConfig) -> Resident<Xdp> {
    spaces.enter(side);
    let bind = SocketAddr::new(spaces.addr(side, v6), 0);
    let udp = UdpConfig { bind, tx_slots: 256, ..UdpConfig::default() };
    let device = Xdp::open(XdpConfig { udp, rx_chunks: 512, ..config }).unwrap_or_else(|r| panic!("{}", r.why));
    Resident { device, spaces: spaces.clone(), side }
}

/// One frame there, one back, each by the ring.
#[test]
fn a_frame_crosses() {
    let Some(spaces) = spaces("a_frame_crosses", Shape::default()) else { return };
    let mut a = open(&spaces, 0, false, XdpConfig::default());
    println!("{}", a.device.describe());
    let mut b = open(&spaces, 1, false, XdpConfig::default());
    let (to_b, to_a) = (a.route(b.local_addr()).unwrap(), b.route(a.local_addr()).unwrap());
    assert_eq!((a.way(to_b), b.way(to_a)), (Some(Way::Xdp), Some(Way::Xdp)));
    let (ping, pong) = (data_frame(1, 100), data_frame(2, 1_472));
    send(&mut a, to_b, &ping);
    assert_eq!(receive(&mut b, 1), [ping]);
    send(&mut b, to_a, &pong);
    assert_eq!(receive(&mut a, 1), [pong]);
    assert_eq!((a.counters().receive_calls, b.counters().receive_calls), (0, 0), "no call to receive");
}
