//! Hand-made frames, and a raw socket to send them, for tests.
#![allow(dead_code)]

use std::net::SocketAddr;

/// Opens a raw socket on an interface of the current namespace.
pub fn raw_socket(interface: &str) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let fd = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
    let index = netdevice::name_to_index(&fd, interface).unwrap();
    let mut address = [0u8; 20];
    address[..2].copy_from_slice(&17u16.to_ne_bytes());
    address[2..4].copy_from_slice(&3u16.to_be_bytes());
    address[4..8].copy_from_slice(&index.to_ne_bytes());
    let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
    // SAFETY: the pointer is to a live sockaddr_ll of its own length, which the kernel only reads.
    let bound = unsafe { libc::bind(raw, address.as_ptr().cast(), 20) };
    assert_eq!(bound, 0);
    fd
}

/// Builds an IPv4 frame as another program would.
pub fn frame_by_hand(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4 only") };
    let sum = |bytes: &[u8]| {
        let mut total: u32 = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
            .sum();
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        !(total as u16)
    };
    let mut ip = vec![0x45, 0];
    ip.extend(((28 + payload.len()) as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(from.ip().octets());
    ip.extend(to.ip().octets());
    let check = sum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&check);
    let mut udp = Vec::new();
    udp.extend(from.port().to_be_bytes());
    udp.extend(to.port().to_be_bytes());
    udp.extend(((8 + payload.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let mut pseudo = ip[12..20].to_vec();
    pseudo.extend([0, 17]);
    pseudo.extend((udp.len() as u16).to_be_bytes());
    pseudo.extend(&udp);
    let check = sum(&pseudo).to_be_bytes();
    udp[6..8].copy_from_slice(&check);
    // The last byte of each hardware address equals that of its IP address.
    let end = |of: &std::net::SocketAddrV4| of.ip().octets()[3];
    let mut frame = vec![2, 0, 0, 0x54, 0x4c, end(&to), 2, 0, 0, 0x54, 0x4c, end(&from), 8, 0];
    frame.extend(ip);
    frame.extend(udp);
    frame
}
