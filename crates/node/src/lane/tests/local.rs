//! Peers that share memory, on a virtual clock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::limits::{LOCAL_POLL_NS, SHORTAGE_PAUSE};
use crate::local::{Discovery, SimulatedHost};
use crate::{Clock, Endpoint, Environment, Event, Job, Shortage};

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
        assert!(lane.local.connected_at.is_some_and(|at| at <= pair.now));
    }
    pair
}

/// Lets a rank share memory with others of the host.
fn settle_on(host: &SimulatedHost, lane: &mut Lane) {
    let discovery = Discovery::simulated(&job(lane.rank as usize), &Config::default(), host).unwrap();
    lane.local.discovery = Some(Box::new(discovery));
}

/// A pair on one host whose dials fail for a millisecond, so that links are opened.
fn pair_short_of_descriptors() -> (Pair, SimulatedHost) {
    let (mut pair, host) = (Pair::new(), SimulatedHost::new());
    for rank in [0, 1] {
        settle_on(&host, &mut pair.lanes[rank]);
        pair.lanes[rank].peers.member_mut(1 - rank as Rank).local.dial_after = pair.now + 1_000_000;
    }
    (pair, host)
}

/// Polls both sides until frames of this kind are under way to `to`, and takes them out.
fn hold(pair: &mut Pair, to: usize, wanted: Kind) -> Vec<Vec<u8>> {
    for _ in 0..100 {
        pair.poll(to);
        pair.poll(1 - to);
        let frames = pair.intercept(to);
        if frames.iter().any(|frame| kind(frame) == wanted) {
            return frames;
        }
        pair.inject(to, frames);
    }
    panic!("no {wanted:?} is sent");
}

/// Lets both sides find out what they have to, for longer than a link may be silent; then messages flow, and
/// memory is shared or not.
fn assert_agreement(pair: &mut Pair, shared: bool) {
    (0..50).for_each(|_| pair.pass(LOCAL_POLL_NS));
    (0..50).for_each(|_| pair.pass(100_000_000));
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    for rank in [0, 1] {
        let channel = &pair.lanes[rank].peers.member(1 - rank as Rank).channel;
        assert_eq!((channel.is_shared(), channel.link.is_live()), (shared, !shared), "rank {rank}");
        pair.send(rank, b"through").unwrap();
        pair.settle();
        assert_eq!(pair.take_short(1 - rank), [b"through"]);
    }
}

/// Nobody was told that the other one is gone.
fn assert_nobody_is_down(pair: &mut Pair) {
    for lane in &mut pair.lanes {
        let down = std::iter::from_fn(|| lane.poll_event()).find(|e| matches!(e, Event::PeerDown { .. }));
        assert!(down.is_none(), "rank {}: {down:?}", lane.rank);
    }
}

/// Rank 1 dials, while the welcome for its hello is held up, which is returned.
fn dialling_before_the_welcome() -> (Pair, SimulatedHost, Vec<Vec<u8>>) {
    let (mut pair, host) = pair_short_of_descriptors();
    pair.lanes[1].connect(pair.now, 0);
    let welcome = hold(&mut pair, 1, Kind::Welcome);
    pair.now += 1_000_000;
    assert!(pair.lanes[1].dial(pair.now, 0));
    (pair, host, welcome)
}

/// N-6, N-8: a lane whose only peers share memory has no timer when it is idle: nothing but a descriptor
/// wakes it, also for a death.
#[test]
fn idle_local_peers_need_no_timer() {
    let mut pair = sharing();
    // The limit of time for connecting passes, too.
    (0..30).for_each(|_| pair.pass(1_000_000_000));
    for lane in &mut pair.lanes {
        assert!(lane.announce_sleep(pair.now), "rank {} has nothing to do", lane.rank);
        let timers = (lane.next_deadline(), lane.look_again(pair.now));
        assert_eq!(timers, (None, None), "rank {} at {}", lane.rank, pair.now);
    }
}

/// N-16: a welcome may arrive when the node that sent the hello dials already, before or after the peer has
/// accepted the dial. Both sides agree on one channel.
#[test]
fn a_welcome_does_not_cross_a_dial() {
    for polls in [&[][..], &[1], &[0], &[0, 1]] {
        let (mut pair, _host, welcome) = dialling_before_the_welcome();
        for rank in polls {
            pair.now += LOCAL_POLL_NS;
            pair.lanes[*rank].poll(pair.now);
        }
        pair.inject(1, welcome);
        assert_agreement(&mut pair, true);
        assert_nobody_is_down(&mut pair);
    }
}

/// N-16: a dial is accepted, but the node that dialled cannot use the answer, and a welcome that was under
/// way opens a link. The other side finds out that the memory is not used, and nobody is taken for dead.
#[test]
fn a_link_opens_when_the_answer_to_a_dial_cannot_be_used() {
    let (mut pair, _host, welcome) = dialling_before_the_welcome();
    pair.now += LOCAL_POLL_NS;
    pair.lanes[0].poll(pair.now);
    assert!(pair.lanes[0].peers.member(1).channel.is_shared(), "the dial is accepted");
    pair.lanes[1].local.discovery.as_mut().unwrap().cancel_dials(0);
    pair.inject(1, welcome);
    let first = hold(&mut pair, 0, Kind::Data);
    pair.inject(0, first);
    pair.lanes[0].local.poll.poll_device_soon();
    let stale = pair.counters(0).stale;
    pair.poll(0);
    assert_eq!(pair.counters(0).stale, stale + 1);
    assert_agreement(&mut pair, false);
    assert_nobody_is_down(&mut pair);
}

/// A pair that is to use nothing but memory; rank 1 dials.
fn dialling_only() -> (Pair, SimulatedHost) {
    let (mut pair, host) = (Pair::new(), SimulatedHost::new());
    for lane in &mut pair.lanes {
        settle_on(&host, lane);
        lane.local.discovery.as_mut().unwrap().only = true;
    }
    pair.lanes[1].connect(pair.now, 0);
    (pair, host)
}

/// Rank 0 accepts the dial of rank 1, which has no descriptors left for what comes with the answer.
fn lack_descriptors(pair: &mut Pair) {
    pair.now += LOCAL_POLL_NS;
    pair.lanes[0].poll(pair.now);
    assert!(pair.lanes[0].peers.member(1).channel.is_shared(), "the dial is accepted");
    let (now, lane) = (pair.now, &mut pair.lanes[1]);
    lane.local.discovery.as_mut().unwrap().cancel_dials(0);
    lane.note_failed_dial(now, 0, &rustix::io::Errno::MFILE.into());
    lane.reach_otherwise(now, 0);
}

/// N-33: where only memory is to be used, a peer that let go of it unused is dialled again, and not taken for
/// dead; the shortage is an event.
#[test]
fn a_peer_that_lacks_descriptors_is_not_dead() {
    let (mut pair, _host) = dialling_only();
    lack_descriptors(&mut pair);
    assert_agreement(&mut pair, true);
    let mut told = std::iter::from_fn(|| pair.lanes[1].poll_event());
    assert!(told.any(|event| event.to_string().contains("RLIMIT_NOFILE")), "the limit is named");
    assert_nobody_is_down(&mut pair);
}

/// N-33: if the shortage lasts, the peer counts as unreachable, and the reason names the limit.
#[test]
fn a_lasting_shortage_is_the_reason_of_the_end() {
    let (mut pair, _host) = dialling_only();
    let timeout = Config::default().connect_timeout.as_nanos() as Nanos;
    let until = pair.now + timeout + SHORTAGE_PAUSE;
    let why = loop {
        assert!(pair.now < until, "nobody is told");
        if pair.lanes[1].local.discovery.as_ref().unwrap().is_dialling(0) {
            lack_descriptors(&mut pair);
        }
        pair.now += LOCAL_POLL_NS;
        pair.lanes[0].poll(pair.now);
        // What it dials would be accepted here.
        pair.lanes[0].local.discovery.as_mut().unwrap().take_redials(Nanos::MAX);
        pair.lanes[1].poll(pair.now);
        if let PeerState::Down(why) = pair.state(1) {
            break why;
        }
    };
    assert_eq!(why, Down::Shortage(Shortage::Descriptors));
    assert!(why.to_string().contains("RLIMIT_NOFILE"), "{why}");
    assert_eq!(pair.state(0), PeerState::Connecting);
}

/// N-16: a node that could not dial at once, because too many did, does not dial when a link is live.
#[test]
fn a_live_link_ends_the_dialling() {
    let (mut pair, _host) = pair_short_of_descriptors();
    pair.lanes[1].connect(pair.now, 0);
    let welcome = hold(&mut pair, 1, Kind::Welcome);
    pair.now += 1_000_000;
    let now = pair.now;
    pair.lanes[1].local.discovery.as_mut().unwrap().redial_at(0, now + LOCAL_POLL_NS);
    pair.inject(1, welcome);
    let first = hold(&mut pair, 0, Kind::Data);
    for _ in 0..50 {
        pair.pass(LOCAL_POLL_NS);
        assert!(!pair.lanes[0].peers.member(1).channel.is_shared());
    }
    pair.inject(0, first);
    assert_agreement(&mut pair, false);
}

/// N-16: a peer had its hello answered, was killed and restarted, and its successor shares memory. The first
/// frame of its link arrives late: nobody waits for it.
#[test]
fn the_first_frame_of_a_former_process_opens_nothing() {
    let (mut pair, host) = pair_short_of_descriptors();
    pair.lanes[1].connect(pair.now, 0);
    let first = hold(&mut pair, 0, Kind::Data);
    kill(&mut pair.lanes[1]);
    pair.restart(1);
    settle_on(&host, &mut pair.lanes[1]);
    pair.lanes[1].connect(pair.now, 0);
    (0..5).for_each(|_| pair.pass(LOCAL_POLL_NS));
    assert!(pair.lanes[0].peers.member(1).channel.is_shared());
    let stale = pair.counters(0).stale;
    pair.inject(0, first);
    pair.lanes[0].poll_all_soon();
    pair.poll(0);
    assert_eq!(pair.counters(0).stale, stale + 1);
    assert_agreement(&mut pair, true);
}

/// N-16: the same frame arrives while a dial waits for its answer. The link is live then, and is not
/// replaced, until its silence shows that nobody is there.
#[test]
fn a_live_link_is_not_replaced_by_the_answer_to_a_dial() {
    let (mut pair, host) = pair_short_of_descriptors();
    pair.lanes[0].connect(pair.now, 1);
    let first = hold(&mut pair, 1, Kind::Data);
    kill(&mut pair.lanes[0]);
    pair.restart(0);
    settle_on(&host, &mut pair.lanes[0]);
    pair.now += 1_000_000;
    assert!(pair.lanes[1].dial(pair.now, 0));
    pair.now += LOCAL_POLL_NS;
    pair.lanes[0].poll(pair.now);
    assert!(pair.lanes[0].peers.member(1).channel.is_shared(), "the dial is accepted");
    pair.inject(1, first);
    pair.lanes[1].poll(pair.now);
    assert!(pair.lanes[1].peers.member(0).channel.link.is_live());
    pair.now += LOCAL_POLL_NS;
    pair.lanes[1].poll(pair.now);
    assert!(!pair.lanes[1].peers.member(0).channel.is_shared());
    assert_agreement(&mut pair, false);
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
