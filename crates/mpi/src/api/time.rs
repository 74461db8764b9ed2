//! Timers and addresses.

use std::sync::LazyLock;
use std::time::Instant;

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// `MPI_Wtime`: seconds since some moment in the past.
pub fn wtime() -> f64 {
    BEGIN.elapsed().as_secs_f64()
}

/// `MPI_Wtick`: the clock counts nanoseconds.
pub fn wtick() -> f64 {
    1e-9
}

/// `MPI_Aint_add`.
pub fn aint_add(base: i64, displacement: i64) -> i64 {
    base.wrapping_add(displacement)
}

/// `MPI_Aint_diff`.
pub fn aint_diff(one: i64, other: i64) -> i64 {
    one.wrapping_sub(other)
}
