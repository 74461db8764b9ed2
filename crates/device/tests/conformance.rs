//! The conformance suites for every device of this crate but AF_XDP.
#![allow(clippy::print_stdout)]

use std::net::{SocketAddr, UdpSocket};

use tautline_device::Datagram;
use tautline_device::conformance::{DatagramOptions, Ends, channel_suite, datagram_suite};
use tautline_device::fault::{Fault, Faults};
use tautline_device::loopback::Loopback;
use tautline_device::pcap::Pcap;
use tautline_device::shm::{self, Contribution, Dial, Greeting, Listener};
use tautline_device::trace::{Trace, lines};
use tautline_device::udp::{Udp, UdpConfig};

/// Runs the suite for UDP devices at an address, wrapped by `wrap`.
fn run(ip: &str, change: impl Fn(&mut UdpConfig), wrap: impl Fn(Udp) -> Box<dyn Datagram>) {
    let bind = SocketAddr::new(ip.parse().unwrap(), 0);
    let open = || {
        let config = UdpConfig::with(|config| {
            (config.bind, config.tx_slots) = (bind, 256);
            change(config);
        });
        wrap(Udp::open(config).unwrap())
    };
    // A connected socket receives from its peer only: for everybody else nobody listens there. While it is
    // open, nobody else gets the port.
    let socket = UdpSocket::bind(bind).unwrap();
    socket.connect(SocketAddr::new(bind.ip(), 9)).unwrap();
    let dead = Some(socket.local_addr().unwrap());
    datagram_suite(|| (open(), open()), &DatagramOptions { dead, ..DatagramOptions::default() });
}

fn boxed(udp: Udp) -> Box<dyn Datagram> {
    Box::new(udp)
}

#[test]
fn udp_ipv4() {
    run("127.0.0.1", |_| {}, boxed);
}

#[test]
fn udp_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return tautline_skips::skip("udp_ipv6", "this machine has no IPv6 loopback");
    }
    run("::1", |_| {}, boxed);
}

#[test]
fn udp_without_segmentation() {
    run("127.0.0.1", |config| config.gso = false, boxed);
}

#[test]
fn udp_without_coalescing() {
    run("127.0.0.1", |config| config.gro = false, boxed);
}

#[test]
fn udp_without_either() {
    run("127.0.0.1", |config| (config.gso, config.gro) = (false, false), boxed);
}

#[test]
fn udp_without_connected_sockets() {
    run("127.0.0.1", |config| config.connect = false, boxed);
}

#[test]
fn udp_with_small_batches() {
    run("127.0.0.1", |config| config.batch = 3, boxed);
}

#[test]
fn udp_with_the_largest_slots() {
    run("127.0.0.1", |config| (config.slot_payload, config.tx_slots) = (Some(65_507), 160), boxed);
}

#[test]
fn fault_without_faults() {
    run("127.0.0.1", |_| {}, |udp| Box::new(Fault::new(udp, 1, Faults::default(), Faults::default())));
}

#[test]
fn trace() {
    run("127.0.0.1", |_| {}, |udp| Box::new(Trace::new(udp, lines(std::io::sink()))));
}

#[test]
fn pcap() {
    run("127.0.0.1", |_| {}, |udp| Box::new(Pcap::new(udp, Vec::new()).unwrap()));
}

#[test]
fn loopback() {
    for (max_frame, frames) in [(8, 2), (64, 3), (4_096, 16)] {
        channel_suite(|| Ends::Loop(Box::new(Loopback::new(max_frame, frames))));
    }
}

/// Returns two ends of a shared-memory channel in this process.
fn shm_pair() -> Ends {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let place = std::env::temp_dir().join(format!("tautline-conformance-{}", std::process::id()));
    let path = shm::listener_path(&place, 1, number);
    let listener = Listener::bind(&path).unwrap();
    let prove = |_: &[u8]| [5; 16];
    let greet = |from: u32| {
        let (to, epoch, answers) = (1 - from, u64::from(from) + 1, u64::from(from));
        let number = shm::LanePages::create().unwrap().take_number().unwrap();
        let (window, pool, beacon, ring, asymmetric) = (1, 0, 0, number.get(), true);
        let greeting = Greeting { from, to, epoch, answers, window, pool, beacon, ring, asymmetric };
        (greeting, Contribution { pool: None, number })
    };
    let (hello, own) = greet(0);
    let dial = Dial::new(&path, || Ok((hello.to_bytes(prove), own))).unwrap();
    let accepted = listener.accept(|error| shm::Refusal::of(error).to_bytes(prove));
    let shm::Accepted::Connection(incoming) = accepted else { panic!("no connection: {accepted:?}") };
    let (greeting, handover) = incoming.poll_greeting(prove).unwrap().expect("a greeting");
    assert_eq!(greeting, hello);
    let (answer, own) = greet(1);
    let callee = incoming.accept(handover, &answer.to_bytes(prove), own, true).unwrap();
    let (greeting, bell) = dial.poll_greeting(prove).unwrap().expect("an answer");
    assert_eq!(greeting, answer);
    let caller = dial.establish(bell, true);
    drop(listener);
    assert!(!path.exists(), "the listener is unlinked");
    let _ = std::fs::remove_file(place.join(".swept"));
    let _ = std::fs::remove_dir(&place);
    if number.is_multiple_of(2) {
        Ends::Pair(Box::new(caller), Box::new(callee))
    } else {
        Ends::Pair(Box::new(callee), Box::new(caller))
    }
}

#[test]
fn shared_memory() {
    channel_suite(shm_pair);
    channel_suite(shm_pair);
}
