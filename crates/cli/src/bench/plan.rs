//! What is measured: the cells of every test, and how long each may take.

mod brief;
mod calls;
mod cell;
mod costs;
mod many;
mod memory;
mod papers;
mod rivals;
mod shm;
mod xdp;

use std::time::Duration;

use super::case::{Device, Experiment, Mode, Other, Plain, Policy, System, Touch, Work};
use super::only::Only;
use super::protection::FRAMES;
pub use calls::{TARPC, WINDOWS};
pub use cell::{Cell, Limit};
pub use many::OURS;
pub use memory::{ENDPOINTS, WIRES, memory};
pub use rivals::{KERNEL, SIZES, STREAMED, on_host};
pub use shm::limit_of;
pub use xdp::BARE;

/// Sizes of messages that are measured beside other work.
pub const BESIDE_WORK: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Test {
    Latency,
    Rate,
    Bandwidth,
    Paced,
    Cpu,
    Guarantees,
    Protection,
    Idle,
    Calls,
    Endpoints,
    Clients,
    Matching,
    Polls,
    Copies,
    Loss,
    Flood,
    /// Of a job of many ranks.
    Many(Experiment),
}

/// Everything that takes two processes.
const OF_TWO: [Test; 16] = [
    Test::Latency,
    Test::Rate,
    Test::Bandwidth,
    Test::Paced,
    Test::Cpu,
    Test::Guarantees,
    Test::Protection,
    Test::Idle,
    Test::Calls,
    Test::Endpoints,
    Test::Clients,
    Test::Matching,
    Test::Polls,
    Test::Copies,
    Test::Loss,
    Test::Flood,
];

impl Test {
    pub const ALL: [Test; OF_TWO.len() + Experiment::ALL.len()] = {
        let mut all = [Test::Latency; OF_TWO.len() + Experiment::ALL.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = if i < OF_TWO.len() { OF_TWO[i] } else { Test::Many(Experiment::ALL[i - OF_TWO.len()]) };
            i += 1;
        }
        all
    };

    pub fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Rate => "rate",
            Test::Bandwidth => "bandwidth",
            Test::Paced => "paced",
            Test::Cpu => "cpu",
            Test::Guarantees => "guarantees",
            Test::Protection => "protection",
            Test::Idle => "idle",
            Test::Calls => "calls",
            Test::Endpoints => "endpoints",
            Test::Clients => "clients",
            Test::Matching => "matching",
            Test::Polls => "polls",
            Test::Copies => "copies",
            Test::Loss => "loss",
            Test::Flood => "flood",
            Test::Many(experiment) => experiment.name(),
        }
    }
}

/// What else runs on the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    Idle,
    /// Nothing, but both processes share one core.
    OneCore,
    Burner,
}

impl Load {
    pub fn name(self) -> &'static str {
        match self {
            Load::Idle => "idle",
            Load::OneCore => "one-core",
            Load::Burner => "burner",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Full,
    /// Less than two minutes in all.
    Quick,
    /// For tests: a few messages each.
    Smoke,
}

impl Extent {
    pub fn rounds(self) -> usize {
        match self {
            Extent::Full => 5,
            Extent::Quick => 3,
            Extent::Smoke => 1,
        }
    }

    /// Returns how often something that takes about `each_ns` is to be done, so that it is neither too rare
    /// nor too slow.
    fn count(self, each_ns: f64, share: f64) -> u64 {
        let budget = match self {
            Extent::Full => Duration::from_millis(60),
            Extent::Quick => Duration::from_millis(15),
            Extent::Smoke => return 20,
        };
        ((budget.as_nanos() as f64 * share / each_ns) as u64).clamp(8, 200_000)
    }

    /// Trial bytes of each variation when the best raw stream is searched for.
    pub fn trial_bytes(self) -> u64 {
        match self {
            Extent::Full => 8 << 20,
            Extent::Quick => 1 << 20,
            Extent::Smoke => 1 << 20,
        }
    }

    fn pick<T>(self, full: T, quick: T) -> T {
        if self == Extent::Full { full } else { quick }
    }
}

const POLLED_UDP: System = System::Plain { kind: Plain::Udp, blocking: false };
const BLOCKING_UDP: System = System::Plain { kind: Plain::Udp, blocking: true };
const BLOCKING_TCP: System = System::Plain { kind: Plain::Tcp, blocking: true };
const POLLED_GSO: System = System::Gso { blocking: false };

/// Messages over UDP with this security mode and waiting policy.
pub fn taut(security: Mode, waiting: Policy) -> System {
    System::Taut { device: Device::Udp, security, waiting }
}

/// Messages through shared memory with this waiting policy.
pub fn shared(waiting: Policy) -> System {
    System::Taut { device: Device::Shm, security: Mode::Fabric, waiting }
}

/// What can be measured beside ourselves.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// The installed rivals.
    pub rivals: Vec<Other>,
    /// Bare AF_XDP: there are two interfaces to use, and the privileges.
    pub xdp: bool,
    /// One path of several: what the report's first tables need.
    pub brief: bool,
}

/// Returns every requested cell, in the order in which a round measures them.
pub fn cells(extent: Extent, network_only: bool, only: &Only, here: &Here) -> Vec<Cell> {
    let mut plan = Plan { extent, cells: Vec::new() };
    plan.latency();
    plan.rate();
    plan.bandwidth();
    plan.paced();
    plan.cpu();
    plan.guarantees();
    plan.protection();
    plan.idle();
    plan.shm();
    plan.rivals(&here.rivals);
    if here.xdp {
        plan.xdp();
    }
    plan.memory();
    plan.calls(here.rivals.contains(&Other::Tarpc));
    papers::papers(&mut plan);
    costs::costs(&mut plan);
    many::many(&mut plan, &here.rivals);
    let mut cells = plan.cells;
    cells.retain(|cell| !network_only || cell.system.is_network());
    // The loopback interface is left as it is.
    cells.retain(|cell| network_only || !cell.system.needs_interface());
    brief::shorten(&mut cells, extent, here, only);
    with_limits(&cells, |cell| only.wants(cell))
}

/// The cells that are wanted, what they are compared with, what those are compared with, and so on.
fn with_limits(cells: &[Cell], wants: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let mut kept: Vec<bool> = cells.iter().map(wants).collect();
    let mut new: Vec<usize> = (0..cells.len()).filter(|i| kept[*i]).collect();
    while let Some(i) = new.pop() {
        for (j, other) in cells.iter().enumerate() {
            if !kept[j] && cells[i].is_limited_by(other) {
                kept[j] = true;
                new.push(j);
            }
        }
    }
    cells.iter().zip(kept).filter(|(_, kept)| *kept).map(|(cell, _)| *cell).collect()
}

struct Plan {
    extent: Extent,
    cells: Vec<Cell>,
}

fn plain() -> impl Iterator<Item = System> {
    Plain::ALL.into_iter().flat_map(|kind| [false, true].map(|blocking| System::Plain { kind, blocking }))
}

impl Plan {
    fn add(&mut self, test: Test, system: System, work: Work, load: Load, limit: Option<Limit>) {
        let touch = if let Work::Stream { touch, .. } = work { touch } else { Touch::Both };
        let (bytes, window, warm, batch) = match work {
            Work::PingPong { bytes, warm, .. } => (bytes, None, warm, false),
            Work::Paced { bytes, .. } => (bytes, None, false, false),
            Work::Stream { bytes, window, batch, .. } => (bytes, window, false, batch),
            Work::Calls { bytes, window, .. } => (bytes, Some(window), false, false),
            Work::Requests { .. } | Work::Matching { .. } | Work::Polls { .. } => (8, None, false, false),
            Work::Copies { bytes, .. }
            | Work::Lossy { bytes, .. }
            | Work::Flood { bytes, .. }
            | Work::Many { bytes, .. } => (bytes, None, false, false),
            Work::Tune { .. } | Work::Idle { .. } => (0, None, false, false),
        };
        let many = match work {
            Work::Requests { endpoints, .. } => Some(endpoints),
            Work::Matching { wires, .. } => Some(wires),
            Work::Lossy { per_mille, .. } => Some(per_mille),
            Work::Flood { junk, .. } => Some(junk),
            Work::Many { ranks, .. } => Some(ranks),
            _ => None,
        };
        self.cells.push(Cell { test, system, bytes, window, many, load, warm, batch, touch, work, limit });
    }

    fn latency(&mut self) {
        let sizes: &[usize] = self.extent.pick(
            &[0, 8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20],
            &[0, 8, 64, 4 << 10, 16 << 10, 64 << 10, 1 << 20],
        );
        for &bytes in sizes {
            self.ping_pong(bytes, false, Load::Idle);
        }
        for &bytes in self.extent.pick(&[64 << 10, 1 << 20][..], &[64 << 10]) {
            self.ping_pong(bytes, true, Load::Idle);
        }
        self.ping_pong(64, false, Load::Burner);
        for bytes in BESIDE_WORK {
            self.beside_work(bytes);
        }
    }

    /// Long messages that wait for their core, beside what waits in the kernel for its own.
    fn beside_work(&mut self, bytes: usize) {
        let limit = Some(Limit::soft(BLOCKING_TCP));
        for (system, limit) in [(BLOCKING_TCP, None), (taut(Mode::Fabric, Policy::SpinThenPark), limit)] {
            let count = self.extent.count(75_000.0 + 3.0 * bytes as f64, 1.0);
            self.add(
                Test::Latency,
                system,
                Work::PingPong { bytes, count, warm: false },
                Load::Burner,
                limit,
            );
        }
    }

    fn ping_pong(&mut self, bytes: usize, warm: bool, load: Load) {
        let polled = Some(Limit::new(POLLED_UDP, load == Load::Idle));
        // How fast a sleeper is woken depends on the scheduler: a rival, not a limit.
        let blocking = Some(Limit::soft(BLOCKING_UDP));
        let ours = [
            (taut(Mode::Open, Policy::Spin), polled),
            (taut(Mode::Fabric, Policy::Spin), polled),
            (taut(Mode::Sealed, Policy::Spin), polled),
            (taut(Mode::Fabric, Policy::SpinThenPark), polled),
            (taut(Mode::Fabric, Policy::Park), blocking),
        ];
        for (system, limit) in plain().map(|system| (system, None)).chain(ours) {
            if warm && system.is_blocking() {
                continue;
            }
            let base = if system.is_blocking() { 25_000.0 } else { 6_000.0 };
            let slower = if load == Load::Burner { 3.0 } else { 1.0 };
            let count = self.extent.count((base + bytes as f64) * slower, 1.0);
            self.add(Test::Latency, system, Work::PingPong { bytes, count, warm }, load, limit);
        }
    }

    fn rate(&mut self) {
        let stream =
            |count, window, batch| Work::Stream { bytes: 8, count, window, batch, touch: Touch::Both };
        let packed = |blocking| System::Packed { blocking };
        let window = Some(64);
        for system in plain() {
            let count = self.extent.count(2_000.0, 1.0);
            self.add(Test::Rate, system, stream(count, window, false), Load::Idle, None);
        }
        let many = self.extent.count(150.0, 1.0) / 64 * 64;
        for blocking in [false, true] {
            self.add(Test::Rate, packed(blocking), stream(many.max(64), window, false), Load::Idle, None);
        }
        for (security, waiting, batch) in [
            (Mode::Fabric, Policy::Spin, false),
            (Mode::Open, Policy::Spin, true),
            (Mode::Fabric, Policy::Spin, true),
            (Mode::Sealed, Policy::Spin, true),
            (Mode::Fabric, Policy::Park, true),
        ] {
            let limit = Some(Limit::new(packed(waiting != Policy::Spin), waiting == Policy::Spin));
            let count = if batch { many.max(64) } else { self.extent.count(2_000.0, 1.0) };
            self.add(Test::Rate, taut(security, waiting), stream(count, window, batch), Load::Idle, limit);
        }
        let stream_count = self.extent.count(50.0, 1.0) * 4;
        self.add(Test::Rate, packed(false), stream(stream_count * 8, None, false), Load::Idle, None);
        for security in Mode::ALL {
            let limit = Some(Limit::hard(packed(false)));
            self.add(
                Test::Rate,
                taut(security, Policy::Spin),
                stream(stream_count, None, true),
                Load::Idle,
                limit,
            );
        }
    }

    fn bandwidth(&mut self) {
        let sizes: &[usize] = self.extent.pick(
            &[8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20],
            &[8, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20],
        );
        for &bytes in sizes {
            let stream = Work::Stream {
                bytes,
                count: self.stream_count(bytes),
                window: None,
                batch: false,
                touch: Touch::Both,
            };
            let plain = |kind, blocking| System::Plain { kind, blocking };
            for system in [
                POLLED_GSO,
                System::Datagrams { blocking: false },
                POLLED_UDP,
                plain(Plain::Tcp, false),
                BLOCKING_TCP,
                plain(Plain::Unix, false),
                plain(Plain::Pipe, false),
            ] {
                self.add(Test::Bandwidth, system, stream, Load::Idle, None);
            }
            for security in Mode::ALL {
                let limit = Some(Limit::hard(POLLED_GSO));
                self.add(Test::Bandwidth, taut(security, Policy::Spin), stream, Load::Idle, limit);
            }
            self.less_work(bytes, POLLED_GSO, taut(Mode::Fabric, Policy::Spin));
        }
    }

    /// Rows of their own for messages that are written in place, or not read.
    fn less_work(&mut self, bytes: usize, limit: System, ours: System) {
        for touch in [Touch::InPlace, Touch::Unread] {
            // In shared memory the best chunks to write in place have changed from run to run, and copying
            // into it first was sometimes faster: that is no limit.
            let hard = touch == Touch::Unread || !matches!(limit, System::Shared { .. });
            if STREAMED.contains(&bytes) {
                let count = self.stream_count(bytes);
                let work = Work::Stream { bytes, count, window: None, batch: false, touch };
                self.add(Test::Bandwidth, limit, work, Load::Idle, None);
                self.add(Test::Bandwidth, ours, work, Load::Idle, Some(Limit::new(limit, hard)));
            }
        }
    }

    fn stream_count(&self, bytes: usize) -> u64 {
        self.extent.count(1_500.0 + bytes as f64 / 2.0, 2.5)
    }

    fn paced(&mut self) {
        let work = self.paced_work();
        for load in [Load::Idle, Load::Burner] {
            for system in [POLLED_UDP, BLOCKING_UDP] {
                self.add(Test::Paced, system, work, load, None);
            }
            for (waiting, system) in [
                (Policy::Spin, POLLED_UDP),
                (Policy::SpinThenPark, BLOCKING_UDP),
                (Policy::Park, BLOCKING_UDP),
            ] {
                let hard = load == Load::Idle && waiting == Policy::Spin;
                self.add(
                    Test::Paced,
                    taut(Mode::Fabric, waiting),
                    work,
                    load,
                    Some(Limit::new(system, hard)),
                );
            }
        }
    }

    fn paced_work(&self) -> Work {
        let count = if self.extent == Extent::Smoke { 5 } else { self.extent.pick(700, 80) };
        Work::Paced { bytes: 64, count, period_us: 1_000 }
    }

    fn cpu(&mut self) {
        let tcp = Some(Limit::soft(BLOCKING_TCP));
        let park = taut(Mode::Fabric, Policy::Park);
        let small = |batch| Work::Stream {
            bytes: 64,
            count: self.extent.count(3_000.0, 2.0),
            window: Some(64),
            batch,
            touch: Touch::Both,
        };
        let (alone, shared) = (small(false), small(true));
        for system in [BLOCKING_TCP, BLOCKING_UDP, park] {
            self.add(Test::Cpu, system, alone, Load::Idle, tcp.filter(|_| system == park));
        }
        self.add(Test::Cpu, park, shared, Load::Idle, tcp);
        for bytes in [64 << 10, 1 << 20] {
            let work = Work::Stream {
                bytes,
                count: self.stream_count(bytes) * 2,
                window: None,
                batch: false,
                touch: Touch::Both,
            };
            for system in [BLOCKING_TCP, System::Gso { blocking: true }] {
                self.add(Test::Cpu, system, work, Load::Idle, None);
            }
            for system in [taut(Mode::Open, Policy::Park), park, taut(Mode::Fabric, Policy::Spin)] {
                self.add(Test::Cpu, system, work, Load::Idle, tcp);
            }
        }
    }

    fn guarantees(&mut self) {
        let sizes: &[usize] = self.extent.pick(
            &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10],
            &[64, 1 << 10, 8 << 10, 64 << 10],
        );
        let layers = [System::Bare { flow: false }, System::Bare { flow: true }]
            .into_iter()
            .chain(Mode::ALL.map(|security| taut(security, Policy::Spin)));
        for &bytes in sizes {
            let work = Work::Stream {
                bytes,
                count: self.stream_count(bytes),
                window: None,
                batch: false,
                touch: Touch::Both,
            };
            let mut below = None;
            for system in layers.clone() {
                self.add(Test::Guarantees, system, work, Load::Idle, below.map(Limit::soft));
                below = Some(system);
            }
        }
    }

    fn protection(&mut self) {
        for bytes in FRAMES {
            let count = self.extent.count(bytes as f64 / 4.0, 0.3);
            for security in [Mode::Fabric, Mode::Sealed] {
                let work = Work::Copies { bytes, count };
                self.add(Test::Protection, System::Protection { security }, work, Load::Idle, None);
            }
        }
    }

    fn idle(&mut self) {
        for waiting in [Policy::SpinThenPark, Policy::Park] {
            self.add(Test::Idle, taut(Mode::Fabric, waiting), self.idle_work(), Load::Idle, None);
        }
    }

    fn idle_work(&self) -> Work {
        let milliseconds = if self.extent == Extent::Smoke { 50 } else { self.extent.pick(2_000, 300) };
        Work::Idle { milliseconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Here {
        let rivals = vec![Other::OpenMpi, Other::Ucx, Other::ZeroMq, Other::Iceoryx2Loan, Other::Tarpc];
        Here { rivals, xdp: true, brief: false }
    }

    #[test]
    fn every_limit_is_measured_with_its_rows() {
        for extent in [Extent::Full, Extent::Quick, Extent::Smoke] {
            for network_only in [false, true] {
                let cells = cells(extent, network_only, &Only::default(), &everything());
                for cell in &cells {
                    let measured = cells.iter().any(|c| cell.is_limited_by(c));
                    assert!(cell.limit.is_none() || measured, "{cell:?}");
                }
            }
        }
    }

    /// Idle processes have no limit above nothing at all; polls and the put that matching is net of are
    /// costs.
    #[test]
    fn every_row_of_ours_has_a_limit() {
        for network_only in [false, true] {
            for cell in cells(Extent::Full, network_only, &Only::default(), &everything()) {
                let waits = [Test::Idle, Test::Many(Experiment::Asleep)].contains(&cell.test);
                let ours = cell.system.is_ours() && !cell.warm && !waits;
                let bottom =
                    cell.test == Test::Polls || (cell.test == Test::Matching && cell.many == Some(0));
                assert!(!ours || bottom || cell.limit.is_some(), "{cell:?}");
            }
        }
    }

    #[test]
    fn shared_memory_is_not_measured_over_a_network() {
        let of = |network_only| {
            let cells = cells(Extent::Quick, network_only, &Only::default(), &everything());
            cells.iter().filter(|cell| cell.system.device() == "shm").count()
        };
        assert_eq!((of(false) > 0, of(true)), (true, 0));
    }

    #[test]
    fn no_two_cells_are_the_same() {
        let cells = cells(Extent::Full, false, &Only::default(), &everything());
        for (i, cell) in cells.iter().enumerate() {
            let same = |c: &&Cell| c.is_beside(cell) && (c.system, c.batch) == (cell.system, cell.batch);
            assert_eq!(cells[..i].iter().find(same), None);
        }
    }
}
