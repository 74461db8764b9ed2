//! Waiting: spin, park, or first the one and then the other (N-7).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tautline_link::Nanos;

use crate::Waiting;

/// A poll loop that was interrupted for this long lost its core to another thread.
const INTERRUPTED: Nanos = 200_000;
/// How long a spinning waiter parks after that, at first.
const YIELD_MIN: Nanos = 50_000_000;
/// The longest such time, when it keeps happening.
const YIELD_MAX: Nanos = 1_000_000_000;

/// What to do in the next turn of a waiting loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Spin,
    Park,
}

/// Remembers, across waits, that the cores are shared.
#[derive(Debug, Default)]
pub(crate) struct SpinBackoff {
    park_until: AtomicU64,
    last_yield: AtomicU64,
}

/// One wait.
pub(crate) struct Spinner<'a> {
    policy: Waiting,
    spin: Nanos,
    start: Nanos,
    last: Nanos,
    backoff: &'a SpinBackoff,
}

impl<'a> Spinner<'a> {
    pub(crate) fn new(policy: Waiting, spin: Duration, now: Nanos, backoff: &'a SpinBackoff) -> Spinner<'a> {
        Spinner { policy, spin: spin.as_nanos() as Nanos, start: now, last: now, backoff }
    }

    /// Decides the next turn; `now` is the time after a poll that found nothing.
    pub(crate) fn turn(&mut self, now: Nanos) -> Turn {
        let away = now.saturating_sub(self.last);
        self.last = now;
        match self.policy {
            Waiting::Park => Turn::Park,
            Waiting::SpinThenPark if away > INTERRUPTED || now.saturating_sub(self.start) >= self.spin => {
                Turn::Park
            }
            Waiting::SpinThenPark => Turn::Spin,
            Waiting::Spin => {
                if away > INTERRUPTED {
                    self.back_off(now);
                }
                let until = self.backoff.park_until.load(Ordering::Relaxed);
                if now < until { Turn::Park } else { Turn::Spin }
            }
        }
    }

    /// The time asleep does not count as an interruption.
    pub(crate) fn slept(&mut self, now: Nanos) {
        self.last = now;
        if self.policy == Waiting::SpinThenPark {
            self.start = now;
        }
    }

    #[cold]
    fn back_off(&self, now: Nanos) {
        let before = self.backoff.last_yield.load(Ordering::Relaxed);
        let until = self.backoff.park_until.load(Ordering::Relaxed);
        // Soon after the last time: the core is still wanted by others.
        let again = before > 0 && now < until + YIELD_MAX;
        let length = if again { (before * 2).min(YIELD_MAX) } else { YIELD_MIN };
        self.backoff.last_yield.store(length, Ordering::Relaxed);
        self.backoff.park_until.store(now + length, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(20);

    /// N-7: each policy does what its name says.
    #[test]
    fn policies() {
        let backoff = SpinBackoff::default();
        assert_eq!(Spinner::new(Waiting::Park, SPIN, 0, &backoff).turn(1), Turn::Park);
        let mut both = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
        assert_eq!(both.turn(10_000), Turn::Spin);
        assert_eq!(both.turn(20_000), Turn::Park);
        both.slept(1_000_000);
        assert_eq!(both.turn(1_000_500), Turn::Spin);
        let mut spin = Spinner::new(Waiting::Spin, SPIN, 0, &backoff);
        for i in 1..1000 {
            assert_eq!(spin.turn(i * 10_000), Turn::Spin);
        }
    }

    /// N-7: a spinning waiter that loses its core parks for a while, longer each time, and then spins again.
    #[test]
    fn a_spinning_waiter_backs_off() {
        let backoff = SpinBackoff::default();
        let mut spin = Spinner::new(Waiting::Spin, SPIN, 0, &backoff);
        assert_eq!(spin.turn(INTERRUPTED + 1), Turn::Park);
        let mut now = INTERRUPTED + 1 + YIELD_MIN;
        spin.slept(now);
        assert_eq!(spin.turn(now), Turn::Spin);
        now += INTERRUPTED + 1;
        assert_eq!(spin.turn(now), Turn::Park);
        now += YIELD_MIN;
        spin.slept(now);
        assert_eq!(spin.turn(now), Turn::Park, "the second time takes longer");
    }
}
