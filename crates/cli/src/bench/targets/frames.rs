//! The goals of long messages over Ethernet frames: beside bare UDP with and without segmentation offload,
//! the tag or the cipher by itself, and TCP.

use super::{GSO, Get, Judge, P99, TCP, TCP_BLOCKING, UDP, VALUE};
use crate::bench::case::{Mode, Policy, System};
use crate::bench::pair::Path;
use crate::bench::plan::{BESIDE_WORK, Load, STREAMED, Test, taut};
use crate::bench::protection::FRAMES;
use crate::bench::rows::{Figure, Result, median_of};
use crate::bench::table::size;

/// What of the limit a stream reaches.
const OF_THE_LIMIT: f64 = 0.85;

/// Between hosts with an MTU.
pub fn frames(judge: &mut Judge<'_>, path: Path) {
    let Path::Veth { mtu } = path else { return };
    let (frame, of_tcp) = if mtu == 1_500 { (FRAMES[0], 0.75) } else { (FRAMES[1], 0.95) };
    for (bytes, more_cpu) in STREAMED.into_iter().zip([1.4, 1.8]) {
        for mode in Mode::ALL {
            of_the_limit(judge, mode, bytes, frame);
        }
        let what = format!("{}, fabric, MTU {mtu}", size(bytes));
        let tcp = [TCP, TCP_BLOCKING].into_iter().filter_map(|tcp| {
            judge.beside(Test::Bandwidth, ours(Policy::Spin), tcp, bytes, Load::Idle, VALUE)
        });
        let worst = tcp.reduce(f64::min);
        judge.at_least(format!("bandwidth, {what}"), worst, of_tcp, "TCP");
        let cpu = judge.beside(Test::Cpu, ours(Policy::Park), TCP_BLOCKING, bytes, Load::Idle, VALUE);
        judge.at_most(format!("CPU per byte, {what}"), cpu, more_cpu, "TCP");
    }
    for bytes in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        let goal = if bytes < 1 << 20 { 1.4 } else { 1.5 };
        let value = judge.beside(Test::Latency, ours(Policy::Spin), UDP, bytes, Load::Idle, VALUE);
        let what = format!("latency, {}, fabric, MTU {mtu}", size(bytes));
        judge.at_most(what, value, goal, "raw polled UDP");
    }
    for bytes in BESIDE_WORK {
        for (name, get) in [("p50", VALUE), ("p99", P99)] {
            let ours = ours(Policy::SpinThenPark);
            let value = judge.beside(Test::Latency, ours, TCP_BLOCKING, bytes, Load::Burner, get as Get);
            let what = format!("latency, {}, burner, default policy, {name}, MTU {mtu}", size(bytes));
            judge.at_most(what, value, 2.0, "blocking TCP");
        }
    }
}

/// A stream beside its limit: bytes that bare UDP moves, and of which then the tag or the cipher is
/// computed.
fn of_the_limit(judge: &mut Judge<'_>, mode: Mode, bytes: usize, frame: usize) {
    let of = |system| judge.at(Test::Bandwidth, system, bytes, Load::Idle);
    let Some((ours, bare)) = of(taut(mode, Policy::Spin)).zip(of(GSO)) else { return };
    let protection = System::Protection { security: mode };
    let value = match judge.at(Test::Protection, protection, frame, Load::Idle) {
        _ if mode == Mode::Open => share(ours, bare, |_| Some(0.0)),
        Some(alone) => share(ours, bare, |round| Some(1.0 / alone.in_round(round)?.value)),
        None => return,
    };
    let what = format!("bandwidth, {}, {}", size(bytes), mode.security().name());
    let than = if mode == Mode::Open {
        "the raw UDP GSO stream"
    } else {
        "the raw UDP GSO stream with its tag or cipher"
    };
    judge.at_least(what, value, OF_THE_LIMIT, than);
}

fn ours(waiting: Policy) -> System {
    taut(Mode::Fabric, waiting)
}

/// The median, over rounds, of a bandwidth beside that of a bare stream with `more(round)` nanoseconds for
/// each byte.
fn share(ours: &Result, bare: &Result, more: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    median_of(ours.figures.iter().filter_map(|(round, figure): &(usize, Figure)| {
        let limit = 1.0 / (1.0 / bare.in_round(*round)?.value + more(*round)?);
        Some(figure.value / limit)
    }))
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::*;
    use crate::bench::only::Only;
    use crate::bench::plan::{Extent, Here, cells};

    /// 6 GB/s of bare UDP, of which a tag of 12 GB/s is computed then, are 4 GB/s at most.
    #[test]
    fn the_tag_is_part_of_the_limit() {
        let of = |cell: &crate::bench::plan::Cell| match cell.system {
            System::Gso { .. } => 6.0,
            System::Protection { security: Mode::Fabric } => 12.0,
            _ => 3.0,
        };
        let only: Only = "bandwidth,protection".parse().unwrap();
        let results: Vec<Result> = cells(Extent::Smoke, true, &only, &Here::default())
            .into_iter()
            .map(|cell| {
                let figure = Figure { value: of(&cell), ..Figure::default() };
                Result { cell, figures: vec![(0, figure)], errors: Vec::new() }
            })
            .collect();
        let targets = judge(&results, Path::Veth { mtu: 1_500 });
        let value = |what: &str| targets.iter().find(|target| target.what == what).unwrap().value;
        assert_eq!(value("bandwidth, 64 KiB, fabric"), Some(0.75));
        assert_eq!(value("bandwidth, 64 KiB, open"), Some(0.5));
    }
}
