//! Clocks, through the C library: it finds the kernel's vDSO also under emulators and debuggers, where
//! searching for it in the process's memory does not work.

/// Returns nanoseconds on the monotonic clock.
#[inline]
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns nanoseconds on the monotonic clock, accurate to some milliseconds, at a cost of a few nanoseconds.
#[inline]
pub(crate) fn coarse_now() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, which the call only writes.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    debug_assert_eq!(done, 0, "both clocks exist on every Linux");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
