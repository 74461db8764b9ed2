//! Silence, heartbeats, pauses, and the orderly end.

use tautline_link::{Config, Death, Event};
use tautline_wire::frame::{Kind, flags};

use crate::world::{MICRO, MILLI, Nanos, Pipe, Rng, SECOND, World};

/// L-15: a peer that falls silent is dead within the bound, and not before, whether we send or not.
#[test]
fn death_by_silence() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let silence = [200 * MILLI, SECOND, 3 * SECOND][rng.below(3) as usize];
        let config = Config { silence, ..Config::default() };
        let mut world = World::open(rng.next(), &config);
        if rng.below(2) == 0 {
            world.sides[0].load.left = usize::MAX;
            world.sides[0].load.queue = 4;
            world.sides[1].every = 100 * MICRO;
        }
        world.run(rng.below(SECOND));
        let cut = world.now;
        world.pipes.iter_mut().for_each(|p| p.faults.cut = true);
        assert!(
            world.run_until_true(2 * silence, |w| w.deaths().len() == 2),
            "seed {seed}\n{}",
            world.report()
        );
        for (side, at, why) in world.deaths() {
            assert_eq!(why, Death::Silence);
            let took = at - cut;
            // The last frame came at most one exchange of heartbeats before the cut.
            let least = silence - silence / 4 - silence / 8 - MILLI;
            assert!(
                (least..=silence + MILLI).contains(&took),
                "seed {seed}, side {side}: {} ms",
                took / MILLI
            );
        }
        // Nothing more is sent, all tokens are back.
        let offered = world.pipes.each_ref().map(|p| p.offered);
        world.run(5 * SECOND);
        assert_eq!(world.pipes.each_ref().map(|p| p.offered), offered, "the dead speak");
        assert!(world.sides.iter().flat_map(|s| &s.streams).all(|t| t.slots.iter().all(|s| s.freed)));
    }
}

/// L-15: a link that was killed sends nothing, although an answer was due.
#[test]
fn the_dead_do_not_answer() {
    let mut world = World::open(2, &Config::default());
    world.sides[0].load.left = 300;
    world.run(50 * MICRO);
    let now = world.now;
    world.link(1).violation();
    assert!(world.link(1).poll_transmit(now).is_none());
}

/// L-16, L-17: a peer stopped for 500 ms is not dead, at whatever moment it stops, busy or idle.
#[test]
fn pause_of_the_peer() {
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

/// L-16: whoever was not running for 5 s does not blame the peer for it.
#[test]
fn pause_of_ourselves() {
    let patient = Config { silence: 20 * SECOND, ..Config::default() };
    let mut world = World::with(4, [Config::default(), patient]);
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
    for _ in 0..3 {
        world.sides[0].paused_until = world.now + 5 * SECOND;
        world.run(7 * SECOND);
    }
    assert!(world.deaths().is_empty(), "{:?}", world.deaths());

    // The same when the whole machine slept, and nothing is on its way.
    let mut world = World::open(5, &Config::default());
    world.run(SECOND);
    world.pipes.iter_mut().for_each(Pipe::clear);
    let wake = world.now + 5 * SECOND;
    world.sides.iter_mut().for_each(|s| s.paused_until = wake);
    world.run(8 * SECOND);
    assert!(world.deaths().is_empty(), "{:?}", world.deaths());
}

/// L-17: an idle pair exchanges one question and one answer per heartbeat, and no more.
#[test]
fn idle_heartbeats() {
    let mut world = World::open(6, &Config::default());
    world.run(SECOND);
    let before: u64 = world.pipes.iter().map(|p| p.offered).sum();
    world.run(20 * SECOND);
    let frames = world.pipes.iter().map(|p| p.offered).sum::<u64>() - before;
    assert!((105..=122).contains(&frames), "{frames} frames in 20 s");
}

fn close_count(world: &World, side: usize) -> usize {
    world.sides[side].events.iter().filter(|(_, e)| matches!(e, Event::Closed | Event::PeerClosed)).count()
}

fn closed(world: &World) -> bool {
    (0..2).all(|i| close_count(world, i) == 1)
}

/// L-18: close delivers everything first, survives the loss of any of its frames, and is said once on each side.
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

/// L-18: both may close at once.
#[test]
fn simultaneous_close() {
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let mut world = World::open(rng.next(), &Config::default());
        for pipe in &mut world.pipes {
            pipe.faults.loss = rng.below(400) as u32;
        }
        let now = world.now;
        world.link(0).close(now);
        world.run(rng.below(100) * MICRO);
        let now = world.now;
        world.link(1).close(now);
        let done = world.run_until_true(2 * SECOND, closed);
        assert!(done && world.deaths().is_empty(), "seed {seed}\n{}", world.report());
    }
}

/// L-18: a link whose peer is gone does not close for ever; it dies of silence.
#[test]
fn close_without_a_peer() {
    let mut world = World::open(9, &Config::default());
    world.pipes[0].faults.cut = true;
    world.pipes[1].faults.cut = true;
    let now = world.now;
    world.link(0).close(now);
    assert!(world.run_until_true(2 * SECOND, |w| !w.deaths().is_empty()));
}

/// How long one slot takes to be acknowledged, and whether its frame asked for that.
fn one_slot(world: &mut World, side: usize) -> (Nanos, bool) {
    world.run(10 * MILLI);
    world.pipes[side].tap = Some(Vec::new());
    let start = world.now;
    world.sides[side].load.left = 1;
    assert!(world.run_until_true(SECOND, World::is_settled));
    let tap = world.pipes[side].tap.take().unwrap();
    let asked = tap.iter().any(|f| f[1] & (flags::ASK | flags::SLOT) == flags::ASK | flags::SLOT);
    (world.now - start, asked)
}

/// L-5: a frame that asks is answered at once, others within the acknowledgement delay.
#[test]
fn the_ask_flag() {
    let delay = 5 * MILLI;
    let mut config = Config { ack_delay: delay, rto_min: 50 * MILLI, ..Config::default() };
    let (took, asked) = one_slot(&mut World::open(1, &config), 0);
    assert!(!asked && (delay..delay + MILLI).contains(&took), "{took} ns, asked: {asked}");
    // With credit for one slot, the sender cannot go on without an answer.
    config.credit_slots = 1;
    let (took, asked) = one_slot(&mut World::open(1, &config), 0);
    assert!(asked && took < 100 * MICRO, "{took} ns, asked: {asked}");
}

/// L-8: the time that a frame waits in the peer's host for its acknowledgement is no part of the round trip.
#[test]
fn residence_time() {
    let config = Config { ack_delay: 20 * MILLI, rto_min: 100 * MILLI, ..Config::default() };
    let mut world = World::open(1, &config);
    for _ in 0..50 {
        let (took, _) = one_slot(&mut world, 0);
        assert!(took >= 20 * MILLI);
    }
    let rtt = world.link(0).round_trip().unwrap();
    assert!((40 * MICRO..60 * MICRO).contains(&rtt), "{rtt} ns for a path of 40 µs");
    assert_eq!(world.link(0).counters().slots_resent, 0);
}
