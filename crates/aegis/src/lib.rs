//! AEGIS-128L tags of four frames at once, on processors with vector AES.
//!
//! A tag of one Ethernet frame spends half of its time on the setup and the end of AEGIS, where one state of
//! eight blocks leaves most of a vector unit idle. Here the states of four frames lie side by side, one in
//! each 128-bit lane of the vectors. The tags are those of AEGIS-128L;
//! `docs/decisions/0002-tag-and-cipher.md` has the measurements.
//!
//! Not here: tags of single frames, and encryption. The crate `aegis` does both.

#[cfg(target_arch = "x86_64")]
mod lanes;

/// Frames whose tags are computed together.
pub const LANES: usize = 4;
/// Bytes at the beginning of a frame in which its tag lies. Frames are at least as long.
pub const HEAD: usize = 64;

/// A frame whose tag is wanted: its first bytes, with the tag field zeroed, and all of its bytes, of which
/// the first [`HEAD`] are not read.
pub type Frame<'a> = (&'a [u8; HEAD], &'a [u8]);

/// Computes the first 64 bits of the AEGIS-128L tags of four frames of the same length, which are associated
/// data; frame `i` has the nonce `first + i`, little-endian. `None` if the processor cannot, or the frames
/// differ in length or are shorter than [`HEAD`].
#[inline]
pub fn tags(key: &[u8; 16], first: u64, frames: &[Frame<'_>; LANES]) -> Option<[u64; LANES]> {
    #[cfg(target_arch = "x86_64")]
    {
        lanes::tags(lanes::width()?, key, first, frames)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (key, first, frames);
        None
    }
}

/// Returns whether this processor computes tags of four frames at once.
#[inline]
pub fn is_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        lanes::width().is_some()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}
