//! The basic types that all datatypes consist of: what the bits mean, how many there are, how C aligns them.

use super::C_HALF;
use crate::constants as c;
use crate::handle::Datatype;

/// What an element is, which decides which reductions it allows and how it is converted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A signed integer.
    Signed,
    /// An unsigned integer.
    Unsigned,
    /// A floating-point number; 16 bytes are the extended format of x87.
    Float,
    /// Two floating-point numbers.
    Complex,
    /// A truth value of C or Fortran.
    Logical,
    /// Bytes with no meaning for the library.
    Byte,
    /// A character: not a number.
    Character,
    /// `MPI_PACKED`.
    Packed,
    /// A quadruple-precision number or a pair of them: moved, but not computed with.
    Quad,
    /// A half-precision number or a pair of them, likewise.
    Half,
}

/// One element of a type map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Basic {
    /// What it is.
    pub class: Class,
    /// Its size in bytes.
    pub size: u8,
    /// Its alignment in C.
    pub align: u8,
    /// Its size in the representation `external32`.
    pub external: u8,
}

impl Basic {
    const fn new(class: Class, size: u8) -> Basic {
        // A complex number is aligned as its parts are.
        let align = if matches!(class, Class::Complex) { size / 2 } else { size };
        Basic { class, size, align: if align > 16 { 16 } else { align }, external: size }
    }

    const fn with_external(self, external: u8) -> Basic {
        Basic { external, ..self }
    }
}

/// A predefined datatype: an element, or a value with the index that `MPI_MINLOC` and `MPI_MAXLOC` keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Predefined {
    /// One element.
    One(Basic),
    /// A value and an index behind it.
    Pair(Basic, Basic),
}

/// Whether `long double` is the 80-bit format, which the reductions compute with.
pub const HAS_EXTENDED: bool = cfg!(target_arch = "x86_64");

/// The predefined datatype of a handle; `None` if it is none, or an optional one that is not supported.
pub fn predefined(datatype: Datatype) -> Option<Predefined> {
    use Class::{Byte, Character, Complex, Float, Half, Logical, Packed, Quad, Signed, Unsigned};
    let one = |class, size| Some(Predefined::One(Basic::new(class, size)));
    let pair = |first: (Class, u8), second: (Class, u8)| {
        Some(Predefined::Pair(Basic::new(first.0, first.1), Basic::new(second.0, second.1)))
    };
    let other_size =
        |class, size, external| Some(Predefined::One(Basic::new(class, size).with_external(external)));
    let extended = |found| if HAS_EXTENDED { found } else { None };
    match datatype {
        c::INT8_T | c::SIGNED_CHAR | c::INTEGER1 => one(Signed, 1),
        c::SHORT | c::INT16_T | c::INTEGER2 => one(Signed, 2),
        c::INT | c::INT32_T | c::INTEGER | c::INTEGER4 => one(Signed, 4),
        c::LONG_LONG | c::INT64_T | c::INTEGER8 | c::AINT | c::COUNT | c::OFFSET => one(Signed, 8),
        c::LONG => other_size(Signed, 8, 4),
        c::INTEGER16 => one(Signed, 16),
        c::UINT8_T | c::UNSIGNED_CHAR => one(Unsigned, 1),
        c::UNSIGNED_SHORT | c::UINT16_T => one(Unsigned, 2),
        c::UNSIGNED | c::UINT32_T => one(Unsigned, 4),
        c::UNSIGNED_LONG_LONG | c::UINT64_T => one(Unsigned, 8),
        c::UNSIGNED_LONG => other_size(Unsigned, 8, 4),
        c::FLOAT | c::REAL | c::REAL4 => one(Float, 4),
        c::DOUBLE | c::DOUBLE_PRECISION | c::REAL8 => one(Float, 8),
        c::LONG_DOUBLE => extended(one(Float, 16)),
        c::C_FLOAT_COMPLEX | c::CXX_FLOAT_COMPLEX | c::COMPLEX | c::COMPLEX8 => one(Complex, 8),
        c::C_DOUBLE_COMPLEX | c::CXX_DOUBLE_COMPLEX | c::DOUBLE_COMPLEX | c::COMPLEX16 => one(Complex, 16),
        c::C_LONG_DOUBLE_COMPLEX | c::CXX_LONG_DOUBLE_COMPLEX => extended(one(Complex, 32)),
        c::C_BOOL | c::CXX_BOOL | c::LOGICAL1 => one(Logical, 1),
        c::LOGICAL2 => one(Logical, 2),
        c::LOGICAL | c::LOGICAL4 => one(Logical, 4),
        c::LOGICAL8 => one(Logical, 8),
        c::LOGICAL16 => one(Logical, 16),
        c::REAL16 => one(Quad, 16),
        c::COMPLEX32 => one(Quad, 32),
        c::REAL2 | C_HALF => one(Half, 2),
        c::COMPLEX4 => one(Half, 4),
        c::BYTE => one(Byte, 1),
        c::PACKED => one(Packed, 1),
        c::CHAR | c::CHARACTER => one(Character, 1),
        c::WCHAR => other_size(Character, 4, 2),
        c::FLOAT_INT => pair((Float, 4), (Signed, 4)),
        c::DOUBLE_INT => pair((Float, 8), (Signed, 4)),
        c::LONG_INT => Some(Predefined::Pair(Basic::new(Signed, 8).with_external(4), Basic::new(Signed, 4))),
        c::TWO_INT | c::TWO_INTEGER => pair((Signed, 4), (Signed, 4)),
        c::SHORT_INT => pair((Signed, 2), (Signed, 4)),
        c::LONG_DOUBLE_INT => extended(pair((Float, 16), (Signed, 4))),
        c::TWO_REAL => pair((Float, 4), (Float, 4)),
        c::TWO_DOUBLE_PRECISION => pair((Float, 8), (Float, 8)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::DATATYPES;

    #[test]
    fn handles_of_fixed_size_carry_their_size() {
        for (handle, name) in DATATYPES {
            let coded = matches!(handle.0, 0x240..=0x25f | 0x2c0..=0x2ef);
            if let (true, Some(Predefined::One(basic))) = (coded, predefined(handle)) {
                assert_eq!(usize::from(basic.size), 1 << ((handle.0 >> 3) & 7), "{name}");
            }
        }
    }

    #[test]
    fn all_datatypes_are_supported() {
        let missing: Vec<&str> = (DATATYPES.iter().skip(1))
            .filter_map(|(handle, name)| predefined(*handle).is_none().then_some(*name))
            .collect();
        if HAS_EXTENDED {
            assert_eq!(missing, [""; 0]);
        }
    }
}
