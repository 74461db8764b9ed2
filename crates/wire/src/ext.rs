//! Extensions, between header and payload: type, length, value (W-5).
//!
//! A receiver skips unknown types below 128, and drops a frame with an unknown type of 128 or above. Each
//! extension is padded with zeros to a multiple of four bytes.

use crate::{Malformed, put, u32_at};

/// Length of an extension's header: type and length of the value.
pub const EXT_HEADER: usize = 2;
/// The longest selective acknowledgement: 992 slots.
pub const MAX_SACK_BYTES: usize = 124;
/// Length of a fragment extension.
pub const FRAGMENT_LEN: usize = 12;
/// Length of a pace extension.
pub const PACE_LEN: usize = 4;

const SACK: u8 = 1;
const PAD: u8 = 2;
const PACE: u8 = 3;
const FRAGMENT: u8 = 128;

/// A checked extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext<'a> {
    /// Selective acknowledgement: bit *i* of byte *j* is set if slot `ack + 1 + 8·j + i` has arrived.
    Sack(&'a [u8]),
    /// Padding of a path probe.
    Pad(usize),
    /// The sender's heartbeats on this link come so many times as rarely as on others, at least once (L-45).
    Pace(u16),
    /// The payload is a part of a slot.
    Fragment {
        /// Where in the slot the payload begins.
        offset: u32,
        /// Length of the whole slot.
        total: u32,
    },
}

/// Iterates over the extension area of a frame.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    rest: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Reads the extensions of a frame, [`crate::Frame::extensions`].
    pub fn new(area: &'a [u8]) -> Extensions<'a> {
        Extensions { rest: area }
    }

    fn take(&mut self) -> Result<Option<Ext<'a>>, Malformed> {
        while !self.rest.is_empty() {
            let rest = self.rest;
            let (Some(&kind), Some(&len)) = (rest.first(), rest.get(1)) else {
                return Err(Malformed::BadExtension);
            };
            let end = EXT_HEADER + usize::from(len);
            let value = rest.get(EXT_HEADER..end).ok_or(Malformed::BadExtension)?;
            self.rest = rest.get(end.next_multiple_of(4)..).ok_or(Malformed::BadExtension)?;
            match kind {
                SACK if value.len() <= MAX_SACK_BYTES => return Ok(Some(Ext::Sack(value))),
                PAD => return Ok(Some(Ext::Pad(value.len()))),
                FRAGMENT if value.len() == FRAGMENT_LEN - EXT_HEADER => {
                    // Two zero bytes align the numbers.
                    let (offset, total) = (u32_at(value, 2), u32_at(value, 6));
                    if offset >= total {
                        return Err(Malformed::BadValue);
                    }
                    return Ok(Some(Ext::Fragment { offset, total }));
                }
                PACE if value.len() == PACE_LEN - EXT_HEADER => {
                    let pace = u16::from_le_bytes([value[0], value[1]]);
                    return if pace > 0 { Ok(Some(Ext::Pace(pace))) } else { Err(Malformed::BadValue) };
                }
                SACK | FRAGMENT | PACE => return Err(Malformed::BadExtension),
                unknown if unknown >= 128 => return Err(Malformed::BadExtension),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Ext<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.take().transpose();
        if matches!(item, Some(Err(_))) {
            self.rest = &[];
        }
        item
    }
}

/// Writes a selective acknowledgement to `out`. Returns its length.
pub fn put_sack(out: &mut [u8], bitmap: &[u8]) -> usize {
    put_ext(out, SACK, bitmap)
}

/// Writes padding of `len` bytes, a multiple of four from 4 to 256. Returns its length.
pub fn put_pad(out: &mut [u8], len: usize) -> usize {
    const ZEROS: [u8; 254] = [0; 254];
    put_ext(out, PAD, &ZEROS[..len.clamp(4, 256) - EXT_HEADER])
}

/// Writes a fragment extension to `out`. Returns its length, [`FRAGMENT_LEN`].
pub fn put_fragment(out: &mut [u8], offset: u32, total: u32) -> usize {
    let mut value = [0u8; FRAGMENT_LEN - EXT_HEADER];
    put(&mut value, 2, offset.to_le_bytes());
    put(&mut value, 6, total.to_le_bytes());
    put_ext(out, FRAGMENT, &value)
}

/// Writes a pace extension to `out`. Returns its length, [`PACE_LEN`].
pub fn put_pace(out: &mut [u8], pace: u16) -> usize {
    put_ext(out, PACE, &pace.to_le_bytes())
}

fn put_ext(out: &mut [u8], kind: u8, value: &[u8]) -> usize {
    let used = (EXT_HEADER + value.len()).next_multiple_of(4);
    let out = &mut out[..used];
    out.fill(0);
    out[0] = kind;
    out[1] = value.len() as u8;
    out[EXT_HEADER..EXT_HEADER + value.len()].copy_from_slice(value);
    used
}

const _: () = assert!((EXT_HEADER + MAX_SACK_BYTES).is_multiple_of(2) && MAX_SACK_BYTES < 256);

#[cfg(test)]
mod tests {
    use super::*;

    /// W-5: extensions read back as written, in order.
    #[test]
    fn extensions_round_trip() {
        let mut area = [0u8; 300];
        let mut used = put_sack(&mut area, &[0b101, 0xff, 1]);
        used += put_fragment(&mut area[used..], 1000, 4000);
        used += put_pace(&mut area[used..], 700);
        used += put_pad(&mut area[used..], 64);
        let got: Vec<_> = Extensions::new(&area[..used]).collect::<Result<_, _>>().unwrap();
        assert_eq!(
            got,
            [
                Ext::Sack(&[0b101, 0xff, 1]),
                Ext::Fragment { offset: 1000, total: 4000 },
                Ext::Pace(700),
                Ext::Pad(62)
            ]
        );
        assert_eq!(used % 4, 0);
    }

    /// W-10: unknown extensions below 128 are skipped, others are errors.
    #[test]
    fn unknown_extensions() {
        assert_eq!(Extensions::new(&[100, 2, 9, 9]).next(), None);
        assert_eq!(Extensions::new(&[200, 2, 9, 9]).next(), Some(Err(Malformed::BadExtension)));
    }

    #[test]
    fn malformed_extensions_are_rejected() {
        for area in
            [&[SACK][..], &[SACK, 9, 1, 2], &[FRAGMENT, 2, 0, 0], &[SACK, 255, 0, 0], &[PACE, 1, 1, 0]]
        {
            assert_eq!(Extensions::new(area).next(), Some(Err(Malformed::BadExtension)), "{area:?}");
        }
        let mut area = [0; FRAGMENT_LEN];
        put_fragment(&mut area, 8, 8);
        assert_eq!(Extensions::new(&area).next(), Some(Err(Malformed::BadValue)));
        put_pace(&mut area, 0);
        assert_eq!(Extensions::new(&area).next(), Some(Err(Malformed::BadValue)));
    }
}
