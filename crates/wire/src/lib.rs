//! Frame layouts of the Tautline protocol.
//!
//! This crate defines the layout of every byte that crosses the network: the header of a [`frame`], its
//! extensions ([`ext`]), the [`handshake`], and the records of a slot ([`record`], [`memory`]). Each is a
//! typed value that can only hold valid data. Sequence arithmetic is in [`seq`]. There is no state, no key
//! and no clock here.
//!
//! Everything is little-endian. Decoders accept hostile bytes: they return [`Malformed`] and never panic. The
//! rule numbers in comments (`W-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

pub mod ext;
pub mod frame;
pub mod handshake;
mod layout;
pub mod memory;
pub mod multicast;
pub mod record;
pub mod seq;
pub mod tags;

pub use frame::{Frame, Header, Kind};
pub use handshake::Handshake;
pub use layout::Field;
pub use record::{Record, Records};
pub use seq::Seq;

/// The wire version that this crate implements (W-2).
pub const VERSION: u8 = 2;

/// Returns the fields of a layout: `frame`, `handshake` or `record`.
pub fn layout(name: &str) -> Option<&'static [Field]> {
    match name {
        "frame" => Some(frame::LAYOUT),
        "handshake" => Some(handshake::LAYOUT),
        "record" => Some(record::LAYOUT),
        _ => None,
    }
}

/// Why bytes were rejected. Without details, because such bytes are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// There are fewer bytes than the layout needs.
    Truncated,
    /// It is no Tautline frame (W-1).
    NotOurs,
    /// This version does not define the kind.
    UnknownKind,
    /// A critical reserved flag is set (W-4).
    CriticalFlag,
    /// An extension is malformed, or critical and unknown (W-5, W-10).
    BadExtension,
    /// The value of a field is out of range.
    BadValue,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "truncated",
            Malformed::NotOurs => "not a Tautline frame",
            Malformed::UnknownKind => "unknown kind",
            Malformed::CriticalFlag => "critical reserved flag set",
            Malformed::BadExtension => "bad extension",
            Malformed::BadValue => "field out of range",
        })
    }
}

impl std::error::Error for Malformed {}

/// Reads a fixed-size array at `at`. The caller has checked the length of the whole header.
#[inline(always)]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}
