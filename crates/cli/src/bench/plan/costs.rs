//! Experiments of the papers that show what something costs: ways to copy, variants of TCP, shared cores,
//! lost frames, and foreign datagrams.

use super::{Limit, Load, Plan, STREAMED, Test, limit_of, memory, shared, taut};
use crate::bench::case::{Device, Mode, Plain, Policy, Shared, Style, System, Touch, Work};

fn plain(kind: Plain, blocking: bool) -> System {
    System::Plain { kind, blocking }
}

fn stream(bytes: usize, count: u64) -> Work {
    Work::Stream { bytes, count, window: None, batch: false, touch: Touch::Both }
}

/// Adds all of them.
pub(super) fn costs(plan: &mut Plan) {
    copies(plan);
    tcp_variants(plan);
    shared_cores(plan);
    scattered(plan);
    overlap(plan);
    loss(plan);
    flood(plan);
}

/// Whether a cell belongs to an experiment that a quick run leaves out unless it is asked for.
pub fn is_costly(cell: &super::Cell) -> bool {
    let extra = match cell.system {
        System::Plain { kind, .. } => kind.needs_interface() || kind == Plain::TcpNagle,
        System::Memory { style: Style::Stream | Style::PutEarly, .. } => true,
        System::Memory { device: Device::Xdp, .. } => true,
        System::Taut { waiting: Policy::Park, .. } => cell.test == Test::Bandwidth,
        System::Memory { style: Style::Put, .. } => cell.test == Test::Latency && cell.bytes > 64,
        System::Memory { style: Style::Queue, .. } => cell.test == Test::Latency,
        _ => false,
    };
    extra
        || matches!(cell.test, Test::Copies | Test::Loss | Test::Flood | Test::Many(_))
        || (matches!(cell.test, Test::Bandwidth | Test::Cpu) && cell.load == Load::Burner)
        || cell.touch == Touch::Scattered
        || (cell.system.device().starts_with("xdp") && cell.test == Test::Bandwidth && cell.system.is_ours())
            && cell.bytes != 64 << 10
}

/// What it costs to move a buffer, by the way it is moved.
fn copies(plan: &mut Plan) {
    let memcpy = System::Shared { limit: Shared::Memcpy };
    for bytes in [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        let count = plan.extent.count(1_000.0 + bytes as f64 / 4.0, 0.3);
        let work = Work::Copies { bytes, count };
        for limit in [Shared::Memcpy, Shared::NonTemporal, Shared::Slot, Shared::Readv, Shared::Pinned] {
            let exists =
                limit.transfer().is_none_or(|how| tautline_baseline::shm::Transfer::all().contains(&how));
            if exists {
                plan.add(Test::Copies, System::Shared { limit }, work, Load::Idle, None);
            }
        }
        let count = plan.extent.count(4_000.0 + bytes as f64, 0.3);
        let lent = Work::PingPong { bytes, count, warm: false };
        plan.add(Test::Copies, System::Lent, lent, Load::Idle, Some(Limit::soft(memcpy)));
    }
}

/// TCP with and without Nagle's delay and offloads. Its rows are compared with ours, as the paper compares
/// them with its own protocol.
fn tcp_variants(plan: &mut Plan) {
    let ours = taut(Mode::Fabric, Policy::Park);
    let beside = Some(Limit::soft(ours));
    let variants = [Plain::TcpNagle, Plain::TcpBare, Plain::TcpBareNagle];
    for bytes in [64, 1 << 10, 4 << 10, 64 << 10] {
        let count = plan.extent.count(30_000.0 + bytes as f64, 1.0);
        for kind in variants {
            let work = Work::PingPong { bytes, count, warm: false };
            plan.add(Test::Latency, plain(kind, true), work, Load::Idle, beside);
        }
        let count = plan.stream_count(bytes);
        for kind in variants {
            plan.add(Test::Bandwidth, plain(kind, true), stream(bytes, count), Load::Idle, beside);
        }
        plan.add(Test::Bandwidth, ours, stream(bytes, count), Load::Idle, gso());
    }
    for bytes in [8, 64] {
        let work = Work::PingPong { bytes, count: plan.extent.count(10_000.0, 1.0), warm: false };
        let limit = Some(Limit::soft(plain(Plain::Udp, false)));
        plan.add(Test::Latency, plain(Plain::UdpBusy, true), work, Load::Idle, limit);
    }
}

fn gso() -> Option<Limit> {
    Some(Limit::soft(System::Gso { blocking: false }))
}

/// Bandwidth and CPU time while another process wants each core.
fn shared_cores(plan: &mut Plan) {
    let (tcp, unix) = (plain(Plain::Tcp, true), plain(Plain::Unix, true));
    let systems = [
        (tcp, None),
        (unix, None),
        (taut(Mode::Fabric, Policy::Park), Some(Limit::soft(tcp))),
        (shared(Policy::SpinThenPark), Some(Limit::soft(unix))),
    ];
    let bytes = 64 << 10;
    let work = stream(bytes, plan.stream_count(bytes));
    for test in [Test::Bandwidth, Test::Cpu] {
        for (system, limit) in systems {
            plan.add(test, system, work, Load::Burner, limit);
        }
    }
}

/// A receiver that takes a message in pieces, beside one that takes it whole.
fn scattered(plan: &mut Plan) {
    for ours in [shared(Policy::Spin), taut(Mode::Fabric, Policy::Spin)] {
        for bytes in STREAMED {
            let work = Work::Stream {
                bytes,
                count: plan.stream_count(bytes),
                window: None,
                batch: false,
                touch: Touch::Scattered,
            };
            let whole = Some(Limit::soft(ours).at(Test::Bandwidth, bytes, None));
            plan.add(Test::Bandwidth, ours, work, Load::Idle, whole);
        }
    }
}

/// A put that is read when all of it has arrived, and one whose parts are read as they arrive; and the
/// latency of the queue and the stream.
fn overlap(plan: &mut Plan) {
    for (device, message, base) in
        [(Device::Shm, shared(Policy::Spin), 800.0), (Device::Udp, taut(Mode::Fabric, Policy::Spin), 6_000.0)]
    {
        for bytes in STREAMED {
            let count = plan.extent.count(base + bytes as f64, 1.0);
            let work = Work::PingPong { bytes, count, warm: false };
            let put = memory(device, Style::Put);
            plan.add(Test::Latency, put, work, Load::Idle, Some(Limit::soft(message)));
            let early = memory(device, Style::PutEarly);
            plan.add(Test::Latency, early, work, Load::Idle, Some(Limit::soft(put)));
        }
        for style in [Style::Queue, Style::Stream] {
            for bytes in [8, 64, 4 << 10] {
                let count = plan.extent.count(2.0 * base + bytes as f64, 1.0);
                let work = Work::PingPong { bytes, count, warm: false };
                let limit = if device == Device::Shm && bytes == 8 { limit_of(bytes) } else { message };
                plan.add(Test::Latency, memory(device, style), work, Load::Idle, Some(Limit::soft(limit)));
            }
        }
    }
}

/// Frames of a thousand that are lost.
const LOSSES: [u64; 4] = [0, 1, 10, 50];

/// Streams over a device that loses frames, by how they are recovered.
fn loss(plan: &mut Plan) {
    let bytes = 64 << 10;
    for go_back_n in [false, true] {
        let system = System::Lossy { go_back_n };
        for per_mille in LOSSES {
            let count = plan.stream_count(bytes).min(400);
            let work = Work::Lossy { bytes, count, per_mille };
            let limit = match per_mille {
                0 => Limit::soft(taut(Mode::Fabric, Policy::Spin)).at(Test::Bandwidth, bytes, None),
                _ => Limit::soft(system).at_many(Test::Loss, bytes, 0),
            };
            plan.add(Test::Loss, system, work, Load::Idle, Some(limit));
        }
    }
}

/// Foreign datagrams for each message.
const JUNK: [u64; 4] = [0, 1, 4, 16];

/// What still arrives, and at what cost, among foreign datagrams.
fn flood(plan: &mut Plan) {
    let tcp = plain(Plain::Tcp, true);
    let systems = [
        (tcp, None),
        (taut(Mode::Fabric, Policy::Park), Some(Limit::soft(tcp))),
        (taut(Mode::Fabric, Policy::Spin), Some(Limit::soft(tcp))),
    ];
    for junk in JUNK {
        for (system, limit) in systems {
            let count = plan.extent.count(3_000.0 + 2_000.0 * junk as f64, 1.0).next_multiple_of(64);
            plan.add(Test::Flood, system, Work::Flood { bytes: 64, count, junk }, Load::Idle, limit);
        }
    }
}
