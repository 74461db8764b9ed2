//! Generalized requests: operations that the program itself performs and completes.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::constants::SUCCESS;
use crate::error::{Error, Result};
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
    pub freed: AtomicBool,
}

/// The result of one of the program's functions.
fn result(callback: &Callback, code: c_int, what: &str) -> Result<()> {
    let code = (callback.abi.code_back)(code);
    if code == SUCCESS {
        Ok(())
    } else {
        Err(Error::new(code, format!("the {what} function of the program failed")))
    }
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
        Some(match result(&self.query, code, "query") {
            Ok(()) => Completion::with(Status { error: SUCCESS, ..status }),
            Err(error) => Completion::failed(error, status),
        })
    }

    /// Tells the program that the operation was cancelled.
    pub fn cancel(&self) -> Result<()> {
        type Cancel = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        let complete = c_int::from(self.complete.load(Ordering::Acquire));
        // SAFETY: the program passed a function of this type.
        let code = unsafe {
            std::mem::transmute::<*const c_void, Cancel>(self.cancel.address)(self.extra(), complete)
        };
        result(&self.cancel, code, "cancel")
    }

    /// Its request was completed and freed: the program frees what it has.
    pub fn free(&self) -> Result<()> {
        type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
        if self.freed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // SAFETY: the program passed a function of this type.
        let code = unsafe { std::mem::transmute::<*const c_void, Free>(self.free.address)(self.extra()) };
        result(&self.free, code, "free")
    }
}

impl Drop for General {
    /// A request that was freed before it was complete.
    fn drop(&mut self) {
        let _ = self.free();
    }
}
