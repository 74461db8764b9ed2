//! What is measured of AF_XDP, between two interfaces: its bare limits, and the systems that they are
//! compared with.
//!
//! Rows of our own device over AF_XDP belong here too, each with the limit beside which it is measured; the
//! goals in `targets/xdp.rs` find them by their device.

use tautline_baseline::xdp::FULL;

use super::{Limit, Load, POLLED_UDP, Plan, Test};
use crate::bench::case::{Device, Mode, Policy, System, Touch, Work};

/// Every mode of bare AF_XDP.
pub const BARE: [System; 4] = [
    System::Xdp { native: false, busy: false },
    System::Xdp { native: false, busy: true },
    System::Xdp { native: true, busy: false },
    System::Xdp { native: true, busy: true },
];

impl Plan {
    pub(super) fn xdp(&mut self) {
        for system in BARE {
            for bytes in [8, 64] {
                let count = self.extent.count(6_000.0, 1.0);
                let work = Work::PingPong { bytes, count, warm: false };
                self.add(Test::Latency, system, work, Load::Idle, None);
            }
            for window in [Some(64), None] {
                self.add(Test::Rate, system, self.frames(8, window), Load::Idle, None);
            }
        }
        for device in [Device::Xdp, Device::XdpRaw] {
            self.our_xdp(System::Taut { device, security: Mode::Fabric, waiting: Policy::Spin });
        }
        let message = System::Taut { device: Device::Xdp, security: Mode::Fabric, waiting: Policy::Spin };
        self.memory_over_xdp(message);
        // A saturated system polls, so that its CPU time is the elapsed time: CPU time per message is what
        // counts.
        for system in [POLLED_UDP].into_iter().chain(BARE) {
            self.add(Test::Cpu, system, self.frames(64, Some(64)), Load::Idle, None);
            self.add(Test::Bandwidth, system, self.frames(FULL, None), Load::Idle, None);
        }
    }

    /// Our messages over AF_XDP.
    fn our_xdp(&mut self, ours: System) {
        // Which mode of the bare device is best differs from driver to driver: none of them is a hard limit.
        let bare = Limit::soft(BARE[0]);
        for bytes in [8, 64] {
            let work = Work::PingPong { bytes, count: self.extent.count(8_000.0, 1.0), warm: false };
            self.add(Test::Latency, ours, work, Load::Idle, Some(bare));
        }
        self.add(Test::Rate, ours, self.frames(8, Some(64)), Load::Idle, Some(bare));
        let count = (self.extent.count(2_000.0, 1.0) * 16).next_multiple_of(64);
        let packed = Work::Stream { bytes: 8, count, window: None, batch: true, touch: Touch::Both };
        let together = Some(Limit::soft(System::Packed { blocking: false }));
        self.add(Test::Rate, ours, packed, Load::Idle, together);
        self.add(Test::Cpu, ours, self.frames(64, Some(64)), Load::Idle, Some(bare));
        let sizes: &[usize] = self.extent.pick(
            &[8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            &[8, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20],
        );
        for &bytes in sizes {
            let count = self.extent.count(2_000.0 + bytes as f64, 1.0);
            let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
            self.add(Test::Bandwidth, ours, work, Load::Idle, Some(bare.at(Test::Bandwidth, FULL, None)));
        }
    }

    /// One message in each frame.
    fn frames(&self, bytes: usize, window: Option<u64>) -> Work {
        let count = self.extent.count(1_500.0, 1.0).next_multiple_of(64);
        Work::Stream { bytes, count, window, batch: false, touch: Touch::Both }
    }
}
