//! Checksums that are left to the card. On veth the kernel computes them instead, or leaves them partial if
//! the interface claims to.
#![allow(clippy::print_stdout)]

mod forge;
mod netns_device;
mod spaces;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use forge::raw_socket;
use netns_device::{NetnsDevice, data_frame, in_namespaces, send};
use spaces::{Shape, upper};
use tautline_device::udp::UdpConfig;
use tautline_device::xdp::{Mode, Xdp, XdpConfig};
use tautline_device::{Datagram, Transport};

/// Sets whether an interface claims to compute checksums (`ETHTOOL_STXCSUM` of `linux/ethtool.h`).
fn set_offload(interface: &str, completes: bool) {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut order = [0x17_u32, completes.into()];
    // SAFETY: `ifreq` consists of integers and unions of integers and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = order.as_mut_ptr().cast();
    let socket = UdpSocket::bind("[::]:0").unwrap();
    // SAFETY: the request has a zero-terminated name and a pointer to the two live words of the command.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Returns the sum over everything that UDP's checksum covers, which is all ones if it is correct; and
/// whether the checksum covers only the pseudo header.
fn sums(frame: &[u8]) -> (u16, bool) {
    let (addresses, udp) = match frame[12..14] {
        [0x08, 0x00] => (&frame[26..34], &frame[34..]),
        [0x86, 0xdd] => (&frame[22..54], &frame[54..]),
        _ => panic!("another kind of frame"),
    };
    let udp = &udp[..usize::from(u16::from_be_bytes([udp[4], udp[5]]))];
    let add = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|two| u64::from(two[0]) << 8 | u64::from(two.get(1).copied().unwrap_or(0))).sum()
    };
    let fold = |mut sum: u64| {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    };
    let pseudo = add(addresses) + 17 + udp.len() as u64;
    (fold(pseudo + add(udp)), fold(pseudo) == u16::from_be_bytes([udp[6], udp[7]]))
}

/// Returns the next frame on the wire for a port.
fn capture(wire: &OwnedFd, port: u16) -> Vec<u8> {
    for _ in 0..1_000 {
        let mut frame = vec![0; 2_000];
        let (len, _) = rustix::net::recv(wire, &mut frame[..], rustix::net::RecvFlags::empty()).unwrap();
        frame.truncate(len);
        let udp = match frame[12..14] {
            [0x08, 0x00] if frame[23] == 17 => 34,
            [0x86, 0xdd] if frame[20] == 17 => 54,
            _ => continue,
        };
        if frame[udp + 2..udp + 4] == port.to_be_bytes() {
            return frame;
        }
    }
    panic!("other frames only");
}

fn checksums_by_the_card(test: &str, mode: Mode, v6: bool) {
    in_namespaces(test, Shape::default(), |spaces| {
        spaces.enter(1);
        let them = UdpSocket::bind((spaces.addr(1, v6), 0)).unwrap();
        them.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let to: SocketAddr = them.local_addr().unwrap();
        let wire = raw_socket(&upper(Shape::default()));
        let time = Some(Duration::from_secs(20));
        rustix::net::sockopt::set_socket_timeout(&wire, rustix::net::sockopt::Timeout::Recv, time).unwrap();
        spaces.enter(0);
        for completes in [true, false] {
            set_offload(&upper(Shape::default()), completes);
            let bind = SocketAddr::new(spaces.addr(0, v6), 0);
            let udp = UdpConfig::with(|config| (config.bind, config.tx_slots) = (bind, 64));
            let config = XdpConfig::with(|config| {
                config.udp = udp;
                config.mode = mode;
                config.checksum_offload = Some(true);
            });
            let device = Xdp::open(config).unwrap_or_else(|r| panic!("{}", r.why));
            if !device.describe().contains("checksums by the card") {
                let why = format!("no tx metadata (Linux 6.11): {}", device.describe());
                return tautline_skips::skip(test, why);
            }
            let mut we = NetnsDevice { device, spaces: spaces.clone(), side: 0 };
            let route = we.route(to).unwrap();
            assert_eq!(we.transport(route), Some(Transport::Xdp));
            for number in 0..40 {
                let frame = data_frame(number, [48, 49, 200, 1_452 - number][number % 4]);
                send(&mut we, route, &frame);
                let mut got = [0; 2_000];
                let len = them.recv(&mut got).expect("the kernel accepts the checksum");
                assert_eq!(got[..len], frame);
                // If the interface claims to compute checksums, nobody completes them on this wire; otherwise
                // the kernel does.
                let (sum, partial) = sums(&capture(&wire, to.port()));
                assert_eq!((sum == 0xffff, partial), (!completes, completes), "{mode:?} {number}");
            }
        }
    });
}

#[test]
fn generic_v4() {
    checksums_by_the_card("generic_v4", Mode::Generic, false);
}

#[test]
fn generic_v6() {
    checksums_by_the_card("generic_v6", Mode::Generic, true);
}

#[test]
fn native_v6() {
    checksums_by_the_card("native_v6", Mode::Native, true);
}
