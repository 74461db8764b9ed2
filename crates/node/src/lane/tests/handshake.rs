//! Opening channels.

use tautline_wire::Handshake;

use super::*;
use crate::limits::MAX_HANDLERS;

/// H-6, M-1: a hello is answered, and both sides are up when they have each other's handlers.
#[test]
fn a_hello_opens_a_channel() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Connecting, PeerState::Unknown]);
    pair.poll(0);
    let hello = pair.intercept(1);
    assert_eq!(hello.iter().map(|frame| kind(frame)).collect::<Vec<_>>(), [Kind::Hello]);
    pair.inject(1, hello);
    for answer in [Kind::Retry, Kind::Welcome] {
        pair.poll(1);
        assert_eq!(kind(&pair.frames[0].lock().unwrap()[0]), answer);
        pair.poll(0);
    }
    pair.settle();
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    for (me, lane) in pair.lanes.iter_mut().enumerate() {
        let up = Event::PeerUp { peer: 1 - me as Rank, incarnation: 1 };
        assert!(std::iter::from_fn(|| lane.poll_event()).any(|event| event == up));
    }
}

/// H-11: when both sides send a hello at once, one channel comes of it.
#[test]
fn simultaneous_hellos_open_one_channel() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    pair.lanes[1].connect(pair.now, 0);
    pair.settle();
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    let number = |lane: &Lane, rank| lane.peers.member(rank).channel.link.link().unwrap().channel();
    let named = |lane: &Lane, rank| lane.peers.member(rank).channel.link.link().unwrap().peer().channel;
    assert_eq!(number(&pair.lanes[0], 1), named(&pair.lanes[1], 0));
    assert_eq!(number(&pair.lanes[1], 0), named(&pair.lanes[0], 1));
    assert_eq!([0, 1].map(|of: usize| pair.lanes[of].peers.member(1 - of as Rank).incarnation), [1, 1]);
}

/// A pair whose first side has begun to announce handlers whose names take more slots than it has.
fn announcing() -> Pair {
    let mut pair = Pair::new();
    let lane = &mut pair.lanes[0];
    lane.names = HandlerNames::new((0..MAX_HANDLERS).map(|i| (format!("{i:0200}"), false)).collect());
    for _ in 0..200 {
        lane.port.take_slot().unwrap();
    }
    lane.connect(pair.now, 1);
    while pair.lanes[0].announcements.is_empty() {
        pair.pass(1_000);
    }
    pair
}

/// M-1: names of handlers for which there was no room follow when there is; a peer is up when it has all.
#[test]
fn more_handlers_than_slots() {
    let mut pair = announcing();
    assert_eq!(pair.state(1), PeerState::Connecting, "the slots are enough for all of them");
    (0..5).for_each(|_| pair.settle());
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    assert_eq!(pair.lanes[1].peers.member(0).handlers.len(), MAX_HANDLERS);
    assert!(pair.lanes[0].announcements.is_empty());
}

/// M-1: an announcement ends with its channel.
#[test]
fn announcements_end_with_their_channels() {
    let mut pair = announcing();
    // The other side is silent.
    for _ in 0..50 {
        pair.now += 100_000_000;
        pair.poll(0);
    }
    assert!(matches!(pair.state(0), PeerState::Down(Down::Died(_))), "{:?}", pair.state(0));
    assert!(pair.lanes[0].announcements.is_empty());
}

/// H-9: lost hellos are repeated, and a repeated one opens nothing twice.
#[test]
fn lost_hellos_are_repeated() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    for _ in 0..3 {
        pair.now += 300_000_000;
        pair.poll(0);
        assert!(!pair.intercept(1).is_empty(), "nothing was repeated");
    }
    pair.now += 300_000_000;
    pair.poll(0);
    let again = pair.intercept(1);
    pair.inject(1, again.iter().chain(&again).cloned());
    pair.settle();
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    assert_eq!(pair.lanes[1].peers.member(0).incarnation, 1);
}

/// A peer that never answers is unreachable after the configured time, and that is an event.
#[test]
fn silence_means_unreachable() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    let timeout = Config::default().connect_timeout.as_nanos() as Nanos;
    pair.now += timeout + 1;
    pair.poll(0);
    assert_eq!(pair.state(0), PeerState::Down(Down::Unreachable));
    let down = Event::PeerDown { peer: 1, incarnation: 0, why: Down::Unreachable };
    assert_eq!(pair.lanes[0].poll_event(), Some(down));
}

/// H-2, H-10: handshakes of another job, and damaged ones, are counted and not answered.
#[test]
fn forged_handshakes_are_not_answered() {
    let mut pair = Pair::with(|job, _| {
        if job.rank == 0 {
            job.key = JobKey::new([2; 32]);
        }
    });
    pair.lanes[0].connect(pair.now, 1);
    pair.poll(0);
    pair.poll(1);
    assert_eq!(pair.counters(1).forged_handshakes, 1);
    assert!(pair.intercept(0).is_empty());
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    pair.poll(0);
    let mut hello = pair.intercept(1).remove(0);
    let last = hello.len() - 1;
    hello[last] ^= 1;
    pair.inject(1, [hello.clone(), hello[..50].to_vec(), vec![7; 20]]);
    pair.poll(1);
    let counters = pair.counters(1);
    assert_eq!((counters.forged_handshakes, counters.strays), (1, 2));
    assert!(pair.intercept(0).is_empty());
    assert_eq!(pair.state(1), PeerState::Unknown);
}

/// H-5: a side with another security mode refuses, and the refused side reports it.
#[test]
fn another_security_mode_is_refused() {
    let mut pair = Pair::with(|job, config| {
        config.link.security = if job.rank == 0 { Security::Open } else { Security::Sealed };
    });
    pair.lanes[0].connect(pair.now, 1);
    pair.settle();
    assert!(matches!(pair.state(0), PeerState::Down(Down::Refused(_))), "{:?}", pair.state(0));
}

/// H-7, H-14: a hello is asked for proof that it is recent, and changes nothing until it brings it.
#[test]
fn a_hello_without_proof_changes_nothing() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    pair.poll(0);
    let old = pair.intercept(1);
    let mut pair = Pair::new();
    for _ in 0..20 {
        pair.inject(1, old.clone());
        pair.pass(50_000_000);
    }
    assert_eq!(pair.counters(1).retries, 20);
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Unknown; 2]);
    assert!(pair.lanes[1].next_deadline().is_none(), "nothing waits for the sender of the hello");
}

/// H-14: a hello that was used does not open a channel again, whatever became of the first.
#[test]
fn a_used_hello_opens_nothing() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    let mut hellos = Vec::new();
    for _ in 0..20 {
        pair.now += 200_000;
        pair.lanes[0].poll(pair.now);
        hellos.extend(pair.frames[1].lock().unwrap().iter().filter(|f| kind(f) == Kind::Hello).cloned());
        pair.lanes[1].poll(pair.now);
    }
    assert_eq!(hellos.len(), 2);
    pair.lanes[0].close(pair.now);
    pair.settle();
    assert_eq!(pair.state(1), PeerState::Down(Down::Closed));
    for _ in 0..20 {
        pair.inject(1, hellos.clone());
        pair.pass(500_000_000);
    }
    assert_eq!(pair.state(1), PeerState::Down(Down::Closed));
    assert_eq!(pair.lanes[1].peers.member(0).incarnation, 1);
}

/// H-16: a flood of one hello gets few answers, and keeps out neither its sender nor anybody else.
#[test]
fn a_flood_of_replayed_hellos_gets_few_answers() {
    let mut pair = Pair::new();
    pair.lanes[0].connect(pair.now, 1);
    pair.poll(0);
    let old = pair.intercept(1).remove(0);
    let mut pair = Pair::new();
    let flood = |pair: &mut Pair| {
        pair.inject(1, std::iter::repeat_n(old.clone(), 1_000));
        while !pair.frames[1].lock().unwrap().is_empty() {
            pair.poll(1);
        }
    };
    pair.now = 1_000_000_000;
    flood(&mut pair);
    assert_eq!(pair.intercept(0).len(), 8, "answers to 1,000 hellos within 100 ms");
    assert_eq!(pair.counters(1).hellos_dropped, 992);
    // Lanes of tests draw the same numbers.
    pair.lanes[0].secrets.number();
    pair.lanes[0].connect(pair.now, 1);
    for _ in 0..20 {
        pair.poll(0);
        flood(&mut pair);
        pair.poll(1);
        pair.now += 1_000_000;
    }
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2], "the peer is served during the flood");
}

/// H-8, N-4: a restarted peer gets a new channel; the old one is reported dead first, and its frames count as
/// stale.
#[test]
fn a_restarted_peer_is_another_incarnation() {
    let mut pair = Pair::connected();
    pair.send(0, b"old").unwrap();
    pair.poll(0);
    let old = pair.intercept(1);
    let wire = Wire {
        arena: Arena::new(256, MAX_FRAME),
        addr: address(0),
        peer: address(1),
        out: pair.frames[1].clone(),
        input: pair.frames[0].clone(),
        events: Arc::default(),
        queued: 0,
        trains: Trains::default(),
    };
    let names = vec![("short".to_owned(), true)];
    pair.lanes[0] = Lane::new(&job(0), 0, Config::default(), Box::new(wire), [9; 32], names).unwrap();
    assert!(pair.lanes[0].add_peer(1));
    pair.lanes[0].connect(pair.now, 1);
    pair.settle();
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    let events: Vec<_> = std::iter::from_fn(|| pair.lanes[1].poll_event()).collect();
    let died = Event::PeerDown { peer: 0, incarnation: 1, why: Down::Died(tautline_link::Death::Restarted) };
    let up = Event::PeerUp { peer: 0, incarnation: 2 };
    let [died, up] = [died, up].map(|event| events.iter().position(|it| *it == event).expect("it is told"));
    assert!(died < up, "{events:?}");
    let stale = pair.counters(1).stale;
    pair.inject(1, old);
    pair.poll(1);
    assert_eq!(pair.counters(1).stale, stale + 1);
    assert!(pair.take(1).is_empty());
}

/// N-26: a member that was started again can be connected to, also if the channel to its former life is over
/// only after that was told.
#[test]
fn a_member_that_was_started_again_can_be_reached() {
    for told_first in [true, false] {
        let mut pair = Pair::connected();
        let silence = |pair: &mut Pair| {
            for _ in 0..12 {
                pair.now += 600_000_000;
                pair.poll(0);
                pair.intercept(1);
            }
        };
        if told_first {
            pair.lanes[0].member_started(1);
            assert_eq!(pair.state(0), PeerState::Up);
            silence(&mut pair);
        } else {
            silence(&mut pair);
            assert!(matches!(pair.state(0), PeerState::Down(_)));
            pair.lanes[0].member_started(1);
        }
        assert_eq!(pair.state(0), PeerState::Unknown, "told first: {told_first}");
    }
}

/// L-36: a node without a watchdog that polls every 0.6 s reports a dead peer.
#[test]
fn rare_polls_report_a_dead_peer() {
    let mut pair = Pair::connected();
    for _ in 0..12 {
        pair.now += 600_000_000;
        pair.poll(0);
        pair.intercept(1);
    }
    let died = PeerState::Down(Down::Died(tautline_link::Death::Silence));
    assert_eq!(pair.state(0), died);
}

/// A job of members with different IP versions is refused when a process joins, not when it sends.
#[test]
fn members_of_another_ip_version_are_refused() {
    let wire = Wire {
        arena: Arena::new(64, MAX_FRAME),
        addr: address(0),
        peer: address(1),
        out: Frames::default(),
        input: Frames::default(),
        events: Arc::default(),
        queued: 0,
        trains: Trains::default(),
    };
    let mut job = job(0);
    Arc::make_mut(&mut job.members)[1].addr = "[::1]:7000".parse().unwrap();
    let refused = Lane::new(&job, 0, Config::default(), Box::new(wire), [9; 32], Vec::new()).unwrap_err();
    assert!(refused.to_string().contains("[::1]:7000"), "{refused}");
}

/// J-28: three hellos go to each address of a peer, in turn, with an epoch for each. An answer to one that
/// went to a former address does not count. The event names the address that was reached.
#[test]
fn addresses_are_tried_in_turn() {
    let addrs: Vec<_> = (0..3).map(|net| SocketAddr::from(([10, 0, net, 2], 2))).collect();
    let mut pair = Pair::with(|job, _| {
        Arc::make_mut(&mut job.members)[1] = Member::at(&addrs).unwrap();
    });
    pair.lanes[0].connect(pair.now, 1);
    let mut sent: Vec<(u8, u64, Vec<u8>)> = Vec::new();
    while sent.len() < 14 {
        pair.now = pair.now.max(pair.lanes[0].next_deadline().unwrap());
        pair.poll(0);
        let address = pair.lanes[0].peers.member(1).address;
        let hellos = pair.intercept(1).into_iter();
        sent.extend(hellos.map(|hello| (address, Handshake::parse(&hello).unwrap().epoch, hello)));
    }
    let tried: Vec<_> = sent.iter().map(|(address, ..)| *address).collect();
    assert_eq!(tried, [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0, 1, 1]);
    for (round, attempt) in sent.chunks(3).enumerate() {
        assert!(attempt.iter().all(|(_, epoch, _)| *epoch == attempt[0].1), "one epoch for an address");
        assert!(sent[..3 * round].iter().all(|(_, epoch, _)| *epoch != attempt[0].1), "another for the next");
    }
    let answer = |pair: &mut Pair, hello: &[u8]| {
        pair.inject(1, [hello.to_vec()]);
        pair.poll(1);
        pair.poll(0);
        pair.lanes[0].peers.member(1).channel.link.peering.unanswered_hellos()
    };
    assert_eq!(answer(&mut pair, &sent[2].2), 2, "a late answer does not count");
    assert_eq!(answer(&mut pair, &sent[13].2), 1, "an answer leads to the next hello at once");
    pair.settle();
    assert_eq!([pair.state(0), pair.state(1)], [PeerState::Up; 2]);
    let told = std::iter::from_fn(|| pair.lanes[0].poll_event()).find_map(|event| match event {
        Event::Transport { peer: 1, device: "wire", reason } => Some(reason),
        _ => None,
    });
    assert_eq!(told.as_deref(), Some("at 10.0.1.2:2, its address 2 of 3"));
}
