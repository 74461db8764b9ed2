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

/// The value of an attribute. C sets pointers and Fortran integers; each language sees those of the other as
/// the standard says.
#[derive(Clone)]
pub enum Value {
    /// Set in C. Fortran gets the address as an integer.
    Pointer(usize),
    /// Set in Fortran. C gets the address of the integer.
    Integer(Arc<usize>),
}

impl Value {
    /// What C gets.
    pub fn pointer(&self) -> *mut c_void {
        match self {
            Value::Pointer(address) => std::ptr::with_exposed_provenance_mut(*address),
            Value::Integer(place) => Arc::as_ptr(place).cast_mut().cast(),
        }
    }

    /// What Fortran gets.
    pub fn integer(&self) -> usize {
        match self {
            Value::Pointer(address) => *address,
            Value::Integer(place) => **place,
        }
    }

    /// A value of the same language.
    fn alike(&self, word: usize) -> Value {
        match self {
            Value::Pointer(_) => Value::Pointer(word),
            Value::Integer(_) => Value::Integer(Arc::new(word)),
        }
    }
}

/// How functions of another language are called: they get the program's function first, and whether the value
/// is a pointer (0) or an integer (1).
#[derive(Clone, Copy)]
pub struct Proxy {
    /// Calls a copy function.
    pub copy: CopyProxy,
    /// Calls a delete function.
    pub delete: DeleteProxy,
}

/// Function, handle, key, extra state, type of the value, value, place for the copy, place for the flag.
pub type CopyProxy = unsafe extern "C" fn(
    *const c_void,
    c_int,
    c_int,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut c_int,
) -> c_int;

/// Function, handle, key, type of the value, value, extra state.
pub type DeleteProxy =
    unsafe extern "C" fn(*const c_void, c_int, c_int, c_int, *mut c_void, *mut c_void) -> c_int;

/// An attribute key.
pub struct Keyval {
    kind: Kind,
    copy: Callback,
    delete: Callback,
    proxy: std::sync::OnceLock<Proxy>,
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
        proxy: std::sync::OnceLock::new(),
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

/// Has the functions of a key called through proxies; does nothing if there is no such key.
pub fn set_proxy(key: c_int, proxy: Proxy) {
    let keyval = usize::try_from(key).ok().and_then(|handle| KEYVALS.get(handle));
    if let Some(keyval) = keyval {
        let _ = keyval.proxy.set(proxy);
    }
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
    map: Mutex<Keyed<Value>>,
}

impl Attributes {
    fn map(&self) -> std::sync::MutexGuard<'_, Keyed<Value>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of an attribute as C gets it, if it is set.
    pub fn get(&self, kind: Kind, key: c_int) -> Result<Option<*mut c_void>> {
        Ok(self.value(kind, key)?.map(|value| value.pointer()))
    }

    /// The value of an attribute, if it is set.
    pub fn value(&self, kind: Kind, key: c_int) -> Result<Option<Value>> {
        find(kind, key)?;
        Ok(self.map().get(&key).map(|(_, value)| value.clone()))
    }

    /// Sets an attribute to a pointer.
    ///
    /// # Safety
    ///
    /// The callbacks keep to the standard.
    pub unsafe fn set(&self, kind: Kind, key: c_int, value: *mut c_void, object: &Owner) -> Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.set_value(kind, key, Value::Pointer(value.expose_provenance()), object) }
    }

    /// Sets an attribute; the delete callback is called for the value that it had.
    ///
    /// # Safety
    ///
    /// The callbacks keep to the standard.
    pub unsafe fn set_value(&self, kind: Kind, key: c_int, value: Value, object: &Owner) -> Result<()> {
        let keyval = find(kind, key)?;
        let old = self.map().get(&key).cloned();
        if let Some((keyval, old)) = old {
            // SAFETY: as promised by the caller.
            unsafe { keyval.delete(&old, object)? };
        }
        self.map().insert(key, (keyval, value));
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
            unsafe { keyval.delete(&value, object)? };
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
            unsafe { keyval.delete(&value, object)? };
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
            if let Some(value) = unsafe { keyval.copy(&value, object)? } {
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
    unsafe fn delete(&self, value: &Value, object: &Owner) -> Result<()> {
        let callback = &self.delete;
        if callback.is_null() {
            return Ok(());
        }
        let (object, number) = (object.raw(callback), self.number(callback));
        // SAFETY: the program passed a function of this type.
        let code = unsafe {
            if let Some(proxy) = self.proxy.get() {
                let (kind, word) = raw_value(value);
                (proxy.delete)(callback.address, object as c_int, number, kind, word, self.extra_state())
            } else {
                let delete = std::mem::transmute::<*const c_void, Delete>(callback.address);
                delete(object, number, value.pointer(), self.extra_state())
            }
        };
        failed(callback, code, "the attribute's delete function")
    }

    /// The value for the copy, if there is one.
    ///
    /// # Safety
    ///
    /// The callback keeps to the standard.
    unsafe fn copy(&self, value: &Value, object: &Owner) -> Result<Option<Value>> {
        let callback = &self.copy;
        match callback.address.addr() {
            0 => return Ok(None),
            DUP => return Ok(Some(value.alike(value.integer()))),
            _ => {}
        }
        let (mut copied, mut flag) = (std::ptr::null_mut(), 0);
        let (object, number) = (object.raw(callback), self.number(callback));
        let extra = self.extra_state();
        // SAFETY: the program passed a function of this type.
        let code = unsafe {
            let (copied, flag) = (&raw mut copied, &raw mut flag);
            if let Some(proxy) = self.proxy.get() {
                let (kind, word) = raw_value(value);
                let object = object as c_int;
                (proxy.copy)(callback.address, object, number, extra, kind, word, copied, flag)
            } else {
                let copy = std::mem::transmute::<*const c_void, Copy>(callback.address);
                copy(object, number, extra, value.pointer(), copied, flag)
            }
        };
        failed(callback, code, "the attribute's copy function")?;
        let copied = copied.expose_provenance();
        // A function of C returns a pointer, whatever it was given.
        let copied = if self.proxy.get().is_some() { value.alike(copied) } else { Value::Pointer(copied) };
        Ok((flag != 0).then_some(copied))
    }
}

/// The type of a value and the value, as proxies get them.
fn raw_value(value: &Value) -> (c_int, *mut c_void) {
    let kind = c_int::from(matches!(value, Value::Integer(_)));
    (kind, std::ptr::with_exposed_provenance_mut(value.integer()))
}

fn failed(callback: &Callback, code: c_int, what: &str) -> Result<()> {
    let code = (callback.abi.code_back)(code);
    if code == SUCCESS { Ok(()) } else { Err(Error::new(code, format!("{what} returned an error"))) }
}
