//! Datatypes by decimal precision and range, as Fortran's kinds are chosen.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use crate::constants as c;
use crate::datatype::Type;
use crate::error::{Error, Result};
use crate::foreign::{Content, Foreign};
use crate::handle::Datatype;
use crate::objects::{self, TYPES, TypeObject, lock};

/// The datatypes that were made, by combiner, precision and range: the same arguments give the same handle.
static MADE: Mutex<BTreeMap<[c_int; 3], Datatype>> = Mutex::new(BTreeMap::new());

/// Precision and range of the floating-point kinds, with the datatypes of real and complex numbers.
const REALS: [(c_int, c_int, Datatype, Datatype); 3] =
    [(6, 37, c::REAL4, c::COMPLEX8), (15, 307, c::REAL8, c::COMPLEX16), (33, 4931, c::REAL16, c::COMPLEX32)];

/// The ranges of the integers.
const INTEGERS: [(c_int, Datatype); 5] =
    [(2, c::INTEGER1), (4, c::INTEGER2), (9, c::INTEGER4), (18, c::INTEGER8), (38, c::INTEGER16)];

unsafe fn give(
    combiner: c_int,
    arguments: &[c_int],
    found: Option<Datatype>,
    new: Foreign<Datatype>,
) -> Result<()> {
    let of = found.ok_or_else(|| {
        Error::new(c::ERR_ARG, format!("there is no type of Fortran with precision and range {arguments:?}"))
    })?;
    let [first, second] = [0, 1].map(|index| arguments.get(index).copied().unwrap_or(0));
    let mut made = lock(&MADE);
    let handle = match made.get(&[combiner, first, second]) {
        Some(handle) => *handle,
        None => {
            let contents = arguments.iter().map(|argument| Content::Int(*argument)).collect();
            let object = Type::fortran(&objects::datatype(of)?.of, combiner, contents);
            let handle = objects::add(&TYPES, Arc::new(TypeObject::new(Arc::new(object), "")))?;
            made.insert([combiner, first, second], handle);
            handle
        }
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, handle) };
    Ok(())
}

/// The smallest floating-point kind; one of the numbers may be undefined.
fn real(precision: c_int, range: c_int) -> Option<(Datatype, Datatype)> {
    if precision == c::UNDEFINED && range == c::UNDEFINED {
        return None;
    }
    let fits = |wanted: c_int, has: c_int| wanted == c::UNDEFINED || wanted <= has;
    let kind = REALS.into_iter().find(|kind| fits(precision, kind.0) && fits(range, kind.1));
    kind.map(|(_, _, real, complex)| (real, complex))
}

/// `MPI_Type_create_f90_real`.
pub unsafe fn type_create_f90_real(precision: c_int, range: c_int, new: Foreign<Datatype>) -> Result<()> {
    let found = real(precision, range).map(|(real, _)| real);
    // SAFETY: the arguments are as the standard says.
    unsafe { give(c::COMBINER_F90_REAL, &[precision, range], found, new) }
}

/// `MPI_Type_create_f90_complex`.
pub unsafe fn type_create_f90_complex(precision: c_int, range: c_int, new: Foreign<Datatype>) -> Result<()> {
    let found = real(precision, range).map(|(_, complex)| complex);
    // SAFETY: the arguments are as the standard says.
    unsafe { give(c::COMBINER_F90_COMPLEX, &[precision, range], found, new) }
}

/// `MPI_Type_create_f90_integer`.
pub unsafe fn type_create_f90_integer(range: c_int, new: Foreign<Datatype>) -> Result<()> {
    let found = INTEGERS.into_iter().find(|(has, _)| range <= *has).map(|(_, of)| of);
    // SAFETY: the arguments are as the standard says.
    unsafe { give(c::COMBINER_F90_INTEGER, &[range], found, new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_kind_is_chosen() {
        assert_eq!(real(6, 37), Some((c::REAL4, c::COMPLEX8)));
        assert_eq!(real(7, c::UNDEFINED), Some((c::REAL8, c::COMPLEX16)));
        assert_eq!(real(c::UNDEFINED, 308), Some((c::REAL16, c::COMPLEX32)));
        assert_eq!((real(34, 10), real(c::UNDEFINED, c::UNDEFINED)), (None, None));
    }
}
