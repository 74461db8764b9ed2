//! `long double` of x86-64: the 80-bit format, which Rust has no type for.

use std::cmp::Ordering;

/// A number of 10 bytes with 6 bytes of padding.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Extended([u8; 16]);

/// Defines a function of two numbers by an x87 instruction that pops one of them.
macro_rules! arithmetic {
    ($name:ident, $instruction:literal) => {
        pub fn $name(self, other: Extended) -> Extended {
            let mut result = self;
            #[cfg(target_arch = "x86_64")]
            // SAFETY: it reads ten bytes of each and writes ten bytes of `result`; the stack of the unit is
            // as empty after it as before.
            unsafe {
                std::arch::asm!(
                    "fld tbyte ptr [{result}]",
                    "fld tbyte ptr [{other}]",
                    $instruction,
                    "fstp tbyte ptr [{result}]",
                    result = in(reg) &raw mut result,
                    other = in(reg) &raw const other,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                );
            }
            // Elsewhere there is no such type: `predefined` does not know it.
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (&mut result, other);
            result
        }
    };
}

impl Extended {
    arithmetic!(add, "faddp st(1), st");
    arithmetic!(mul, "fmulp st(1), st");

    pub fn neg(mut self) -> Extended {
        self.0[9] ^= 0x80;
        self
    }

    fn sign_exponent_mantissa(self) -> (bool, u16, u64) {
        let mut mantissa = [0; 8];
        mantissa.copy_from_slice(&self.0[..8]);
        let high = u16::from_le_bytes([self.0[8], self.0[9]]);
        (high >> 15 != 0, high & 0x7fff, u64::from_le_bytes(mantissa))
    }

    /// The order of numbers; `None` if one of them is not a number.
    pub fn compare(self, other: Extended) -> Option<Ordering> {
        let key = |number: Extended| {
            let (negative, exponent, mantissa) = number.sign_exponent_mantissa();
            let is_nan = exponent == 0x7fff && mantissa << 1 != 0;
            let magnitude = i128::from(exponent) << 64 | i128::from(mantissa);
            (!is_nan).then_some(if negative { -magnitude } else { magnitude })
        };
        Some(key(self)?.cmp(&key(other)?))
    }

    /// A number that a double can hold.
    #[cfg(test)]
    pub fn of(value: f64) -> Extended {
        let bits = value.to_bits();
        let (sign, exponent, mantissa) = (bits >> 63, bits >> 52 & 0x7ff, bits << 12 >> 1);
        let mut bytes = [0; 16];
        if exponent != 0 {
            bytes[..8].copy_from_slice(&(mantissa | 1 << 63).to_le_bytes());
            let exponent = if exponent == 0x7ff { 0x7fff } else { exponent + 0x3fff - 0x3ff };
            bytes[8..10].copy_from_slice(&((exponent | sign << 15) as u16).to_le_bytes());
        }
        Extended(bytes)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_has_more_digits_than_a_double() {
        let equal = |one: Extended, two: Extended| one.compare(two) == Some(Ordering::Equal);
        assert!(equal(Extended::of(1.5).add(Extended::of(2.25)), Extended::of(3.75)));
        assert!(equal(Extended::of(-1.5).mul(Extended::of(2.5)), Extended::of(-3.75)));
        let tiny = Extended::of(2f64.powi(-60));
        assert!(!equal(Extended::of(1.0).add(tiny), Extended::of(1.0)));
        assert!(equal(Extended::of(1.0).add(tiny).add(Extended::of(-1.0)), tiny));
    }

    #[test]
    fn numbers_are_ordered_and_others_are_not() {
        let order = |one: f64, two: f64| Extended::of(one).compare(Extended::of(two));
        assert_eq!(order(1.0, 2.0), Some(Ordering::Less));
        assert_eq!(order(-1.0, -2.0), Some(Ordering::Greater));
        assert_eq!(order(0.0, f64::INFINITY), Some(Ordering::Less));
        assert_eq!(order(1.0, f64::NAN), None);
        assert_eq!(Extended::of(0.0).neg().compare(Extended::of(0.0)), Some(Ordering::Equal));
    }
}
