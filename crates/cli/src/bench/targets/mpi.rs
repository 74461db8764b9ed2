//! Our MPI beside the others, with the same programs.

use super::{Judge, VALUE};
use crate::bench::case::{Experiment, Other, System};
use crate::bench::plan::{Load, Test, on_host};
use crate::bench::rows::{Result, ratio};
use crate::bench::table::size;

/// Round trips of short messages beside the better MPI, on one host.
const SHORT: f64 = 0.85;
/// The same over a network.
const SHORT_FAR: f64 = 0.7;
/// Round trips of long messages: their time beside the better MPI's.
const LONG: f64 = 1.0 / 1.05;
/// Where ranks outnumber the cores: how many times faster than MPICH.
const CROWDED: f64 = 2.0;

const OURS: Other = Other::TautlineMpi;
const OTHERS: [Other; 2] = [Other::OpenMpi, Other::Mpich];

/// Judges all of them.
pub(super) fn mpi(judge: &mut Judge<'_>) {
    for (bytes, goal) in
        [(0, SHORT), (8, SHORT), (64, SHORT), (64 << 10, LONG), (1 << 20, LONG), (4 << 20, LONG)]
    {
        latency(judge, bytes, false, goal);
    }
    for bytes in [8, 64] {
        latency(judge, bytes, true, SHORT_FAR);
    }
    for ranks in [2, 4, 8] {
        for other in OTHERS {
            let goal = if other == Other::Mpich && ranks > 2 { CROWDED } else { 1.0 };
            let of = |other| job(judge, other, Experiment::Halo, ranks);
            let value = of(other).zip(of(OURS)).and_then(|(theirs, ours)| ratio(theirs, ours, VALUE));
            let what = format!("MPI, speed of halo, {ranks} ranks");
            judge.at_least(what, value, goal, &format!("{}'s", other.rival().name()));
        }
    }
}

fn latency(judge: &mut Judge<'_>, bytes: usize, tcp: bool, goal: f64) {
    let of = |other| judge.at(Test::Latency, System::Rival { other, tcp }, bytes, Load::Idle);
    let Some(ours) = of(OURS) else { return };
    let ratios = OTHERS.into_iter().filter_map(of).filter_map(|theirs| ratio(ours, theirs, VALUE));
    let way = if tcp { "network" } else { "shm" };
    let value = ratios.reduce(f64::max);
    judge.at_most(format!("MPI, latency, {}, {way}", size(bytes)), value, goal, "the better MPI");
}

fn job<'a>(judge: &Judge<'a>, other: Other, experiment: Experiment, ranks: u64) -> Option<&'a Result> {
    judge.results.iter().find(|result| {
        let cell = &result.cell;
        (cell.test, cell.system, cell.many) == (Test::Many(experiment), on_host(other), Some(ranks))
            && !result.figures.is_empty()
    })
}
