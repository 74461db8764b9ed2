//! Every predefined operation on every predefined datatype, against a model that computes with wide integers
//! and one element at a time.

use std::collections::BTreeSet;

use super::extended::Extended;
use super::*;
use crate::constants::DATATYPES;
use crate::datatype::basic::{Basic, Class, Predefined};
use crate::random::Random;

const OPS: [Op; 12] = [
    c::SUM,
    c::PROD,
    c::MIN,
    c::MAX,
    c::BAND,
    c::BOR,
    c::BXOR,
    c::LAND,
    c::LOR,
    c::LXOR,
    c::MINLOC,
    c::MAXLOC,
];

/// The operations that the standard's table gives to a class.
fn allowed(of: Predefined) -> BTreeSet<Op> {
    let (arithmetic, ordered) = ([c::SUM, c::PROD], [c::MIN, c::MAX]);
    let (bits, truth) = ([c::BAND, c::BOR, c::BXOR], [c::LAND, c::LOR, c::LXOR]);
    let Predefined::One(basic) = of else { return BTreeSet::from([c::MINLOC, c::MAXLOC]) };
    let list: Vec<Op> = match basic.class {
        Class::Character if basic.size > 1 => vec![],
        Class::Signed | Class::Unsigned | Class::Character => {
            [&arithmetic[..], &ordered, &bits, &truth].concat()
        }
        Class::Float => [arithmetic, ordered].concat(),
        Class::Complex => arithmetic.to_vec(),
        Class::Logical => truth.to_vec(),
        Class::Byte => bits.to_vec(),
        Class::Packed | Class::Quad | Class::Half => vec![],
    };
    list.into_iter().collect()
}

/// An element as bytes, of an integer that is small enough to be exact in every format.
fn encode(basic: Basic, value: i64) -> Vec<u8> {
    match (basic.class, basic.size) {
        (Class::Float, 4) => (value as f32).to_ne_bytes().to_vec(),
        (Class::Float, 8) => (value as f64).to_ne_bytes().to_vec(),
        (Class::Float, _) => extended(value),
        _ => i128::from(value).to_le_bytes()[..usize::from(basic.size)].to_vec(),
    }
}

fn extended(value: i64) -> Vec<u8> {
    let number = Extended::of(value as f64);
    // SAFETY: every byte of it is initialized.
    unsafe { std::mem::transmute::<Extended, [u8; 16]>(number) }.to_vec()
}

/// The result for one pair of integers.
fn model(op: Op, basic: Basic, a: i64, b: i64) -> i64 {
    // What an integer of this size keeps.
    let cut = |value: i64| match (basic.class, basic.size) {
        (Class::Signed | Class::Character, 1) => i64::from(value as i8),
        (Class::Unsigned | Class::Byte, 1) => i64::from(value as u8),
        (Class::Unsigned, 2) => i64::from(value as u16),
        _ => value,
    };
    let (a, b) = (cut(a), cut(b));
    let result = match op {
        c::SUM => a + b,
        c::PROD => a * b,
        c::MIN => a.min(b),
        c::MAX => a.max(b),
        c::BAND => a & b,
        c::BOR => a | b,
        c::BXOR => a ^ b,
        c::LAND => i64::from(a != 0 && b != 0),
        c::LOR => i64::from(a != 0 || b != 0),
        c::LXOR => i64::from((a != 0) != (b != 0)),
        _ => panic!("no such operation"),
    };
    cut(result)
}

/// Applies the operation to encoded elements and returns what is left of them.
fn reduce(op: Op, handle: Datatype, input: &[u8], inout: &[u8], count: usize) -> Result<Vec<u8>> {
    let datatype = Arc::new(Type::predefined(handle).unwrap());
    // An odd address: elements need no alignment.
    let input: Vec<u8> = [&[0], input].concat();
    let mut memory: Vec<u8> = [&[0], inout].concat();
    let operation = Operation::Predefined(op);
    let (from, to) = (input[1..].as_ptr().cast(), memory[1..].as_mut_ptr().cast());
    // SAFETY: both have `count` elements.
    unsafe { operation.apply(from, to, count as i64, &datatype, handle)? };
    Ok(memory[1..].to_vec())
}

/// The model has no negative zero, so products have no zero at all.
fn nonzero(random: &mut Random) -> i64 {
    [-1, 1][random.below(2)] * random.within(1, 9)
}

fn check_plain(op: Op, handle: Datatype, name: &str, basic: Basic, random: &mut Random) {
    let least = if basic.class == Class::Unsigned { 0 } else { -9 };
    let mut draw = || match basic.class {
        Class::Float => nonzero(random),
        _ if random.below(4) == 0 => 0,
        _ => random.within(least, 9),
    };
    let pairs: Vec<(i64, i64)> = (0..13).map(|_| (draw(), draw())).collect();
    let list = |of: &dyn Fn(&(i64, i64)) -> i64| -> Vec<u8> {
        pairs.iter().flat_map(|pair| encode(basic, of(pair))).collect()
    };
    let result = reduce(op, handle, &list(&|pair| pair.0), &list(&|pair| pair.1), pairs.len()).unwrap();
    let expected = list(&|(a, b)| model(op, basic, *a, *b));
    assert_eq!(result, expected, "{} of {name}: {pairs:?}", super::name(op));
}

fn check_complex(op: Op, handle: Datatype, name: &str, basic: Basic, random: &mut Random) {
    let part =
        Basic { class: Class::Float, size: basic.size / 2, align: basic.align, external: basic.size / 2 };
    let numbers: Vec<[i64; 4]> = (0..13).map(|_| [(); 4].map(|()| nonzero(random))).collect();
    let list = |of: &dyn Fn(&[i64; 4]) -> [i64; 2]| -> Vec<u8> {
        numbers.iter().flat_map(|all| of(all).into_iter().flat_map(|value| encode(part, value))).collect()
    };
    let result =
        reduce(op, handle, &list(&|n| [n[0], n[1]]), &list(&|n| [n[2], n[3]]), numbers.len()).unwrap();
    let expected = list(&|[a, b, x, y]| match op {
        c::SUM => [a + x, b + y],
        _ => [a * x - b * y, a * y + b * x],
    });
    assert_eq!(result, expected, "{} of {name}: {numbers:?}", super::name(op));
}

fn check_pair(op: Op, handle: Datatype, name: &str, (value, index): (Basic, Basic), random: &mut Random) {
    let extent = Type::predefined(handle).unwrap().extent() as usize;
    let numbers: Vec<[i64; 4]> = (0..40).map(|_| [(); 4].map(|()| random.within(-2, 2))).collect();
    let list = |of: &dyn Fn(&[i64; 4]) -> [i64; 2]| -> Vec<Vec<u8>> {
        let encoded = numbers.iter().map(|all| {
            let [first, second] = of(all);
            let mut bytes = encode(value, first);
            bytes.resize(usize::from(value.size.next_multiple_of(index.align)), 0);
            bytes.extend(encode(index, second));
            bytes.resize(extent, 0);
            bytes
        });
        encoded.collect()
    };
    let (input, inout) = (list(&|n| [n[0], n[1]]).concat(), list(&|n| [n[2], n[3]]).concat());
    let result = reduce(op, handle, &input, &inout, numbers.len()).unwrap();
    let expected = list(&|[value, index, other, at]| {
        let first = if op == c::MINLOC { value < other } else { value > other };
        if value == other {
            [*value, *index.min(at)]
        } else if first {
            [*value, *index]
        } else {
            [*other, *at]
        }
    });
    for (number, (result, expected)) in result.chunks(extent).zip(expected).enumerate() {
        // Padding may be anything.
        let at = usize::from(value.size.next_multiple_of(index.align));
        let data = |bytes: &[u8]| {
            [&bytes[..usize::from(value.size)], &bytes[at..at + usize::from(index.size)]].concat()
        };
        assert_eq!(data(result), data(&expected), "{} of {name}: {:?}", super::name(op), numbers[number]);
    }
}

#[test]
fn every_operation_on_every_datatype_is_as_the_model_says() {
    let mut checked = 0;
    for (handle, name) in DATATYPES {
        let Some(of) = crate::datatype::basic::predefined(handle) else { continue };
        let allowed = allowed(of);
        for op in OPS {
            if !allowed.contains(&op) {
                let refused = reduce(op, handle, &[0; 64], &[0; 64], 1).unwrap_err();
                assert_eq!(refused.code, c::ERR_OP, "{} of {name}", super::name(op));
                continue;
            }
            let mut random = Random::new(checked);
            for _ in 0..20 {
                match of {
                    Predefined::Pair(value, index) => {
                        check_pair(op, handle, name, (value, index), &mut random);
                    }
                    Predefined::One(basic) if basic.class == Class::Complex => {
                        check_complex(op, handle, name, basic, &mut random);
                    }
                    Predefined::One(basic) => check_plain(op, handle, name, basic, &mut random),
                }
            }
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked} pairs of operation and datatype");
}

#[test]
fn integers_wrap() {
    let max = i32::MAX.to_ne_bytes();
    assert_eq!(reduce(c::SUM, c::INT, &max, &1i32.to_ne_bytes(), 1).unwrap(), i32::MIN.to_ne_bytes());
    let large = (1i128 << 100).to_ne_bytes();
    let sum = reduce(c::SUM, c::INTEGER16, &large, &large, 1).unwrap();
    assert_eq!(sum, (1i128 << 101).to_ne_bytes());
}

#[test]
fn replace_takes_the_first_and_no_op_the_second() {
    let (one, two) = (7i32.to_ne_bytes(), 8i32.to_ne_bytes());
    assert_eq!(reduce(c::REPLACE, c::INT, &one, &two, 1).unwrap(), one);
    assert_eq!(reduce(c::NO_OP, c::INT, &one, &two, 1).unwrap(), two);
}

/// `inout = in - inout`, and the number of calls in the datatype's place.
unsafe extern "C" fn subtract(input: *mut c_void, inout: *mut c_void, len: *mut c_int, datatype: *mut usize) {
    // SAFETY: the test passes arrays of `len` ints and the handle of `MPI_INT`.
    unsafe {
        assert_eq!(*datatype, c::INT.0);
        for index in 0..*len as usize {
            let to = inout.cast::<i32>().add(index);
            *to = *input.cast::<i32>().add(index) - *to;
        }
    }
}

#[test]
fn functions_of_the_program_get_both_arrays_in_order() {
    let function = Callback { address: subtract as *const c_void, wide: false, abi: &crate::standard::ABI };
    let operation = Operation::User { function, commutes: false };
    let int = Arc::new(Type::predefined(c::INT).unwrap());
    let (input, mut inout) = ([10i32, 20, 30], [1i32, 2, 3]);
    // SAFETY: three ints each.
    unsafe {
        operation.apply(input.as_ptr().cast(), inout.as_mut_ptr().cast(), 3, &int, c::INT).unwrap();
    }
    assert_eq!(inout, [9, 18, 27]);
    assert!(!operation.commutes());
}
