//! Jobs of many ranks beside the MPIs that are installed.

use super::{Extent, Limit, Load, Plan, Test, shared};
use crate::bench::case::{Experiment, Other, Policy, System, Work};

/// Those that have jobs of many ranks beside our groups.
const RIVALS: [Other; 3] = [Other::OpenMpi, Other::Mpich, Other::TautlineMpi];

/// Ours, as users start it.
pub const OURS: System = System::Taut {
    device: crate::bench::case::Device::Shm,
    security: crate::bench::case::Mode::Fabric,
    waiting: Policy::SpinThenPark,
};

/// Adds everything: each experiment for each number of ranks.
pub(super) fn many(plan: &mut Plan, installed: &[Other]) {
    debug_assert_eq!(OURS, shared(Policy::SpinThenPark));
    let rivals: Vec<_> = RIVALS.into_iter().filter(|other| installed.contains(other)).collect();
    let rivals = || rivals.iter().map(|other| System::Rival { other: *other, tcp: false });
    let limit = rivals().next().map(Limit::soft);
    for (ranks, work) in works(plan.extent) {
        for system in rivals() {
            plan.add(Test::Many(experiment(work)), system, work, Load::Idle, None);
        }
        // Waiting has no rival here: theirs poll.
        let limit = limit.filter(|_| ranks > 1 && experiment(work) != Experiment::Asleep);
        plan.add(Test::Many(experiment(work)), OURS, work, Load::Idle, limit);
    }
}

fn experiment(work: Work) -> Experiment {
    let Work::Many { experiment, .. } = work else { return Experiment::Start };
    experiment
}

/// What jobs of each number of ranks do. Where ranks outnumber the cores, rivals that poll are thousands of
/// times slower, so that everyone does less. Collectives that take little time are done more often.
fn works(extent: Extent) -> Vec<(u64, Work)> {
    let counts: &[u64] = match extent {
        Extent::Full => &[2, 4, 8, 16, 32, 64],
        Extent::Quick => &[2, 8, 64],
        Extent::Smoke => &[2, 3],
    };
    let cores = tautline_baseline::cpu::allowed_cores().map_or(1, |cores| cores.len()) as u64;
    let mut works = Vec::new();
    for &ranks in counts {
        let pick = |roomy, crowded| match extent {
            Extent::Smoke => 3,
            _ if ranks > cores => crowded,
            Extent::Full => roomy,
            Extent::Quick => roomy / 10,
        };
        let mut add = |experiment, bytes, count| {
            works.push((ranks, Work::Many { experiment, ranks, bytes, count }));
        };
        add(Experiment::Start, 0, 1);
        add(Experiment::First, 8, 1);
        add(Experiment::Beside, 8, pick(2_000, 200));
        // Long enough that falling asleep, and waking up at the end, is not all there is.
        add(Experiment::Asleep, 0, pick(2_000, if ranks == 64 { 1_000 } else { 200 }));
        add(Experiment::AllToAll, 1 << 10, pick(200, 10));
        if ranks <= 8 {
            add(Experiment::Halo, 1 << 10, pick(5_000, 200));
        }
        if ranks > 16 {
            continue;
        }
        for experiment in Experiment::ALL.into_iter().filter(|experiment| experiment.is_collective()) {
            if experiment == Experiment::Barrier {
                add(experiment, 0, pick(500, 20));
                continue;
            }
            add(experiment, 8, pick(500, 10));
            add(experiment, 64 << 10, pick(50, 3));
            if ranks == 2 && matches!(experiment, Experiment::AllReduce | Experiment::Broadcast) {
                add(experiment, 1 << 20, pick(50, 3));
            }
        }
    }
    works
}
