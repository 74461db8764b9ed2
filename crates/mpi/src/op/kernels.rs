//! The predefined operations on arrays of one basic type: `inout[i] = in[i] op inout[i]`.

use std::cmp::Ordering;
use std::ops::{BitAnd, BitOr, BitXor};

use super::extended::Extended;
use crate::constants as c;
use crate::datatype::basic::{Basic, Class, Predefined};
use crate::handle::Op;

/// A loop over elements.
pub type Kernel = unsafe fn(*const u8, *mut u8, usize);

/// The loop for an operation on a datatype; `None` if the standard does not allow it.
///
/// `MPI_CHAR` counts as an integer: the standard does not allow it, all implementations do.
pub fn kernel(op: Op, of: Predefined) -> Option<Kernel> {
    let basic = match of {
        Predefined::One(basic) => basic,
        Predefined::Pair(value, index) => return pair_kernel(op, value, index),
    };
    match (basic.class, basic.size) {
        (Class::Signed | Class::Character, 1) => integer::<i8>(op),
        (Class::Signed, 2) => integer::<i16>(op),
        (Class::Signed, 4) => integer::<i32>(op),
        (Class::Signed, 8) => integer::<i64>(op),
        (Class::Signed, 16) => integer::<i128>(op),
        (Class::Unsigned, 1) => integer::<u8>(op),
        (Class::Unsigned, 2) => integer::<u16>(op),
        (Class::Unsigned, 4) => integer::<u32>(op),
        (Class::Unsigned, 8) => integer::<u64>(op),
        (Class::Float, 4) => float::<f32>(op),
        (Class::Float, 8) => float::<f64>(op),
        (Class::Float, 16) => float::<Extended>(op),
        (Class::Complex, 8) => complex::<f32>(op),
        (Class::Complex, 16) => complex::<f64>(op),
        (Class::Complex, 32) => complex::<Extended>(op),
        (Class::Logical, 1) => logical::<u8>(op),
        (Class::Logical, 2) => logical::<u16>(op),
        (Class::Logical, 4) => logical::<u32>(op),
        (Class::Logical, 8) => logical::<u64>(op),
        (Class::Logical, 16) => logical::<u128>(op),
        (Class::Byte, 1) => bitwise::<u8>(op),
        _ => None,
    }
}

fn pair_kernel(op: Op, value: Basic, index: Basic) -> Option<Kernel> {
    match (value.class, value.size, index.class) {
        (Class::Float, 4, Class::Signed) => pair::<f32, i32>(op),
        (Class::Float, 8, Class::Signed) => pair::<f64, i32>(op),
        (Class::Float, 16, Class::Signed) => pair::<Extended, i32>(op),
        (Class::Signed, 2, Class::Signed) => pair::<i16, i32>(op),
        (Class::Signed, 4, Class::Signed) => pair::<i32, i32>(op),
        (Class::Signed, 8, Class::Signed) => pair::<i64, i32>(op),
        (Class::Float, 4, Class::Float) => pair::<f32, f32>(op),
        (Class::Float, 8, Class::Float) => pair::<f64, f64>(op),
        _ => None,
    }
}

/// Numbers that can be added, multiplied and compared.
trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn order(self, other: Self) -> Option<Ordering>;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn order(self, other: Self) -> Option<Ordering> {
                Some(self.cmp(&other))
            }
        }
    )*};
}

integers! { i8 i16 i32 i64 i128 u8 u16 u32 u64 }

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn order(self, other: Self) -> Option<Ordering> {
                self.partial_cmp(&other)
            }
        }
    )*};
}

floats! { f32 f64 }

impl Number for Extended {
    fn sum(self, other: Self) -> Self {
        self.add(other)
    }
    fn product(self, other: Self) -> Self {
        self.mul(other)
    }
    fn order(self, other: Self) -> Option<Ordering> {
        self.compare(other)
    }
}

/// Numbers with a sign to turn.
trait Signed: Number {
    fn opposite(self) -> Self;
}

impl Signed for f32 {
    fn opposite(self) -> Self {
        -self
    }
}

impl Signed for f64 {
    fn opposite(self) -> Self {
        -self
    }
}

impl Signed for Extended {
    fn opposite(self) -> Self {
        self.neg()
    }
}

/// Applies `combine` to each element.
///
/// # Safety
///
/// Both arrays have `count` elements of type `T`.
#[inline(always)]
unsafe fn each<T: Copy>(from: *const u8, to: *mut u8, count: usize, combine: impl Fn(T, T) -> T) {
    let (from, to) = (from.cast::<T>(), to.cast::<T>());
    for index in 0..count {
        // SAFETY: as promised by the caller. Programs may put elements at any address.
        unsafe {
            let value = combine(from.add(index).read_unaligned(), to.add(index).read_unaligned());
            to.add(index).write_unaligned(value);
        }
    }
}

/// Makes a [`Kernel`] of a function of two elements. The function is a type parameter, so that each loop is
/// compiled for it.
macro_rules! kernel {
    ($type:ty, [$($bound:tt)*], $combine:expr) => {{
        unsafe fn run<T: $($bound)*>(from: *const u8, to: *mut u8, count: usize) {
            // SAFETY: as promised by the caller.
            unsafe { each::<T>(from, to, count, $combine) }
        }
        Some(run::<$type> as Kernel)
    }};
}

fn integer<T: Number + Bits>(op: Op) -> Option<Kernel> {
    float::<T>(op).or_else(|| bitwise::<T>(op)).or_else(|| logical::<T>(op))
}

fn float<T: Number>(op: Op) -> Option<Kernel> {
    match op {
        c::SUM => kernel!(T, [Number], Number::sum),
        c::PROD => kernel!(T, [Number], Number::product),
        c::MAX => kernel!(T, [Number], |a, b| if a.order(b) == Some(Ordering::Greater) { a } else { b }),
        c::MIN => kernel!(T, [Number], |a, b| if a.order(b) == Some(Ordering::Less) { a } else { b }),
        _ => None,
    }
}

fn complex<T: Signed>(op: Op) -> Option<Kernel> {
    // The complex number of which `T` is a part; both parts lie next to each other.
    match op {
        c::SUM => {
            unsafe fn run<T: Signed>(from: *const u8, to: *mut u8, count: usize) {
                // SAFETY: as promised by the caller.
                unsafe { each::<[T; 2]>(from, to, count, |a, b| [a[0].sum(b[0]), a[1].sum(b[1])]) }
            }
            Some(run::<T>)
        }
        c::PROD => {
            unsafe fn run<T: Signed>(from: *const u8, to: *mut u8, count: usize) {
                let product = |a: [T; 2], b: [T; 2]| {
                    let real = a[0].product(b[0]).sum(a[1].product(b[1]).opposite());
                    [real, a[0].product(b[1]).sum(a[1].product(b[0]))]
                };
                // SAFETY: as promised by the caller.
                unsafe { each::<[T; 2]>(from, to, count, product) }
            }
            Some(run::<T>)
        }
        _ => None,
    }
}

/// Integers as bits and as truth values.
trait Bits: Copy + PartialEq + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> {
    fn truth(self) -> bool;
    fn of(truth: bool) -> Self;
}

macro_rules! bits {
    ($($type:ty)*) => {$(
        impl Bits for $type {
            fn truth(self) -> bool {
                self != 0
            }
            fn of(truth: bool) -> Self {
                truth.into()
            }
        }
    )*};
}

bits! { i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 }

fn bitwise<T: Bits>(op: Op) -> Option<Kernel> {
    match op {
        c::BAND => kernel!(T, [Bits], |a, b| a & b),
        c::BOR => kernel!(T, [Bits], |a, b| a | b),
        c::BXOR => kernel!(T, [Bits], |a, b| a ^ b),
        _ => None,
    }
}

fn logical<T: Bits>(op: Op) -> Option<Kernel> {
    match op {
        c::LAND => kernel!(T, [Bits], |a, b| T::of(a.truth() && b.truth())),
        c::LOR => kernel!(T, [Bits], |a, b| T::of(a.truth() || b.truth())),
        c::LXOR => kernel!(T, [Bits], |a, b| T::of(a.truth() != b.truth())),
        _ => None,
    }
}

/// A value and its index, as C lays them out.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pair<V, I> {
    value: V,
    index: I,
}

fn pair<V: Number, I: Number>(op: Op) -> Option<Kernel> {
    unsafe fn run<V: Number, I: Number>(from: *const u8, to: *mut u8, count: usize, wanted: Ordering) {
        let better = |a: Pair<V, I>, b: Pair<V, I>| match a.value.order(b.value) {
            Some(Ordering::Equal) if a.index.order(b.index) == Some(Ordering::Less) => a,
            Some(order) if order == wanted => a,
            _ => b,
        };
        // SAFETY: as promised by the caller.
        unsafe { each::<Pair<V, I>>(from, to, count, better) }
    }
    unsafe fn least<V: Number, I: Number>(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: as promised by the caller.
        unsafe { run::<V, I>(from, to, count, Ordering::Less) }
    }
    unsafe fn greatest<V: Number, I: Number>(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: as promised by the caller.
        unsafe { run::<V, I>(from, to, count, Ordering::Greater) }
    }
    match op {
        c::MINLOC => Some(least::<V, I>),
        c::MAXLOC => Some(greatest::<V, I>),
        _ => None,
    }
}
