//! What is measured between two processes that share memory. None of it exists over a network.

use super::{Limit, Load, Plan, Test, shared};
use crate::bench::case::{Plain, Policy, Shared, System, Touch, Work};

const UNIX: System = System::Plain { kind: Plain::Unix, blocking: true };
const SYSV: System = System::Plain { kind: Plain::SysV, blocking: true };
const RIVAL: Option<Limit> = Some(Limit::soft(UNIX));

fn bare(limit: Shared) -> System {
    System::Shared { limit }
}

/// The limit for one message of `bytes` bytes.
pub fn limit_of(bytes: usize) -> System {
    bare(match bytes {
        0..=8 => Shared::Line,
        9..=4096 => Shared::HandOver,
        _ => Shared::Pipelined,
    })
}

impl Plan {
    pub(super) fn shm(&mut self) {
        for bytes in [0, 8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20] {
            self.shm_latency(bytes);
        }
        self.shm_ping_pong(shared(Policy::SpinThenPark), 64, Load::Burner, RIVAL);
        for bytes in [8, 4 << 10, 1 << 20, 4 << 20] {
            self.shm_loans(bytes);
        }
        self.shm_ping_pong(SYSV, 8, Load::Idle, None);
        self.shm_rate();
        for bytes in [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20] {
            self.shm_bandwidth(bytes);
        }
        self.shm_paced();
        self.add(Test::Idle, shared(Policy::SpinThenPark), self.idle_work(), Load::Idle, None);
    }

    fn shm_latency(&mut self, bytes: usize) {
        let limit = Some(Limit::hard(limit_of(bytes)));
        self.shm_ping_pong(limit_of(bytes), bytes, Load::Idle, None);
        self.shm_ping_pong(shared(Policy::Spin), bytes, Load::Idle, limit);
        if bytes >= 64 << 10 {
            // One copy may beat two.
            self.shm_ping_pong(System::SingleCopy, bytes, Load::Idle, Some(Limit::soft(limit_of(bytes))));
            // What a sender without a buffer of its own could do.
            self.shm_ping_pong(bare(Shared::WriteFlagCopy), bytes, Load::Idle, None);
        }
        if [8, 64].contains(&bytes) {
            self.shm_ping_pong(shared(Policy::SpinThenPark), bytes, Load::Idle, limit);
            // How fast a sleeper is woken depends on the scheduler.
            self.shm_ping_pong(shared(Policy::Park), bytes, Load::Idle, RIVAL);
        }
    }

    /// A loan of any size moves one line; the times of the other systems contain filling and reading, which
    /// those of loans do not.
    fn shm_loans(&mut self, bytes: usize) {
        let count = self.extent.count(4_000.0 + bytes as f64, 1.0);
        let limit = Some(Limit::soft(shared(Policy::Spin)).at(Test::Latency, 8, None));
        self.add(
            Test::Latency,
            System::Lent,
            Work::PingPong { bytes, count, warm: false },
            Load::Idle,
            limit,
        );
    }

    fn shm_ping_pong(&mut self, system: System, bytes: usize, load: Load, limit: Option<Limit>) {
        let sleeps = system.is_blocking() && system != shared(Policy::SpinThenPark);
        let base = if sleeps { 15_000.0 } else { 800.0 };
        let slower = if load == Load::Burner { 20.0 } else { 1.0 };
        let count = self.extent.count((base + bytes as f64 / 2.0) * slower, 1.0);
        self.add(Test::Latency, system, Work::PingPong { bytes, count, warm: false }, load, limit);
    }

    fn shm_rate(&mut self) {
        let limit = Some(Limit::hard(bare(Shared::Ring)));
        let ours = shared(Policy::Spin);
        for (system, window, batch, times, limit) in [
            (SYSV, Some(64), false, 1, None),
            (bare(Shared::Ring), Some(64), false, 64, None),
            (ours, Some(64), false, 8, limit),
            (bare(Shared::Ring), None, false, 128, None),
            (ours, None, false, 8, limit),
            (ours, None, true, 16, limit),
        ] {
            let count = (self.extent.count(2_000.0, 1.0) * times).next_multiple_of(64);
            self.add(
                Test::Rate,
                system,
                Work::Stream { bytes: 8, count, window, batch, touch: Touch::Both },
                Load::Idle,
                limit,
            );
        }
    }

    fn shm_bandwidth(&mut self, bytes: usize) {
        let limit = Some(Limit::hard(bare(Shared::TwoCopyStream)));
        let count = self.extent.count(300.0 + bytes as f64 / 8.0, 1.0);
        let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
        self.add(Test::Bandwidth, bare(Shared::Memcpy), work, Load::Idle, None);
        self.add(Test::Bandwidth, bare(Shared::TwoCopyStream), work, Load::Idle, None);
        self.add(Test::Bandwidth, shared(Policy::Spin), work, Load::Idle, limit);
        if bytes >= 64 << 10 {
            let limit = Some(Limit::soft(bare(Shared::TwoCopyStream)));
            self.add(Test::Bandwidth, System::SingleCopy, work, Load::Idle, limit);
        }
        self.less_work(bytes, bare(Shared::TwoCopyStream), shared(Policy::Spin));
    }

    fn shm_paced(&mut self) {
        let work = self.paced_work();
        for load in [Load::Idle, Load::Burner] {
            self.add(Test::Paced, UNIX, work, load, None);
            for waiting in [Policy::Spin, Policy::SpinThenPark] {
                self.add(Test::Paced, shared(waiting), work, load, RIVAL);
            }
        }
    }
}
