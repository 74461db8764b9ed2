//! L-45: what many idle links cost in frames, and when deaths are noticed on them.

use tautline_sim::cluster::{Cluster, Idle, Pattern};
use tautline_sim::{Nanos, NetworkModel};

const SECOND: Nanos = 1_000_000_000;

/// A cluster whose links have been quiet for long.
fn quiet(nodes: u32, pattern: Pattern) -> Idle {
    let cluster = Cluster { nodes, pattern, rounds: 1, bytes: 64, seed: 1, model: NetworkModel::default() };
    let mut idle = cluster.into_idle().unwrap();
    idle.pass(13 * SECOND).unwrap();
    idle
}

fn everyone(nodes: u32) -> Idle {
    quiet(nodes, Pattern::Random { peers: nodes - 1 })
}

/// Frames in 10 seconds, in which nobody is taken for dead.
fn frames(idle: &mut Idle) -> u64 {
    let before = idle.frames();
    idle.pass(10 * SECOND).unwrap();
    assert_eq!(idle.deaths().0, 0);
    idle.frames() - before
}

/// A node with 128 idle links sends hardly more heartbeats than one with 64, and notices deaths.
#[test]
fn heartbeats_do_not_grow_with_idle_links() {
    const NODES: u32 = 129;
    let few = frames(&mut everyone(65)) / 65;
    let mut idle = everyone(NODES);
    let many = frames(&mut idle) / u64::from(NODES);
    assert!(few > 1_000, "{few} frames of each node: they are not idle links with heartbeats");
    assert!(many * 10 <= few * 12, "{many} frames of each node with 128 idle links, {few} with 64");

    // Half as many heartbeats for each link: the pause between two, and the time without an answer.
    let untold = noticed(&mut idle, 1, NODES - 1, |_| {});
    assert!((SECOND..18 * SECOND / 10).contains(&untold), "noticed after {untold} ns");
    let told = noticed(&mut idle, 2, NODES - 2, |idle| idle.tell(2));
    assert!(told <= SECOND + SECOND / 100, "noticed {told} ns after it was told");
}

/// When, after a crash, the last of `others` has reported it.
fn noticed(idle: &mut Idle, node: u32, others: u32, tell: impl FnOnce(&mut Idle)) -> Nanos {
    let (at, before) = (idle.now(), idle.deaths().0);
    idle.crash(node);
    tell(idle);
    idle.pass(3 * SECOND).unwrap();
    let (deaths, last) = idle.deaths();
    assert_eq!(deaths - before, u64::from(others), "not everybody has reported the death");
    last - at
}

/// The same for a node whose peers have no other links: it tells them its pace.
#[test]
fn peers_of_a_node_with_many_links_follow_its_pace() {
    let [few, many] = [65, 257].map(|nodes| frames(&mut quiet(nodes, Pattern::Incast)));
    assert!(few > 1_000 && many * 10 <= few * 12, "{many} frames with 256 peers, {few} with 64");
}

/// What is sent ends the quiet of its link: silence counts from the first repetition on.
#[test]
fn traffic_ends_the_quiet() {
    let mut idle = quiet(1_025, Pattern::Incast);
    // Until a moment after the next heartbeats of all links.
    let before = idle.frames();
    while idle.frames() < before + 2_048 {
        idle.pass(SECOND / 1_000).unwrap();
    }
    idle.pass(SECOND / 2).unwrap();
    let at = idle.now();
    idle.crash(1);
    idle.crash(2);
    idle.send(0, 1);
    while idle.deaths().0 == 0 {
        idle.pass(SECOND / 100).unwrap();
    }
    let (deaths, noticed) = idle.deaths();
    assert!(noticed - at <= SECOND + SECOND / 100, "noticed after {} ns", noticed - at);
    assert_eq!(deaths, 1, "a death was noticed that nothing was sent to");
    // 1,024 quiet links: 1 + 0.4 · 16 bounds.
    idle.pass(8 * SECOND).unwrap();
    let (deaths, noticed) = idle.deaths();
    assert!(noticed - at <= 74 * SECOND / 10, "noticed after {} ns", noticed - at);
    assert_eq!(deaths, 2);
}
