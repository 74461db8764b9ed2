//! The headers of a frame: Ethernet, optionally a VLAN tag, IPv4 or IPv6, UDP; or Ethernet and eight bytes of
//! our own.
//!
//! What is the same for all frames of a route is prepared once ([`Template`]) and copied in front of each
//! frame; lengths and checksums are filled in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A hardware address.
pub(crate) type Mac = [u8; 6];

pub(crate) const ETHER_IPV4: u16 = 0x0800;
pub(crate) const ETHER_IPV6: u16 = 0x86dd;
pub(crate) const ETHER_VLAN: u16 = 0x8100;
/// The first of the two types reserved for experiments within one site (IEEE 802, local experimental).
pub(crate) const ETHER_RAW: u16 = 0x88b5;
/// Bytes of the raw framing's header: length, port of the receiver, port of the sender, zero; in network
/// order (D-12).
pub(crate) const RAW_LEN: usize = 8;
/// The most bytes of headers.
pub(crate) const HEADERS_MAX: usize = ETHERNET + TAG + IPV6 + UDP;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// The most routers that a packet may pass.
const HOPS: u8 = 64;

/// The headers around frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Framing {
    /// UDP over IP: the same frames as the `udp` device's.
    #[default]
    Udp,
    /// Ethernet and a header of eight bytes; for closed segments in which every device is configured for it.
    Raw,
}

impl Framing {
    /// Returns the framing's name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Framing::Udp => "udp",
            Framing::Raw => "raw",
        }
    }
}

impl std::str::FromStr for Framing {
    type Err = String;

    fn from_str(name: &str) -> Result<Framing, String> {
        match name {
            "udp" => Ok(Framing::Udp),
            "raw" => Ok(Framing::Raw),
            other => Err(format!("unknown framing \"{other}\"; use udp or raw")),
        }
    }
}

/// The headers of one route.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: [u8; HEADERS_MAX],
    len: usize,
    /// The offsets of the IP header, and of the UDP or raw header.
    ip_at: usize,
    udp_at: usize,
    kind: TemplateKind,
    checksum: Checksum,
    /// The sum of the constant parts of the IPv4 header, and of the pseudo header.
    ip_sum: u64,
    pseudo_sum: u64,
}

/// Who computes UDP's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksum {
    Software,
    Offload,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateKind {
    V4,
    V6,
    Raw,
}

/// The source and destination of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameAddresses {
    pub from_mac: Mac,
    pub to_mac: Mac,
    pub vlan: Option<u16>,
    pub from: SocketAddr,
    pub to: SocketAddr,
}

impl Template {
    /// Prepares headers between these addresses, which must be of one family.
    pub(crate) fn new(addresses: &FrameAddresses, framing: Framing) -> Template {
        let mut out = Writer { bytes: [0; HEADERS_MAX], len: 0 };
        out.put(&addresses.to_mac);
        out.put(&addresses.from_mac);
        if let Some(vlan) = addresses.vlan {
            out.put(&ETHER_VLAN.to_be_bytes());
            out.put(&(vlan & 0x0fff).to_be_bytes());
        }
        let (ip_at, kind) = (out.len + 2, TemplateKind::of(addresses.to.ip(), framing));
        let (mut ip_sum, mut pseudo_sum) = (0, 0);
        match (kind, addresses.from.ip(), addresses.to.ip()) {
            (TemplateKind::V4, IpAddr::V4(from), IpAddr::V4(to)) => {
                out.put(&ETHER_IPV4.to_be_bytes());
                // Version and length, service, total length; identification; don't fragment; hops, protocol,
                // checksum.
                out.put(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, PROTOCOL_UDP, 0, 0]);
                out.put(&from.octets());
                out.put(&to.octets());
                ip_sum = sum(&out.bytes[ip_at..out.len]);
                pseudo_sum = sum(&from.octets()) + sum(&to.octets()) + be(PROTOCOL_UDP.into());
            }
            (TemplateKind::V6, IpAddr::V6(from), IpAddr::V6(to)) => {
                out.put(&ETHER_IPV6.to_be_bytes());
                out.put(&[0x60, 0, 0, 0, 0, 0, PROTOCOL_UDP, HOPS]);
                out.put(&from.octets());
                out.put(&to.octets());
                pseudo_sum = sum(&from.octets()) + sum(&to.octets()) + be(PROTOCOL_UDP.into());
            }
            _ => out.put(&ETHER_RAW.to_be_bytes()),
        }
        let udp_at = out.len;
        if kind == TemplateKind::Raw {
            out.put(&[0, 0]);
            out.put(&addresses.to.port().to_be_bytes());
            out.put(&addresses.from.port().to_be_bytes());
            out.put(&[0, 0]);
        } else {
            out.put(&addresses.from.port().to_be_bytes());
            out.put(&addresses.to.port().to_be_bytes());
            out.put(&[0, 0, 0, 0]);
        }
        let checksum = if kind == TemplateKind::Raw { Checksum::None } else { Checksum::Software };
        Template { bytes: out.bytes, len: out.len, ip_at, udp_at, kind, checksum, ip_sum, pseudo_sum }
    }

    /// Omits UDP's checksum, which IPv4 allows and IPv6 does not (D-28).
    pub(crate) fn without_checksum(self) -> Template {
        let checksum = if self.kind == TemplateKind::V6 { self.checksum } else { Checksum::None };
        Template { checksum, ..self }
    }

    /// Leaves the checksum, if there is one, to the card; see [`Template::offload`].
    pub(crate) fn with_offload(self) -> Template {
        let checksum = if self.checksum == Checksum::Software { Checksum::Offload } else { self.checksum };
        Template { checksum, ..self }
    }

    /// Returns the bytes of the headers.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns where the card's checksum begins in the frame, and where it is stored relative to that.
    #[inline]
    pub(crate) fn offload(&self) -> Option<(u16, u16)> {
        (self.checksum == Checksum::Offload).then_some((self.udp_at as u16, 6))
    }

    /// Writes the headers: `frame` is room for them, followed by the payload.
    #[inline]
    pub(crate) fn write(&self, frame: &mut [u8]) {
        let (head, payload) = frame.split_at_mut(self.len);
        head.copy_from_slice(&self.bytes[..self.len]);
        let len = payload.len() as u16;
        if self.kind == TemplateKind::Raw {
            return put16(head, self.udp_at, len);
        }
        let udp_len = len + UDP as u16;
        if self.kind == TemplateKind::V4 {
            let total = udp_len + IPV4 as u16;
            put16(head, self.ip_at + 2, total);
            let check = !fold(self.ip_sum + be(total));
            head[self.ip_at + 10..][..2].copy_from_slice(&check.to_ne_bytes());
        } else {
            put16(head, self.ip_at + 4, udp_len);
        }
        put16(head, self.udp_at + 4, udp_len);
        if self.checksum != Checksum::Software {
            if self.checksum == Checksum::Offload {
                // The card adds to the value that it finds there.
                let pseudo = fold(self.pseudo_sum + be(udp_len));
                head[self.udp_at + 6..][..2].copy_from_slice(&pseudo.to_ne_bytes());
            }
            return;
        }
        let ports = sum(&head[self.udp_at..self.udp_at + 6]);
        let check = !fold(self.pseudo_sum + be(udp_len) + ports + sum(payload));
        // Zero would mean that there is no checksum.
        let check = if check == 0 { 0xffff } else { check };
        head[self.udp_at + 6..][..2].copy_from_slice(&check.to_ne_bytes());
    }
}

impl TemplateKind {
    fn of(to: IpAddr, framing: Framing) -> TemplateKind {
        match (framing, to) {
            (Framing::Raw, _) => TemplateKind::Raw,
            (Framing::Udp, IpAddr::V4(_)) => TemplateKind::V4,
            (Framing::Udp, IpAddr::V6(_)) => TemplateKind::V6,
        }
    }
}

struct Writer {
    bytes: [u8; HEADERS_MAX],
    len: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[inline]
fn put16(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

/// The contents of a received frame's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Where the payload lies.
    pub start: usize,
    pub end: usize,
    pub from: Sender,
}

/// The source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Ip(SocketAddr),
    /// A hardware address and a port.
    Raw(Mac, u16),
}

/// Why a frame was refused, although the program took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// Lengths or types that the program does not let through.
    Shape,
    /// The UDP checksum is wrong.
    Checksum,
}

/// Parses the headers of a whole frame.
///
/// A partial checksum, which covers only the pseudo header and was to be completed by a card, counts as
/// correct: between two interfaces of one host nobody completes it (D-14).
#[inline]
pub(crate) fn parse(frame: &[u8]) -> Result<Parsed, FrameError> {
    let ether = u16_at(frame, 12).ok_or(FrameError::Shape)?;
    let (ether, at) = if ether == ETHER_VLAN {
        (u16_at(frame, 16).ok_or(FrameError::Shape)?, ETHERNET + TAG)
    } else {
        (ether, ETHERNET)
    };
    match ether {
        ETHER_IPV4 => parse_v4(frame, at),
        ETHER_IPV6 => parse_v6(frame, at),
        ETHER_RAW => parse_raw(frame, at),
        _ => Err(FrameError::Shape),
    }
}

#[inline]
fn parse_v4(frame: &[u8], at: usize) -> Result<Parsed, FrameError> {
    let head: &[u8; IPV4] = frame.get(at..).and_then(<[u8]>::first_chunk).ok_or(FrameError::Shape)?;
    let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if head[0] != 0x45 || head[9] != PROTOCOL_UDP || total < IPV4 + UDP {
        return Err(FrameError::Shape);
    }
    let udp = frame.get(at + IPV4..at + total).ok_or(FrameError::Shape)?;
    let from = Ipv4Addr::new(head[12], head[13], head[14], head[15]);
    parse_udp(udp, at + IPV4, from.into(), sum(&head[12..]), true)
}

#[inline]
fn parse_v6(frame: &[u8], at: usize) -> Result<Parsed, FrameError> {
    let head: &[u8; IPV6] = frame.get(at..).and_then(<[u8]>::first_chunk).ok_or(FrameError::Shape)?;
    let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
    if head[0] >> 4 != 6 || head[6] != PROTOCOL_UDP || len < UDP {
        return Err(FrameError::Shape);
    }
    let udp = frame.get(at + IPV6..at + IPV6 + len).ok_or(FrameError::Shape)?;
    let mut from = [0; 16];
    from.copy_from_slice(&head[8..24]);
    parse_udp(udp, at + IPV6, Ipv6Addr::from(from).into(), sum(&head[8..]), false)
}

#[inline]
fn parse_udp(
    udp: &[u8],
    at: usize,
    from: IpAddr,
    addresses: u64,
    may_lack: bool,
) -> Result<Parsed, FrameError> {
    if usize::from(u16::from_be_bytes([udp[4], udp[5]])) != udp.len() {
        return Err(FrameError::Shape);
    }
    let given = u16::from_ne_bytes([udp[6], udp[7]]);
    let pseudo = addresses + be(PROTOCOL_UDP.into()) + be(udp.len() as u16);
    let right = if given == 0 { may_lack } else { fold(pseudo + sum(udp)) == 0xffff };
    if !right && given != fold(pseudo) {
        return Err(FrameError::Checksum);
    }
    let port = u16::from_be_bytes([udp[0], udp[1]]);
    Ok(Parsed { start: at + UDP, end: at + udp.len(), from: Sender::Ip(SocketAddr::new(from, port)) })
}

#[inline]
fn parse_raw(frame: &[u8], at: usize) -> Result<Parsed, FrameError> {
    let head: &[u8; RAW_LEN] = frame.get(at..).and_then(<[u8]>::first_chunk).ok_or(FrameError::Shape)?;
    let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
    let start = at + RAW_LEN;
    if start + len > frame.len() || len == 0 {
        return Err(FrameError::Shape);
    }
    let mut mac = [0; 6];
    mac.copy_from_slice(&frame[6..12]);
    Ok(Parsed { start, end: start + len, from: Sender::Raw(mac, u16::from_be_bytes([head[4], head[5]])) })
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

/// Returns a number as it counts in a sum of words in memory order.
#[inline]
fn be(number: u16) -> u64 {
    u16::from_ne_bytes(number.to_be_bytes()).into()
}

/// Returns the sum of 16-bit words in memory order, not folded. The internet checksum depends neither on the
/// byte order nor on the width of the additions.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 8];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (words, tail) = rest.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    if !tail.is_empty() {
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        total += u64::from(u32::from_ne_bytes(last));
    }
    total + lanes.iter().sum::<u64>()
}

/// Folds a sum into 16 bits.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
