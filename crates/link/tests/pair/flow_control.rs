//! Credit, the congestion window, raw frames, sequence and packet numbers.

use tautline_link::{Config, Event};
use tautline_wire::Frame;
use tautline_wire::handshake::MAX_CREDIT;

use crate::world::{Consume, MICRO, MILLI, SECOND, World};

/// What slots without priority may use of a credit of 64 (L-27).
const OF_64: u64 = 64 - 8;

/// L-12: a receiver that consumes nothing stops the sender at its credit, until it consumes again.
#[test]
fn credit_stops_the_sender() {
    let config = Config::with(|config| config.credit_slots = 64);
    let mut world = World::open(1, &config);
    world.sides[1].consume = Consume::Never;
    world.sides[0].load.left = 500;
    world.run(10 * SECOND);
    assert_eq!(world.sides[0].streams[0].delivered as u64, OF_64);
    assert_eq!(world.link(0).counters().slots_sent, OF_64);
    assert!(world.link(1).is_credit_used_up());
    assert!(world.deaths().is_empty());
    // A stalled sender requests acknowledgements at a low rate.
    let before = world.pipes[0].offered;
    world.run(10 * SECOND);
    let requests = world.pipes[0].offered - before;
    assert!(requests <= 120, "{requests} frames in 10 s of waiting");

    world.sides[1].consume = Consume::AtOnce;
    assert!(world.run_until_true(SECOND, World::is_settled), "{}", world.report());
}

/// D-22: a side that stops accepting raw frames says so even if it can send no slot: its credit is used up,
/// and no frame of the peer arrives.
#[test]
fn raw_frames_are_announced_without_credit() {
    let config = Config::with(|config| (config.credit_slots, config.raw_frames) = (64, true));
    let mut world = World::open(1, &config);
    world.run(SECOND / 10);
    assert!([0, 1].iter().all(|side| world.link(*side).peer_accepts_raw()), "both sides announced it");
    // From now on raw frames are lost, and so are all acknowledgements.
    world.pipes[0].faults.cut = true;
    world.sides[1].load.left = 500;
    world.run(SECOND / 10);
    assert_eq!(world.link(1).counters().slots_sent, OF_64);
    world.sides[1].peering.set_raw_frames(false);
    world.run(MILLI);
    assert!(!world.link(0).peer_accepts_raw() && world.link(1).peer_accepts_raw());
    assert!(world.sides[0].events.iter().any(|(_, event)| *event == Event::PeerAcceptsRaw(false)));
    world.pipes[0].faults.cut = false;
    assert!(world.run_until_true(SECOND, World::is_settled), "{}", world.report());
    assert!(world.deaths().is_empty());
}

/// D-21: the newest frame decides whether the peer accepts raw frames, in any order of arrival and with
/// losses.
#[test]
fn the_newest_frame_announces_raw_frames() {
    // Reordered frames arrive so late that the peer could seem dead; this test is not about that.
    let config = Config::with(|config| (config.raw_frames, config.silence) = (true, 60 * SECOND));
    let mut world = World::open(7, &config);
    world.set_faults(&crate::world::Faults { loss: 100, reorder: 300, ..Default::default() });
    for round in 0..200 {
        world.sides[0].load.left = 20;
        let accepts = round % 3 == 0;
        world.sides[1].peering.set_raw_frames(accepts);
        world.run(MILLI);
        world.sides[1].peering.set_raw_frames(!accepts);
        assert!(world.run_until_true(20 * SECOND, World::is_settled), "{}", world.report());
        let announced = |world: &World| {
            world.sides[0].peering.link().is_some_and(|link| link.peer_accepts_raw() != accepts)
        };
        assert!(world.run_until_true(2 * SECOND, announced), "round {round}");
    }
    assert!(world.deaths().is_empty());
}

/// L-26: a lost credit update is sent again.
#[test]
fn lost_credit_update_is_repeated() {
    let config = Config::with(|config| config.credit_slots = 64);
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

/// L-12, L-26: a credit of one slot works without timeouts, and so does one above the maximum.
#[test]
fn smallest_and_largest_credit() {
    for (credit_slots, slots) in [(0, 100), (1, 100), (2, 100), (3, 100), (4 * MAX_CREDIT, 200_000)] {
        let config = Config::with(|config| config.credit_slots = credit_slots);
        let mut world = World::open(1, &config);
        world.sides[0].load = crate::world::Load { left: slots, queue: 1000, len: 8 };
        assert!(world.run_until_true(20 * SECOND, World::is_settled), "{credit_slots}\n{}", world.report());
        let timeouts = world.link(0).counters().timeouts;
        assert!(timeouts <= 2, "credit of {credit_slots}: {timeouts} timeouts for {slots} slots");
    }
}

fn world_under_load(seed: u64) -> World {
    let config = Config::with(|config| config.credit_slots = 1000);
    let mut world = World::open(seed, &config);
    world.sides[0].load = crate::world::Load { left: usize::MAX, queue: 500, len: 1400 };
    world.sides.iter_mut().for_each(|s| s.every = 50 * MICRO);
    world
}

/// L-28, L-29: loss shrinks the window, and it grows back without loss.
#[test]
fn loss_shrinks_the_window() {
    let mut world = world_under_load(1);
    world.run(50 * MILLI);
    let full = world.link(0).congestion_window();
    world.pipes[0].faults.loss = 50;
    world.run(100 * MILLI);
    let small = world.link(0).congestion_window();
    assert!(small < full / 3, "{full} → {small}");
    world.pipes[0].faults.loss = 0;
    let grown = |w: &World| w.sides[0].peering.link().is_some_and(|l| l.congestion_window() == full);
    assert!(
        world.run_until_true(2 * SECOND, grown),
        "{full} → {small} → {}",
        world.link(0).congestion_window()
    );
}

/// L-29: a delay above the target shrinks the window, and it grows back without delay.
#[test]
fn delay_shrinks_the_window() {
    let mut world = world_under_load(2);
    world.run(50 * MILLI);
    let full = world.link(0).congestion_window();
    world.pipes[0].faults.delay = 5 * MILLI;
    world.run(200 * MILLI);
    let small = world.link(0).congestion_window();
    assert!(small < full / 2, "{full} → {small}");
    world.pipes[0].faults.delay = 20 * MICRO;
    let grown = |w: &World| w.sides[0].peering.link().is_some_and(|l| l.congestion_window() == full);
    assert!(
        world.run_until_true(2 * SECOND, grown),
        "{full} → {small} → {}",
        world.link(0).congestion_window()
    );
}

/// L-1, W-8: sequence numbers wrap around while slots are lost, without effect.
#[test]
fn sequence_numbers_wrap_around() {
    let mut wrapped = 0;
    for seed in 0..20 {
        let mut world = World::open(seed, &Config::default());
        world.pipes[0].tap = Some(Vec::new());
        world.pipes[0].faults.loss = 100;
        world.sides[0].load.left = 1000;
        assert!(world.run_until_true(10 * SECOND, World::is_settled), "{}", world.report());
        let slot =
            |f: &Vec<u8>| Frame::parse(f).ok().filter(|f| f.header.has_slot()).map(|f| f.header.slot.0);
        let tap = world.pipes[0].tap.take().unwrap();
        let slots: Vec<u32> = tap.iter().filter_map(slot).collect();
        wrapped += u32::from(slots.iter().any(|s| *s > u32::MAX - 300) && slots.iter().any(|s| *s < 1000));
    }
    assert!(wrapped > 3, "only {wrapped} of 20 runs wrapped around");
}

/// L-2: no packet number is used twice, also for slots that are resent.
#[test]
fn packet_numbers_are_used_once() {
    let mut world = World::open(3, &Config::default());
    world.pipes[0].tap = Some(Vec::new());
    world.pipes[0].faults.loss = 200;
    world.sides[0].load.left = 2000;
    assert!(world.run_until_true(10 * SECOND, World::is_settled));
    let tap = world.pipes[0].tap.take().unwrap();
    let packets: Vec<u64> = tap.iter().map(|f| Frame::parse(f).unwrap().header.packet).collect();
    assert!(packets.windows(2).all(|w| w[0] < w[1]));
}
