//! The goals for memory.

use tautline_baseline::stats::median;

use super::{Get, Judge, MEAN, Target, VALUE};
use crate::bench::case::{Device, Mode, Policy, Shared, Style, System};
use crate::bench::plan::{ENDPOINTS, Load, Test, WIRES, memory, shared, taut};
use crate::bench::rows::ratio;
use crate::bench::table::{half_power_bytes, size};

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
        self.half_power();
        self.endpoints();
        let line = System::Shared { limit: Shared::Line };
        let put = memory(Device::Shm, Style::Put);
        let value = self.beside(Test::Latency, put, line, 8, Load::Idle, VALUE);
        self.at_most("put and tripwire, 8 B, shm".to_owned(), value, 1.25, line.name());
        let mapped = memory(Device::Shm, Style::Mapped);
        let value = self.beside(Test::Latency, mapped, line, 8, Load::Idle, VALUE);
        self.at_most("put through a mapping, 8 B, shm".to_owned(), value, 1.25, line.name());
    }

    /// From which size on a put reaches half of its maximal bandwidth.
    fn half_power(&mut self) {
        let put = memory(Device::Shm, Style::Put);
        let mut curve: Vec<_> = self
            .results
            .iter()
            .filter(|result| (result.cell.test, result.cell.system) == (Test::Bandwidth, put))
            .filter(|result| !result.figures.is_empty())
            .map(|result| {
                let values: Vec<f64> = result.figures.iter().map(|figure| figure.1.value).collect();
                (result.cell.bytes, median(&values))
            })
            .collect();
        curve.sort_by_key(|point| point.0);
        // Both ends of the curve must be there.
        let whole = curve.len() > 2 && curve[0].0 < 1 << 10 && curve[curve.len() - 1].0 >= 64 << 10;
        let Some(value) = half_power_bytes(&curve).filter(|_| whole) else { return };
        self.targets.push(Target {
            what: "put, half-power size in bytes, shm".into(),
            goal: "below 1024".into(),
            value: Some(value),
            met: value < 1024.0,
        });
    }

    /// What must not grow with the number of endpoints, or of tripwires.
    fn endpoints(&mut self) {
        for (device, name) in [(Device::Shm, "shm"), (Device::Udp, "udp")] {
            let value = self.growth(Test::Endpoints, memory(device, Style::Server), ENDPOINTS, VALUE);
            let what = format!("response time, 1024 endpoints, {name}");
            self.at_most(what, value, 1.05, "that with one");
        }
        // The put is part of this one; the rows are net of it.
        let value = self.growth(Test::Matching, memory(Device::Shm, Style::Disjoint), WIRES, MEAN);
        self.at_most("put among 100000 disjoint tripwires".into(), value, 2.0, "that with one");
    }

    fn growth(&self, test: Test, system: System, [few, many]: [u64; 2], get: Get) -> Option<f64> {
        let of = |many| self.find(test, system, |cell| cell.many == Some(many));
        ratio(of(many)?, of(few)?, get)
    }
}
