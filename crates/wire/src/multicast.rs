//! Multicast records: bytes on their way from a root along a tree of the members of a group, and what the
//! nodes of the tree tell each other about them.
//!
//! Their slots hold no other records. They are processed as soon as their slot is next in order, and never
//! wait for the program. Each starts with the short header, and `len` counts all bytes after it.

use crate::record::{self, Class, Record, RecordHead, SHORT_LEN};
use crate::{Malformed, put, u32_at, u64_at};

const PACKET: u8 = 40;
const ACK: u8 = 41;
const REQUEST: u8 = 42;
const GRANT: u8 = 43;
const RECALL: u8 = 44;
const RELEASE: u8 = 45;
const FAILED: u8 = 46;
const _: () = assert!(PACKET == *record::MULTICAST_KINDS.start() && FAILED == *record::MULTICAST_KINDS.end());

/// In a packet: it ends a message.
const LAST: u8 = 1;
/// In a packet: all positions so far are to be acknowledged as soon as they can be.
const FLUSH: u8 = 2;

/// Length of the head of every multicast record.
pub const PACKET_HEAD: usize = SHORT_LEN + 16;

/// A group, and a member of it by its number in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The group.
    pub group: u32,
    /// The member.
    pub root: u32,
}

/// A multicast record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MulticastRecord<'a> {
    /// Bytes of a message of a root.
    Packet {
        /// Whose bytes they are.
        stream: Stream,
        /// Their position in all that the root has sent.
        at: u64,
        /// They end a message.
        last: bool,
        /// All positions so far are to be acknowledged as soon as they can be.
        flush: bool,
        /// The bytes.
        data: &'a [u8],
    },
    /// The sender and all members below it have taken what the root sent before a position.
    Ack {
        /// The root.
        stream: Stream,
        /// The position.
        to: u64,
    },
    /// A member asks the first member to be a root.
    Request(Stream),
    /// The first member lets a member be a root.
    Grant(Stream),
    /// The first member asks a root to stop.
    Recall(Stream),
    /// A root has stopped.
    Release(Stream),
    /// Multicast of a group has failed.
    Failed {
        /// The group.
        group: u32,
        /// The number of the peer that is gone.
        gone: u32,
        /// Why.
        why: u8,
    },
}

impl<'a> MulticastRecord<'a> {
    /// Reads a multicast record.
    #[inline]
    pub fn parse(record: &Record<'a>) -> Result<MulticastRecord<'a>, Malformed> {
        let Record::Multicast { kind, flags, body } = *record else { return Err(Malformed::UnknownKind) };
        if body.len() < 16 {
            return Err(Malformed::BadValue);
        }
        let stream = Stream { group: u32_at(body, 0), root: u32_at(body, 4) };
        let (value, data) = (u64_at(body, 8), &body[16..]);
        if kind == PACKET {
            value.checked_add(data.len() as u64).ok_or(Malformed::BadValue)?;
            let (last, flush) = (flags & LAST != 0, flags & FLUSH != 0);
            return Ok(MulticastRecord::Packet { stream, at: value, last, flush, data });
        }
        if !data.is_empty() {
            return Err(Malformed::BadValue);
        }
        match kind {
            ACK => Ok(MulticastRecord::Ack { stream, to: value }),
            REQUEST => Ok(MulticastRecord::Request(stream)),
            GRANT => Ok(MulticastRecord::Grant(stream)),
            RECALL => Ok(MulticastRecord::Recall(stream)),
            RELEASE => Ok(MulticastRecord::Release(stream)),
            FAILED => {
                let why = u8::try_from(value).map_err(|_| Malformed::BadValue)?;
                Ok(MulticastRecord::Failed { group: stream.group, gone: stream.root, why })
            }
            _ => Err(Malformed::UnknownKind),
        }
    }
}

impl RecordHead for MulticastRecord<'_> {
    const CLASS: Class = Class::Multicast;

    #[inline]
    fn head_len(&self) -> usize {
        PACKET_HEAD
    }

    #[inline]
    fn write(&self, out: &mut [u8], flags: u8, len: usize) -> usize {
        let out = &mut out[..PACKET_HEAD];
        let (kind, flags, stream, value) = match *self {
            MulticastRecord::Packet { stream, at, last, flush, .. } => {
                let flags = flags | if last { LAST } else { 0 } | if flush { FLUSH } else { 0 };
                (PACKET, flags, stream, at)
            }
            MulticastRecord::Ack { stream, to } => (ACK, flags, stream, to),
            MulticastRecord::Request(stream) => (REQUEST, flags, stream, 0),
            MulticastRecord::Grant(stream) => (GRANT, flags, stream, 0),
            MulticastRecord::Recall(stream) => (RECALL, flags, stream, 0),
            MulticastRecord::Release(stream) => (RELEASE, flags, stream, 0),
            MulticastRecord::Failed { group, gone, why } => {
                (FAILED, flags, Stream { group, root: gone }, u64::from(why))
            }
        };
        let body = &mut out[SHORT_LEN..];
        put(body, 0, stream.group.to_le_bytes());
        put(body, 4, stream.root.to_le_bytes());
        put(body, 8, value.to_le_bytes());
        record::write::head(out, kind, flags, PACKET_HEAD - SHORT_LEN + len);
        PACKET_HEAD
    }
}

/// Returns whether a multicast record of this kind and with these flags carries bytes of a message, and ends
/// one.
pub fn carries(kind: u8, flags: u8) -> (bool, bool) {
    (kind == PACKET, kind == PACKET && flags & LAST != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Records;

    fn all() -> Vec<MulticastRecord<'static>> {
        let stream = Stream { group: 7, root: 70_000 };
        let packet = |last, flush, data| MulticastRecord::Packet { stream, at: 1 << 40, last, flush, data };
        vec![
            packet(false, false, b"12345678"),
            packet(true, false, b"abc"),
            packet(false, true, b""),
            MulticastRecord::Ack { stream, to: u64::MAX },
            MulticastRecord::Request(stream),
            MulticastRecord::Grant(stream),
            MulticastRecord::Recall(stream),
            MulticastRecord::Release(stream),
            MulticastRecord::Failed { group: 9, gone: 3, why: 200 },
        ]
    }

    /// multicast records of every kind read back as written, several in a slot; cut short, none is read.
    #[test]
    fn multicast_records_round_trip() {
        let mut out = vec![0u8; 1024];
        let mut at = 0;
        for cast in all() {
            let data: &[u8] = if let MulticastRecord::Packet { data, .. } = cast { data } else { &[] };
            let start = at;
            at += cast.write(&mut out[at..], 0, data.len());
            out[at..at + data.len()].copy_from_slice(data);
            at += data.len();
            assert!(record::is_served(out[start]) && Class::of(out[start]) == Class::Multicast);
            let cut = Records::new(&out[start..at - 1], 0).next().unwrap();
            assert!(cut.is_err(), "{cast:?}");
        }
        let got: Vec<_> = Records::new(&out[..at], 0).map(Result::unwrap).collect();
        assert_eq!(got.iter().map(|r| MulticastRecord::parse(r).unwrap()).collect::<Vec<_>>(), all());
        for record in got {
            if let Record::Multicast { kind, flags, body } = record {
                let short = Record::Multicast { kind, flags, body: &body[..15] };
                assert_eq!(MulticastRecord::parse(&short), Err(Malformed::BadValue));
            }
        }
        // A control record has no data.
        let grant = MulticastRecord::Grant(Stream { group: 1, root: 2 });
        let len = grant.write(&mut out, 0, 1) + 1;
        let record = Records::new(&out[..len], 0).next().unwrap().unwrap();
        assert_eq!(MulticastRecord::parse(&record), Err(Malformed::BadValue));
    }
}
