//! Values in the memory of the program, in the representation of the program's ABI, and calls of the
//! program's functions. A façade says how; the core has one representation, that of the standard ABI.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::panic::resume_unwind;

use crate::constants::ERR_ARG;
use crate::error::Error;
use crate::handle::{Comm, Datatype, File, Session, Win};

/// How values of one kind are read and written at an index of an array.
pub struct Codec<T> {
    /// Reads the value at an index.
    pub get: unsafe fn(*const c_void, usize) -> T,
    /// Writes the value at an index.
    pub set: unsafe fn(*mut c_void, usize, T),
}

/// A pointer that the program passed to one or more values of type `T`.
pub struct Foreign<T: 'static> {
    at: *mut c_void,
    codec: &'static Codec<T>,
}

impl<T> Clone for Foreign<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Foreign<T> {}

impl<T> fmt::Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({:p})", self.at)
    }
}

impl<T> Foreign<T> {
    /// Whether it may be read and written is for the caller of [`get`](Self::get) and [`set`](Self::set).
    #[inline]
    pub const fn new(at: *mut c_void, codec: &'static Codec<T>) -> Foreign<T> {
        Foreign { at, codec }
    }

    /// As [`new`](Self::new), for the parameter `name`, where a null pointer is an error: [`crate::call`] returns
    /// it to the program.
    #[inline]
    pub fn given(at: *mut c_void, codec: &'static Codec<T>, name: &'static str) -> Foreign<T> {
        if at.is_null() {
            fail_without_memory(name);
        }
        Foreign { at, codec }
    }

    /// Whether the program passed no memory, or said that it ignores the value.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.at.is_null()
    }

    /// Whether the program passed one of the addresses that stand for something else.
    pub fn is_at(&self, address: usize) -> bool {
        self.at.addr() == address
    }

    /// The value at `index`. Without memory the call fails, as in [`given`](Self::given).
    ///
    /// # Safety
    ///
    /// The program has passed an array with that many values, or a null pointer.
    #[inline]
    pub unsafe fn get(&self, index: usize) -> T {
        if self.at.is_null() {
            fail_without_memory("an array that is read");
        }
        // SAFETY: as promised by the caller; the codec fits the type of the parameter.
        unsafe { (self.codec.get)(self.at, index) }
    }

    /// Sets the value at `index`; does nothing without memory.
    ///
    /// # Safety
    ///
    /// The program has passed an array with room for that many values, or a null pointer.
    #[inline]
    pub unsafe fn set(&self, index: usize, value: T) {
        if !self.at.is_null() {
            // SAFETY: as promised by the caller; the codec fits the type of the parameter.
            unsafe { (self.codec.set)(self.at, index, value) }
        }
    }

    /// The first `count` values.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get).
    pub unsafe fn to_vec(self, count: usize) -> Vec<T> {
        // SAFETY: as promised by the caller.
        (0..count).map(|index| unsafe { self.get(index) }).collect()
    }

    /// Sets the values from the first on.
    ///
    /// # Safety
    ///
    /// As for [`set`](Self::set).
    pub unsafe fn set_all(&self, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: as promised by the caller.
            unsafe { self.set(index, value) };
        }
    }
}

/// Ends the call with an error. Nothing was done yet: functions read their arguments first.
#[cold]
#[inline(never)]
fn fail_without_memory(name: &str) -> ! {
    resume_unwind(Box::new(Error::new(ERR_ARG, format!("{name} is a null pointer"))))
}

/// An integer in the contents of a datatype. Some are constants, whose values differ between the ABIs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A number of the program.
    Int(c_int),
    /// The order of an array.
    Order(c_int),
    /// The distribution of an array's dimension.
    Distrib(c_int),
    /// The argument of a distribution.
    Darg(c_int),
}

/// What a completed operation tells: the core's form of `MPI_Status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The rank of the sender, in the communicator.
    pub source: c_int,
    /// The tag of the message.
    pub tag: c_int,
    /// The error code, which only functions for several requests set.
    pub error: c_int,
    /// The number of bytes received.
    pub bytes: u64,
    /// Whether the operation was cancelled.
    pub cancelled: bool,
}

impl Status {
    /// The status of an operation that nobody took part in: a send, or a null request.
    pub const EMPTY: Status = Status {
        source: crate::constants::ANY_SOURCE,
        tag: crate::constants::ANY_TAG,
        error: crate::constants::SUCCESS,
        bytes: 0,
        cancelled: false,
    };
}

/// How a façade represents what the program's callbacks get and return.
pub struct Abi {
    /// A communicator.
    pub comm: fn(Comm) -> usize,
    /// A datatype.
    pub datatype: fn(Datatype) -> usize,
    /// A window.
    pub win: fn(Win) -> usize,
    /// A file.
    pub file: fn(File) -> usize,
    /// A session.
    pub session: fn(Session) -> usize,
    /// An attribute key.
    pub keyval: fn(c_int) -> c_int,
    /// An error code for the program.
    pub code: fn(c_int) -> c_int,
    /// An error code from the program.
    pub code_back: fn(c_int) -> c_int,
    /// The size of a status, and its codec.
    pub status: (usize, &'static Codec<Status>),
}

/// A function of the program.
#[derive(Clone, Copy)]
pub struct Callback {
    /// Its address, or one of the small numbers that stand for predefined functions.
    pub address: *const c_void,
    /// Whether it takes a large count.
    pub wide: bool,
    /// How its arguments are represented.
    pub abi: &'static Abi,
}

// SAFETY: it is an address of code; MPI allows callbacks from every thread that calls MPI.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    /// Whether the program passed a null pointer.
    pub fn is_null(&self) -> bool {
        self.address.is_null()
    }
}
