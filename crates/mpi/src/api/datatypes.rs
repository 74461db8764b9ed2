//! Datatypes other than their constructors: commit, free, bounds, envelope and contents, names.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Ptr, set_string, string};
use crate::attribute::Owner;
use crate::call::Object;
use crate::constants as c;
use crate::datatype::{Recipe, Type};
use crate::error::{Error, Result};
use crate::foreign::{Content, Foreign};
use crate::handle::Datatype;
use crate::objects::{self, TYPES, TypeObject, lock};

/// `MPI_Type_commit`.
pub unsafe fn type_commit(datatype: Foreign<Datatype>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    objects::datatype(unsafe { datatype.get(0) })?.of.commit();
    Ok(())
}

/// `MPI_Type_free`.
pub unsafe fn type_free(datatype: Foreign<Datatype>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = datatype.get(0);
        let object = objects::datatype(handle)?;
        if object.of.predefined.is_some() {
            return Err(Error::new(c::ERR_TYPE, "a predefined datatype cannot be freed"));
        }
        object.attributes.delete_all(&Owner(Object::None, Some(handle)))?;
        TYPES.remove(handle.0);
        datatype.set(0, c::DATATYPE_NULL);
    }
    Ok(())
}

/// `MPI_Type_dup`.
pub unsafe fn type_dup(oldtype: Datatype, newtype: Foreign<Datatype>) -> Result<()> {
    let old = objects::datatype(oldtype)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        newtype.set(0, c::DATATYPE_NULL);
        let attributes = old.attributes.copy(&Owner(Object::None, Some(oldtype)))?;
        let copy = TypeObject { attributes, ..TypeObject::new(Arc::new(Type::dup(&old.of)), "") };
        newtype.set(0, objects::add(&TYPES, Arc::new(copy))?);
    }
    Ok(())
}

/// `MPI_Type_size`. Optional datatypes that are not supported have an undefined size.
pub unsafe fn type_size(datatype: Datatype, size: Foreign<i64>) -> Result<()> {
    let optional = matches!(datatype, c::REAL2 | c::COMPLEX4 | c::LONG_DOUBLE | c::C_LONG_DOUBLE_COMPLEX);
    let bytes = match objects::datatype(datatype) {
        Ok(object) => object.of.size().cast_signed(),
        Err(_) if optional => i64::from(c::UNDEFINED),
        Err(error) => return Err(error),
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { size.set(0, bytes) };
    Ok(())
}

/// `MPI_Type_size_x`.
pub unsafe fn type_size_x(datatype: Datatype, size: Foreign<i64>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { type_size(datatype, size) }
}

/// `MPI_Type_get_extent`.
pub unsafe fn type_get_extent(datatype: Datatype, lower: Foreign<i64>, extent: Foreign<i64>) -> Result<()> {
    let object = objects::datatype(datatype)?;
    // SAFETY: the arguments are as the standard says.
    unsafe {
        lower.set(0, object.of.bounds().lower);
        extent.set(0, object.of.extent());
    }
    Ok(())
}

/// `MPI_Type_get_extent_x`.
pub unsafe fn type_get_extent_x(datatype: Datatype, lower: Foreign<i64>, extent: Foreign<i64>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { type_get_extent(datatype, lower, extent) }
}

/// `MPI_Type_get_true_extent`.
pub unsafe fn type_get_true_extent(
    datatype: Datatype,
    lower: Foreign<i64>,
    extent: Foreign<i64>,
) -> Result<()> {
    let (begin, length) = objects::datatype(datatype)?.of.bounds().true_extent();
    // SAFETY: the arguments are as the standard says.
    unsafe {
        lower.set(0, begin);
        extent.set(0, length);
    }
    Ok(())
}

/// `MPI_Type_get_true_extent_x`.
pub unsafe fn type_get_true_extent_x(
    datatype: Datatype,
    lower: Foreign<i64>,
    extent: Foreign<i64>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { type_get_true_extent(datatype, lower, extent) }
}

/// What the functions return that ask how a datatype was made.
struct Contents {
    integers: Vec<Content>,
    addresses: Vec<i64>,
    counts: Vec<i64>,
}

/// Counts are among the integers if all of them fit. Otherwise they are counts, and so are addresses.
fn contents_of(recipe: &Recipe) -> Contents {
    let small: Option<Vec<Content>> =
        recipe.counts.iter().map(|count| c_int::try_from(*count).ok().map(Content::Int)).collect();
    let Some(counts) = small else {
        let counts = [&recipe.counts[..], &recipe.addresses].concat();
        return Contents { integers: recipe.integers.clone(), addresses: Vec::new(), counts };
    };
    // The sizes of an array come after the number of its dimensions.
    let ahead = match recipe.combiner {
        c::COMBINER_SUBARRAY => 1,
        c::COMBINER_DARRAY => 3,
        _ => 0,
    };
    let (first, last) = recipe.integers.split_at(ahead);
    let integers = [first, &counts, last].concat();
    Contents { integers, addresses: recipe.addresses.clone(), counts: Vec::new() }
}

/// `MPI_Type_get_envelope`.
pub unsafe fn type_get_envelope(
    datatype: Datatype,
    integers: Foreign<c_int>,
    addresses: Foreign<c_int>,
    types: Foreign<c_int>,
    combiner: Foreign<c_int>,
) -> Result<()> {
    let object = objects::datatype(datatype)?;
    let contents = contents_of(&object.of.recipe);
    if !contents.counts.is_empty() {
        return Err(Error::new(c::ERR_TYPE, "the datatype has large counts: call MPI_Type_get_envelope_c"));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe {
        integers.set(0, contents.integers.len() as c_int);
        addresses.set(0, contents.addresses.len() as c_int);
        types.set(0, object.of.recipe.types.len() as c_int);
        combiner.set(0, object.of.recipe.combiner);
    }
    Ok(())
}

/// `MPI_Type_get_envelope_c`.
pub unsafe fn type_get_envelope_c(
    datatype: Datatype,
    integers: Foreign<i64>,
    addresses: Foreign<i64>,
    counts: Foreign<i64>,
    types: Foreign<i64>,
    combiner: Foreign<c_int>,
) -> Result<()> {
    let object = objects::datatype(datatype)?;
    let contents = contents_of(&object.of.recipe);
    // SAFETY: the arguments are as the standard says.
    unsafe {
        integers.set(0, contents.integers.len() as i64);
        addresses.set(0, contents.addresses.len() as i64);
        counts.set(0, contents.counts.len() as i64);
        types.set(0, object.of.recipe.types.len() as i64);
        combiner.set(0, object.of.recipe.combiner);
    }
    Ok(())
}

/// `MPI_Type_get_contents`.
pub unsafe fn type_get_contents(
    datatype: Datatype,
    max_integers: c_int,
    max_addresses: c_int,
    max_types: c_int,
    integers: Foreign<Content>,
    addresses: Foreign<i64>,
    types: Foreign<Datatype>,
) -> Result<()> {
    let limits = [max_integers, max_addresses, 0, max_types].map(i64::from);
    // SAFETY: the arguments are as the standard says.
    unsafe { write_contents(datatype, limits, integers, addresses, None, types) }
}

/// `MPI_Type_get_contents_c`.
pub unsafe fn type_get_contents_c(
    datatype: Datatype,
    max_integers: i64,
    max_addresses: i64,
    max_counts: i64,
    max_types: i64,
    integers: Foreign<Content>,
    addresses: Foreign<i64>,
    counts: Foreign<i64>,
    types: Foreign<Datatype>,
) -> Result<()> {
    let limits = [max_integers, max_addresses, max_counts, max_types];
    // SAFETY: the arguments are as the standard says.
    unsafe { write_contents(datatype, limits, integers, addresses, Some(counts), types) }
}

unsafe fn write_contents(
    datatype: Datatype,
    limits: [i64; 4],
    integers: Foreign<Content>,
    addresses: Foreign<i64>,
    counts: Option<Foreign<i64>>,
    types: Foreign<Datatype>,
) -> Result<()> {
    let object = objects::datatype(datatype)?;
    let recipe = &object.of.recipe;
    if recipe.combiner == c::COMBINER_NAMED {
        return Err(Error::new(c::ERR_TYPE, "a predefined datatype has no contents"));
    }
    let contents = contents_of(recipe);
    let lengths =
        [contents.integers.len(), contents.addresses.len(), contents.counts.len(), recipe.types.len()];
    if lengths.iter().zip(limits).any(|(length, limit)| *length as i64 > limit) {
        return Err(Error::new(c::ERR_ARG, "an array is too short: see MPI_Type_get_envelope"));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe {
        integers.set_all(contents.integers);
        addresses.set_all(contents.addresses);
        counts.iter().for_each(|counts| counts.set_all(contents.counts.iter().copied()));
        for (index, of) in recipe.types.iter().enumerate() {
            // The program frees handles of datatypes that are not predefined.
            let handle = match of.predefined {
                Some(handle) => handle,
                None => objects::add(&TYPES, Arc::new(TypeObject::new(Arc::clone(of), "")))?,
            };
            types.set(index, handle);
        }
    }
    Ok(())
}

/// `MPI_Type_set_name`.
pub unsafe fn type_set_name(datatype: Datatype, name: Ptr) -> Result<()> {
    let object = objects::datatype(datatype)?;
    // SAFETY: the arguments are as the standard says.
    *lock(&object.name) = unsafe { string(name, "type_name")? };
    Ok(())
}

/// `MPI_Type_get_name`.
pub unsafe fn type_get_name(datatype: Datatype, name: Ptr, length: Foreign<c_int>) -> Result<()> {
    let text = match objects::datatype(datatype) {
        Ok(object) => lock(&object.name).clone(),
        Err(_) if datatype == c::DATATYPE_NULL => "MPI_DATATYPE_NULL".to_owned(),
        Err(error) => return Err(error),
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { set_string(name, c::MAX_OBJECT_NAME, &text, length) }
}

/// `MPI_Type_match_size`.
pub unsafe fn type_match_size(class: c_int, size: c_int, datatype: Foreign<Datatype>) -> Result<()> {
    let found = match (class, size) {
        (c::TYPECLASS_INTEGER, 1) => c::INTEGER1,
        (c::TYPECLASS_INTEGER, 2) => c::INTEGER2,
        (c::TYPECLASS_INTEGER, 4) => c::INTEGER4,
        (c::TYPECLASS_INTEGER, 8) => c::INTEGER8,
        (c::TYPECLASS_REAL, 4) => c::REAL4,
        (c::TYPECLASS_REAL, 8) => c::REAL8,
        (c::TYPECLASS_REAL, 16) => c::REAL16,
        (c::TYPECLASS_COMPLEX, 8) => c::COMPLEX8,
        (c::TYPECLASS_COMPLEX, 16) => c::COMPLEX16,
        (c::TYPECLASS_COMPLEX, 32) => c::COMPLEX32,
        _ => return Err(Error::new(c::ERR_ARG, format!("no datatype of that class has {size} bytes"))),
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { datatype.set(0, found) };
    Ok(())
}

/// `MPI_Type_get_value_index`: the pair of a value and an index, if there is one.
pub unsafe fn type_get_value_index(value: Datatype, index: Datatype, pair: Foreign<Datatype>) -> Result<()> {
    objects::datatype(value)?;
    objects::datatype(index)?;
    let found = match (value, index) {
        (c::FLOAT, c::INT) => c::FLOAT_INT,
        (c::DOUBLE, c::INT) => c::DOUBLE_INT,
        (c::LONG, c::INT) => c::LONG_INT,
        (c::INT, c::INT) => c::TWO_INT,
        (c::SHORT, c::INT) => c::SHORT_INT,
        (c::LONG_DOUBLE, c::INT) => c::LONG_DOUBLE_INT,
        _ => c::DATATYPE_NULL,
    };
    // SAFETY: the arguments are as the standard says.
    unsafe { pair.set(0, found) };
    Ok(())
}
