//! Generalized requests: operations that the program itself performs and completes.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::constants::SUCCESS;
use crate::error::{Error, Result};
use crate::foreign::{Callback, Status};
use crate::operation::Completion;

/// An operation of the program.
pub struct General {
    /// Whether the functions get their arguments by reference and the place of the error code last, as in
    /// Fortran.
    pub by_reference: AtomicBool,
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

/// The second argument of a function.
#[derive(Clone, Copy)]
enum Argument {
    None,
    Number(c_int),
    Place(*mut c_void),
}

impl General {
    /// Calls one of the functions in the manner of its language, and returns its code.
    ///
    /// # Safety
    ///
    /// The program passed a function whose second argument has this type.
    unsafe fn call(&self, callback: &Callback, argument: Argument) -> c_int {
        type One = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Number = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        type Two = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
        type OneRef = unsafe extern "C" fn(*mut c_void, *mut c_int);
        type TwoRef = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int);
        use std::mem::transmute;
        let (function, mut code) = (callback.address, 0);
        let state = std::ptr::with_exposed_provenance_mut(self.extra_state);
        // SAFETY: as promised by the caller.
        unsafe {
            if !self.by_reference.load(Ordering::Relaxed) {
                return match argument {
                    Argument::None => transmute::<*const c_void, One>(function)(state),
                    Argument::Number(number) => transmute::<*const c_void, Number>(function)(state, number),
                    Argument::Place(at) => transmute::<*const c_void, Two>(function)(state, at),
                };
            }
            match argument {
                Argument::None => transmute::<*const c_void, OneRef>(function)(state, &raw mut code),
                Argument::Number(mut number) => {
                    let at = (&raw mut number).cast();
                    transmute::<*const c_void, TwoRef>(function)(state, at, &raw mut code);
                }
                Argument::Place(at) => {
                    transmute::<*const c_void, TwoRef>(function)(state, at, &raw mut code);
                }
            }
        }
        code
    }

    /// How it ended, if the program has completed it. The program is asked for the status.
    pub fn poll(&self) -> Option<Completion> {
        if !self.complete.load(Ordering::Acquire) {
            return None;
        }
        let (size, codec) = self.query.abi.status;
        // Statuses are arrays of `int` in both ABIs.
        let mut place = vec![0_u64; size.div_ceil(8)];
        let at = place.as_mut_ptr().cast::<c_void>();
        // SAFETY: the program passed a function of this type; the place has the size of its status.
        let (code, status) = unsafe {
            (codec.set)(at, 0, Status::EMPTY);
            (self.call(&self.query, Argument::Place(at)), (codec.get)(at, 0))
        };
        Some(match result(&self.query, code, "query") {
            Ok(()) => Completion::with(Status { error: SUCCESS, ..status }),
            Err(error) => Completion::failed(error, status),
        })
    }

    /// Tells the program that the operation was cancelled.
    pub fn cancel(&self) -> Result<()> {
        let complete = c_int::from(self.complete.load(Ordering::Acquire));
        // SAFETY: the program passed a function of this type.
        let code = unsafe { self.call(&self.cancel, Argument::Number(complete)) };
        result(&self.cancel, code, "cancel")
    }

    /// Its request was completed and freed: the program frees what it has.
    pub fn free(&self) -> Result<()> {
        if self.freed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // SAFETY: the program passed a function of this type.
        let code = unsafe { self.call(&self.free, Argument::None) };
        result(&self.free, code, "free")
    }
}

impl Drop for General {
    /// A request that was freed before it was complete.
    fn drop(&mut self) {
        let _ = self.free();
    }
}
