//! What is measured of memory, after the CLAN paper: words and blocks that are put and fire a tripwire,
//! beside messages over the same device; entries of a queue; a server of many endpoints, asleep and busy; and
//! the cost of matching puts against many tripwires.

use super::{Extent, Limit, Load, Plan, Test, shared, taut};
use crate::bench::case::{Device, Mode, Policy, Shared, Style, System, Work};

/// The numbers of endpoints between which the response time should stay the same.
pub const ENDPOINTS: [u64; 2] = [1, 1024];
/// The numbers of tripwires between which the cost of matching should stay the same.
pub const WIRES: [u64; 2] = [1, 100_000];
/// Long enough for a server to fall asleep.
const PAUSE_US: u64 = 300;

/// Memory or calls over a device.
pub fn memory(device: Device, style: Style) -> System {
    System::Memory { device, style }
}

impl Plan {
    pub(super) fn memory(&mut self) {
        for (device, message, base) in [
            (Device::Shm, shared(Policy::Spin), 800.0),
            (Device::Udp, taut(Mode::Fabric, Policy::Spin), 6_000.0),
        ] {
            let beside = Some(Limit { system: message, hard: false });
            for bytes in [8, 64] {
                let work = Work::PingPong { bytes, count: self.extent.count(base, 1.0), warm: false };
                self.add(Test::Latency, memory(device, Style::Put), work, Load::Idle, beside);
            }
            self.blocks(device, beside);
            self.endpoints(device, 2.0 * base);
            self.clients(device, base / 2.0);
        }
        let line = Some(Limit { system: System::Shared { limit: Shared::Line }, hard: false });
        let work = Work::PingPong { bytes: 8, count: self.extent.count(800.0, 1.0), warm: false };
        self.add(Test::Latency, memory(Device::Shm, Style::Mapped), work, Load::Idle, line);
        self.matching();
    }

    /// Bandwidth against size.
    fn blocks(&mut self, device: Device, beside: Option<Limit>) {
        let sizes: &[usize] = self.extent.pick(
            &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            &[64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20],
        );
        for style in [Style::Put, Style::Queue] {
            for &bytes in sizes {
                let each_ns = if device == Device::Shm { 200.0 } else { 1_500.0 };
                let count = self.extent.count(each_ns + bytes as f64 / 4.0, 1.5);
                let work = Work::Stream { bytes, count, window: None, batch: false };
                // Messages of every size are not measured over every device.
                let limit = beside.filter(|_| [4 << 10, 64 << 10, 1 << 20].contains(&bytes));
                self.add(Test::Bandwidth, memory(device, style), work, Load::Idle, limit);
            }
        }
    }

    /// The time of a request against the number of endpoints, one of which is chosen at random.
    fn endpoints(&mut self, device: Device, each_ns: f64) {
        let many: &[u64] = match self.extent {
            Extent::Full => &[1, 4, 16, 64, 256, 1024, 4096],
            Extent::Quick => &[1, 32, 1024, 4096],
            Extent::Smoke => &[1, 64],
        };
        for &endpoints in many {
            let count = self.extent.count(each_ns, 1.0);
            let work = Work::Requests { endpoints, count, together: false, pause_us: 0 };
            self.add(Test::Endpoints, memory(device, Style::Server), work, Load::Idle, None);
        }
        for &endpoints in many {
            let count = self.extent.count(PAUSE_US as f64 * 1e3, 1.0).max(20);
            let work = Work::Requests { endpoints, count, together: false, pause_us: PAUSE_US };
            self.add(Test::Endpoints, memory(device, Style::Sleeper), work, Load::Idle, None);
        }
    }

    /// Requests per second of clients with one request each.
    fn clients(&mut self, device: Device, each_ns: f64) {
        let many: &[u64] = match self.extent {
            Extent::Full => &[1, 2, 4, 8, 16, 64, 256, 1024],
            Extent::Quick => &[1, 4, 16, 64, 1024],
            Extent::Smoke => &[1, 8],
        };
        for &endpoints in many {
            let count = self.extent.count(if endpoints == 1 { 4.0 * each_ns } else { each_ns }, 1.0);
            let work = Work::Requests { endpoints, count: count.max(endpoints), together: true, pause_us: 0 };
            self.add(Test::Clients, memory(device, Style::Server), work, Load::Idle, None);
        }
    }

    fn matching(&mut self) {
        let many: &[u64] = match self.extent {
            Extent::Full => &[1, 10, 100, 1_000, 10_000, 100_000],
            Extent::Quick => &[1, 1_000, 100_000],
            Extent::Smoke => &[1, 100],
        };
        for style in [Style::Disjoint, Style::Overlapping] {
            for &wires in many {
                let work = Work::Matching { wires, count: self.extent.count(200.0, 0.2) };
                self.add(Test::Matching, memory(Device::Shm, style), work, Load::Idle, None);
            }
        }
    }
}
