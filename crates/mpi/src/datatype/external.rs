//! The representation `external32`: big-endian, with the sizes of the standard's table, nothing aligned.

use super::basic::{Basic, Class};
use super::{Message, Type};

/// The bytes that one datatype takes in this representation; `None` if they do not fit.
pub fn size(of: &Type) -> Option<u64> {
    let mut size = 0u64;
    of.map.walk_elements(0, &mut |_, basic| size += u64::from(basic.external));
    i64::try_from(size).is_ok().then_some(size)
}

impl Message {
    /// The bytes that it takes in this representation; `None` if they do not fit.
    pub fn external_size(&self) -> Option<u64> {
        size(self.datatype())?.checked_mul(self.count()).filter(|size| i64::try_from(*size).is_ok())
    }

    /// Calls `each` with the memory of each element and the position of its external bytes.
    fn convert(&self, mut each: impl FnMut(*mut u8, usize, Basic)) {
        let (mut done, extent) = (0, self.datatype().extent());
        for copy in 0..self.count().cast_signed() {
            self.datatype().map.walk_elements(copy * extent, &mut |at, basic| {
                each(self.origin().wrapping_offset(at as isize), done, basic);
                done += usize::from(basic.external);
            });
        }
    }

    /// Writes the message to `out`, which has its external size.
    ///
    /// # Safety
    ///
    /// The memory is as the datatype says, and nobody writes to it meanwhile.
    pub unsafe fn pack_external(&self, out: &mut [u8]) {
        self.convert(|at, done, basic| {
            // SAFETY: as promised by the caller.
            let native = unsafe { std::slice::from_raw_parts(at, usize::from(basic.size)) };
            encode(basic, native, &mut out[done..done + usize::from(basic.external)]);
        });
    }

    /// Reads the message from `bytes`, which has its external size.
    ///
    /// # Safety
    ///
    /// The memory is as the datatype says, and nobody else uses it meanwhile.
    pub unsafe fn unpack_external(&self, bytes: &[u8]) {
        self.convert(|at, done, basic| {
            // SAFETY: as promised by the caller.
            let native = unsafe { std::slice::from_raw_parts_mut(at, usize::from(basic.size)) };
            decode(basic, &bytes[done..done + usize::from(basic.external)], native);
        });
    }
}

/// The numbers that an element consists of.
fn parts(basic: Basic) -> usize {
    match basic.class {
        Class::Complex => 2,
        Class::Quad if basic.size == 32 => 2,
        Class::Half if basic.size == 4 => 2,
        _ => 1,
    }
}

fn is_extended(basic: Basic) -> bool {
    matches!((basic.class, basic.size), (Class::Float, 16) | (Class::Complex, 32))
}

fn encode(basic: Basic, native: &[u8], external: &mut [u8]) {
    let (from, to) = (native.len() / parts(basic), external.len() / parts(basic));
    for (native, external) in native.chunks_exact(from).zip(external.chunks_exact_mut(to)) {
        if is_extended(basic) {
            external.copy_from_slice(&quadruple(native).to_be_bytes());
            continue;
        }
        // The low bytes are the first ones here and the last ones there.
        for (at, byte) in external.iter_mut().rev().enumerate() {
            *byte = native[at];
        }
    }
}

fn decode(basic: Basic, external: &[u8], native: &mut [u8]) {
    let (from, to) = (external.len() / parts(basic), native.len() / parts(basic));
    for (external, native) in external.chunks_exact(from).zip(native.chunks_exact_mut(to)) {
        if is_extended(basic) {
            let bytes = external.try_into().unwrap_or_default();
            native.copy_from_slice(&extended(u128::from_be_bytes(bytes)));
            continue;
        }
        let negative = basic.class == Class::Signed && external[0] & 0x80 != 0;
        native.fill(if negative { 0xff } else { 0 });
        for (byte, from) in native.iter_mut().zip(external.iter().rev()) {
            *byte = *from;
        }
    }
}

/// The bits of the exponent and the sign of both formats.
const HEAD: u128 = 0xffff;
/// The fraction has 63 bits behind an explicit one in the 80-bit format, and 112 bits in the other one.
const MORE_BITS: u32 = 112 - 63;

/// A number in the 80-bit format of x87 in quadruple precision, which has the same exponents.
fn quadruple(native: &[u8]) -> u128 {
    let bits = u128::from_le_bytes(native.try_into().unwrap_or_default());
    let fraction = bits & ((1 << 63) - 1);
    (bits >> 64 & HEAD) << 112 | fraction << MORE_BITS
}

/// The other way; digits that do not fit are cut off.
fn extended(quadruple: u128) -> [u8; 16] {
    let head = quadruple >> 112 & HEAD;
    let fraction = quadruple << 16 >> 16 >> MORE_BITS;
    let one = u128::from(head & 0x7fff != 0) << 63;
    (head << 64 | one | fraction).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::constants as c;
    use crate::handle::Datatype;

    fn round_trip(handle: Datatype, native: &[u8], external: &[u8]) {
        let of = Arc::new(Type::predefined(handle).unwrap());
        let count = native.len() as i64 / of.extent();
        let mut source = native.to_vec();
        let message = Message::new(source.as_mut_ptr().cast(), count, &of).unwrap();
        assert_eq!(message.external_size(), Some(external.len() as u64));
        let mut out = vec![0; external.len()];
        // SAFETY: the memory has room for `count` elements.
        unsafe { message.pack_external(&mut out) };
        assert_eq!(out, external, "{handle:?}");
        let mut back = vec![0xaa; native.len()];
        let message = Message::new(back.as_mut_ptr().cast(), count, &of).unwrap();
        // SAFETY: as above.
        unsafe { message.unpack_external(external) };
        assert_eq!(back, native, "{handle:?}");
    }

    #[test]
    fn numbers_have_the_sizes_of_the_standard() {
        round_trip(c::INT, &[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff], &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe]);
        let longs: Vec<u8> = [1_i64, -2].iter().flat_map(|value| value.to_le_bytes()).collect();
        round_trip(c::LONG, &longs, &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe]);
        round_trip(c::UNSIGNED_LONG, &7_u64.to_le_bytes(), &[0, 0, 0, 7]);
        round_trip(c::LONG_LONG, &(-2_i64).to_le_bytes(), &(-2_i64).to_be_bytes());
        round_trip(c::WCHAR, &0x20ac_u32.to_le_bytes(), &[0x20, 0xac]);
        round_trip(c::DOUBLE, &1.5_f64.to_le_bytes(), &1.5_f64.to_be_bytes());
        let complex = [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
        let external = [1.5_f32.to_be_bytes(), (-2.0_f32).to_be_bytes()].concat();
        round_trip(c::C_FLOAT_COMPLEX, &complex, &external);
        // Bytes between the elements stay as they are.
        round_trip(c::SHORT_INT, &[1, 0, 0xaa, 0xaa, 2, 0, 0, 0], &[0, 1, 0, 0, 0, 2]);
    }

    #[test]
    fn extended_numbers_become_quadruple_ones() {
        // 1.0 and -2.5 in both formats, and zero and infinity.
        for (head, mantissa, external) in [
            (0x3fff_u16, 1_u64 << 63, 0x3fff_u128 << 112),
            (0xc000, 0b101 << 61, 0xc000 << 112 | 1 << 110),
            (0, 0, 0),
            (0x7fff, 1 << 63, 0x7fff << 112),
        ] {
            let native = (u128::from(head) << 64 | u128::from(mantissa)).to_le_bytes();
            round_trip(c::LONG_DOUBLE, &native, &external.to_be_bytes());
        }
    }
}
