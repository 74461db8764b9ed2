//! Patterns of messages among many nodes on one switch.

use tautline_sim::NetworkModel;
use tautline_sim::cluster::{Cluster, Pattern};

fn cluster(nodes: u32, pattern: Pattern) -> Cluster {
    Cluster { nodes, pattern, rounds: 3, bytes: 64, seed: 1, model: NetworkModel::default() }
}

const PATTERNS: [Pattern; 4] =
    [Pattern::Random { peers: 4 }, Pattern::Incast, Pattern::Ring, Pattern::Barrier];

/// Every message arrives, nobody is reported dead, and the same cluster gives the same result again.
#[test]
fn patterns_end_and_repeat() {
    for pattern in PATTERNS {
        let cluster = cluster(70, pattern);
        let report = cluster.run().unwrap();
        let per_round = match pattern {
            Pattern::Random { peers } => u64::from(70 * peers),
            Pattern::Incast => 69,
            Pattern::Ring => 70,
            Pattern::Barrier => 70 * 7,
        };
        assert_eq!(report.messages, 3 * per_round, "{pattern:?}");
        assert_eq!(report.deaths, 0, "{pattern:?}");
        assert!(report.median_ns > 0 && report.median_ns <= report.p99_ns, "{pattern:?} {report:?}");
        assert_eq!(cluster.run().unwrap(), report, "{pattern:?}");
    }
}

/// Addresses and places go beyond one byte, and beyond the 4,096 of one table.
#[test]
fn thousands_of_nodes() {
    let report = Cluster { rounds: 1, ..cluster(5_000, Pattern::Ring) }.run().unwrap();
    assert_eq!((report.messages, report.deaths), (5_000, 0));
}

/// With open channels a barrier takes no less than its steps take on an idle network, and not much more.
#[test]
fn a_barrier_takes_its_steps() {
    let of = |rounds| Cluster { rounds, ..cluster(64, Pattern::Barrier) }.run().unwrap();
    let (short, long) = (of(2), of(12));
    let model = NetworkModel::default();
    let step = model.send_ns + model.latency_ns + model.wake_ns + model.receive_ns;
    let each = (long.virtual_ns - short.virtual_ns) / 10;
    assert!(each >= 6 * step, "{each} ns for a barrier, {step} ns for a step");
    assert!(each <= 12 * step, "{each} ns for a barrier, {step} ns for a step");
}

#[test]
fn impossible_clusters_are_refused() {
    let good = cluster(8, Pattern::Ring);
    let bad = [
        (Cluster { nodes: 1, ..good }, "1 nodes"),
        (Cluster { nodes: 100_000, ..good }, "100000 nodes"),
        (Cluster { bytes: 8, ..good }, "8 bytes"),
        (Cluster { bytes: 4_000, ..good }, "4000 bytes"),
        (Cluster { rounds: 0, ..good }, "no rounds"),
        (Cluster { rounds: u32::MAX, ..good }, "34359738360 messages"),
        (Cluster { rounds: u32::MAX, pattern: Pattern::Barrier, ..good }, "messages in all"),
        (Cluster { pattern: Pattern::Random { peers: 8 }, ..good }, "8 peers"),
        (Cluster { model: NetworkModel { mbps: 0, ..good.model }, ..good }, "0 Mb/s"),
    ];
    for (cluster, why) in bad {
        let error = cluster.run().unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
