//! The goals of messages that bypass the kernel: our device over AF_XDP beside bare AF_XDP and raw UDP. Where
//! no such device was measured, nothing is judged.

use tautline_baseline::xdp::FULL;

use super::{Judge, UDP, VALUE};
use crate::bench::case::{Device, Mode, Policy, System};
use crate::bench::plan::{BARE, Load, Test};
use crate::bench::rows::{Result, ratio};

impl<'a> Judge<'a> {
    pub(super) fn xdp(&mut self) {
        let Some(ours) = self.our_xdp() else { return };
        self.raw_gain(ours);
        for bytes in [8, 64] {
            let what = || format!("latency, {bytes} B, xdp, fabric");
            let of = |system| self.at(Test::Latency, system, bytes, Load::Idle);
            let (ours, udp) = (of(ours), of(UDP));
            let bare: Vec<_> = BARE.into_iter().filter_map(of).collect();
            let value = self.against(ours, &bare, f64::max);
            self.at_most(what(), value, 1.2, "bare AF_XDP in its better mode");
            let value = ours.zip(udp).and_then(|(ours, udp)| ratio(ours, udp, VALUE));
            self.at_most(what(), value, 0.85, "raw polled UDP");
        }
        let of = |system| self.find(Test::Cpu, system, |cell| cell.bytes == 64 && !cell.batch);
        let value = of(ours).zip(of(UDP)).and_then(|(ours, udp)| ratio(ours, udp, VALUE));
        self.at_most("CPU per message, one to a frame, xdp, fabric".into(), value, 0.8, "raw polled UDP");
        let full = self.at(Test::Bandwidth, ours, 64 << 10, Load::Idle);
        let bare: Vec<_> =
            BARE.into_iter().filter_map(|bare| self.at(Test::Bandwidth, bare, FULL, Load::Idle)).collect();
        let value = self.against(full, &bare, f64::min);
        self.at_least("bandwidth, full frames, xdp, fabric".into(), value, 0.8, "the bare AF_XDP stream");
        let packed = self.find(Test::Rate, ours, |cell| cell.window.is_none() && cell.batch);
        let of = |bare| self.find(Test::Rate, bare, |cell| cell.window.is_none());
        let bare: Vec<_> = BARE.into_iter().filter_map(of).collect();
        let value = self.against(packed, &bare, f64::min);
        self.at_least("rate, 8 B, packed, xdp, fabric".into(), value, 5.0, "bare AF_XDP frames");
    }

    /// The gain of raw framing over UDP framing.
    fn raw_gain(&mut self, ours: System) {
        let raw = System::Taut { device: Device::XdpRaw, security: Mode::Fabric, waiting: Policy::Spin };
        for bytes in [8, 64] {
            let of = |system| self.at(Test::Latency, system, bytes, Load::Idle);
            let value = of(raw).zip(of(ours)).and_then(|(raw, udp)| ratio(raw, udp, VALUE));
            self.at_most(format!("latency, {bytes} B, xdp, raw Ethernet"), value, 1.0, "UDP framing");
        }
    }

    /// Our system over AF_XDP, if it was measured: with its tag, and polling.
    fn our_xdp(&self) -> Option<System> {
        let ours = System::Taut { device: Device::Xdp, security: Mode::Fabric, waiting: Policy::Spin };
        self.results.iter().any(|result| result.cell.system == ours).then_some(ours)
    }

    /// The ratio to the best of several.
    fn against(
        &self,
        ours: Option<&'a Result>,
        others: &[&'a Result],
        harder: fn(f64, f64) -> f64,
    ) -> Option<f64> {
        others.iter().filter_map(|other| ratio(ours?, other, VALUE)).reduce(harder)
    }
}
