//! What is measured of memory, after the CLAN paper: words and blocks that are put and fire a tripwire,
//! beside messages over the same device; entries of a queue; a server of many endpoints, asleep and busy; and
//! the cost of matching puts against many tripwires.

use super::{Extent, Limit, Load, POLLED_UDP, Plan, STREAMED, Test, limit_of, shared, taut};
use crate::bench::case::{Device, Mode, Policy, Shared, Style, System, Touch, Work};

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
            let beside = Some(Limit::soft(message));
            for bytes in [8, 64] {
                let work = Work::PingPong { bytes, count: self.extent.count(base, 1.0), warm: false };
                let limit = if device == Device::Shm { limit_of(bytes) } else { POLLED_UDP };
                let limit = Some(Limit::new(limit, bytes == 8));
                self.add(Test::Latency, memory(device, Style::Put), work, Load::Idle, limit);
            }
            self.blocks(device, beside);
            self.endpoints(device, 2.0 * base);
            self.clients(device, base / 2.0);
        }
        let line = Some(Limit::soft(System::Shared { limit: Shared::Line }));
        let work = Work::PingPong { bytes: 8, count: self.extent.count(800.0, 1.0), warm: false };
        self.add(Test::Latency, memory(Device::Shm, Style::Mapped), work, Load::Idle, line);
        self.matching();
        self.tagged();
    }

    /// Messages with tags beside plain ones: the time of a short one, also behind long queues, the rate of
    /// short ones, and bandwidth against size.
    fn tagged(&mut self) {
        for (device, message, base) in [
            (Device::Shm, shared(Policy::Spin), 900.0),
            (Device::Udp, taut(Mode::Fabric, Policy::Spin), 6_000.0),
        ] {
            let beside = Some(Limit::soft(message));
            let work = Work::PingPong { bytes: 8, count: self.extent.count(base, 1.0), warm: false };
            self.add(Test::Latency, memory(device, Style::Tag), work, Load::Idle, beside);
            let empty = Some(Limit::soft(memory(device, Style::Tag)));
            self.add(Test::Latency, memory(device, Style::TagQueues), work, Load::Idle, empty);
            let count = self.extent.count(if device == Device::Shm { 100.0 } else { 2_500.0 }, 1.0);
            let work = Work::Stream { bytes: 8, count, window: Some(64), batch: false, touch: Touch::Both };
            self.add(Test::Rate, memory(device, Style::Tag), work, Load::Idle, beside);
            for bytes in [8, 4 << 10, 64 << 10, 1 << 20] {
                let each_ns = if device == Device::Shm { 250.0 } else { 1_500.0 };
                let count = self.extent.count(each_ns + bytes as f64 / 4.0, 1.5);
                let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
                self.add(Test::Bandwidth, memory(device, Style::Tag), work, Load::Idle, beside);
            }
        }
    }

    /// All of it over AF_XDP, beside our messages there.
    pub(super) fn memory_over_xdp(&mut self, message: System) {
        let beside = Some(Limit::soft(message));
        for style in [Style::Put, Style::Queue, Style::Stream] {
            for bytes in [8, 64] {
                let work = Work::PingPong { bytes, count: self.extent.count(8_000.0, 1.0), warm: false };
                self.add(Test::Latency, memory(Device::Xdp, style), work, Load::Idle, beside);
            }
        }
        self.blocks(Device::Xdp, beside);
        self.endpoints(Device::Xdp, 16_000.0);
        self.clients(Device::Xdp, 4_000.0);
        for window in super::WINDOWS {
            let count = self.extent.count(if window == 1 { 16_000.0 } else { 2_000.0 }, 1.0);
            let udp = Limit::soft(memory(Device::Udp, Style::Rpc));
            let work = Work::Calls { bytes: 64, count, window };
            self.add(Test::Calls, memory(Device::Xdp, Style::Rpc), work, Load::Idle, Some(udp));
        }
    }

    /// Bandwidth against size.
    fn blocks(&mut self, device: Device, beside: Option<Limit>) {
        let sizes: &[usize] = self.extent.pick(
            &[8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            &[8, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20],
        );
        for style in [
            Style::Put,
            Style::PutOne,
            Style::Mapped,
            Style::PutInPlace,
            Style::PutUnread,
            Style::Queue,
            Style::Stream,
        ] {
            for &bytes in sizes {
                if style == Style::Mapped && device != Device::Shm {
                    continue;
                }
                if matches!(style, Style::PutInPlace | Style::PutUnread) && !STREAMED.contains(&bytes) {
                    continue;
                }
                let each_ns = if device == Device::Shm { 200.0 } else { 1_500.0 };
                let count = self.extent.count(each_ns + bytes as f64 / 4.0, 1.5);
                let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
                self.add(Test::Bandwidth, memory(device, style), work, Load::Idle, beside);
            }
        }
    }

    /// The time of a request against the number of endpoints, one of which is chosen at random.
    fn endpoints(&mut self, device: Device, each_ns: f64) {
        // A request and its answer are two puts.
        let limit = Some(Limit::soft(memory(device, Style::Put)).at(Test::Latency, 8, None).times(2.0));
        let many: &[u64] = match self.extent {
            Extent::Full => &[1, 4, 16, 64, 256, 1024, 4096],
            Extent::Quick => &[1, 32, 1024, 4096],
            Extent::Smoke => &[1, 64],
        };
        for &endpoints in many {
            let count = self.extent.count(each_ns, 1.0);
            let work = Work::Requests { endpoints, count, together: false, pause_us: 0 };
            self.add(Test::Endpoints, memory(device, Style::Server), work, Load::Idle, limit);
        }
        for &endpoints in many {
            let count = self.extent.count(PAUSE_US as f64 * 1e3, 1.0).max(20);
            let work = Work::Requests { endpoints, count, together: false, pause_us: PAUSE_US };
            self.add(Test::Endpoints, memory(device, Style::Sleeper), work, Load::Idle, limit);
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
            let limit = Some(Limit::soft(memory(device, Style::Rpc)).at(Test::Calls, 64, Some(64)));
            self.add(Test::Clients, memory(device, Style::Server), work, Load::Idle, limit);
        }
    }

    fn matching(&mut self) {
        let many: &[u64] = match self.extent {
            Extent::Full => &[1, 10, 100, 1_000, 10_000, 100_000],
            Extent::Quick => &[1, 1_000, 100_000],
            Extent::Smoke => &[1, 100],
        };
        // The put itself, without a tripwire; the rows below are net of it.
        let alone = Work::Matching { wires: 0, count: self.extent.count(200.0, 0.2) };
        self.add(Test::Matching, memory(Device::Shm, Style::Disjoint), alone, Load::Idle, None);
        for style in [Style::Disjoint, Style::Overlapping] {
            for &wires in many {
                let work = Work::Matching { wires, count: self.extent.count(200.0, 0.2) };
                let put = Limit::soft(memory(Device::Shm, Style::Disjoint)).at_many(Test::Matching, 8, 0);
                self.add(Test::Matching, memory(Device::Shm, style), work, Load::Idle, Some(put));
            }
        }
    }
}
