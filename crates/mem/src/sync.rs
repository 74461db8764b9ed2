//! One façade for everything that threads share; under `--cfg loom` it is loom's.

#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};
