//! Attributes: values that programs and libraries attach to communicators, datatypes and windows.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::constants::{ERR_KEYVAL, ERR_OTHER, SUCCESS};
use crate::error::{Error, Result};
use crate::foreign::Callback;
use crate::keyed::Keyed;
use crate::pool::Pool;

/// What may have attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Communicators.
    Comm,
    /// Datatypes.
    Type,
}

/// The address of `*_DUP_FN` in the standard ABI.
const DUP: usize = 1;

/// An attribute key.
pub struct Keyval {
    kind: Kind,
    copy: Callback,
    delete: Callback,
    extra_state: usize,
    /// The key as the program knows it.
    number: std::sync::OnceLock<c_int>,
    /// The attributes that have it, and one more until the program frees it.
    holders: AtomicUsize,
    freed: AtomicBool,
}

/// Keys stay alive as long as an attribute has them.
static KEYVALS: Pool<Keyval> = Pool::new();

type Copy =
    unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void, *mut c_int) -> c_int;
type Delete = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

/// Creates a key.
pub fn create(kind: Kind, copy: Callback, delete: Callback, extra_state: *mut c_void) -> Result<c_int> {
    let number = std::sync::OnceLock::new();
    let keyval = Arc::new(Keyval {
        kind,
        copy,
        delete,
        extra_state: extra_state.expose_provenance(),
        number,
        holders: AtomicUsize::new(1),
        freed: AtomicBool::new(false),
    });
    let handle = KEYVALS.insert(Arc::clone(&keyval));
    let key = handle.and_then(|handle| c_int::try_from(handle).ok());
    let key = key.ok_or_else(|| Error::new(ERR_OTHER, "there are too many attribute keys"))?;
    let _ = keyval.number.set(key);
    Ok(key)
}

fn find(kind: Kind, key: c_int) -> Result<Arc<Keyval>> {
    let keyval = usize::try_from(key).ok().and_then(|handle| KEYVALS.get(handle));
    keyval
        .filter(|keyval| keyval.kind == kind)
        .ok_or_else(|| Error::new(ERR_KEYVAL, format!("{key} is no attribute key of this kind of object")))
}

/// Frees a key. It can be used as long as an attribute has it, and may even be freed again.
pub fn free(kind: Kind, key: c_int) -> Result<()> {
    let keyval = find(kind, key)?;
    if !keyval.freed.swap(true, Ordering::AcqRel) {
        keyval.release();
    }
    Ok(())
}

/// The attributes of one object.
#[derive(Default)]
pub struct Attributes {
    map: Mutex<Keyed<usize>>,
}

impl Attributes {
    fn map(&self) -> std::sync::MutexGuard<'_, Keyed<usize>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of an attribute, if it is set.
    pub fn get(&self, kind: Kind, key: c_int) -> Result<Option<*mut c_void>> {
        find(kind, key)?;
        Ok(self.map().get(&key).map(|(_, value)| std::ptr::with_exposed_provenance_mut(*value)))
    }

    /// Sets an attribute; the delete callback is called for the value that it had.
    ///
    /// # Safety
    ///
    /// The callbacks keep to the standard.
    pub unsafe fn set(&self, kind: Kind, key: c_int, value: *mut c_void, object: &Owner) -> Result<()> {
        let keyval = find(kind, key)?;
        let old = self.map().get(&key).cloned();
        if let Some((keyval, old)) = old {
            // SAFETY: as promised by the caller.
            unsafe { keyval.delete(old, object)? };
        }
        self.map().insert(key, (keyval, value.expose_provenance()));
        Ok(())
    }

    /// Deletes an attribute.
    ///
    /// # Safety
    ///
    /// The callbacks keep to the standard.
    pub unsafe fn delete(&self, kind: Kind, key: c_int, object: &Owner) -> Result<()> {
        find(kind, key)?;
        let old = self.map().get(&key).cloned();
        if let Some((keyval, value)) = old {
            // SAFETY: as promised by the caller.
            unsafe { keyval.delete(value, object)? };
            self.map().remove(&key);
        }
        Ok(())
    }

    /// Deletes all attributes.
    ///
    /// # Safety
    ///
    /// The callbacks keep to the standard.
    pub unsafe fn delete_all(&self, object: &Owner) -> Result<()> {
        loop {
            let last = self.map().last_key_value().map(|(key, entry)| (*key, entry.clone()));
            let Some((key, (keyval, value))) = last else { return Ok(()) };
            // SAFETY: as promised by the caller.
            unsafe { keyval.delete(value, object)? };
            self.map().remove(&key);
        }
    }

    /// The attributes of a copy of `object`.
    ///
    /// # Safety
    ///
    /// The callbacks keep to the standard.
    pub unsafe fn copy(&self, object: &Owner) -> Result<Attributes> {
        let entries: Vec<_> = self.map().iter().map(|(key, entry)| (*key, entry.clone())).collect();
        let copied = Attributes::default();
        for (key, (keyval, value)) in entries {
            // SAFETY: as promised by the caller.
            if let Some(value) = unsafe { keyval.copy(value, object)? } {
                copied.map().insert(key, (keyval, value));
            }
        }
        Ok(copied)
    }
}

/// The object that callbacks get, in the representation of each ABI.
pub struct Owner(pub crate::call::Object, pub Option<crate::handle::Datatype>);

impl Owner {
    fn raw(&self, callback: &Callback) -> usize {
        match (self.0, self.1) {
            (_, Some(datatype)) => (callback.abi.datatype)(datatype),
            (crate::call::Object::Comm(comm), _) => (callback.abi.comm)(comm),
            (crate::call::Object::Win(win), _) => (callback.abi.win)(win),
            _ => 0,
        }
    }
}

impl Keyval {
    /// An attribute has it.
    pub fn hold(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// An attribute has it no longer, or the program has freed it.
    pub fn release(&self) {
        if self.holders.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(key) = self.number.get()
        {
            KEYVALS.remove(*key as usize);
        }
    }

    fn number(&self, callback: &Callback) -> c_int {
        (callback.abi.keyval)(self.number.get().copied().unwrap_or(0))
    }

    fn extra_state(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.extra_state)
    }

    /// # Safety
    ///
    /// The callback keeps to the standard.
    unsafe fn delete(&self, value: usize, object: &Owner) -> Result<()> {
        let callback = &self.delete;
        if callback.is_null() {
            return Ok(());
        }
        let value = std::ptr::with_exposed_provenance_mut(value);
        // SAFETY: the program passed a function of this type.
        let code = unsafe {
            let delete = std::mem::transmute::<*const c_void, Delete>(callback.address);
            delete(object.raw(callback), self.number(callback), value, self.extra_state())
        };
        failed(callback, code, "the attribute's delete function")
    }

    /// The value for the copy, if there is one.
    ///
    /// # Safety
    ///
    /// The callback keeps to the standard.
    unsafe fn copy(&self, value: usize, object: &Owner) -> Result<Option<usize>> {
        let callback = &self.copy;
        match callback.address.addr() {
            0 => return Ok(None),
            DUP => return Ok(Some(value)),
            _ => {}
        }
        let (mut copied, mut flag) = (std::ptr::null_mut(), 0);
        let value = std::ptr::with_exposed_provenance_mut(value);
        // SAFETY: the program passed a function of this type.
        let code = unsafe {
            let copy = std::mem::transmute::<*const c_void, Copy>(callback.address);
            let (object, number) = (object.raw(callback), self.number(callback));
            copy(object, number, self.extra_state(), value, &raw mut copied, &raw mut flag)
        };
        failed(callback, code, "the attribute's copy function")?;
        Ok((flag != 0).then(|| copied.expose_provenance()))
    }
}

fn failed(callback: &Callback, code: c_int, what: &str) -> Result<()> {
    let code = (callback.abi.code_back)(code);
    if code == SUCCESS { Ok(()) } else { Err(Error::new(code, format!("{what} returned an error"))) }
}
