//! PMIx, the interface of Open MPI's `mpirun` and of `srun --mpi=pmix` (J-18).
//!
//! Its protocol differs from version to version, so that programs speak it through the library that comes
//! with the launcher. It is loaded when a launcher with PMIx is met: programs that run elsewhere do not need
//! it. The declarations below are those of PMIx 2 to 5 (`pmix.h`, `pmix_common.h`), which share a library
//! name.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::transmute;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use tautline_node::Rank;

use crate::key_value::{Admitted, KeyValueSpace};

/// The library's file, as the dynamic linker finds it.
const LIBRARY: &CStr = c"libpmix.so.2";
/// What to do where there is none.
const ADVICE: &str = "install the package that has libpmix.so.2: libpmix2 (Debian 12), libpmix2t64 (Debian 13, Ubuntu 24.04), pmix \
     (Fedora, RHEL); or add its folder to LD_LIBRARY_PATH";

/// `PMIX_SUCCESS`, and the number of all processes of a job, `PMIX_RANK_WILDCARD`.
const SUCCESS: c_int = 0;
const ALL_RANKS: u32 = u32::MAX - 1;
/// `PMIX_GLOBAL`: for all processes, on this host and others.
const GLOBAL: u8 = 3;
/// Types of values: `PMIX_BOOL`, `PMIX_STRING`, `PMIX_UINT32`.
const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT32: u16 = 14;
/// Attributes: `PMIX_JOB_SIZE`, `PMIX_APPNUM`, `PMIX_UNIV_SIZE`, and `PMIX_COLLECT_DATA`, with which a fence
/// hands all data to all hosts.
const JOB_SIZE: &CStr = c"pmix.job.size";
const PROGRAM: &CStr = c"pmix.appnum";
const UNIVERSE: &CStr = c"pmix.univ.size";
const COLLECT_DATA: &CStr = c"pmix.collect";

/// `pmix_proc_t`: a process of a launcher's job.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    namespace: [u8; 256],
    rank: u32,
}

/// `pmix_value_t`. Newer versions may have larger ones: values that the library returns are only read.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    flag: bool,
    uint32: u32,
    string: *mut c_char,
    /// As large as the largest member of version 3 to 5, `pmix_envar_t`.
    largest: [*mut c_void; 3],
}

/// `pmix_info_t`: an attribute of a call.
#[repr(C)]
struct Info {
    key: [u8; 512],
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Proc>() == 260);
const _: () = assert!(size_of::<Value>() == 8 + 3 * size_of::<usize>());
const _: () = assert!(std::mem::offset_of!(Info, value) == 516usize.next_multiple_of(align_of::<Value>()));

type Init = unsafe extern "C" fn(*mut Proc, *const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Abort = unsafe extern "C" fn(c_int, *const c_char, *mut Proc, usize) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of the library, which stays loaded.
struct Library {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    abort: Abort,
    error_text: ErrorText,
}

impl Library {
    fn load(name: &CStr) -> io::Result<Library> {
        let missing = |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("{what}; {ADVICE}"));
        // SAFETY: the name ends with zero. The library's constructors are as safe as linking with it would
        // be.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(|| missing(&load_error()))?;
        let find = |symbol: &CStr| {
            // SAFETY: the handle is open, and never closed; the name ends with zero.
            let found = NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), symbol.as_ptr()) });
            let lacks = || missing(&format!("{} lacks {}", name.to_string_lossy(), symbol.to_string_lossy()));
            found.map(NonNull::as_ptr).ok_or_else(lacks)
        };
        // SAFETY: each symbol is the function of that name in pmix.h, with exactly this signature.
        unsafe {
            Ok(Library {
                init: transmute::<*mut c_void, Init>(find(c"PMIx_Init")?),
                put: transmute::<*mut c_void, Put>(find(c"PMIx_Put")?),
                commit: transmute::<*mut c_void, Commit>(find(c"PMIx_Commit")?),
                fence: transmute::<*mut c_void, Fence>(find(c"PMIx_Fence")?),
                get: transmute::<*mut c_void, Get>(find(c"PMIx_Get")?),
                finalize: transmute::<*mut c_void, Finalize>(find(c"PMIx_Finalize")?),
                abort: transmute::<*mut c_void, Abort>(find(c"PMIx_Abort")?),
                error_text: transmute::<*mut c_void, ErrorText>(find(c"PMIx_Error_string")?),
            })
        }
    }

    fn check(&self, call: &str, status: c_int) -> io::Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a text that ends with zero and is never freed.
        let text = unsafe { CStr::from_ptr((self.error_text)(status)) };
        Err(io::Error::other(format!("{call} failed: {} ({status})", text.to_string_lossy())))
    }

    /// Asks for a value of `of`, and has `read` copy it.
    fn get<T>(&self, of: &Proc, key: &CStr, read: impl FnOnce(&Value) -> Option<T>) -> io::Result<T> {
        let call = format!("PMIx_Get of {}", key.to_string_lossy());
        let mut value: *mut Value = null_mut();
        // SAFETY: `of` and `key` are valid for the call, there are no attributes, and `value` can be written.
        let status = unsafe { (self.get)(of, key.as_ptr(), null(), 0, &mut value) };
        self.check(&call, status)?;
        let unexpected = || io::Error::new(io::ErrorKind::InvalidData, format!("{call} has no such value"));
        let value = NonNull::new(value).ok_or_else(unexpected)?;
        // SAFETY: a successful call stored a value, which belongs to the caller and has at least these
        // fields.
        let found = read(unsafe { value.as_ref() });
        // SAFETY: value and text were allocated with malloc for the caller, who frees each of them once: this
        // is what the macro PMIX_VALUE_RELEASE does. Other types of values are not asked for, and would leak.
        unsafe {
            let value = value.as_ptr();
            if (*value).kind == STRING {
                libc::free((*value).data.string.cast());
            }
            libc::free(value.cast());
        }
        found.ok_or_else(unexpected)
    }
}

/// Why the last library could not be loaded.
fn load_error() -> String {
    // SAFETY: it takes no arguments.
    let text = NonNull::new(unsafe { libc::dlerror() });
    let Some(text) = text else { return String::new() };
    // SAFETY: the text ends with zero, and is valid until this thread's next call of this family.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

/// A connection with the launcher.
struct Pmix {
    library: Library,
    own: Proc,
}

fn uint32(value: &Value) -> Option<u32> {
    if value.kind != UINT32 {
        return None;
    }
    // SAFETY: the type says which member of the union was written.
    Some(unsafe { value.data.uint32 })
}

/// The library connects a process once.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Introduces this process to its launcher.
pub(crate) fn init() -> io::Result<Admitted> {
    let library = Library::load(LIBRARY)?;
    if INITIALIZED.swap(true, Ordering::Relaxed) {
        return Err(io::Error::other("this process has joined already; a process joins once"));
    }
    let mut own = Proc { namespace: [0; 256], rank: 0 };
    // SAFETY: `own` can be written, and there are no attributes.
    let status = unsafe { (library.init)(&mut own, null(), 0) };
    library.check("PMIx_Init", status)?;
    let pmix = Pmix { library, own };
    let everyone = Proc { rank: ALL_RANKS, ..own };
    let size = pmix.library.get(&everyone, JOB_SIZE, uint32)?;
    Ok(Admitted { rank: own.rank, size, space: Box::new(pmix) })
}

impl KeyValueSpace for Pmix {
    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        let (key, text) = (CString::new(key)?, CString::new(value)?);
        let mut value = Value { kind: STRING, data: Data { largest: [null_mut(); 3] } };
        value.data.string = text.as_ptr().cast_mut();
        // SAFETY: key and value are valid for the call, which copies them and does not write to the text.
        let status = unsafe { (self.library.put)(GLOBAL, key.as_ptr(), &mut value) };
        self.library.check("PMIx_Put", status)
    }

    fn fence(&mut self) -> io::Result<()> {
        // SAFETY: the connection is initialized; there are no arguments.
        let status = unsafe { (self.library.commit)() };
        self.library.check("PMIx_Commit", status)?;
        let everyone = Proc { rank: ALL_RANKS, ..self.own };
        let mut collect = Info {
            key: [0; 512],
            flags: 0,
            value: Value { kind: BOOL, data: Data { largest: [null_mut(); 3] } },
        };
        collect.key[..COLLECT_DATA.count_bytes()].copy_from_slice(COLLECT_DATA.to_bytes());
        collect.value.data.flag = true;
        // SAFETY: one process and one attribute, both valid for the call.
        let status = unsafe { (self.library.fence)(&everyone, 1, &collect, 1) };
        self.library.check("PMIx_Fence", status)
    }

    fn get(&mut self, from: Rank, key: &str) -> io::Result<String> {
        let key = CString::new(key)?;
        self.library.get(&Proc { rank: from, ..self.own }, &key, |value| {
            if value.kind != STRING {
                return None;
            }
            // SAFETY: the type says which member of the union was written.
            let text = NonNull::new(unsafe { value.data.string })?;
            // SAFETY: a text of the library's own, which ends with zero.
            Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
        })
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        // SAFETY: the connection is initialized, and used no more: `self` is consumed.
        let status = unsafe { (self.library.finalize)(null(), 0) };
        self.library.check("PMIx_Finalize", status)
    }

    fn abort(&mut self, code: i32) -> io::Result<()> {
        // SAFETY: the connection is initialized; the text is valid for the call; no processes means all.
        let status =
            unsafe { (self.library.abort)(code, c"the program has aborted".as_ptr(), null_mut(), 0) };
        self.library.check("PMIx_Abort", status)
    }

    fn program_index(&mut self) -> Option<u32> {
        self.library.get(&self.own, PROGRAM, uint32).ok()
    }

    fn universe_size(&mut self) -> Option<u32> {
        self.library.get(&Proc { rank: ALL_RANKS, ..self.own }, UNIVERSE, uint32).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-18: a library that is absent, or is another one, is named with what to install.
    #[test]
    fn an_absent_library_is_named() {
        for (name, said) in
            [(c"libno-such-pmix.so.2", "libno-such-pmix.so.2"), (c"libc.so.6", "lacks PMIx_Init")]
        {
            let error = Library::load(name).err().unwrap().to_string();
            assert!(error.contains(said) && error.contains("install the package"), "{error}");
        }
    }
}
