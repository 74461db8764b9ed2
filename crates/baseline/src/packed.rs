//! Small records packed into datagrams: the limit of the rate of small messages. Each record is packed and
//! read by itself, as a message layer must; only the format is known beforehand.

use std::io;

use rustix::net::SendFlags;

use crate::content::Pattern;
use crate::cpu::{Measured, Stopwatch};
use crate::flow::{self, Sink, Source};
use crate::transport::{Setup, Side};
use crate::udp::{self, UdpPair};
use crate::udp_gso::Plan;

/// Bytes of a record's payload in these tests.
pub const PAYLOAD: usize = 8;
/// Bytes of a record on the wire: length, tag, payload.
pub const RECORD: usize = HEADER + PAYLOAD;
/// Records in a datagram that is acknowledged by itself.
pub const WINDOW: usize = 64;

/// The window in bytes at which [`stream`] was fastest.
pub const STREAM_WINDOW: usize = 512 << 10;

const HEADER: usize = 8;

/// Writes a record at the front of `room` and returns the room behind it; `None` if it does not fit.
pub fn pack<'a>(room: &'a mut [u8], tag: u32, payload: &[u8]) -> Option<&'a mut [u8]> {
    let len = u32::try_from(payload.len()).ok()?;
    let (head, rest) = room.split_first_chunk_mut::<HEADER>()?;
    let (body, rest) = rest.split_at_mut_checked(payload.len())?;
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4..].copy_from_slice(&tag.to_le_bytes());
    body.copy_from_slice(payload);
    Some(rest)
}

/// Reads the record at the front of `bytes`: its tag, its payload, and the bytes behind it; `None` if it is
/// truncated.
#[must_use]
pub fn unpack(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let tag = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let (payload, rest) = rest.split_at_checked(len)?;
    Some((tag, payload, rest))
}

/// Packs 64 records into one datagram, which is read and acknowledged by one datagram; `rounds` times.
///
/// # Errors
/// Whatever the system reports, and [`io::ErrorKind::InvalidData`] if a record is not what was sent.
pub fn window(setup: &mut Setup<'_>, rounds: u64) -> io::Result<Measured> {
    let pair = UdpPair::open(setup)?;
    let mut packer = Packer::new();
    let mut reader = Reader::new(0);
    let mut datagram = [0; WINDOW * RECORD];
    setup.barrier()?;
    let watch = Stopwatch::start();
    for _ in 0..rounds {
        match setup.side {
            Side::A => {
                packer.fill(&mut datagram);
                rustix::net::send(&pair.socket, &datagram, SendFlags::empty())?;
                let mut ack = [0; 8];
                udp::receive(&pair.socket, &mut ack, setup.blocking)?;
            }
            Side::B => {
                let len = udp::receive(&pair.socket, &mut datagram, setup.blocking)?;
                reader.read(&datagram[..len.min(datagram.len())]);
                reader.check()?;
                rustix::net::send(&pair.socket, &reader.expected.to_le_bytes(), SendFlags::empty())?;
            }
        }
    }
    let records = rounds * WINDOW as u64;
    Ok(watch.stop(records, records * PAYLOAD as u64, 0))
}

/// Sends a stream of at least `records` records in full datagrams, which the kernel segments and coalesces
/// (GSO, GRO), with a sliding window of `window` bytes.
///
/// # Errors
/// Whatever the system reports, and [`io::ErrorKind::InvalidData`] if a record is not what was sent.
pub fn stream(setup: &mut Setup<'_>, records: u64, window: usize) -> io::Result<Measured> {
    let pair = UdpPair::open(setup)?;
    let mut shape = Plan { window, ..Plan::new(1, 1) }.shape(&pair, RECORD);
    shape.message = shape.cut.packet() / RECORD * RECORD;
    let per_packet = (shape.message / RECORD) as u64;
    shape.count = records.div_ceil(per_packet);
    let mut packer = Packer::new();
    let mut reader = Reader::new(0);
    let mut measured = flow::run(setup, &pair, &shape, &mut packer, &mut reader)?;
    measured.messages = shape.count * per_packet;
    measured.bytes = measured.messages * PAYLOAD as u64;
    Ok(measured)
}

/// Packs one record after the other; the payload is the record's number.
struct Packer {
    pattern: Pattern,
    next: u64,
    /// The first record that was never packed.
    fresh: u64,
}

impl Packer {
    fn new() -> Self {
        Self { pattern: Pattern::new(PAYLOAD), next: 0, fresh: 0 }
    }

    fn fill(&mut self, buf: &mut [u8]) {
        let mut room = buf;
        while room.len() >= RECORD {
            let mut payload = [0; PAYLOAD];
            if self.next < self.fresh {
                self.pattern.write_again(self.next, 0, &mut payload);
            } else {
                self.pattern.write(self.next, &mut payload);
                self.fresh = self.next + 1;
            }
            let Some(rest) = pack(room, self.next as u32, &payload) else { break };
            room = rest;
            self.next += 1;
        }
    }
}

impl Source for Packer {
    fn write(&mut self, number: u64, buf: &mut [u8]) {
        self.next = number * (buf.len() / RECORD) as u64;
        self.fill(buf);
    }
}

/// Reads one record after the other, and checks that it is the next one.
struct Reader {
    pattern: Pattern,
    expected: u64,
    /// The first record that was never read.
    fresh: u64,
    wrong: bool,
}

impl Reader {
    fn new(expected: u64) -> Self {
        Self { pattern: Pattern::new(PAYLOAD), expected, fresh: expected, wrong: false }
    }

    fn read(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let record = unpack(rest).and_then(|(tag, payload, behind)| {
                let payload: [u8; PAYLOAD] = payload.try_into().ok()?;
                rest = behind;
                Some((tag, u64::from_le_bytes(payload)))
            });
            let Some((tag, word)) = record else {
                self.wrong = true;
                return;
            };
            // A record that comes again after a loss counts once; one behind a gap comes again.
            let right = if self.expected == self.fresh {
                let right = self.pattern.check_word(self.expected, word).is_ok();
                self.fresh += u64::from(right);
                right
            } else {
                word == self.expected
            };
            self.wrong |= !right || tag != self.expected as u32;
            self.expected += 1;
        }
    }

    fn check(&self) -> io::Result<()> {
        if self.wrong {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the record that was sent"));
        }
        Ok(())
    }
}

impl Sink for Reader {
    fn take(&mut self, position: u64, bytes: &[u8]) {
        if self.expected != position / RECORD as u64 {
            (self.expected, self.wrong) = (position / RECORD as u64, false);
        }
        self.read(bytes);
    }

    fn arrived(&mut self, _position: u64) -> io::Result<()> {
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_records_are_read_back() {
        let mut buf = [0; WINDOW * RECORD];
        Packer { next: 5, ..Packer::new() }.fill(&mut buf);
        let mut reader = Reader::new(5);
        reader.read(&buf);
        reader.check().unwrap();
        assert_eq!(reader.expected, 5 + WINDOW as u64);
    }

    #[test]
    fn records_of_any_length_are_read_back() {
        let mut buf = [0; 64];
        let rest = pack(&mut buf, 1, b"").unwrap();
        let rest = pack(rest, 2, b"three").unwrap();
        assert_eq!(rest.len(), 64 - 8 - 8 - 5);
        let (tag, payload, rest) = unpack(&buf).unwrap();
        assert_eq!((tag, payload), (1, &b""[..]));
        let (tag, payload, _) = unpack(rest).unwrap();
        assert_eq!((tag, payload), (2, &b"three"[..]));
    }

    #[test]
    fn a_record_that_does_not_fit_is_refused() {
        assert!(pack(&mut [0; 7], 0, b"").is_none());
        assert!(pack(&mut [0; 15], 0, &[0; 8]).is_none());
        assert!(unpack(&[0; 7]).is_none());
        assert!(unpack(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).is_none());
    }

    #[test]
    fn a_wrong_record_is_detected() {
        let mut buf = [0; 2 * RECORD];
        Packer::new().fill(&mut buf);
        buf[RECORD + HEADER] ^= 1;
        let mut reader = Reader::new(0);
        reader.read(&buf);
        assert!(reader.check().is_err());
    }
}
