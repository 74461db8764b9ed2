//! Silence, heartbeats, pauses, acknowledgement delay, and orderly close.

use tautline_link::{Config, Death, Event, Link};
use tautline_wire::frame::{Kind, flags};

use crate::world::{MICRO, MILLI, Nanos, Pipe, Rng, SECOND, World};

/// L-15: a silent peer counts as dead within the bound, and not before, whether we send or not.
#[test]
fn death_by_silence() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let silence = [200 * MILLI, SECOND, 3 * SECOND][rng.below(3) as usize];
        let config = Config::with(|config| config.silence = silence);
        let mut world = World::open(rng.next(), &config);
        if rng.below(2) == 0 {
            world.sides[0].load.left = usize::MAX;
            world.sides[0].load.queue = 4;
            world.sides[1].every = 100 * MICRO;
        }
        world.run(rng.below(SECOND));
        let cut = world.now;
        world.pipes.iter_mut().for_each(|p| p.faults.cut = true);
        // When each side heard of the other for the last time.
        let mut heard = [0; 2];
        while world.deaths().len() < 2 {
            for (side, heard) in heard.iter_mut().enumerate() {
                *heard = world.sides[side].peering.link().map_or(*heard, Link::heard_at);
            }
            assert!(world.now < cut + 2 * silence, "seed {seed}\n{}", world.report());
            world.run(silence / 64);
        }
        for (side, at, why) in world.deaths() {
            assert_eq!(why, Death::Silence);
            let took = at - heard[side];
            assert!(took.abs_diff(silence) <= MILLI, "seed {seed}, side {side}: {} ms", took / MILLI);
        }
        // Nothing more is sent, and all tokens are freed.
        let offered = world.pipes.each_ref().map(|p| p.offered);
        world.run(5 * SECOND);
        assert_eq!(world.pipes.each_ref().map(|p| p.offered), offered, "a dead link sent frames");
        assert!(world.sides.iter().flat_map(|s| &s.streams).all(|t| t.slots.iter().all(|s| s.freed)));
    }
}

/// L-15: a link that was ended sends nothing, although an acknowledgement was due.
#[test]
fn dead_link_sends_nothing() {
    let mut world = World::open(2, &Config::default());
    world.sides[0].load.left = 300;
    world.run(50 * MICRO);
    let now = world.now;
    world.link(1).violation();
    assert!(world.link(1).poll_transmit(now).is_none());
}

/// L-16, L-17: a peer that is stopped for 500 ms does not count as dead, with traffic or without.
#[test]
fn peer_stopped_for_500_ms_is_alive() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut world = World::open(rng.next(), &Config::default());
        for i in 0..2 {
            world.sides[i].load.left = if rng.below(2) == 0 { 0 } else { 20_000 };
        }
        for _ in 0..5 {
            world.run((800 + rng.below(700)) * MILLI);
            let side = rng.below(2) as usize;
            world.sides[side].paused_until = world.now + 500 * MILLI;
        }
        world.run(2 * SECOND);
        assert!(world.deaths().is_empty(), "seed {seed}: {:?}", world.deaths());
    }
}

/// L-16: a side that was stopped for 5 s does not count its peer as dead.
#[test]
fn own_stop_is_no_silence_of_the_peer() {
    let long_silence = Config::with(|config| config.silence = 20 * SECOND);
    let mut world = World::with(4, [Config::default(), long_silence]);
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
    for _ in 0..3 {
        world.sides[0].paused_until = world.now + 5 * SECOND;
        world.run(7 * SECOND);
    }
    assert!(world.deaths().is_empty(), "{:?}", world.deaths());

    // The same if the whole machine was suspended, and no frame is under way.
    let mut world = World::open(5, &Config::default());
    world.run(SECOND);
    world.pipes.iter_mut().for_each(Pipe::clear);
    let wake = world.now + 5 * SECOND;
    world.sides.iter_mut().for_each(|s| s.paused_until = wake);
    world.run(8 * SECOND);
    assert!(world.deaths().is_empty(), "{:?}", world.deaths());
}

/// L-16: time in which this side did not run is no silence of the peer, even if it is less than half the
/// bound. Here the peer is stopped for 0.7 s, and this side for 0.45 or 0.2 s of that.
#[test]
fn short_stops_of_our_own_are_no_silence() {
    for (seed, stop) in (0..400).flat_map(|seed| [(seed, 450), (seed, 200)]) {
        let mut rng = Rng(seed);
        let mut world = World::open(rng.next(), &Config::default());
        world.run(SECOND + rng.below(SECOND));
        let (ours, peer) = if rng.below(2) == 0 { (0, 1) } else { (1, 0) };
        world.sides[peer].paused_until = world.now + 700 * MILLI;
        world.run(rng.below(250) * MILLI);
        world.sides[ours].paused_until = world.now + stop * MILLI;
        world.run(3 * SECOND);
        assert!(world.deaths().is_empty(), "seed {seed}, {stop} ms: {:?}", world.deaths());
    }
}

/// Returns after what time a side notices that its peer is silent, if it is stopped so many times meanwhile,
/// each time for 70 ms from when it should have sent a heartbeat.
fn silence_with_stops(stops: u64) -> Nanos {
    const STOP: Nanos = SECOND / 3 / 8 + 70 * MILLI;
    let mut world = World::open(6, &Config::default());
    world.run(SECOND);
    let (cut, sent) = (world.now, world.pipes[0].offered);
    world.pipes[1].faults.cut = true;
    assert!(world.run_until_true(SECOND, |world| world.pipes[0].offered > sent));
    for _ in 0..stops {
        world.sides[0].paused_until = world.now + STOP;
        world.run(STOP);
        assert!(world.deaths().is_empty(), "after {} ms", (world.now - cut) / MILLI);
    }
    assert!(world.run_until_true(2 * SECOND, |world| !world.deaths().is_empty()));
    let (side, at, why) = world.deaths()[0];
    assert_eq!((side, why), (0, Death::Silence));
    at - cut
}

/// L-36: eight stops of our own from one frame of the peer to the next are no silence of the peer. A ninth
/// one is.
#[test]
fn eight_stops_of_our_own_are_no_silence() {
    let without = silence_with_stops(0);
    for stops in 1..=10 {
        let later = silence_with_stops(stops) - without;
        assert_eq!(later, stops.min(8) * 70 * MILLI, "{stops} stops");
    }
}

/// L-15, L-36: a side that polls rarely, however rarely, reports a dead peer after a bounded number of polls.
#[test]
fn rare_polls_detect_death() {
    for (every, polls) in [(100, 13), (300, 12), (450, 12), (600, 12), (1_500, 12), (10_000, 12)] {
        for twice in [false, true] {
            let mut world = World::open(6, &Config::default());
            world.run(SECOND);
            world.pipes.iter_mut().for_each(|p| p.faults.cut = true);
            let mut count = 0;
            while world.deaths().is_empty() {
                count += 1;
                assert!(count <= polls, "no death after {polls} polls, {every} ms apart, twice: {twice}");
                for side in &mut world.sides {
                    side.paused_until = world.now + every * MILLI;
                }
                world.run(every * MILLI);
                if twice {
                    world.run(MICRO);
                }
            }
        }
    }
}

/// L-17: an idle pair exchanges one request and one answer per heartbeat, and no more.
#[test]
fn idle_heartbeats() {
    let mut world = World::open(6, &Config::default());
    world.run(SECOND);
    let before: u64 = world.pipes.iter().map(|p| p.offered).sum();
    world.run(20 * SECOND);
    let frames = world.pipes.iter().map(|p| p.offered).sum::<u64>() - before;
    assert!((105..=122).contains(&frames), "{frames} frames in 20 s");
}

/// L-17: an idle pair that loses three of ten frames stays alive for hours.
#[test]
fn idle_pairs_outlast_losses() {
    for seed in 0..40 {
        let mut world = World::open(seed, &Config::default());
        world.pipes.iter_mut().for_each(|pipe| pipe.faults.loss = 300);
        world.run(8_000 * SECOND);
        assert!(world.deaths().is_empty(), "seed {seed}: {:?}", world.deaths());
    }
}

fn close_count(world: &World, side: usize) -> usize {
    world.sides[side].events.iter().filter(|(_, e)| matches!(e, Event::Closed | Event::PeerClosed)).count()
}

fn closed(world: &World) -> bool {
    (0..2).all(|i| close_count(world, i) == 1)
}

/// L-18: a close delivers all slots first, tolerates loss of its frames, and is reported once per side.
#[test]
fn orderly_close() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut world = World::open(rng.next(), &Config::default());
        let mut lost = [rng.below(4), rng.below(4)];
        for (pipe, lost) in world.pipes.iter_mut().zip(&mut lost) {
            let mut left = *lost;
            pipe.filter = Some(Box::new(move |frame| {
                let hit = left > 0 && Kind::of(frame) == Ok(Kind::Close);
                left -= u64::from(hit);
                hit
            }));
            pipe.faults.loss = rng.below(200) as u32;
        }
        world.sides[0].load.left = 200;
        world.run_until_true(SECOND, |w| w.sides[0].load.left == 0);
        let now = world.now;
        world.link(0).close(now);
        assert!(world.run_until_true(2 * SECOND, closed), "seed {seed}, {lost:?} lost\n{}", world.report());
        assert!(world.is_settled() && world.deaths().is_empty());
        let is = |side: usize, event: &Event| world.sides[side].events.iter().any(|(_, e)| e == event);
        assert!(is(0, &Event::Closed) && is(1, &Event::PeerClosed), "seed {seed}");
        world.run(SECOND);
        assert!(closed(&world));
    }
}

/// Two sides that lose up to so many of a thousand frames and close, one soon after the other.
fn both_closing(seed: u64, loss: u64) -> World {
    let mut rng = Rng(seed);
    let mut world = World::open(rng.next(), &Config::default());
    for pipe in &mut world.pipes {
        pipe.faults.loss = rng.below(loss) as u32;
    }
    let now = world.now;
    world.link(0).close(now);
    world.run(rng.below(100) * MICRO);
    let now = world.now;
    world.link(1).close(now);
    world
}

/// L-18: both sides may close at once. Both answer, both answers are confirmed, and then nothing is sent.
#[test]
fn simultaneous_close() {
    let mut gave_up = 0;
    for seed in 0..100 {
        let mut world = both_closing(seed, 400);
        let done = world.run_until_true(2 * SECOND, closed);
        assert!(done && world.deaths().is_empty(), "seed {seed}\n{}", world.report());
        let since = world.now;
        let confirmed =
            |world: &World| world.sides.iter().all(|side| side.peering.link().unwrap().is_settled());
        assert!(world.run_until_true(SECOND, confirmed), "seed {seed}");
        gave_up += u32::from(world.now - since >= 240 * MILLI);
        world.pipes.iter_mut().for_each(|pipe| pipe.tap = Some(Vec::new()));
        world.run(SECOND);
        assert!(
            world.pipes.iter().all(|pipe| pipe.tap.as_ref().unwrap().is_empty()),
            "seed {seed}: nothing is sent any more"
        );
    }
    assert!(gave_up < 5, "{gave_up} of 100 answers were never confirmed");
}

/// L-18: a side that ends as soon as its link is settled leaves no peer behind that waits for an answer.
#[test]
fn settled_sides_are_not_missed() {
    let settled = |world: &World, side: usize| world.sides[side].peering.link().is_some_and(Link::is_settled);
    let mut waiting = 0;
    for seed in 0..200 {
        let mut world = both_closing(seed, 250);
        world.run_until_true(2 * SECOND, |world| (0..2).any(|side| close_count(world, side) == 1));
        waiting += u32::from(!closed(&world));
        let first = world.run_until_true(2 * SECOND, |world| (0..2).any(|side| settled(world, side)));
        assert!(first, "seed {seed}\n{}", world.report());
        // It is gone; what it has sent arrives.
        world.pipes.iter_mut().for_each(|pipe| pipe.faults.cut = true);
        let done = world.run_until_true(2 * SECOND, closed);
        assert!(done && world.deaths().is_empty(), "seed {seed}\n{}", world.report());
    }
    assert!(waiting > 20, "one side was over while the other was still closing {waiting} times");
}

/// L-18: an answer that is never confirmed is repeated for a while only.
#[test]
fn answers_to_a_close_end() {
    let mut world = World::open(3, &Config::default());
    world.pipes[1].tap = Some(Vec::new());
    let now = world.now;
    world.link(0).close(now);
    world.run_until_true(SECOND, |world| close_count(world, 1) == 1);
    world.pipes.iter_mut().for_each(|pipe| pipe.faults.cut = true);
    assert!(!world.link(1).is_settled());
    let offered = world.pipes[1].offered;
    world.run(250 * MILLI);
    assert!(world.link(1).is_settled() && world.deaths().is_empty());
    let repeated = world.pipes[1].offered - offered;
    assert!((3..20).contains(&repeated), "{repeated} answers");
    world.run(400 * MILLI);
    assert_eq!(world.pipes[1].offered - offered, repeated, "and no more");
}

/// L-18: a link that is closing while its peer is unreachable dies of silence.
#[test]
fn close_with_an_unreachable_peer() {
    let mut world = World::open(9, &Config::default());
    world.pipes[0].faults.cut = true;
    world.pipes[1].faults.cut = true;
    let now = world.now;
    world.link(0).close(now);
    assert!(world.run_until_true(2 * SECOND, |w| !w.deaths().is_empty()));
}

/// Returns how long one slot takes to be acknowledged, and whether its frame requested that.
fn one_slot(world: &mut World, side: usize) -> (Nanos, bool) {
    world.run(10 * MILLI);
    world.pipes[side].tap = Some(Vec::new());
    let start = world.now;
    world.sides[side].load.left = 1;
    assert!(world.run_until_true(SECOND, World::is_settled));
    let tap = world.pipes[side].tap.take().unwrap();
    let requested =
        tap.iter().any(|f| f[1] & (flags::ACK_REQUESTED | flags::SLOT) == flags::ACK_REQUESTED | flags::SLOT);
    (world.now - start, requested)
}

/// L-5, L-24: a frame that requests an acknowledgement gets it at once, others within the acknowledgement
/// delay.
#[test]
fn requested_acknowledgement_is_immediate() {
    let delay = 5 * MILLI;
    let mut config = Config::with(|config| (config.ack_delay, config.rto_min) = (delay, 50 * MILLI));
    let (took, requested) = one_slot(&mut World::open(1, &config), 0);
    assert!(!requested && (delay..delay + MILLI).contains(&took), "{took} ns, requested: {requested}");
    // With credit for one slot, the sender needs an acknowledgement to go on.
    config.credit_slots = 1;
    let (took, requested) = one_slot(&mut World::open(1, &config), 0);
    assert!(requested && took < 100 * MICRO, "{took} ns, requested: {requested}");
}

/// L-8: the time that a frame spends in the peer's host is no part of the round trip.
#[test]
fn round_trip_excludes_residence_time() {
    let config = Config::with(|config| (config.ack_delay, config.rto_min) = (20 * MILLI, 100 * MILLI));
    let mut world = World::open(1, &config);
    for _ in 0..50 {
        let (took, _) = one_slot(&mut world, 0);
        assert!(took >= 20 * MILLI);
    }
    let rtt = world.link(0).round_trip().unwrap();
    assert!((40 * MICRO..60 * MICRO).contains(&rtt), "{rtt} ns for a path of 40 µs");
    assert_eq!(world.link(0).counters().slots_resent, 0);
}
