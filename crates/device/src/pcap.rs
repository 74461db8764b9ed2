//! A wrapper that writes a capture file for Wireshark.
//!
//! The file is a classic little-endian pcap with nanoseconds and raw IP packets. IP and UDP headers are made
//! up from the addresses that the device knows, with correct checksums.

use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::wrap::{RouteBook, forward};
use crate::{Datagram, DeviceEvent, RouteId, RxBatch, SlotId};

/// Nanosecond pcap.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Raw IPv4 or IPv6.
const LINKTYPE_RAW: u32 = 101;
/// The largest IPv6 packet without options, so that nothing is truncated.
const SNAPLEN: u32 = 65_535 + 40;
const UDP: u8 = 17;
/// Bytes that are buffered before they are written.
const BUFFER: usize = 64 * 1024;

/// A device whose frames are written to `W`. Buffered frames are written when it is dropped.
#[derive(Debug)]
pub struct Pcap<D, W: Write> {
    inner: D,
    capture: Capture<W>,
    routes: RouteBook,
}

impl<D: Datagram, W: Write + Send> Pcap<D, W> {
    /// Wraps a device and writes the file's header.
    pub fn new(inner: D, out: W) -> io::Result<Pcap<D, W>> {
        Ok(Pcap { inner, capture: Capture::new(out)?, routes: RouteBook::default() })
    }
}

impl<D: Datagram, W: Write + Send> Datagram for Pcap<D, W> {
    forward!();

    /// Ignored: a capture needs the sources.
    fn want_sources(&mut self, _: bool) {}

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        let route = self.inner.route(to)?;
        self.routes.note(route, to);
        Ok(route)
    }

    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        if let Some(to) = self.routes.get(route) {
            let bytes = self.inner.arena_ref().bytes(slot, range.clone());
            self.capture.packet(wall_time(), self.inner.local_addr(), to, bytes);
        }
        self.inner.send(route, slot, range);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        let got = self.inner.recv(batch)?;
        if got > 0 {
            let (to, now) = (self.inner.local_addr(), wall_time());
            for frame in batch.frames() {
                if let Some(from) = batch.source(*frame) {
                    self.capture.packet(now, from, to, batch.bytes(*frame));
                }
            }
        }
        Ok(got)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.inner.poll_event()
    }
}

fn wall_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The file, without a device, for frames that move by other means (a simulated network).
#[derive(Debug)]
pub struct Capture<W: Write> {
    out: BufWriter<W>,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
}

impl<W: Write> Capture<W> {
    /// Writes the file's header.
    pub fn new(out: W) -> io::Result<Capture<W>> {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        out.write_all(&MAGIC.to_le_bytes())?;
        out.write_all(&2_u16.to_le_bytes())?;
        out.write_all(&4_u16.to_le_bytes())?;
        // Time zone and accuracy: always zero.
        out.write_all(&[0; 8])?;
        out.write_all(&SNAPLEN.to_le_bytes())?;
        out.write_all(&LINKTYPE_RAW.to_le_bytes())?;
        Ok(Capture { out, error: None })
    }

    /// Adds a frame, as the UDP datagram that carries it. `time` counts from 1970, or from the start of a
    /// virtual clock. Errors are kept for [`Capture::finish`].
    pub fn packet(&mut self, time: Duration, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
        if self.error.is_none() {
            self.error = self.write(time, from, to, payload).err();
        }
    }

    /// Writes what is buffered; returns the first error.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn write(&mut self, time: Duration, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let mut headers = [0; 48];
        let headers = match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4_header(&mut headers, source, destination, payload.len());
                &mut headers[..28]
            }
            (source, destination) => {
                ipv6_header(&mut headers, source, destination, payload.len());
                &mut headers[..]
            }
        };
        let udp_at = headers.len() - 8;
        udp_header(headers, udp_at, from.port(), to.port(), payload);
        let len = (headers.len() + payload.len()) as u32;
        self.out.write_all(&(time.as_secs() as u32).to_le_bytes())?;
        self.out.write_all(&time.subsec_nanos().to_le_bytes())?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(headers)?;
        self.out.write_all(payload)
    }
}

fn ipv4_header(out: &mut [u8], source: Ipv4Addr, destination: Ipv4Addr, payload: usize) {
    out[0] = 0x45;
    out[2..4].copy_from_slice(&((28 + payload) as u16).to_be_bytes());
    // Don't fragment.
    out[6] = 0x40;
    out[8] = 64;
    out[9] = UDP;
    out[12..16].copy_from_slice(&source.octets());
    out[16..20].copy_from_slice(&destination.octets());
    let checksum = !fold(sum(&out[..20], 0));
    out[10..12].copy_from_slice(&checksum.to_be_bytes());
}

fn ipv6_header(out: &mut [u8], source: IpAddr, destination: IpAddr, payload: usize) {
    let octets = |ip| match ip {
        IpAddr::V4(ip) => Ipv4Addr::to_ipv6_mapped(&ip).octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    out[0] = 0x60;
    out[4..6].copy_from_slice(&((8 + payload) as u16).to_be_bytes());
    out[6] = UDP;
    out[7] = 64;
    out[8..24].copy_from_slice(&octets(source));
    out[24..40].copy_from_slice(&octets(destination));
}

/// Fills the UDP header behind an IP header whose addresses end where it starts.
fn udp_header(headers: &mut [u8], at: usize, from: u16, to: u16, payload: &[u8]) {
    let len = (8 + payload.len()) as u16;
    let addresses = if at == 20 { 12..20 } else { 8..40 };
    headers[at..at + 2].copy_from_slice(&from.to_be_bytes());
    headers[at + 2..at + 4].copy_from_slice(&to.to_be_bytes());
    headers[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
    let pseudo = sum(&headers[addresses], u64::from(UDP) + u64::from(len));
    let checksum = !fold(sum(payload, sum(&headers[at..at + 6], pseudo)));
    // Zero would mean that there is no checksum.
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    headers[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
}

/// Adds big-endian 16-bit words; an odd last byte is the high half of one.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    words.fold(start + odd, |sum, word| sum + u64::from(u16::from_be_bytes([word[0], word[1]])))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checksum is correct if the sum over everything including it is all ones.
    #[test]
    fn checksums_are_correct() {
        for (from, to) in [("10.0.0.1:7", "10.0.0.2:65535"), ("[::1]:1", "[fe80::2]:9")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            for len in [0, 1, 2, 1_001, 65_000] {
                let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let mut capture = Capture::new(Vec::new()).unwrap();
                capture.packet(Duration::from_nanos(1_500_000_001), from, to, &payload);
                capture.finish().unwrap();
                let file = capture.out.get_ref();
                assert_eq!(file[24..32], [1, 0, 0, 0, 0x01, 0x65, 0xcd, 0x1d]);
                let packet = &file[40..];
                let at = if from.is_ipv4() { 20 } else { 40 };
                if from.is_ipv4() {
                    assert_eq!(fold(sum(&packet[..20], 0)), 0xffff);
                }
                let addresses = if from.is_ipv4() { 12..20 } else { 8..40 };
                let pseudo = sum(&packet[addresses], u64::from(UDP) + 8 + len as u64);
                assert_eq!(fold(sum(&packet[at..], pseudo)), 0xffff);
                assert_eq!(packet.len(), at + 8 + len);
            }
        }
    }

    /// Write errors are reported by `finish`, and not before.
    #[test]
    fn write_errors_are_reported_at_the_end() {
        let mut room = [0; 100];
        let mut capture = Capture::new(&mut room[..]).unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        (0..3_000).for_each(|_| capture.packet(Duration::ZERO, at, at, &[1; 100]));
        assert!(capture.finish().is_err());
    }
}
