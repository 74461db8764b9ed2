//! Traffic of other programs on the interface of an AF_XDP device, and hostile frames for the device.
#![allow(clippy::print_stdout)]

mod forge;
mod netns_device;
mod spaces;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forge::{frame_by_hand, raw_socket};
use netns_device::{data_frame, in_namespaces, open, receive};
use spaces::Shape;
use tautline_device::xdp::{Mode, XdpConfig};
use tautline_device::{Datagram, HEADROOM};

/// Traffic of other programs over the same interface arrives byte for byte, while this device sends as fast
/// as it can.
#[test]
fn foreign_traffic_is_undisturbed() {
    const BYTES: usize = 8 << 20;
    fn byte(i: usize) -> u8 {
        (i * 31 + (i >> 8) * 7 + (i >> 16)) as u8
    }
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces("foreign_traffic_is_undisturbed", Shape::default(), |spaces| {
            let mut a = open(spaces, 0, XdpConfig::with(|config| config.mode = mode));
            let mut b = open(spaces, 1, XdpConfig::with(|config| config.mode = mode));
            let route = a.route(b.local_addr()).unwrap();
            spaces.enter(1);
            let listener = TcpListener::bind(SocketAddr::new(spaces.addr(1, false), 0)).unwrap();
            let other = UdpSocket::bind(SocketAddr::new(spaces.addr(1, false), 0)).unwrap();
            other.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let (tcp, udp) = (listener.local_addr().unwrap(), other.local_addr().unwrap());
            spaces.enter(0);
            let mut stream = TcpStream::connect(tcp).unwrap();
            let near = UdpSocket::bind(SocketAddr::new(spaces.addr(0, false), 0)).unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let data: Vec<u8> = (0..BYTES).map(byte).collect();
                    stream.write_all(&data).unwrap();
                });
                let server = scope.spawn(|| {
                    let mut data = Vec::with_capacity(BYTES);
                    listener.accept().unwrap().0.take(BYTES as u64).read_to_end(&mut data).unwrap();
                    assert_eq!(data.len(), BYTES);
                    assert!(data.iter().enumerate().all(|(i, b)| *b == byte(i)), "TCP, byte for byte");
                });
                let pings = scope.spawn(|| {
                    let mut buffer = [0; 2_000];
                    for i in 0..200usize {
                        // It looks like our frames, but is for another port.
                        let ping = data_frame(i, 100 + i);
                        let (until, mut arrived) = (Instant::now() + Duration::from_secs(30), false);
                        while !arrived {
                            assert!(Instant::now() < until, "datagram {i} never arrives");
                            near.send_to(&ping, udp).unwrap();
                            // The flood may fill the queue that all share: then it is sent again. Of those
                            // that were only late, there may be two.
                            while !arrived && let Ok(len) = other.recv(&mut buffer) {
                                arrived = buffer[..len] == ping;
                                let earlier = i > 0 && buffer[..len] == data_frame(i - 1, 99 + i);
                                assert!(arrived || earlier, "UDP of others, byte for byte");
                            }
                        }
                    }
                });
                let flood = scope.spawn(|| {
                    let (mut batch, mut got) = (tautline_device::RxBatch::new(64), 0);
                    while !over.load(Ordering::Relaxed) {
                        for number in 0..16 {
                            let slot = a.arena().take().unwrap();
                            let frame = data_frame(number, 200);
                            a.arena().payload_mut(slot)[..200].copy_from_slice(&frame);
                            a.send(route, slot, HEADROOM..HEADROOM + 200);
                            a.arena().hold(slot);
                            a.arena().give(slot);
                            a.flush();
                            a.arena().unhold(slot);
                        }
                        got += b.recv(&mut batch).unwrap();
                        assert!(batch.frames().iter().all(|f| batch.bytes(*f).len() == 200));
                    }
                    got
                });
                let done = [server.join(), pings.join()];
                over.store(true, Ordering::Relaxed);
                assert!(flood.join().unwrap() > 1_000, "Tautline ran meanwhile");
                assert!(done.iter().all(Result::is_ok));
            });
        });
    }
}

/// Hostile frames from the peer's namespace are dropped and counted, or passed to the socket; none is taken
/// as a frame.
#[test]
fn hostile_frames_are_never_taken() {
    for mode in [Mode::Generic, Mode::Native] {
        in_namespaces("hostile_frames_are_never_taken", Shape::default(), |spaces| {
            let mut b = open(spaces, 1, XdpConfig::with(|config| config.mode = mode));
            let local = b.local_addr();
            spaces.enter(0);
            let socket = raw_socket("v0");
            let inject = |frame: &[u8]| {
                rustix::net::send(&socket, frame, rustix::net::SendFlags::empty()).unwrap();
            };
            let good =
                frame_by_hand(SocketAddr::new(spaces.addr(0, false), 9_999), local, &data_frame(1, 100));
            inject(&good);
            assert_eq!(receive(&mut b, 1).len(), 1, "the hand-made frame is valid");
            let mut injected = 0u64;
            // The UDP checksum, the payload, and truncation.
            let mut wrong = Vec::new();
            for at in [40, 41, 43, 60, 141] {
                let mut frame = good.clone();
                frame[at] ^= 0x10;
                wrong.push(frame);
            }
            wrong.extend([43, 60, 90, 100, 141].map(|len| good[..len].to_vec()));
            // IP header and lengths.
            for at in [15, 16, 17, 18, 22, 24, 25, 26, 38, 39] {
                let mut frame = good.clone();
                frame[at] ^= 1;
                wrong.push(frame);
            }
            for frame in &wrong {
                inject(frame);
                injected += 1;
            }
            let got = receive(&mut b, 1);
            assert!(got.is_empty(), "{} of {injected} hostile frames were taken", got.len());
            let counted = b.device.refused_frames();
            assert_eq!(b.counters().frames_refused, counted.total());
            assert_eq!(counted.total(), injected, "all are counted: {counted:?}");
            // Valid frames still arrive.
            inject(&good);
            assert_eq!(receive(&mut b, 1).len(), 1);
        });
    }
}
