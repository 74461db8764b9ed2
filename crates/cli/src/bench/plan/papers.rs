//! Experiments of the papers that no other plan has: the kernel's other transports between two processes of
//! one host, both processes on one core, CPU time by size, and what a poll costs.

use super::{Limit, Load, Plan, STREAMED, Test, shared, taut};
use crate::bench::case::{Mode, Plain, Policy, System, Touch, Work};

fn plain(kind: Plain, blocking: bool) -> System {
    System::Plain { kind, blocking }
}

/// Transports that sleep on one host, and ours.
const SLEEPERS: [Plain; 5] = [Plain::Pipe, Plain::Fifo, Plain::SysV, Plain::Semaphores, Plain::Unix];

/// Adds all of them.
pub(super) fn papers(plan: &mut Plan) {
    other_transports(plan);
    one_core(plan);
    cpu_by_size(plan);
    polls(plan);
}

fn other_transports(plan: &mut Plan) {
    for (kind, blocking) in
        [(Plain::Fifo, false), (Plain::Fifo, true), (Plain::SysV, true), (Plain::Semaphores, true)]
    {
        for bytes in [8, 64, 4 << 10, 64 << 10] {
            plan.once(plain(kind, blocking), bytes, if blocking { 20_000.0 } else { 10_000.0 });
        }
        for bytes in [1 << 10, 4 << 10].into_iter().chain(STREAMED) {
            let count = plan.stream_count(bytes);
            let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
            plan.add(Test::Bandwidth, plain(kind, blocking), work, Load::Idle, None);
        }
    }
}

/// Both processes on one core: whoever waits must let the other run.
fn one_core(plan: &mut Plan) {
    let unix = Some(Limit::soft(plain(Plain::Unix, true)));
    let udp = Some(Limit::soft(plain(Plain::Udp, true)));
    let mut systems: Vec<_> = SLEEPERS.map(|kind| (plain(kind, true), None)).into();
    systems.extend([Plain::Tcp, Plain::Udp].map(|kind| (plain(kind, true), None)));
    systems.extend([(shared(Policy::SpinThenPark), unix), (shared(Policy::Park), unix)]);
    systems.push((taut(Mode::Fabric, Policy::Park), udp));
    for (system, limit) in systems {
        let work = Work::PingPong { bytes: 64, count: plan.extent.count(40_000.0, 1.0), warm: false };
        plan.add(Test::Latency, system, work, Load::OneCore, limit);
    }
}

/// CPU time by size, of programs that sleep while they wait.
fn cpu_by_size(plan: &mut Plan) {
    let unix = plain(Plain::Unix, true);
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let count = plan.stream_count(bytes);
        let work = Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both };
        plan.add(Test::Cpu, unix, work, Load::Idle, None);
        let ours = shared(Policy::SpinThenPark);
        plan.add(Test::Cpu, ours, work, Load::Idle, Some(Limit::soft(unix)));
    }
}

fn polls(plan: &mut Plan) {
    for system in [shared(Policy::Spin), taut(Mode::Fabric, Policy::Spin)] {
        for hit in [false, true] {
            let work = Work::Polls { count: plan.extent.count(500.0, 0.5).next_multiple_of(64), hit };
            plan.add(Test::Polls, system, work, Load::Idle, None);
            if let Some(cell) = plan.cells.last_mut() {
                cell.many = Some(u64::from(hit));
            }
        }
    }
}
