//! One façade for everything that threads share; under `--cfg loom` it is loom's.

#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};

/// Memory that is changed behind a shared reference; loom checks the accesses.
#[derive(Debug)]
pub struct UnsafeCell<T> {
    #[cfg(not(loom))]
    cell: std::cell::UnsafeCell<T>,
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<T>,
}

impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub fn new(value: T) -> UnsafeCell<T> {
        #[cfg(not(loom))]
        return UnsafeCell { cell: std::cell::UnsafeCell::new(value) };
        #[cfg(loom)]
        return UnsafeCell { cell: loom::cell::UnsafeCell::new(value) };
    }

    /// Returns a shared reference to the value.
    ///
    /// # Safety
    /// No exclusive reference to the value exists while this one lives.
    #[inline(always)]
    pub unsafe fn get_ref(&self) -> &T {
        #[cfg(not(loom))]
        // SAFETY: the caller guarantees it.
        return unsafe { &*self.cell.get() };
        #[cfg(loom)]
        // SAFETY: the caller guarantees it; loom checks.
        return self.cell.with(|value| unsafe { &*value });
    }

    /// Returns an exclusive reference to the value.
    ///
    /// # Safety
    /// No other reference to the value exists while this one lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get_mut(&self) -> &mut T {
        #[cfg(not(loom))]
        // SAFETY: the caller guarantees it.
        return unsafe { &mut *self.cell.get() };
        #[cfg(loom)]
        // SAFETY: the caller guarantees it; loom checks.
        return self.cell.with_mut(|value| unsafe { &mut *value });
    }
}

/// Waits after `tries` failed attempts: spins at first, then yields the core, then sleeps for a short time.
pub fn backoff(tries: u32) {
    #[cfg(loom)]
    {
        let _ = tries;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match tries {
        0..64 => std::hint::spin_loop(),
        64..128 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(20)),
    }
}
