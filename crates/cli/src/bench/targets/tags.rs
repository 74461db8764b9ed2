//! Messages with tags beside the MPIs that are installed, and beside plain messages.

use super::{Judge, VALUE};
use crate::bench::case::{Device, Mode, Other, Policy, Style, System};
use crate::bench::plan::{Load, Test, memory, on_host, shared, taut};
use crate::bench::rows::ratio;
use crate::bench::table::size;

/// What a tag adds to a message of 8 bytes, in nanoseconds.
const ADDED: f64 = 40.0;
/// What an exact match costs behind long queues, beside empty ones.
const QUEUES: f64 = 1.3;
/// Short messages over a network, beside Open MPI over TCP.
const SHORT_FAR: f64 = 0.65;
/// What is left of the bandwidth of plain messages.
const KEPT: f64 = 0.95;

const MPIS: [Other; 2] = [Other::OpenMpi, Other::Mpich];

/// Judges all of them.
pub(super) fn tags(judge: &mut Judge<'_>) {
    let (ours, plain) = (memory(Device::Shm, Style::Tag), shared(Policy::Spin));
    beside_mpi(judge, Test::Latency, 8, 0.8);
    beside_mpi(judge, Test::Rate, 8, 1.7);
    beside_mpi(judge, Test::Bandwidth, 64 << 10, 1.05);
    beside_mpi(judge, Test::Bandwidth, 1 << 20, 1.15);
    over_a_network(judge);
    let median = |judge: &Judge<'_>, system| {
        let result = judge.at(Test::Latency, system, 8, Load::Idle)?;
        let values: Vec<f64> = result.figures.iter().map(|(_, figure)| figure.value).collect();
        (!values.is_empty()).then(|| tautline_baseline::stats::median(&values))
    };
    if let (Some(tagged), Some(message)) = (median(judge, ours), median(judge, plain)) {
        let added = 1e3 * (tagged - message);
        judge.targets.push(super::Target {
            what: "tag, 8 B, shm, nanoseconds above a message".to_owned(),
            goal: format!("at most {ADDED}"),
            value: Some(added),
            met: added <= ADDED,
        });
    }
    for (device, message, name) in
        [(Device::Shm, plain, "shm"), (Device::Udp, taut(Mode::Fabric, Policy::Spin), "udp")]
    {
        let (tagged, queues) = (memory(device, Style::Tag), memory(device, Style::TagQueues));
        for bytes in [64 << 10, 1 << 20] {
            let value = judge.beside(Test::Bandwidth, tagged, message, bytes, Load::Idle, VALUE);
            judge.at_least(format!("tag, bandwidth, {}, {name}", size(bytes)), value, KEPT, "a message's");
        }
        let value = judge.beside(Test::Latency, queues, tagged, 8, Load::Idle, VALUE);
        judge.at_most(format!("tag, 8 B, behind 10,000 entries, {name}"), value, QUEUES, "no entries'");
    }
}

/// Over a network, beside Open MPI over TCP.
fn over_a_network(judge: &mut Judge<'_>) {
    let (ours, theirs) =
        (memory(Device::Udp, Style::Tag), System::Rival { other: Other::OpenMpi, tcp: true });
    let value = judge.beside(Test::Latency, ours, theirs, 8, Load::Idle, VALUE);
    judge.at_most("tag, latency, 8 B, udp".to_owned(), value, SHORT_FAR, "Open MPI over TCP");
    for bytes in [64 << 10, 1 << 20] {
        let value = judge.beside(Test::Bandwidth, ours, theirs, bytes, Load::Idle, VALUE);
        judge.at_least(format!("tag, bandwidth, {}, udp", size(bytes)), value, 1.0, "Open MPI's over TCP");
    }
}

/// Beside the better MPI: times at most, rates and bandwidths at least.
fn beside_mpi(judge: &mut Judge<'_>, test: Test, bytes: usize, goal: f64) {
    let of = |system: System| judge.at(test, system, bytes, Load::Idle);
    let Some(ours) = of(memory(Device::Shm, Style::Tag)) else { return };
    let ratios = MPIS.into_iter().filter_map(|other| of(on_host(other)));
    let ratios = ratios.filter_map(|theirs| ratio(ours, theirs, VALUE));
    let what = format!("tag, {}, {}, shm", test.name(), size(bytes));
    if test == Test::Latency {
        let value = ratios.reduce(f64::max);
        judge.at_most(what, value, goal, "the better MPI");
    } else {
        let value = ratios.reduce(f64::min);
        judge.at_least(what, value, goal, "the better MPI");
    }
}
