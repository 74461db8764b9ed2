//! The project's goals for speed, and whether this run met them.

mod calls;
mod frames;
mod many;
mod memory;
mod mpi;
mod rivals;
mod shm;
mod tags;
mod xdp;

use super::case::{Mode, Plain, Policy, System, Touch};
use super::pair::Path;
use super::plan::{Load, Test, taut};
use super::rows::{Figure, Result, ratio};

/// A goal and its result.
pub struct Target {
    pub what: String,
    pub goal: String,
    /// None if this build cannot measure it.
    pub value: Option<f64>,
    pub met: bool,
}

impl Target {
    /// The verdict in a word.
    pub fn verdict(&self) -> &'static str {
        match (self.value, self.met) {
            (None, _) => "unknown",
            (_, true) => "met",
            (_, false) => "MISSED",
        }
    }
}

const UDP: System = System::Plain { kind: Plain::Udp, blocking: false };
const UDP_BLOCKING: System = System::Plain { kind: Plain::Udp, blocking: true };
const TCP: System = System::Plain { kind: Plain::Tcp, blocking: false };
const TCP_BLOCKING: System = System::Plain { kind: Plain::Tcp, blocking: true };
const GSO: System = System::Gso { blocking: false };
const PACKED: System = System::Packed { blocking: false };

/// Judges the results; goals whose figures are missing are left out.
pub fn judge(results: &[Result], path: Path) -> Vec<Target> {
    let mut judge = Judge { results, targets: Vec::new() };
    judge.latency();
    frames::frames(&mut judge, path);
    if path == Path::Loopback {
        judge.bandwidth();
    }
    judge.rate();
    judge.paced();
    judge.idle();
    judge.shm();
    judge.rivals();
    judge.xdp();
    judge.memory();
    tags::tags(&mut judge);
    judge.calls();
    many::many(&mut judge);
    mpi::mpi(&mut judge);
    judge.targets
}

struct Judge<'a> {
    results: &'a [Result],
    targets: Vec<Target>,
}

type Get = fn(&Figure) -> Option<f64>;
const VALUE: Get = |figure| Some(figure.value);
const P99: Get = |figure| figure.p99;
const MEAN: Get = |figure| figure.mean;

impl<'a> Judge<'a> {
    fn find(
        &self,
        test: Test,
        system: System,
        wanted: impl Fn(&super::plan::Cell) -> bool,
    ) -> Option<&'a Result> {
        self.results.iter().find(|result| {
            let cell = &result.cell;
            cell.test == test
                && cell.system == system
                && !cell.warm
                && cell.touch == Touch::Both
                && wanted(cell)
                && !result.figures.is_empty()
        })
    }

    fn at(&self, test: Test, system: System, bytes: usize, load: Load) -> Option<&'a Result> {
        self.find(test, system, |cell| cell.bytes == bytes && cell.load == load)
    }

    fn at_most(&mut self, what: String, value: Option<f64>, goal: f64, than: &str) {
        if let Some(value) = value {
            self.targets.push(Target {
                what,
                goal: format!("at most {goal} × {than}"),
                value: Some(value),
                met: value <= goal,
            });
        }
    }

    fn at_least(&mut self, what: String, value: Option<f64>, goal: f64, than: &str) {
        if let Some(value) = value {
            self.targets.push(Target {
                what,
                goal: format!("at least {goal} × {than}"),
                value: Some(value),
                met: value >= goal,
            });
        }
    }

    fn latency(&mut self) {
        for bytes in [8, 64] {
            let ours = self.at(Test::Latency, taut(Mode::Fabric, Policy::Spin), bytes, Load::Idle);
            for (system, goal, than) in [(UDP, 1.25, "raw polled UDP"), (TCP, 1.0, "polled TCP")] {
                let other = self.at(Test::Latency, system, bytes, Load::Idle);
                let value = ours.zip(other).and_then(|(ours, other)| ratio(ours, other, VALUE));
                self.at_most(format!("latency, {bytes} B, fabric"), value, goal, than);
            }
            self.latency_over_tcp(bytes);
        }
    }

    fn bandwidth(&mut self) {
        for bytes in [64 << 10, 1 << 20] {
            let name = super::table::size(bytes);
            let of = |judge: &Self, mode, other| {
                let ours = judge.at(Test::Bandwidth, taut(mode, Policy::Spin), bytes, Load::Idle)?;
                ratio(ours, judge.at(Test::Bandwidth, other, bytes, Load::Idle)?, VALUE)
            };
            for (mode, goal) in [(Mode::Open, 0.85), (Mode::Fabric, 0.7)] {
                let what = format!("bandwidth, {name}, {}", mode.security().name());
                let value = of(self, mode, GSO);
                self.at_least(what, value, goal, "the raw UDP GSO stream");
            }
            if bytes == 64 << 10 {
                let best = [TCP, TCP_BLOCKING]
                    .into_iter()
                    .filter_map(|tcp| of(self, Mode::Fabric, tcp))
                    .reduce(f64::min);
                self.at_least(format!("bandwidth, {name}, fabric"), best, 1.0, "TCP");
            }
            let ours = self.at(Test::Cpu, taut(Mode::Fabric, Policy::Park), bytes, Load::Idle);
            let tcp = self.at(Test::Cpu, TCP_BLOCKING, bytes, Load::Idle);
            let value = ours.zip(tcp).and_then(|(ours, tcp)| ratio(ours, tcp, VALUE));
            self.at_most(format!("CPU per byte, {name}, fabric"), value, 1.5, "TCP");
        }
    }

    fn rate(&mut self) {
        let of = |window: Option<u64>, batch: bool, system| {
            self.find(Test::Rate, system, |cell| cell.window == window && cell.batch == batch)
        };
        let ours = taut(Mode::Fabric, Policy::Spin);
        let windowed = of(Some(64), true, ours).zip(of(Some(64), false, PACKED));
        let stream = of(None, true, ours).zip(of(None, false, PACKED));
        let value = windowed.and_then(|(ours, packed)| ratio(ours, packed, VALUE));
        self.at_least("rate, 8 B in batches of 64, fabric".into(), value, 0.5, "packed UDP");
        let Some((ours, packed)) = stream else { return };
        let values: Vec<f64> = ours.figures.iter().map(|f| f.1.value).collect();
        let rate = tautline_baseline::stats::median(&values);
        let share = ratio(ours, packed, VALUE).unwrap_or(0.0);
        self.targets.push(Target {
            what: format!("rate, 8 B stream, fabric: {rate:.1} M/s"),
            goal: "at least 15 M/s, or 0.1 × the packed GSO stream".into(),
            value: Some(share),
            met: rate >= 15.0 || share >= 0.1,
        });
    }

    fn paced(&mut self) {
        let of = |judge: &Self, waiting, other, load, get: Get| {
            let ours = judge.at(Test::Paced, taut(Mode::Fabric, waiting), 64, load)?;
            ratio(ours, judge.at(Test::Paced, other, 64, load)?, get)
        };
        for (name, get) in [("p50", VALUE), ("p99", P99)] {
            let value = of(self, Policy::SpinThenPark, UDP_BLOCKING, Load::Burner, get);
            self.at_most(format!("paced, burner, default policy, {name}"), value, 1.3, "blocking UDP");
        }
        let value = of(self, Policy::Spin, UDP, Load::Idle, VALUE);
        self.at_most("paced, idle, spin, p50".into(), value, 1.3, "raw polled UDP");
        let value = of(self, Policy::Spin, UDP, Load::Burner, VALUE);
        self.at_most("paced, burner, spin, p50".into(), value, 0.05, "raw polled UDP");
    }

    fn idle(&mut self) {
        let what = "CPU of a parked pair that is idle, per process";
        self.idle_of(what, taut(Mode::Fabric, Policy::Park));
    }

    fn idle_of(&mut self, what: &str, system: System) {
        let Some(idle) = self.find(Test::Idle, system, |_| true) else { return };
        let values: Vec<f64> = idle.figures.iter().map(|f| f.1.value).collect();
        let value = tautline_baseline::stats::median(&values);
        let goal = "at most 0.1 % of a core".into();
        self.targets.push(Target { what: what.into(), goal, value: Some(value), met: value <= 0.1 });
    }
}
