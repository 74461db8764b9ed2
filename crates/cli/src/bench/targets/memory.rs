//! The goals for memory.

use super::{Judge, VALUE};
use crate::bench::case::{Device, Mode, Policy, Shared, Style, System};
use crate::bench::plan::{Load, Test, memory, shared, taut};
use crate::bench::table::size;

impl Judge<'_> {
    pub(super) fn memory(&mut self) {
        for (device, message, name) in [
            (Device::Shm, shared(Policy::Spin), "shm"),
            (Device::Udp, taut(Mode::Fabric, Policy::Spin), "udp"),
        ] {
            let put = memory(device, Style::Put);
            let value = self.beside(Test::Latency, put, message, 8, Load::Idle, VALUE);
            self.at_most(format!("put and tripwire, 8 B, {name}"), value, 1.15, "a message");
            for bytes in [64 << 10, 1 << 20] {
                let value = self.beside(Test::Bandwidth, put, message, bytes, Load::Idle, VALUE);
                self.at_least(format!("put bandwidth, {}, {name}", size(bytes)), value, 0.95, "a message's");
            }
        }
        let line = System::Shared { limit: Shared::Line };
        let mapped = memory(Device::Shm, Style::Mapped);
        let value = self.beside(Test::Latency, mapped, line, 8, Load::Idle, VALUE);
        self.at_most("put through a mapping, 8 B, shm".to_owned(), value, 1.25, line.name());
    }
}
