//! Ours beside every rival that was found, in the same rounds.

use super::{Get, Judge, P99, Target, VALUE};
use crate::bench::case::{Mode, Other, Policy, System};
use crate::bench::plan::{KERNEL, Load, SIZES, STREAMED, Test, on_host, shared, taut};
use crate::bench::rows::{Result, ratio};
use crate::bench::table::size;

/// How much better than a spinning rival we want to be on shared cores.
const SHARED_CORES: f64 = 0.01;

impl Judge<'_> {
    pub(super) fn rivals(&mut self) {
        for bytes in SIZES {
            self.below_everyone(bytes);
        }
        for bytes in STREAMED {
            self.ahead_of_everyone(Test::Bandwidth, bytes);
        }
        self.ahead_of_everyone(Test::Rate, 8);
        for (name, get) in [("p50", VALUE), ("p99", P99)] {
            let ours = self.at(Test::Paced, shared(Policy::SpinThenPark), 64, Load::Burner);
            let theirs = self.at(Test::Paced, on_host(Other::OpenMpi), 64, Load::Burner);
            let value = ours.zip(theirs).and_then(|(ours, theirs)| ratio(ours, theirs, get as Get));
            let what = format!("paced, burner, default policy, shm, {name}");
            if name == "p50" {
                self.at_most(what, value, SHARED_CORES, "Open MPI");
            } else {
                self.at_most(what, value, 1.0, "Open MPI");
            }
        }
    }

    /// Rivals over TCP, beside ours over UDP.
    pub(super) fn latency_over_tcp(&mut self, bytes: usize) {
        let Some(ours) = self.at(Test::Latency, taut(Mode::Fabric, Policy::Spin), bytes, Load::Idle) else {
            return;
        };
        for result in self.results.iter().filter(|result| {
            (result.cell.test, result.cell.bytes) == (Test::Latency, bytes)
                && matches!(result.cell.system, System::Rival { other, tcp: true } if other.is_foreign())
        }) {
            let value = ratio(ours, result, VALUE);
            let than = named(result);
            self.at_most(format!("latency, {bytes} B, fabric"), value, 1.0, &than);
        }
    }

    /// Every other system between two processes of this host, measured with messages of this size.
    fn everyone(&self, test: Test, bytes: usize) -> Vec<&Result> {
        let counts = |result: &&Result| {
            let cell = &result.cell;
            let is_other = match cell.system {
                // A loan copies nothing, and our row beside it does: that is another comparison.
                System::Rival { other, tcp } => !tcp && other.is_foreign() && other != Other::Iceoryx2Loan,
                system => KERNEL.contains(&system),
            };
            // A system that resends an untouched buffer does less work; it is shown, and decides nothing.
            is_other
                && !cell.warm
                && (cell.test, cell.bytes, cell.load) == (test, bytes, Load::Idle)
                && (test != Test::Rate || cell.window == Some(64))
        };
        self.results.iter().filter(counts).filter(|result| !result.figures.is_empty()).collect()
    }

    fn below_everyone(&mut self, bytes: usize) {
        let ratio_to = |other: &Result| {
            let ours = self.results.iter().find(|result| {
                result.cell.system == shared(Policy::Spin) && result.cell.is_beside(&other.cell)
            })?;
            Some((ratio(ours, other, VALUE)?, named(other)))
        };
        let everyone = self.everyone(Test::Latency, bytes);
        let ratios: Vec<_> = everyone.into_iter().filter_map(ratio_to).collect();
        let Some((value, nearest)) = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0)).cloned() else {
            return;
        };
        self.targets.push(Target {
            what: format!("latency, {}, shm; the nearest is {nearest}", size(bytes)),
            goal: format!("below every rival installed ({})", ratios.len()),
            value: Some(value),
            met: value < 1.0,
        });
    }

    /// The same where more is better.
    fn ahead_of_everyone(&mut self, test: Test, bytes: usize) {
        let ours = self.find(test, shared(Policy::Spin), |cell| {
            cell.bytes == bytes && !cell.batch && (test != Test::Rate || cell.window == Some(64))
        });
        let Some(ours) = ours else { return };
        let everyone = self.everyone(test, bytes);
        let lines: Vec<_> =
            everyone.into_iter().map(|other| (ratio(ours, other, VALUE), named(other))).collect();
        for (value, than) in lines {
            self.at_least(format!("{}, {}, shm", test.name(), size(bytes)), value, 1.0, &than);
        }
    }
}

fn named(result: &Result) -> String {
    result.cell.system.name().to_owned()
}
