//! Timers and addresses.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

/// `MPI_Wtime`: seconds of the monotonic clock, which is the same for all ranks of a host.
pub fn wtime() -> f64 {
    seconds(clock_gettime(ClockId::Monotonic))
}

/// `MPI_Wtick`: what the clock counts.
pub fn wtick() -> f64 {
    seconds(clock_getres(ClockId::Monotonic))
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// `MPI_Aint_add`.
pub fn aint_add(base: i64, displacement: i64) -> i64 {
    base.wrapping_add(displacement)
}

/// `MPI_Aint_diff`.
pub fn aint_diff(one: i64, other: i64) -> i64 {
    one.wrapping_sub(other)
}
