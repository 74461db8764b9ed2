//! Credit, congestion window, sequence numbers.

use tautline_link::{Config, Event};
use tautline_wire::Frame;
use tautline_wire::handshake::MAX_CREDIT;

use crate::world::{Consume, MICRO, MILLI, SECOND, World};

/// Of a credit of 64, what slots may use that do not overtake (L-12).
const OF_64: u64 = 64 - 8;

/// L-12: a receiver that consumes nothing stops the sender at its credit, for as long as it likes, and no longer.
#[test]
fn credit_stops_the_sender() {
    let config = Config { credit_slots: 64, ..Config::default() };
    let mut world = World::open(1, &config);
    world.sides[1].consume = Consume::Never;
    world.sides[0].load.left = 500;
    world.run(10 * SECOND);
    assert_eq!(world.sides[0].streams[0].delivered as u64, OF_64);
    assert_eq!(world.link(0).counters().slots_sent, OF_64);
    assert!(world.link(1).is_full());
    assert!(world.deaths().is_empty());
    // A stalled sender asks now and then; it does not shout.
    let before = world.pipes[0].offered;
    world.run(10 * SECOND);
    let asked = world.pipes[0].offered - before;
    assert!(asked <= 120, "{asked} frames in 10 s of waiting");

    world.sides[1].consume = Consume::AtOnce;
    assert!(world.run_until_true(SECOND, World::is_settled), "{}", world.report());
}

/// D-12: who takes raw frames no more says so although it may send no slot: none of the peer's answers reach it, and all its credit is used.
#[test]
fn raw_frames_are_told_without_credit() {
    let config = Config { credit_slots: 64, raw_frames: true, ..Config::default() };
    let mut world = World::open(1, &config);
    world.run(SECOND / 10);
    assert!([0, 1].iter().all(|side| world.link(*side).peer_takes_raw()), "both have said so");
    // Raw frames are lost from now on, and so are all answers.
    world.pipes[0].faults.cut = true;
    world.sides[1].load.left = 500;
    world.run(SECOND / 10);
    assert_eq!(world.link(1).counters().slots_sent, OF_64);
    world.sides[1].peering.set_raw_frames(false);
    world.run(MILLI);
    assert!(!world.link(0).peer_takes_raw() && world.link(1).peer_takes_raw());
    assert!(world.sides[0].events.iter().any(|(_, event)| *event == Event::Raw(false)));
    world.pipes[0].faults.cut = false;
    assert!(world.run_until_true(SECOND, World::is_settled), "{}", world.report());
    assert!(world.deaths().is_empty());
}

/// D-12: of two frames the newer one counts, whichever comes first; and a lost one is made up for by the next.
#[test]
fn the_newest_frame_says_who_takes_raw_frames() {
    // Frames that are held back until many others have passed are as good as lost here: patience is not what this is about.
    let config = Config { raw_frames: true, silence: 60 * SECOND, ..Config::default() };
    let mut world = World::open(7, &config);
    world.set_faults(&crate::world::Faults { loss: 100, reorder: 300, ..Default::default() });
    for round in 0..200 {
        world.sides[0].load.left = 20;
        let takes = round % 3 == 0;
        world.sides[1].peering.set_raw_frames(takes);
        world.run(MILLI);
        world.sides[1].peering.set_raw_frames(!takes);
        assert!(world.run_until_true(20 * SECOND, World::is_settled), "{}", world.report());
        let heard =
            |world: &World| world.sides[0].peering.link().is_some_and(|link| link.peer_takes_raw() != takes);
        assert!(world.run_until_true(2 * SECOND, heard), "round {round}");
    }
    assert!(world.deaths().is_empty());
}

/// L-12: a lost credit update is repaired.
#[test]
fn lost_credit_update() {
    let config = Config { credit_slots: 64, ..Config::default() };
    let mut world = World::open(1, &config);
    world.sides[1].consume = Consume::Never;
    world.sides[0].load.left = 100;
    world.run(SECOND / 10);
    world.sides[1].consume = Consume::AtOnce;
    world.pipes[1].faults.cut = true;
    world.run(MILLI);
    world.pipes[1].faults.cut = false;
    let limit = 10 * config.rto_initial;
    assert!(world.run_until_true(limit, World::is_settled), "{}", world.report());
}

/// L-12: credit of one slot and of more than may be granted work, and a credit of one costs no timer.
#[test]
fn extreme_credit() {
    for (credit_slots, slots) in [(0, 100), (1, 100), (2, 100), (3, 100), (4 * MAX_CREDIT, 200_000)] {
        let config = Config { credit_slots, ..Config::default() };
        let mut world = World::open(1, &config);
        world.sides[0].load = crate::world::Load { left: slots, queue: 1000, len: 8 };
        assert!(world.run_until_true(20 * SECOND, World::is_settled), "{credit_slots}\n{}", world.report());
        let timeouts = world.link(0).counters().timeouts;
        assert!(timeouts <= 2, "credit of {credit_slots}: {timeouts} timeouts for {slots} slots");
    }
}

fn busy(seed: u64) -> World {
    let config = Config { credit_slots: 1000, ..Config::default() };
    let mut world = World::open(seed, &config);
    world.sides[0].load = crate::world::Load { left: usize::MAX, queue: 500, len: 1400 };
    world.sides.iter_mut().for_each(|s| s.every = 50 * MICRO);
    world
}

/// L-13: loss shrinks the window, its absence lets it grow back.
#[test]
fn window_and_loss() {
    let mut world = busy(1);
    world.run(50 * MILLI);
    let full = world.link(0).window();
    world.pipes[0].faults.loss = 50;
    world.run(100 * MILLI);
    let small = world.link(0).window();
    assert!(small < full / 3, "{full} → {small}");
    world.pipes[0].faults.loss = 0;
    let grown = |w: &World| w.sides[0].peering.link().is_some_and(|l| l.window() == full);
    assert!(world.run_until_true(2 * SECOND, grown), "{full} → {small} → {}", world.link(0).window());
}

/// L-13: so does delay beyond the target.
#[test]
fn window_and_delay() {
    let mut world = busy(2);
    world.run(50 * MILLI);
    let full = world.link(0).window();
    world.pipes[0].faults.delay = 5 * MILLI;
    world.run(200 * MILLI);
    let small = world.link(0).window();
    assert!(small < full / 2, "{full} → {small}");
    world.pipes[0].faults.delay = 20 * MICRO;
    let grown = |w: &World| w.sides[0].peering.link().is_some_and(|l| l.window() == full);
    assert!(world.run_until_true(2 * SECOND, grown), "{full} → {small} → {}", world.link(0).window());
}

/// L-1, W-8: sequence numbers wrap around under way, with losses, and nobody notices.
#[test]
fn wrap_around() {
    let mut wrapped = 0;
    for seed in 0..20 {
        let mut world = World::open(seed, &Config::default());
        world.pipes[0].tap = Some(Vec::new());
        world.pipes[0].faults.loss = 100;
        world.sides[0].load.left = 1000;
        assert!(world.run_until_true(10 * SECOND, World::is_settled), "{}", world.report());
        let slot = |f: &Vec<u8>| Frame::parse(f).ok().filter(Frame::has_slot).map(|f| f.header.slot.0);
        let tap = world.pipes[0].tap.take().unwrap();
        let slots: Vec<u32> = tap.iter().filter_map(slot).collect();
        wrapped += u32::from(slots.iter().any(|s| *s > u32::MAX - 300) && slots.iter().any(|s| *s < 1000));
    }
    assert!(wrapped > 3, "only {wrapped} of 20 runs wrapped around");
}

/// L-2: no packet number is used twice, whatever is sent again.
#[test]
fn packet_numbers_are_fresh() {
    let mut world = World::open(3, &Config::default());
    world.pipes[0].tap = Some(Vec::new());
    world.pipes[0].faults.loss = 200;
    world.sides[0].load.left = 2000;
    assert!(world.run_until_true(10 * SECOND, World::is_settled));
    let tap = world.pipes[0].tap.take().unwrap();
    let packets: Vec<u64> = tap.iter().map(|f| Frame::parse(f).unwrap().header.packet).collect();
    assert!(packets.windows(2).all(|w| w[0] < w[1]));
}
