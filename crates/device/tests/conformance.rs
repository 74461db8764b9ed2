//! Every device of this crate, held to the same rules.
#![allow(clippy::print_stdout)]

use std::net::{SocketAddr, UdpSocket};

use tautline_device::Datagram;
use tautline_device::conformance::{DatagramOptions, Ends, channel_suite, datagram_suite};
use tautline_device::fault::{Fault, Faults};
use tautline_device::own::Own;
use tautline_device::pcap::Pcap;
use tautline_device::trace::{Trace, lines};
use tautline_device::udp::{Udp, UdpConfig};

/// Runs the suite for UDP devices at an address, wrapped as told.
fn run(ip: &str, config: impl Fn(UdpConfig) -> UdpConfig, wrap: impl Fn(Udp) -> Box<dyn Datagram>) {
    let bind = SocketAddr::new(ip.parse().unwrap(), 0);
    let open = || {
        let base = UdpConfig { bind, tx_slots: 256, ..UdpConfig::default() };
        wrap(Udp::open(config(base)).unwrap())
    };
    // Bound and closed again: very likely nobody listens there.
    let dead = UdpSocket::bind(bind).unwrap().local_addr().unwrap();
    datagram_suite(|| (open(), open()), &DatagramOptions { dead: Some(dead), ..DatagramOptions::default() });
}

fn boxed(udp: Udp) -> Box<dyn Datagram> {
    Box::new(udp)
}

#[test]
fn udp_ipv4() {
    run("127.0.0.1", |config| config, boxed);
}

#[test]
fn udp_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("SKIPPED udp_ipv6: this machine has no IPv6 loopback");
        return;
    }
    run("::1", |config| config, boxed);
}

#[test]
fn udp_without_segmentation() {
    run("127.0.0.1", |config| UdpConfig { gso: false, ..config }, boxed);
}

#[test]
fn udp_without_coalescing() {
    run("127.0.0.1", |config| UdpConfig { gro: false, ..config }, boxed);
}

#[test]
fn udp_without_either() {
    run("127.0.0.1", |config| UdpConfig { gso: false, gro: false, ..config }, boxed);
}

#[test]
fn udp_without_connected_sockets() {
    run("127.0.0.1", |config| UdpConfig { connect: false, ..config }, boxed);
}

#[test]
fn udp_with_small_batches() {
    run("127.0.0.1", |config| UdpConfig { batch: 3, ..config }, boxed);
}

#[test]
fn udp_with_the_largest_slots() {
    run("127.0.0.1", |config| UdpConfig { slot_payload: Some(65_507), tx_slots: 160, ..config }, boxed);
}

#[test]
fn fault_without_faults() {
    run(
        "127.0.0.1",
        |config| config,
        |udp| Box::new(Fault::new(udp, 1, Faults::default(), Faults::default())),
    );
}

#[test]
fn trace() {
    run("127.0.0.1", |config| config, |udp| Box::new(Trace::new(udp, lines(std::io::sink()))));
}

#[test]
fn pcap() {
    run("127.0.0.1", |config| config, |udp| Box::new(Pcap::new(udp, Vec::new()).unwrap()));
}

#[test]
fn own() {
    for (max_frame, frames) in [(8, 2), (64, 3), (4_096, 16)] {
        channel_suite(|| Ends::Loop(Box::new(Own::new(max_frame, frames))));
    }
}
