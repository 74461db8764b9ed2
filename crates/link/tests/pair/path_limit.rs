//! The path's frame limit: changed by the device, by black holes and by probes.

use tautline_link::{Config, Event, RecoveryPolicy};
use tautline_wire::ext::{Ext, Extensions};
use tautline_wire::frame::BASE_FRAME;
use tautline_wire::{Frame, handshake::Security};

use crate::network_faults::{MODES, POLICIES};
use crate::world::{Load, MICRO, MILLI, SECOND, World};

fn all() -> impl Iterator<Item = (RecoveryPolicy, Security)> {
    POLICIES.into_iter().flat_map(|p| MODES.into_iter().map(move |m| (p, m)))
}

fn open(limit: usize, recovery: RecoveryPolicy, security: Security) -> World {
    let config = Config::with(|config| (config.security, config.recovery) = (security, recovery));
    let mut world = World::new(limit as u64, &config);
    for side in &mut world.sides {
        side.peering.set_path_limit(0, limit);
    }
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
    world
}

fn fragments(tap: &[Vec<u8>]) -> usize {
    let is_fragment = |f: &&Vec<u8>| {
        let frame = Frame::parse(f).unwrap();
        Extensions::new(frame.extensions()).any(|e| matches!(e, Ok(Ext::Fragment { .. })))
    };
    tap.iter().filter(is_fragment).count()
}

/// L-19, L-20: slots pushed before the limit was lowered arrive in fragments, and no frame exceeds it.
#[test]
fn device_lowers_the_limit() {
    for (policy, security) in all() {
        for limit in [9000, 65_507] {
            let mut world = open(limit, policy, security);
            world.sides[0].load = Load { left: 60, queue: 100, len: 65_000 };
            world.run(30 * MICRO);
            let now = world.now;
            world.sides[0].peering.set_path_limit(now, 1472);
            world.pipes[0].faults.mtu = 1472;
            world.pipes[0].faults.loss = 20;
            world.pipes[0].tap = Some(Vec::new());
            let settled = world.run_until_true(10 * SECOND, World::is_settled);
            assert!(settled, "{limit} {policy:?} {security:?}\n{}", world.report());
            let tap = world.pipes[0].tap.take().unwrap();
            assert!(tap.iter().all(|f| f.len() <= 1472));
            assert!(fragments(&tap) > 6, "{limit} {policy:?} {security:?}");
            assert_eq!(world.link(0).counters().black_holes, 0);
        }
    }
}

fn changed(world: &World, to: usize) -> bool {
    world.sides[0].events.iter().any(|(_, e)| *e == Event::PathChanged(to))
}

/// L-21: the link detects a black hole for large frames, and probes detect its end.
#[test]
fn black_hole_is_detected_and_healed() {
    for (policy, security) in all() {
        for limit in [1472, 9000, 65_507] {
            let mut world = open(limit, policy, security);
            let name = format!("{limit} {policy:?} {security:?}");
            world.pipes[0].faults.mtu = 1300;
            world.sides[0].load = Load { left: 100, queue: 100, len: 65_000 };
            assert!(world.run_until_true(5 * SECOND, World::is_settled), "{name}\n{}", world.report());
            assert!(changed(&world, BASE_FRAME), "{name}");
            world.run(5 * SECOND);
            assert!(!changed(&world, limit), "{name}: the black hole still exists");
            world.pipes[0].faults.mtu = usize::MAX;
            assert!(world.run_until_true(5 * SECOND, |w| changed(w, limit)), "{name}\n{}", world.report());
            assert!(world.deaths().is_empty());
        }
    }
}

/// L-21: probes also succeed on a link that always has traffic, between hosts that poll every 300 µs.
#[test]
fn black_hole_under_load() {
    for (policy, security) in all() {
        let mut world = open(1472, policy, security);
        for side in &mut world.sides {
            side.load = Load { left: usize::MAX, queue: 40, len: 0 };
            side.every = 300 * MICRO;
        }
        world.pipes[0].faults.mtu = 1300;
        assert!(world.run_until_true(5 * SECOND, |w| changed(w, BASE_FRAME)), "{}", world.report());
        world.pipes[0].faults.mtu = usize::MAX;
        let healed = world.run_until_true(15 * SECOND, |w| changed(w, 1472));
        assert!(healed, "{policy:?} {security:?}\n{}", world.report());
    }
}

/// L-21: slots whose frames are barely longer than the black hole allows do not get stuck, either.
#[test]
fn black_hole_at_the_edge() {
    for (policy, security) in all() {
        for len in (BASE_FRAME - 220..BASE_FRAME + 20).step_by(12) {
            let mut world = open(1472, policy, security);
            world.pipes[0].faults.mtu = BASE_FRAME;
            // Traffic the other way with losses, so that selective acknowledgements make frames longer.
            world.pipes[1].faults.loss = 100;
            world.sides[1].load = Load { left: 200, queue: 100, len: 100 };
            world.sides[0].load = Load { left: 50, queue: 100, len };
            let settled = world.run_until_true(5 * SECOND, World::is_settled);
            assert!(settled, "{len} {policy:?} {security:?}\n{}", world.report());
        }
    }
}

/// L-20: the limit may rise and fall at any time while there is traffic.
#[test]
fn limit_rises_and_falls_under_load() {
    for (policy, security) in all() {
        let mut world = open(9000, policy, security);
        world.sides[0].load = Load { left: 3000, queue: 50, len: 0 };
        for limit in [1500, 9000, 1232, 4000, 9000, 1300, 9000] {
            let now = world.now;
            world.sides[0].peering.set_path_limit(now, limit);
            world.pipes[0].faults.mtu = limit;
            world.run(MILLI);
        }
        assert!(world.run_until_true(10 * SECOND, World::is_settled), "{}", world.report());
        assert!(world.deaths().is_empty());
    }
}

/// L-21, L-30: a path that carries nothing in one or both directions is no black hole, however long the slots
/// are. After the outage, frames are as large as before.
#[test]
fn outage_is_no_black_hole() {
    for (policy, security) in all() {
        for cut in [&[0, 1][..], &[0], &[1]] {
            for pause in [50, 150, 400, 900] {
                let mut world = open(9000, policy, security);
                world.sides[0].load = Load { left: 400, queue: 50, len: 8000 };
                world.run(3 * MILLI);
                cut.iter().for_each(|&pipe| world.pipes[pipe].faults.loss = 1000);
                world.run(pause * MILLI);
                cut.iter().for_each(|&pipe| world.pipes[pipe].faults.loss = 0);
                let name = format!("{cut:?} for {pause} ms, {policy:?} {security:?}");
                assert!(world.run_until_true(5 * SECOND, World::is_settled), "{name}\n{}", world.report());
                assert_eq!(world.link(0).counters().black_holes, 0, "{name}");
                assert!(world.deaths().is_empty(), "{name}");
            }
        }
    }
}
