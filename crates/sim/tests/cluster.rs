//! Patterns of messages among many nodes on one switch.

use tautline_sim::NetworkModel;
use tautline_sim::cluster::{Cluster, ClusterReport, Pattern};

fn cluster(nodes: u32, pattern: Pattern) -> Cluster {
    Cluster { nodes, pattern, rounds: 3, bytes: 64, seed: 1, model: NetworkModel::default() }
}

const PATTERNS: [Pattern; 5] =
    [Pattern::Random { peers: 4 }, Pattern::Incast, Pattern::Requests, Pattern::Ring, Pattern::Barrier];

/// Every message arrives, nobody is reported dead, and the same cluster gives the same result again.
#[test]
fn patterns_end_and_repeat() {
    for pattern in PATTERNS {
        let cluster = cluster(70, pattern);
        let report = cluster.run().unwrap();
        let per_round = match pattern {
            Pattern::Random { peers } => u64::from(70 * peers),
            Pattern::Incast | Pattern::Requests => 69,
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

/// L-15, L-39, L-40, H-18: nodes that all connect to one at the same moment, and send, fill its buffer many
/// times over. Nobody is taken for dead.
#[test]
fn incast_kills_nobody() {
    for nodes in [300, 2_000] {
        let report = Cluster { rounds: 10, ..cluster(nodes, Pattern::Incast) }.run().unwrap();
        assert_eq!((report.messages, report.deaths), (10 * u64::from(nodes - 1), 0), "{report:?}");
    }
}

/// Messages per second that all but one of the nodes send to that one, without waiting for anything.
fn incast(nodes: u32, rounds: u32) -> (f64, ClusterReport) {
    let wide = Cluster { rounds, bytes: 1_024, ..cluster(nodes, Pattern::Incast) };
    let report = wide.run().unwrap();
    assert_eq!(report.deaths, 0, "{report:?}");
    (report.messages as f64 * 1e9 / report.virtual_ns as f64, report)
}

/// L-42, L-43: a hundred senders get as much through as one does, with hardly a frame lost.
#[test]
fn incast_keeps_the_receiver_busy() {
    let (one, _) = incast(2, 100_000);
    let (hundred, report) = incast(101, 2_000);
    assert!(hundred >= 0.9 * one, "{hundred:.0} messages per second of 100, {one:.0} of one: {report:?}");
    assert!(report.dropped * 1_000 <= report.frames, "{report:?}");
}

/// L-42: a hundred nodes that each wait for an answer before they send again are served in turn: hardly a
/// message takes longer than three times as long as one message of each takes when nobody waits for answers.
#[test]
fn requests_of_many_are_served_in_turn() {
    let report = Cluster { rounds: 300, bytes: 1_024, ..cluster(101, Pattern::Requests) }.run().unwrap();
    let turn = 100e9 / incast(101, 2_000).0;
    assert!(report.p99_ns as f64 <= 3.0 * turn, "a message of each takes {turn:.0} ns: {report:?}");
    assert_eq!(report.deaths, 0, "{report:?}");
    assert!(report.dropped * 1_000 <= report.frames, "{report:?}");
}

/// Many nodes, each pattern: all messages arrive, and nobody is taken for dead. Long runs have ten thousand.
#[test]
fn many_nodes() {
    let nodes = tautline_skips::number("TAUTLINE_NODES", 500) as u32;
    let seed = tautline_skips::number(tautline_skips::SEED, 1);
    for pattern in PATTERNS {
        let report = Cluster { seed, ..cluster(nodes, pattern) }.run().unwrap();
        assert_eq!(report.deaths, 0, "{pattern:?}: {report:?}");
    }
    tautline_skips::did(nodes.into());
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
