//! The headers before the payload: Ethernet, IPv4 and UDP.

use std::net::Ipv4Addr;

/// Bytes of all three headers.
pub(super) const HEADER: usize = 14 + 20 + 8;
/// What an MTU of 1500 leaves.
pub(super) const PAYLOAD_MAX: usize = 1500 - 20 - 8;

/// One end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) mac: [u8; 6],
    pub(super) address: Ipv4Addr,
    pub(super) port: u16,
}

/// The headers of every frame that carries `bytes` bytes from one end to the other.
pub(super) fn header(from: &End, to: &End, bytes: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&to.mac);
    header[6..12].copy_from_slice(&from.mac);
    header[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
    let (ip, udp) = header[14..].split_at_mut(20);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((28 + bytes) as u16).to_be_bytes());
    // Not to be fragmented, 64 hops, UDP.
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = 17;
    ip[12..16].copy_from_slice(&from.address.octets());
    ip[16..20].copy_from_slice(&to.address.octets());
    let sum = checksum(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    udp[..2].copy_from_slice(&from.port.to_be_bytes());
    udp[2..4].copy_from_slice(&to.port.to_be_bytes());
    // A checksum of zero says that there is none, which IPv4 allows.
    udp[4..6].copy_from_slice(&((8 + bytes) as u16).to_be_bytes());
    header
}

/// The Internet checksum of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let (words, _) = bytes.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !((folded & 0xFFFF) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_valid() {
        let end = |last, port| End { mac: [2, 0, 0, 0, 0, last], address: [10, 0, 0, last].into(), port };
        let header = header(&end(1, 7000), &end(2, 7001), 8);
        assert_eq!(header[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        assert_eq!(header[12..14], [8, 0]);
        assert_eq!(checksum(&header[14..34]), 0, "a header with its own sum adds up to nothing");
        assert_eq!(header[16..18], 36_u16.to_be_bytes());
        assert_eq!(header[34..], [0x1B, 0x58, 0x1B, 0x59, 0, 16, 0, 0]);
    }

    #[test]
    fn the_checksum_of_a_known_header() {
        let ip = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xC0, 0xA8, 0, 1, 0xC0, 0xA8, 0, 0xC7];
        assert_eq!(checksum(&ip), 0xB861);
    }
}
