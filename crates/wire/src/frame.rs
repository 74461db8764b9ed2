//! The header that every frame of an established channel carries.
//!
//! One fixed layout of 48 bytes for data, acknowledgement, heartbeat and close: acknowledgement, credit and
//! the echo that gives round-trip samples ride on everything (L-4).

use crate::layout::fields;
use crate::{Malformed, Seq, put, u16_at, u32_at, u64_at};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 48;
/// Where the tag lies; it is excluded from what it covers.
pub const TAG_RANGE: std::ops::Range<usize> = AT_TAG..AT_TAG + 8;
/// High nibble of the first byte of every Tautline frame (W-1).
pub const MARK: u8 = 0x70;
/// The largest frame that may exist at all: the largest UDP payload over IPv4.
pub const MAX_FRAME: usize = 65_507;
/// What every path is expected to take: IPv6's minimum MTU less IPv6 and UDP headers (L-21).
pub const MIN_FRAME: usize = 1_232;
/// The smallest frame limit a path may have, where it is known to take less (L-20): the longest record that must be whole fits, a handler's name.
pub const LEAST_FRAME: usize = 512;

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
    AT_REPEATS: 36, 4;
    AT_TAG: 40, 8;
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Established channel: a slot, an acknowledgement, a heartbeat, or several of these.
    Data = 1,
    /// First frame of a handshake.
    Hello = 2,
    /// Answer to a hello.
    Welcome = 3,
    /// Stateless answer that asks for proof of address.
    Retry = 4,
    /// Answer to a hello that cannot be accepted, with the reason.
    Refuse = 5,
    /// Orderly end of a channel; `slot` is one past the last slot.
    Close = 6,
}

impl Kind {
    /// The kind that a frame's first byte names.
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

    /// The first byte of a frame of this kind.
    pub fn first_byte(self) -> u8 {
        MARK | self as u8
    }
}

/// Flag bits of a frame (W-4).
pub mod flags {
    /// The frame carries a slot, or a fragment of one.
    pub const SLOT: u8 = 1 << 0;
    /// The receiver answers at once.
    pub const ASK: u8 = 1 << 1;
    /// The payload is sealed, and 16 bytes of authentication follow it.
    pub const SEALED: u8 = 1 << 2;
    /// In a close frame: this answers the peer's close.
    pub const CLOSE_REPLY: u8 = 1 << 3;
    /// The sender takes raw Ethernet frames now (D-12).
    pub const RAW: u8 = 1 << 4;
    /// Reserved: sent as zero, ignored when received.
    pub const RESERVED_IGNORED: u8 = 0b0010_0000;
    /// Reserved: sent as zero, a frame with one of them is dropped.
    pub const RESERVED_CRITICAL: u8 = 0b1100_0000;
}

/// The typed header of a [`Kind::Data`] or [`Kind::Close`] frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`Kind::Data`] or [`Kind::Close`].
    pub kind: Kind,
    /// See [`flags`].
    pub flags: u8,
    /// Bytes of extensions between header and payload, a multiple of four.
    pub ext_len: u16,
    /// The receiver's number for the channel.
    pub channel: u32,
    /// Fresh for every transmission (L-2).
    pub packet: u64,
    /// The slot carried, or the next one to be sent when none is.
    pub slot: Seq,
    /// Every slot before this one has arrived.
    pub ack: Seq,
    /// Slots before this one may be sent.
    pub credit: Seq,
    /// Low half of the largest packet number received; zero while there was none.
    pub echo: u32,
    /// How long the echoed frame has waited in this host, in nanoseconds, saturating.
    pub residence_ns: u32,
    /// How many slots have arrived that were there already; shows the sender its needless retransmissions.
    pub repeats: u32,
    /// Authentication or, in open mode, the channel's token.
    pub tag: u64,
}

impl Header {
    /// Writes the header into the first [`HEADER_LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than that: the caller owns the buffer.
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
        put(out, AT_REPEATS, self.repeats.to_le_bytes());
        put(out, AT_TAG, self.tag.to_le_bytes());
    }
}

/// Writes the tag of a header already written.
#[inline]
pub fn put_tag(header: &mut [u8], tag: u64) {
    put(header, AT_TAG, tag.to_le_bytes());
}

/// The channel number of a frame whose header is at least that long: enough to find the link it belongs to.
#[inline]
pub fn channel_of(bytes: &[u8]) -> Result<u32, Malformed> {
    if bytes.len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(u32_at(bytes, AT_CHANNEL)) }
}

/// A frame of an established channel whose shape has been checked: header, extensions, payload.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The typed header.
    pub header: Header,
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks the shape of `bytes` (W-1, W-3, W-4): length, mark, kind, flags, extent of the extensions.
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
            repeats: u32_at(bytes, AT_REPEATS),
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

    /// Whether the frame carries (part of) a slot.
    #[inline]
    pub fn has_slot(&self) -> bool {
        self.header.flags & flags::SLOT != 0
    }

    /// The extension area; read it with [`crate::ext::Extensions`].
    #[inline]
    pub fn extensions(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..self.payload_at()]
    }

    /// Offset of the payload within the frame.
    #[inline]
    pub fn payload_at(&self) -> usize {
        HEADER_LEN + usize::from(self.header.ext_len)
    }

    /// Everything behind header and extensions.
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
            flags: flags::SLOT | flags::ASK,
            ext_len: 8,
            channel: 0x0102_0304,
            packet: 0x1122_3344_5566_7788,
            slot: Seq(7),
            ack: Seq(9),
            credit: Seq(200),
            echo: 5,
            residence_ns: 1234,
            repeats: 3,
            tag: 0xdead_beef_0bad_cafe,
        }
    }

    /// W-3: what is written is what is read.
    #[test]
    fn round_trip() {
        let mut bytes = [0u8; HEADER_LEN + 8 + 3];
        sample().write(&mut bytes);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame.header, sample());
        assert_eq!(frame.extensions().len(), 8);
        assert_eq!(frame.payload().len(), 3);
        assert_eq!(channel_of(&bytes), Ok(0x0102_0304));
    }

    /// W-1: foreign bytes, unknown kinds and short frames are told apart.
    #[test]
    fn refuses_foreign() {
        let mut bytes = [0u8; HEADER_LEN + 8];
        sample().write(&mut bytes);
        assert_eq!(Frame::parse(&bytes[..47]).unwrap_err(), Malformed::Truncated);
        bytes[0] = 0x11;
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::NotOurs);
        bytes[0] = MARK | 0x0f;
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::UnknownKind);
    }

    /// W-4: reserved bits of the first kind are ignored, of the second kind fatal for the frame.
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

    /// W-5: extensions that reach past the frame are refused.
    #[test]
    fn extension_extent() {
        let mut bytes = [0u8; HEADER_LEN + 4];
        sample().write(&mut bytes);
        assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::BadExtension);
    }
}
