//! The header of every frame of an established channel.
//!
//! Data, acknowledgements, heartbeats and closes have one layout of 48 bytes. Every frame carries
//! acknowledgement, credit, and an echo for round-trip samples (L-4).

use crate::layout::fields;
use crate::{Malformed, Seq, put, u16_at, u32_at, u64_at};

/// Length of the header.
pub const HEADER_LEN: usize = 48;
/// The range of the tag, which counts as zero when the tag is computed.
pub const TAG_RANGE: std::ops::Range<usize> = AT_TAG..AT_TAG + 8;
/// The high nibble of the first byte of every Tautline frame (W-1).
pub const MARK: u8 = 0x70;
/// The largest frame: the largest UDP payload over IPv4.
pub const MAX_FRAME: usize = 65_507;
/// What every path is expected to carry (L-21): IPv6's minimum MTU without IPv6 and UDP headers.
pub const BASE_FRAME: usize = 1_232;
/// The smallest limit for frames on a path (L-20). A handler's name fits, which cannot be split.
pub const SMALLEST_FRAME: usize = 512;

fields! { HEADER_LEN;
    AT_KIND: 0, 1;
    AT_FLAGS: 1, 1;
    AT_EXT_LEN: 2, 2;
    AT_CHANNEL: 4, 4;
    AT_PACKET: 8, 8;
    AT_SLOT: 16, 4;
    AT_ACK: 20, 4;
    AT_CREDIT: 24, 4;
    AT_ECHO: 28, 4;
    AT_RESIDENCE: 32, 4;
    AT_DUPLICATES: 36, 4;
    AT_TAG: 40, 8;
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A frame of an established channel: a slot, an acknowledgement, a heartbeat, or several of these.
    Data = 1,
    /// The first frame of a handshake.
    Hello = 2,
    /// Accepts a hello.
    Welcome = 3,
    /// Requires proof of address for a hello, without keeping state.
    Retry = 4,
    /// Refuses a hello, with the reason.
    Refuse = 5,
    /// Closes a channel; `slot` is the sequence number after the last slot.
    Close = 6,
}

impl Kind {
    /// Returns the kind of a frame, from its first byte.
    pub fn of(bytes: &[u8]) -> Result<Kind, Malformed> {
        let first = *bytes.first().ok_or(Malformed::Truncated)?;
        if first & 0xf0 != MARK {
            return Err(Malformed::NotOurs);
        }
        Ok(match first & 0x0f {
            1 => Kind::Data,
            2 => Kind::Hello,
            3 => Kind::Welcome,
            4 => Kind::Retry,
            5 => Kind::Refuse,
            6 => Kind::Close,
            _ => return Err(Malformed::UnknownKind),
        })
    }

    /// Returns the first byte of a frame of this kind.
    pub(crate) fn first_byte(self) -> u8 {
        MARK | self as u8
    }
}

/// Flag bits of a frame (W-4).
pub mod flags {
    /// The frame carries a slot, or a fragment of one.
    pub const SLOT: u8 = 1 << 0;
    /// The receiver acknowledges the frame at once.
    pub const ACK_REQUESTED: u8 = 1 << 1;
    /// The payload is sealed, and 16 bytes of authentication follow it.
    pub const SEALED: u8 = 1 << 2;
    /// The close frame is a reply to the peer's close.
    pub const CLOSE_REPLY: u8 = 1 << 3;
    /// The sender accepts raw Ethernet frames (D-12).
    pub const RAW: u8 = 1 << 4;
    /// Reserved: sent as zero, ignored by the receiver.
    pub const RESERVED_IGNORED: u8 = 0b0010_0000;
    /// Reserved: sent as zero; a frame with one of these bits set is dropped.
    pub const RESERVED_CRITICAL: u8 = 0b1100_0000;
}

/// The typed header of a [`Kind::Data`] or [`Kind::Close`] frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`Kind::Data`] or [`Kind::Close`].
    pub kind: Kind,
    /// See [`flags`].
    pub flags: u8,
    /// Length of the extensions between header and payload, a multiple of four.
    pub ext_len: u16,
    /// The receiver's number for the channel.
    pub channel: u32,
    /// The packet number, different for every transmission (L-2).
    pub packet: u64,
    /// The slot that the frame carries, or else the next slot to be sent.
    pub slot: Seq,
    /// All slots before this one have arrived.
    pub ack: Seq,
    /// Slots before this one may be sent.
    pub credit: Seq,
    /// The low half of the largest packet number received; zero before the first.
    pub echo: u32,
    /// The time since the echoed packet arrived, in nanoseconds, saturating.
    pub residence_ns: u32,
    /// How many duplicate slots have arrived. Shows the sender which retransmissions were unnecessary.
    pub duplicates: u32,
    /// The authentication tag or, in open mode, a token of the channel.
    pub tag: u64,
}

impl Header {
    /// Returns whether the frame carries a slot, or a fragment of one.
    #[inline]
    pub fn has_slot(&self) -> bool {
        self.flags & flags::SLOT != 0
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        out[AT_KIND] = self.kind.first_byte();
        out[AT_FLAGS] = self.flags;
        put(out, AT_EXT_LEN, self.ext_len.to_le_bytes());
        put(out, AT_CHANNEL, self.channel.to_le_bytes());
        put(out, AT_PACKET, self.packet.to_le_bytes());
        put(out, AT_SLOT, self.slot.0.to_le_bytes());
        put(out, AT_ACK, self.ack.0.to_le_bytes());
        put(out, AT_CREDIT, self.credit.0.to_le_bytes());
        put(out, AT_ECHO, self.echo.to_le_bytes());
        put(out, AT_RESIDENCE, self.residence_ns.to_le_bytes());
        put(out, AT_DUPLICATES, self.duplicates.to_le_bytes());
        put(out, AT_TAG, self.tag.to_le_bytes());
    }

    /// Returns the tag of a frame that begins with this header; its residence time and its tag may differ.
    #[inline]
    pub fn tag_of(&self, frame: &[u8]) -> Option<u64> {
        let head = frame.first_chunk::<HEADER_LEN>()?;
        let mut expected = [0; HEADER_LEN];
        self.write(&mut expected);
        let same = head[..AT_RESIDENCE] == expected[..AT_RESIDENCE]
            && u32_at(head, AT_DUPLICATES) == self.duplicates;
        same.then(|| u64_at(head, AT_TAG))
    }
}

/// Writes the tag into a header.
#[inline]
pub fn put_tag(header: &mut [u8], tag: u64) {
    put(header, AT_TAG, tag.to_le_bytes());
}

/// Returns the channel number of a frame, of which only the length is checked.
#[inline]
pub fn channel_of(bytes: &[u8]) -> Result<u32, Malformed> {
    if bytes.len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(u32_at(bytes, AT_CHANNEL)) }
}

/// Returns the packet number of a frame, of which only the length is checked.
#[inline]
pub fn packet_of(bytes: &[u8]) -> Result<u64, Malformed> {
    if bytes.len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(u64_at(bytes, AT_PACKET)) }
}

/// A frame of an established channel with a checked layout: header, extensions, payload.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The typed header.
    pub header: Header,
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks the layout of a frame: length, mark, kind, flags, length of the extensions (W-1, W-3, W-4).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Truncated);
        }
        let kind = Kind::of(bytes)?;
        if !matches!(kind, Kind::Data | Kind::Close) {
            return Err(Malformed::UnknownKind);
        }
        let header = Header {
            kind,
            flags: bytes[AT_FLAGS],
            ext_len: u16_at(bytes, AT_EXT_LEN),
            channel: u32_at(bytes, AT_CHANNEL),
            packet: u64_at(bytes, AT_PACKET),
            slot: Seq(u32_at(bytes, AT_SLOT)),
            ack: Seq(u32_at(bytes, AT_ACK)),
            credit: Seq(u32_at(bytes, AT_CREDIT)),
            echo: u32_at(bytes, AT_ECHO),
            residence_ns: u32_at(bytes, AT_RESIDENCE),
            duplicates: u32_at(bytes, AT_DUPLICATES),
            tag: u64_at(bytes, AT_TAG),
        };
        if header.flags & flags::RESERVED_CRITICAL != 0 {
            return Err(Malformed::CriticalFlag);
        }
        let ext = usize::from(header.ext_len);
        if ext % 4 != 0 || HEADER_LEN + ext > bytes.len() {
            return Err(Malformed::BadExtension);
        }
        Ok(Frame { header, bytes })
    }

    /// Returns the bytes of the extensions, for [`crate::ext::Extensions`].
    #[inline]
    pub fn extensions(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..self.payload_at()]
    }

    /// Returns the offset of the payload.
    #[inline]
    pub fn payload_at(&self) -> usize {
        HEADER_LEN + usize::from(self.header.ext_len)
    }

    /// Returns the payload: everything after the extensions.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.payload_at()..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            kind: Kind::Data,
            flags: flags::SLOT | flags::ACK_REQUESTED,
            ext_len: 8,
            channel: 0x0102_0304,
            packet: 0x1122_3344_5566_7788,
            slot: Seq(7),
            ack: Seq(9),
            credit: Seq(200),
            echo: 5,
            residence_ns: 1234,
            duplicates: 3,
            tag: 0xdead_beef_0bad_cafe,
        }
    }

    /// A header is recognised whatever its residence time and tag, and in no other frame.
    #[test]
    fn a_header_is_recognised() {
        let mut bytes = [0u8; HEADER_LEN];
        sample().write(&mut bytes);
        let other = Header { residence_ns: 77, tag: 1, ..sample() };
        assert_eq!(other.tag_of(&bytes), Some(sample().tag));
        assert_eq!(other.tag_of(&bytes[..HEADER_LEN - 1]), None);
        for at in (0..HEADER_LEN).filter(|at| !(AT_RESIDENCE..AT_DUPLICATES).contains(at)) {
            bytes[at] ^= 1;
            assert_eq!(other.tag_of(&bytes).is_some(), TAG_RANGE.contains(&at), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    /// W-3: a header reads back as written.
    #[test]
    fn header_round_trip() {
        let mut bytes = [0u8; HEADER_LEN + 8 + 3];
        sample().write(&mut bytes);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame.header, sample());
        assert_eq!(frame.extensions().len(), 8);
        assert_eq!(frame.payload().len(), 3);
        assert_eq!(channel_of(&bytes), Ok(0x0102_0304));
    }

    /// W-1: truncated frames, foreign bytes and unknown kinds are rejected.
    #[test]
    fn foreign_frames_are_rejected() {
        let mut bytes = [0u8; HEADER_LEN + 8];
        sample().write(&mut bytes);
        assert_eq!(Frame::parse(&bytes[..47]).unwrap_err(), Malformed::Truncated);
        bytes[0] = 0x11;
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::NotOurs);
        bytes[0] = MARK | 0x0f;
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::UnknownKind);
    }

    /// W-4: bit 5 is ignored, and a frame with bit 6 is rejected.
    #[test]
    fn reserved_flags() {
        let mut bytes = [0u8; HEADER_LEN + 8];
        let mut header = sample();
        header.flags |= flags::RESERVED_IGNORED;
        header.write(&mut bytes);
        assert!(Frame::parse(&bytes).is_ok());
        header.flags |= 0x40;
        header.write(&mut bytes);
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::CriticalFlag);
    }

    /// W-5, W-10: extensions beyond the end of the frame are rejected.
    #[test]
    fn too_long_extensions_are_rejected() {
        let mut bytes = [0u8; HEADER_LEN + 4];
        sample().write(&mut bytes);
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::BadExtension);
    }
}
