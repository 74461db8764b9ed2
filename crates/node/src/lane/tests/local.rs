//! Peers that share memory, on a virtual clock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::limits::LOCAL_POLL_NS;
use crate::local::{Discovery, SimulatedHost};
use crate::{Clock, Endpoint, Environment, Event, Job};

/// A pair that shares memory.
fn sharing() -> Pair {
    let host = SimulatedHost::new();
    let mut pair = Pair::new();
    for (rank, lane) in pair.lanes.iter_mut().enumerate() {
        let discovery = Discovery::simulated(&job(rank), &Config::default(), &host).unwrap();
        lane.local.discovery = Some(Box::new(discovery));
    }
    pair.connect();
    for (rank, lane) in pair.lanes.iter().enumerate() {
        assert!(lane.peers.member(1 - rank as Rank).channel.is_shared());
    }
    pair
}

/// Ends a lane as a killed process ends.
fn kill(lane: &mut Lane) {
    lane.local.discovery = None;
    for rank in lane.local.poll.take_all() {
        drop(lane.peers.member_mut(rank).channel.detach_shm());
    }
}

/// S-6, N-8: a node that polls reports the death of a peer that shares memory within two milliseconds,
/// whenever the peer dies, and not before the peer's last message.
#[test]
fn a_death_is_reported_within_two_milliseconds() {
    const STEP: Nanos = 100_000;
    assert_eq!(LOCAL_POLL_NS, 2_000_000);
    let mut latest = 0;
    for moment in 0..40 {
        let mut pair = sharing();
        (0..moment).for_each(|_| pair.pass(STEP / 2));
        pair.send(1, b"last").unwrap();
        kill(&mut pair.lanes[1]);
        let (died, mut got) = (pair.now, Vec::new());
        let why = loop {
            pair.now += STEP;
            pair.lanes[0].poll(pair.now);
            got.extend(pair.take_short(0));
            match pair.lanes[0].poll_event() {
                Some(Event::PeerDown { peer: 1, why, .. }) => break why,
                Some(other) => panic!("{other:?}"),
                None => assert!(pair.now < died + LOCAL_POLL_NS, "not reported, moment {moment}"),
            }
        };
        assert_eq!((why, got), (Down::Exited, vec![b"last".to_vec()]), "moment {moment}");
        latest = latest.max(pair.now - died);
    }
    assert!(latest > LOCAL_POLL_NS / 2, "the moments lie all over the time between two polls");
}

/// A device that reaches nobody.
fn dead_end(addr: SocketAddr) -> Wire {
    let arena = Arena::new(64, MAX_FRAME);
    let (out, input, events) = Default::default();
    Wire { arena, addr, peer: addr, out, input, events }
}

/// N-16: more nodes dial at once than may wait to be accepted; all of them share memory in the end.
#[test]
fn a_full_backlog_is_tried_again() {
    const NODES: u16 = 8;
    let addr = |rank: u16| SocketAddr::from(([10, 0, 0, 1], 1 + rank));
    let (host, time) = (SimulatedHost::new(), Arc::new(AtomicU64::new(0)));
    let members: Vec<_> = (0..NODES).map(|rank| Member::new(addr(rank))).collect();
    let nodes: Vec<_> = (0..NODES)
        .map(|rank| {
            let job = Job::new(rank.into(), JobKey::new([1; 32]), members.clone());
            let environment = Environment::new(
                Box::new(dead_end(addr(rank))),
                Clock::Virtual(time.clone()),
                [rank as u8; 32],
            );
            Endpoint::over(&job, Config::default(), environment.on_host(Some(host.clone())), Vec::new())
                .unwrap()
        })
        .collect();
    nodes[1..].iter().for_each(|node| node.connect(0).unwrap());
    for _ in 0..100 {
        time.fetch_add(1_000_000, Ordering::Relaxed);
        nodes.iter().for_each(|node| drop(node.progress()));
    }
    assert_eq!(host.failures(), 0);
    for node in &nodes[1..] {
        let transports: Vec<_> = std::iter::from_fn(|| node.poll_event())
            .filter_map(|event| match event {
                Event::Transport { device, .. } => Some(device),
                _ => None,
            })
            .collect();
        assert_eq!(transports, ["shm"]);
    }
}
