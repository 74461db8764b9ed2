//! Frame layouts of the Tautline protocol.
//!
//! What lives here: the shape of every byte that crosses the network — the header of a [`frame`], its
//! [`ext`]ensions, the [`handshake`], and the [`record`]s, those of [`memory`] among them, that a slot is made of — each as a typed value that
//! cannot hold nonsense, plus the [`seq`]uence arithmetic that goes with them. What does not: state, keys, clocks.
//!
//! Everything is little-endian. Decoders take hostile bytes: they return [`Malformed`] and never panic. The rule
//! numbers in comments (`W-1`, …) are those of `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

pub mod ext;
pub mod frame;
pub mod handshake;
mod layout;
pub mod memory;
pub mod record;
pub mod seq;

pub use frame::{Frame, Header, Kind};
pub use handshake::Handshake;
pub use layout::{Field, layout};
pub use record::{Record, Records};
pub use seq::Seq;

/// The wire version spoken by this crate (W-2).
pub const VERSION: u8 = 1;

/// Why bytes were refused. Small on purpose: it becomes a counter, not a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// Fewer bytes than the layout needs.
    Truncated,
    /// The first byte is not ours (W-1).
    NotOurs,
    /// A kind that this version does not define.
    UnknownKind,
    /// A reserved bit that must be understood is set (W-4).
    CriticalFlag,
    /// An extension that must be understood is unknown, or an extension is misshapen (W-5).
    BadExtension,
    /// A field holds a value outside its range.
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

/// Reads a fixed-size array at `at`; the caller has checked the length once for the whole header.
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
