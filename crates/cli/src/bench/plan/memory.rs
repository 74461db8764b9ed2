//! What is measured of memory: puts that tripwires notice, stores through a mapping, and calls, beside messages over the same device.

use super::{Limit, Load, Plan, Test, shared, taut};
use crate::bench::case::{Device, Mode, Policy, Shared, Style, System, Work};

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
            for bytes in [4 << 10, 64 << 10, 1 << 20] {
                let count = self.stream_count(bytes);
                let work = Work::Stream { bytes, count, window: None, batch: false };
                self.add(Test::Bandwidth, memory(device, Style::Put), work, Load::Idle, beside);
            }
            for window in [1, 64] {
                let each = if window == 1 { 2.0 * base } else { base / 2.0 };
                let count = self.extent.count(each, 1.0);
                let work = Work::Stream { bytes: 64, count, window: Some(window), batch: false };
                self.add(Test::Rate, memory(device, Style::Rpc), work, Load::Idle, None);
            }
        }
        let line = Some(Limit { system: System::Shared { limit: Shared::Line }, hard: false });
        let work = Work::PingPong { bytes: 8, count: self.extent.count(800.0, 1.0), warm: false };
        self.add(Test::Latency, memory(Device::Shm, Style::Mapped), work, Load::Idle, line);
    }
}
