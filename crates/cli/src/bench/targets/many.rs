//! Jobs of many ranks beside the MPIs that are installed.

use super::{Judge, Target, VALUE};
use crate::bench::case::{Experiment, Other, System};
use crate::bench::plan::{OURS, Test, on_host};
use crate::bench::rows::{Result, ratio};
use tautline_baseline::stats::median;

/// The goals for jobs that outnumber the cores: the experiment, its bytes, the ranks, and how many times
/// faster than MPICH and Open MPI it is to be.
const CROWDED: [(Experiment, usize, &[u64], f64, f64); 4] = [
    (Experiment::AllToAll, 1 << 10, &[64], 10.0, 3.0),
    (Experiment::Barrier, 0, &[4, 8, 16], 10.0, 2.0),
    (Experiment::AllReduce, 8, &[4, 8, 16], 10.0, 2.0),
    (Experiment::Halo, 1 << 10, &[4, 8], 1.0, 1.0),
];
/// The longest time from the start to the last join of 64 ranks, in milliseconds.
const START_MS: f64 = 2_000.0;
/// What 64 idle ranks may use of a core, in percent.
const ASLEEP: f64 = 2.0;

/// Judges all of them.
pub(super) fn many(judge: &mut Judge<'_>) {
    bound(judge, Experiment::Start, START_MS, "ms");
    bound(judge, Experiment::Asleep, ASLEEP, "% of a core");
    let beside = [64, 2].map(|ranks| job(judge, OURS, Experiment::Beside, 8, ranks));
    if let [Some(many), Some(two)] = beside {
        let value = ratio(many, two, VALUE);
        judge.at_most("8 B beside 62 idle ranks".into(), value, 1.1, "that of two ranks");
    }
    for (experiment, bytes, counts, mpich, open_mpi) in CROWDED {
        for &ranks in counts {
            for (other, times) in [(Other::Mpich, mpich), (Other::OpenMpi, open_mpi)] {
                let ours = job(judge, OURS, experiment, bytes, ranks);
                let theirs = job(judge, on_host(other), experiment, bytes, ranks);
                let value = theirs.zip(ours).and_then(|(theirs, ours)| ratio(theirs, ours, VALUE));
                let what = format!("speed of {}, {ranks} ranks", experiment.name());
                judge.at_least(what, value, times, &format!("{}'s", other.rival().name()));
            }
        }
    }
    below_the_better(judge, Experiment::Barrier, 0, 0.8);
    below_the_better(judge, Experiment::AllReduce, 8, 0.8);
    below_the_better(judge, Experiment::AllReduce, 64 << 10, 1.0);
    below_the_better(judge, Experiment::AllReduce, 1 << 20, 1.0);
    below_the_better(judge, Experiment::Broadcast, 1 << 20, 1.0);
}

/// Two ranks that have a core each, beside the better rival.
fn below_the_better(judge: &mut Judge<'_>, experiment: Experiment, bytes: usize, goal: f64) {
    let Some(ours) = job(judge, OURS, experiment, bytes, 2) else { return };
    let rivals = [Other::OpenMpi, Other::Mpich].map(|other| job(judge, on_host(other), experiment, bytes, 2));
    let ratios = rivals.into_iter().flatten().filter_map(|theirs| ratio(ours, theirs, VALUE));
    let value = ratios.reduce(f64::max);
    judge.at_most(format!("{}, {bytes} B, 2 ranks", experiment.name()), value, goal, "the better MPI");
}

fn bound(judge: &mut Judge<'_>, experiment: Experiment, most: f64, unit: &str) {
    let Some(ours) = job(judge, OURS, experiment, 0, 64) else { return };
    let values: Vec<f64> = ours.figures.iter().map(|(_, figure)| figure.value).collect();
    let value = median(&values);
    let goal = format!("at most {most} {unit}");
    let what = format!("{}, 64 ranks", experiment.name());
    judge.targets.push(Target { what, goal, value: Some(value), met: value <= most });
}

fn job<'a>(
    judge: &Judge<'a>,
    system: System,
    experiment: Experiment,
    bytes: usize,
    ranks: u64,
) -> Option<&'a Result> {
    let wanted = |result: &&Result| {
        let cell = &result.cell;
        (cell.test, cell.system) == (Test::Many(experiment), system)
            && (cell.bytes, cell.many) == (bytes, Some(ranks))
            && !result.figures.is_empty()
    };
    judge.results.iter().find(wanted)
}
