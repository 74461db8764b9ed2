//! The goals between two processes that share memory.

use super::{Get, Judge, MEAN, P99, VALUE};
use crate::bench::case::{Plain, Policy, Shared, System};
use crate::bench::plan::{Load, Test, limit_of, shared};
use crate::bench::rows::ratio;
use crate::bench::table::size;

const UNIX: System = System::Plain { kind: Plain::Unix, blocking: true };
const RING: System = System::Shared { limit: Shared::Ring };
const TWO_COPIES: System = System::Shared { limit: Shared::TwoCopyStream };

impl Judge<'_> {
    pub(super) fn shm(&mut self) {
        self.shm_latency();
        self.shm_loans();
        self.shm_rate();
        self.shm_paced();
        self.shm_burner();
        self.idle_of("CPU of an idle pair over shm, per process", shared(Policy::SpinThenPark));
    }

    fn shm_latency(&mut self) {
        for bytes in [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
            let (ours, limit) = (shared(Policy::Spin), limit_of(bytes));
            let goal = if bytes <= 4 << 10 { 1.25 } else { 1.15 };
            let value = self.beside(Test::Latency, ours, limit, bytes, Load::Idle, VALUE);
            self.at_most(format!("latency, {}, shm", size(bytes)), value, goal, limit.name());
        }
        for bytes in [64 << 10, 1 << 20] {
            let ours = shared(Policy::Spin);
            let value = self.beside(Test::Bandwidth, ours, TWO_COPIES, bytes, Load::Idle, VALUE);
            self.at_least(format!("bandwidth, {}, shm", size(bytes)), value, 0.9, TWO_COPIES.name());
        }
    }

    fn shm_loans(&mut self) {
        // The time of a loan must not depend on its size: both are filled before and read after.
        let [large, small] =
            [4 << 20, 8].map(|bytes| self.at(Test::Latency, System::Lent, bytes, Load::Idle));
        let value = large.zip(small).and_then(|(large, small)| ratio(large, small, VALUE));
        self.at_most("latency of a loan, 4 MiB, shm".into(), value, 1.3, "a loan of 8 B");
        let message = self.at(Test::Latency, shared(Policy::Spin), 8, Load::Idle);
        let value = large.zip(message).and_then(|(large, message)| ratio(large, message, VALUE));
        self.at_most("latency of a loan, 4 MiB, shm".into(), value, 1.3, "a message of 8 B");
    }

    fn shm_rate(&mut self) {
        let of = |system| self.find(Test::Rate, system, |cell| cell.window == Some(64) && !cell.batch);
        let pair = of(shared(Policy::Spin)).zip(of(RING));
        let value = pair.and_then(|(ours, ring)| ratio(ours, ring, VALUE));
        self.at_least("rate, 8 B, window 64, shm".into(), value, 0.5, RING.name());
    }

    fn shm_paced(&mut self) {
        for (name, get) in [("p50", VALUE), ("p99", P99)] {
            let ours = shared(Policy::SpinThenPark);
            let value = self.beside(Test::Paced, ours, UNIX, 64, Load::Burner, get);
            let what = format!("paced, burner, default policy, shm, {name}");
            self.at_most(what, value, 0.75, "a blocking Unix socket");
        }
    }

    fn shm_burner(&mut self) {
        let of = |load| self.at(Test::Latency, shared(Policy::SpinThenPark), 64, load);
        let Some((busy, idle)) = of(Load::Burner).zip(of(Load::Idle)) else { return };
        for (name, get, goal) in [("p50", VALUE, 1.2), ("mean", MEAN, 3.0)] {
            let what = format!("latency, 64 B, burner, default policy, shm, {name}");
            self.at_most(what, ratio(busy, idle, get), goal, "the same with idle cores");
        }
    }

    /// The ratio of two systems that were measured under the same circumstances.
    pub(super) fn beside(
        &self,
        test: Test,
        ours: System,
        other: System,
        bytes: usize,
        load: Load,
        get: Get,
    ) -> Option<f64> {
        ratio(self.at(test, ours, bytes, load)?, self.at(test, other, bytes, load)?, get)
    }
}
