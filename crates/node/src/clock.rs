//! The clock: the system's monotonic clock, or a simulated one that only a simulation advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tautline_device::monotonic_now;
use tautline_link::Nanos;

/// Where a node gets its time from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// The system's monotonic clock.
    System,
    /// A clock that a simulation advances.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Clock {
        Clock::System
    }

    /// Nanoseconds since some fixed moment; never zero, so that zero can mean never.
    #[inline]
    pub fn now(&self) -> Nanos {
        match self {
            Clock::System => monotonic_now() + 1,
            Clock::Virtual(time) => time.load(Ordering::Relaxed) + 1,
        }
    }

    /// Whether sleeping makes sense.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Clock::Virtual(_))
    }
}
