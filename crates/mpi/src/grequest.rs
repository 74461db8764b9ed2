//! Generalized requests: operations that the program itself performs and completes.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::constants::SUCCESS;
use crate::error::Error;
use crate::foreign::{Callback, Status};
use crate::operation::Completion;

/// An operation of the program.
pub struct General {
    pub query: Callback,
    pub free: Callback,
    pub cancel: Callback,
    /// The program's pointer, as a number.
    pub extra_state: usize,
    pub complete: AtomicBool,
}

impl General {
    fn extra(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.extra_state)
    }

    /// How it ended, if the program has completed it. The program is asked for the status.
    pub fn poll(&self) -> Option<Completion> {
        if !self.complete.load(Ordering::Acquire) {
            return None;
        }
        type Query = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
        let (size, codec) = self.query.abi.status;
        // Statuses are arrays of `int` in both ABIs.
        let mut place = vec![0_u64; size.div_ceil(8)];
        let at = place.as_mut_ptr().cast::<c_void>();
        // SAFETY: the program passed a function of this type; the place has the size of its status.
        let (code, status) = unsafe {
            (codec.set)(at, 0, Status::EMPTY);
            let query = std::mem::transmute::<*const c_void, Query>(self.query.address);
            (query(self.extra(), at), (codec.get)(at, 0))
        };
        let code = (self.query.abi.code_back)(code);
        Some(if code == SUCCESS {
            Completion::with(Status { error: SUCCESS, ..status })
        } else {
            Completion::failed(Error::new(code, "the query function of the program failed"), status)
        })
    }

    /// Tells the program that the operation was cancelled.
    pub fn cancel(&self) {
        type Cancel = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        let complete = c_int::from(self.complete.load(Ordering::Acquire));
        // SAFETY: the program passed a function of this type.
        unsafe { std::mem::transmute::<*const c_void, Cancel>(self.cancel.address)(self.extra(), complete) };
    }
}

impl Drop for General {
    /// Its request was completed and freed: the program frees what it has.
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the program passed a function of this type.
        unsafe { std::mem::transmute::<*const c_void, Free>(self.free.address)(self.extra()) };
    }
}
