//! Collectives and multicasts of many nodes on one switch.

use tautline_node::multicast::MIN_WINDOW;
use tautline_sim::NetworkModel;
use tautline_sim::cluster::collectives::{Collectives, CollectivesReport, Together};

fn collectives(nodes: u32, together: Together) -> Collectives {
    Collectives { nodes, together, rounds: 4, bytes: 8, seed: 1, model: NetworkModel::default() }
}

const ALL: [Together; 5] = [
    Together::Barrier,
    Together::AllReduce,
    Together::Broadcast,
    Together::Multicast,
    Together::AllMulticast { window: MIN_WINDOW, roots: 2 },
];

/// Every node gets the right result in every round, and the same run gives the same times again.
#[test]
fn collectives_end_and_repeat() {
    for together in ALL {
        for nodes in [2, 23, 64] {
            let run = collectives(nodes, together);
            let report = run.run().unwrap_or_else(|why| panic!("{together:?} of {nodes}: {why}"));
            assert_eq!(report.deaths, 0, "{together:?}");
            assert!(report.round_ns > 0, "{together:?}");
            assert_eq!(run.run().unwrap(), report, "{together:?}");
        }
    }
}

/// With open channels a barrier, and a multicast and a reduction of 8 bytes, take at most 1.3 times
/// ⌈log₂ n⌉ steps.
#[test]
fn short_collectives_take_their_steps() {
    for together in [Together::Barrier, Together::AllReduce, Together::Multicast] {
        for nodes in [16, 256, 1_024] {
            let CollectivesReport { round_ns, bound_ns, .. } = collectives(nodes, together).run().unwrap();
            assert!(round_ns * 10 <= bound_ns * 13, "{together:?} of {nodes}: {round_ns} of {bound_ns} ns");
        }
    }
}

/// all nodes are roots at once, with the smallest window, few roots and a switch that drops what it
/// has no room for. Nobody waits for ever, and every message arrives once, in order and unaltered.
#[test]
fn all_roots_at_once_on_a_lossy_switch() {
    for (nodes, roots, bytes) in [(9, 1, 4_000), (16, 3, 1_000), (33, 4, 64)] {
        let model = NetworkModel { queue_bytes: 600, ..NetworkModel::default() };
        let together = Together::AllMulticast { window: MIN_WINDOW, roots };
        let run = Collectives { rounds: 3, bytes, model, ..collectives(nodes, together) };
        let report = run.run().unwrap_or_else(|why| panic!("{nodes} nodes: {why}"));
        assert_eq!(report.deaths, 0);
        assert!(report.dropped > 0, "{nodes} nodes: the switch dropped nothing, and tested nothing");
    }
}

#[test]
fn impossible_collectives_are_refused() {
    let good = collectives(8, Together::AllReduce);
    for (bad, why) in [
        (Collectives { nodes: 1, ..good }, "1 nodes"),
        (Collectives { bytes: 12, ..good }, "12 bytes"),
        (Collectives { bytes: 0, ..good }, "0 bytes"),
        (Collectives { rounds: 0, ..good }, "no rounds"),
    ] {
        let error = bad.run().unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
