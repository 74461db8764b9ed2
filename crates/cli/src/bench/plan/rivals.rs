//! What the installed rivals do beside us, and the kernel's transports between two processes of one host.

use super::{Load, Plan, Test, shared};
use crate::bench::case::{Other, Plain, Policy, System, Touch, Work};

/// The sizes at which every system is measured.
pub const SIZES: [usize; 6] = [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// The sizes of streams.
pub const STREAMED: [usize; 2] = [64 << 10, 1 << 20];

/// Kernel transports for messages on one host, polled.
pub const KERNEL: [System; 3] = [
    System::Plain { kind: Plain::Pipe, blocking: false },
    System::Plain { kind: Plain::SysV, blocking: false },
    System::Plain { kind: Plain::Unix, blocking: false },
];

/// A rival on one host.
pub fn on_host(other: Other) -> System {
    System::Rival { other, tcp: false }
}

impl Plan {
    pub(super) fn rivals(&mut self, rivals: &[Other]) {
        for bytes in SIZES {
            for system in KERNEL {
                self.once(system, bytes, 10_000.0);
            }
        }
        for &other in rivals.iter().filter(|other| other.has_messages()) {
            self.rival(other);
        }
    }

    fn rival(&mut self, other: Other) {
        let each_ns = if other == Other::ZeroMq { 40_000.0 } else { 2_000.0 };
        for bytes in SIZES {
            self.rival_latency(on_host(other), bytes, other.is_warm(), each_ns);
            if other.is_warm() {
                // Like is compared with like.
                self.rival_latency(shared(Policy::Spin), bytes, true, each_ns);
            }
        }
        match other {
            Other::Iceoryx2Loan => self.rival_latency(on_host(other), 4 << 20, false, each_ns),
            Other::OpenMpi => {
                for load in [Load::Idle, Load::Burner] {
                    self.add(Test::Paced, on_host(other), self.paced_work(), load, None);
                }
            }
            _ => {}
        }
        if other.has_streams() {
            self.rival_streams(on_host(other), other.is_warm(), 1.0);
        }
        if other.is_mpi() {
            self.rival_latency(on_host(other), 0, false, each_ns);
            self.rival_latency(on_host(other), 4 << 20, false, each_ns);
        }
        if matches!(other, Other::OpenMpi | Other::TautlineMpi | Other::Ucx) {
            let over_tcp = System::Rival { other, tcp: true };
            for bytes in [8, 64] {
                self.rival_latency(over_tcp, bytes, other.is_warm(), 12_000.0);
            }
            self.rival_streams(over_tcp, other.is_warm(), 8.0);
        }
    }

    fn rival_latency(&mut self, system: System, bytes: usize, warm: bool, each_ns: f64) {
        let count = self.extent.count(each_ns + bytes as f64 / 2.0, 1.0);
        self.add(Test::Latency, system, Work::PingPong { bytes, count, warm }, Load::Idle, None);
    }

    fn rival_streams(&mut self, system: System, warm: bool, slower: f64) {
        let first = self.cells.len();
        let stream =
            |bytes, count, window| Work::Stream { bytes, count, window, batch: false, touch: Touch::Both };
        let count = (self.extent.count(500.0 * slower, 1.0)).next_multiple_of(64);
        self.add(Test::Rate, system, stream(8, count, Some(64)), Load::Idle, None);
        for bytes in STREAMED {
            let count = self.extent.count((1_000.0 + bytes as f64 / 6.0) * slower, 1.0);
            self.add(Test::Bandwidth, system, stream(bytes, count, None), Load::Idle, None);
        }
        for cell in &mut self.cells[first..] {
            cell.warm = warm;
        }
    }

    /// Adds a row unless it is measured anyway.
    pub(super) fn once(&mut self, system: System, bytes: usize, each_ns: f64) {
        let same = |cell: &super::Cell| {
            (cell.test, cell.system, cell.bytes, cell.load, cell.warm)
                == (Test::Latency, system, bytes, Load::Idle, false)
        };
        if !self.cells.iter().any(same) {
            self.rival_latency(system, bytes, false, each_ns);
        }
    }
}
