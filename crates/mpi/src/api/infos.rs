//! Info objects: ordered keys with values.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use super::{Ptr, set_string, string};
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::handle::Info;
use crate::objects::{self, INFOS, lock};

/// Gives the program an info object.
pub(super) unsafe fn give(list: Vec<(String, String)>, info: Foreign<Info>) -> Result<()> {
    super::ensure_some(info, "info")?;
    // SAFETY: the arguments are as the standard says.
    unsafe { info.set(0, objects::add(&INFOS, Arc::new(Mutex::new(list)))?) };
    Ok(())
}

/// A key, which is not empty and not too long.
unsafe fn key_of(key: Ptr) -> Result<String> {
    // SAFETY: the arguments are as the standard says.
    let key = unsafe { string(key, "key") }.map_err(|error| Error::new(c::ERR_INFO_KEY, error.text))?;
    if key.is_empty() || key.len() >= c::MAX_INFO_KEY as usize {
        return Err(Error::new(c::ERR_INFO_KEY, format!("a key has {} characters", key.len())));
    }
    Ok(key)
}

/// `MPI_Info_create`.
pub unsafe fn info_create(info: Foreign<Info>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { give(Vec::new(), info) }
}

/// `MPI_Info_create_env`.
pub unsafe fn info_create_env(_argc: c_int, _argv: Ptr, info: Foreign<Info>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { give(Vec::new(), info) }
}

/// `MPI_Info_dup`.
pub unsafe fn info_dup(info: Info, new: Foreign<Info>) -> Result<()> {
    let list = lock(&*objects::info(info)?).clone();
    // SAFETY: the arguments are as the standard says.
    unsafe { give(list, new) }
}

/// `MPI_Info_free`.
pub unsafe fn info_free(info: Foreign<Info>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        if INFOS.remove(info.get(0).0).is_none() {
            return Err(Error::new(c::ERR_INFO, "there is no such info object to free"));
        }
        info.set(0, c::INFO_NULL);
    }
    Ok(())
}

/// `MPI_Info_set`.
pub unsafe fn info_set(info: Info, key: Ptr, value: Ptr) -> Result<()> {
    let object = objects::info(info)?;
    // SAFETY: the arguments are as the standard says.
    let (key, value) = unsafe { (key_of(key)?, string(value, "value")?) };
    if value.len() >= c::MAX_INFO_VAL as usize {
        return Err(Error::new(c::ERR_INFO_VALUE, format!("the value has {} characters", value.len())));
    }
    let mut list = lock(&object);
    match list.iter_mut().find(|(have, _)| *have == key) {
        Some(entry) => entry.1 = value,
        None => list.push((key, value)),
    }
    Ok(())
}

/// `MPI_Info_delete`.
pub unsafe fn info_delete(info: Info, key: Ptr) -> Result<()> {
    let object = objects::info(info)?;
    // SAFETY: the arguments are as the standard says.
    let key = unsafe { key_of(key)? };
    let mut list = lock(&object);
    let index = list.iter().position(|(have, _)| *have == key);
    let index = index.ok_or_else(|| Error::new(c::ERR_INFO_NOKEY, format!("there is no key {key}")))?;
    list.remove(index);
    Ok(())
}

unsafe fn find(info: Info, key: Ptr) -> Result<Option<String>> {
    let object = objects::info(info)?;
    // SAFETY: the arguments are as the standard says.
    let key = unsafe { key_of(key)? };
    let list = lock(&object);
    Ok(list.iter().find(|(have, _)| *have == key).map(|(_, value)| value.clone()))
}

/// `MPI_Info_get_string`.
pub unsafe fn info_get_string(
    info: Info,
    key: Ptr,
    length: Foreign<c_int>,
    value: Ptr,
    flag: Foreign<c_int>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = find(info, key)?;
        flag.set(0, c_int::from(found.is_some()));
        if let Some(text) = found {
            let room = length.get(0);
            if room > 0 {
                set_string(value, room, &text, length)?;
            }
            // The length that the whole value needs, with its zero byte.
            length.set(0, text.len() as c_int + 1);
        }
    }
    Ok(())
}

/// `MPI_Info_get`.
pub unsafe fn info_get(info: Info, key: Ptr, room: c_int, value: Ptr, flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = find(info, key)?;
        flag.set(0, c_int::from(found.is_some()));
        match found {
            // The room does not count the zero byte here.
            Some(text) => set_string(value, room.saturating_add(1), &text, nowhere()),
            None => Ok(()),
        }
    }
}

/// A length that nobody asked for.
fn nowhere() -> Foreign<c_int> {
    Foreign::new(std::ptr::null_mut(), &crate::standard::codec::INT)
}

/// `MPI_Info_get_valuelen`.
pub unsafe fn info_get_valuelen(
    info: Info,
    key: Ptr,
    length: Foreign<c_int>,
    flag: Foreign<c_int>,
) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let found = find(info, key)?;
        flag.set(0, c_int::from(found.is_some()));
        found.iter().for_each(|text| length.set(0, text.len() as c_int));
    }
    Ok(())
}

/// `MPI_Info_get_nkeys`.
pub unsafe fn info_get_nkeys(info: Info, count: Foreign<c_int>) -> Result<()> {
    let keys = lock(&*objects::info(info)?).len();
    // SAFETY: the arguments are as the standard says.
    unsafe { count.set(0, keys as c_int) };
    Ok(())
}

/// `MPI_Info_get_nthkey`.
pub unsafe fn info_get_nthkey(info: Info, n: c_int, key: Ptr) -> Result<()> {
    let object = objects::info(info)?;
    let list = lock(&object);
    let found = usize::try_from(n).ok().and_then(|n| list.get(n));
    let (text, _) = found.ok_or_else(|| Error::new(c::ERR_ARG, format!("there is no key number {n}")))?;
    // SAFETY: the arguments are as the standard says.
    unsafe { set_string(key, c::MAX_INFO_KEY, text, nowhere()) }
}
