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

/// A lane whose pages a test can write, and `count` peers that share memory with it.
fn crowd(count: u16) -> (Vec<Lane>, Nanos) {
    let addr = |rank: u16| SocketAddr::from(([10, 0, 0, 1], 1 + rank));
    let members: Vec<_> = (0..=count).map(|rank| Member::new(addr(rank))).collect();
    let host = SimulatedHost::new();
    let mut lanes: Vec<_> = (0..=count)
        .map(|rank| {
            let job = Job::new(rank.into(), JobKey::new([1; 32]), members.clone());
            let (device, entropy) = (Box::new(dead_end(addr(rank))), [rank as u8; 32]);
            let handlers = vec![("short".to_owned(), true)];
            let mut lane = Lane::new(&job, 0, Config::default(), device, entropy, handlers).unwrap();
            let discovery = Discovery::simulated(&job, &Config::default(), &host).unwrap();
            lane.local.discovery = Some(Box::new(discovery));
            assert!(lane.add_peer(0));
            lane
        })
        .collect();
    let mut now = 1;
    for _ in 0..40 * usize::from(count) {
        now += LOCAL_POLL_NS;
        // Few may wait to be accepted at a time.
        lanes[1..].iter_mut().for_each(|lane| assert!(lane.dial(now, 0)));
        lanes.iter_mut().for_each(|lane| {
            lane.poll(now);
        });
        if lanes[0].local.poll.peers().len() == usize::from(count) {
            break;
        }
    }
    assert_eq!(lanes[0].local.poll.peers().len(), usize::from(count));
    for _ in 0..20 {
        now += LOCAL_POLL_NS;
        lanes.iter_mut().for_each(|lane| {
            lane.poll(now);
        });
    }
    (lanes, now)
}

/// Frames that a lane has taken out of rings so far.
fn taken(lane: &Lane) -> u64 {
    lane.peers.iter().filter_map(|peer| peer.channel.shm_counts()).map(|[_, taken, _]| taken).sum()
}

/// Pushes a frame into the ring of a peer.
fn push(lane: &mut Lane, to: Rank) {
    let (peer, port) = lane.channel(to);
    assert!(peer.channel.push_control(port, &frame(), false));
}

/// A control record.
fn frame() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    let len = tautline_wire::record::write::window(&mut bytes, 77, 0);
    bytes.truncate(len);
    bytes
}

/// S-37, S-39: of 63 local peers that are idle, a lane that polls, or has slept, polls at most a few; one
/// that sends is polled at once.
#[test]
fn idle_local_peers_are_not_polled() {
    const PEERS: u16 = 63;
    let (mut lanes, mut now) = crowd(PEERS);
    (0..400).for_each(|_| {
        now += 1_000;
        lanes[0].poll(now);
    });
    assert!(lanes[0].local.poll.len() <= 4, "{} of {PEERS} rings are polled", lanes[0].local.poll.len());
    for _ in 0..3 {
        now += 1_000;
        assert!(lanes[0].announce_sleep(now), "there is nothing to do");
        lanes[0].announce_wake();
    }
    assert_eq!(lanes[0].local.poll.len(), 0, "after two sleeps");
    for peer in [1, 40, 63_u32] {
        let before = taken(&lanes[0]);
        push(&mut lanes[peer as usize], 0);
        assert!(lanes[0].has_local_frames());
        lanes[0].poll(now);
        assert_eq!((taken(&lanes[0]) - before, lanes[0].local.poll.at(0)), (1, Some(peer)));
        (0..3).for_each(|_| {
            assert!(lanes[0].announce_sleep(now));
            lanes[0].announce_wake();
        });
    }
}

/// S-40: a peer that clears the bits of others delays their frames by 10 ms, to a lane that polls and to one
/// that sleeps; none is lost.
#[test]
fn cleared_bits_delay_and_lose_nothing() {
    let (mut lanes, mut now) = crowd(20);
    let clear = |lane: &Lane| (0..64).for_each(|number| lane.local.poll.clear_bit(number));
    for sleeps in [false, true] {
        for _ in 0..3 {
            now += 20_000_000;
            assert!(lanes[0].announce_sleep(now));
            lanes[0].announce_wake();
        }
        let before = taken(&lanes[0]);
        lanes[0].local.poll.sweep(now, |_| false);
        push(&mut lanes[7], 0);
        clear(&lanes[0]);
        lanes[0].poll(now);
        assert_eq!(taken(&lanes[0]), before, "it was not announced");
        if sleeps {
            now += 1;
            assert!(lanes[0].announce_sleep(now));
            let wakes = lanes[0].local.poll.sweep_at().expect("it does not sleep for long");
            assert!(wakes <= now + 10_000_000);
            now = wakes;
            lanes[0].announce_wake();
            assert!(!lanes[0].announce_sleep(now), "all rings were checked");
            lanes[0].poll(now);
        } else {
            (0..12).for_each(|_| {
                now += 1_000_000;
                lanes[0].poll(now);
            });
        }
        assert_eq!(taken(&lanes[0]), before + 1);
    }
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
