//! Extensions: type, length, value; between header and payload (W-5).
//!
//! Types below 128 may be skipped by a receiver that does not know them; a frame with an unknown type of 128 or
//! above is dropped. Each extension is padded with zeros to a multiple of four bytes.

use crate::{Malformed, put, u32_at};

/// Bytes of an extension's own header: type, length of the value.
pub const EXT_HEADER: usize = 2;
/// Most bytes of selective acknowledgement in one frame: 992 slots.
pub const MAX_SACK_BYTES: usize = 124;
/// Room that a fragment extension takes.
pub const FRAGMENT_LEN: usize = 12;

const SACK: u8 = 1;
const PAD: u8 = 2;
const FRAGMENT: u8 = 128;

/// One extension, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext<'a> {
    /// Selective acknowledgement: bit *i* of byte *j* says that slot `ack + 1 + 8·j + i` has arrived.
    Sack(&'a [u8]),
    /// Bytes that only make a frame longer (path probes).
    Pad(usize),
    /// The payload is the part of a slot that starts at `offset`; the whole slot has `total` bytes.
    Fragment {
        /// Where in the slot the payload belongs.
        offset: u32,
        /// Bytes of the whole slot.
        total: u32,
    },
}

/// Iterates over the extension area of a frame.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    rest: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Reads the area that [`crate::Frame::extensions`] returns.
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
                    // Two bytes of zeros keep the numbers aligned.
                    let (offset, total) = (u32_at(value, 2), u32_at(value, 6));
                    if offset >= total {
                        return Err(Malformed::BadValue);
                    }
                    return Ok(Some(Ext::Fragment { offset, total }));
                }
                SACK | FRAGMENT => return Err(Malformed::BadExtension),
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

/// Appends a selective acknowledgement to `out` and returns the bytes used.
pub fn put_sack(out: &mut [u8], bitmap: &[u8]) -> usize {
    put_ext(out, SACK, bitmap)
}

/// Appends padding of `len` bytes in all, a multiple of four from 4 to 256, and returns the bytes used.
pub fn put_pad(out: &mut [u8], len: usize) -> usize {
    const ZEROS: [u8; 254] = [0; 254];
    put_ext(out, PAD, &ZEROS[..len.clamp(4, 256) - EXT_HEADER])
}

/// Appends a fragment extension to `out` and returns the bytes used, [`FRAGMENT_LEN`].
pub fn put_fragment(out: &mut [u8], offset: u32, total: u32) -> usize {
    let mut value = [0u8; FRAGMENT_LEN - EXT_HEADER];
    put(&mut value, 2, offset.to_le_bytes());
    put(&mut value, 6, total.to_le_bytes());
    put_ext(out, FRAGMENT, &value)
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

    /// W-5: what is written is what is read, in order.
    #[test]
    fn round_trip() {
        let mut area = [0u8; 300];
        let mut used = put_sack(&mut area, &[0b101, 0xff, 1]);
        used += put_fragment(&mut area[used..], 1000, 4000);
        used += put_pad(&mut area[used..], 64);
        let got: Vec<_> = Extensions::new(&area[..used]).collect::<Result<_, _>>().unwrap();
        assert_eq!(
            got,
            [Ext::Sack(&[0b101, 0xff, 1]), Ext::Fragment { offset: 1000, total: 4000 }, Ext::Pad(62)]
        );
        assert_eq!(used % 4, 0);
    }

    /// W-5: unknown extensions are skipped below 128 and fatal from 128 on.
    #[test]
    fn unknown() {
        assert_eq!(Extensions::new(&[100, 2, 9, 9]).next(), None);
        assert_eq!(Extensions::new(&[200, 2, 9, 9]).next(), Some(Err(Malformed::BadExtension)));
    }

    #[test]
    fn misshapen() {
        for area in [&[SACK][..], &[SACK, 9, 1, 2], &[FRAGMENT, 2, 0, 0], &[SACK, 255, 0, 0]] {
            assert_eq!(Extensions::new(area).next(), Some(Err(Malformed::BadExtension)), "{area:?}");
        }
        let mut area = [0; FRAGMENT_LEN];
        put_fragment(&mut area, 8, 8);
        assert_eq!(Extensions::new(&area).next(), Some(Err(Malformed::BadValue)));
    }
}
