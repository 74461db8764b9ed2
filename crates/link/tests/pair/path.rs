//! The path's frame limit: changed by the device, by black holes, and by probes.

use tautline_link::{Config, Event, Policy};
use tautline_wire::ext::{Ext, Extensions};
use tautline_wire::frame::MIN_FRAME;
use tautline_wire::{Frame, handshake::Security};

use crate::faults::{MODES, POLICIES};
use crate::world::{Load, MICRO, MILLI, SECOND, World};

fn all() -> impl Iterator<Item = (Policy, Security)> {
    POLICIES.into_iter().flat_map(|p| MODES.into_iter().map(move |m| (p, m)))
}

fn open(limit: usize, recovery: Policy, security: Security) -> World {
    let mut world = World::new(limit as u64, &Config { security, recovery, ..Config::default() });
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

/// L-19, L-20: slots pushed before the device lowered its limit arrive in fragments; no frame exceeds the limit.
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

/// L-21: a black hole for large frames is found by the link itself; when it heals, probes find that, too.
#[test]
fn black_hole() {
    for (policy, security) in all() {
        for limit in [1472, 9000, 65_507] {
            let mut world = open(limit, policy, security);
            let name = format!("{limit} {policy:?} {security:?}");
            world.pipes[0].faults.mtu = 1300;
            world.sides[0].load = Load { left: 100, queue: 100, len: 65_000 };
            assert!(world.run_until_true(5 * SECOND, World::is_settled), "{name}\n{}", world.report());
            assert!(changed(&world, MIN_FRAME), "{name}");
            world.run(5 * SECOND);
            assert!(!changed(&world, limit), "{name}: the hole is still there");
            world.pipes[0].faults.mtu = usize::MAX;
            assert!(world.run_until_true(5 * SECOND, |w| changed(w, limit)), "{name}\n{}", world.report());
            assert!(world.deaths().is_empty());
        }
    }
}

/// L-21: probes also succeed on a link that never rests, with hosts that look at the network now and then.
#[test]
fn black_hole_under_load() {
    for (policy, security) in all() {
        let mut world = open(1472, policy, security);
        for side in &mut world.sides {
            side.load = Load { left: usize::MAX, queue: 40, len: 0 };
            side.every = 300 * MICRO;
        }
        world.pipes[0].faults.mtu = 1300;
        assert!(world.run_until_true(5 * SECOND, |w| changed(w, MIN_FRAME)), "{}", world.report());
        world.pipes[0].faults.mtu = usize::MAX;
        let healed = world.run_until_true(15 * SECOND, |w| changed(w, 1472));
        assert!(healed, "{policy:?} {security:?}\n{}", world.report());
    }
}

/// L-21: slots that only just make frames above the smallest limit do not get stuck in a black hole either.
#[test]
fn black_hole_at_the_edge() {
    for (policy, security) in all() {
        for len in (MIN_FRAME - 220..MIN_FRAME + 20).step_by(12) {
            let mut world = open(1472, policy, security);
            world.pipes[0].faults.mtu = MIN_FRAME;
            // Traffic the other way with losses, so that selective acknowledgements make frames longer.
            world.pipes[1].faults.loss = 100;
            world.sides[1].load = Load { left: 200, queue: 100, len: 100 };
            world.sides[0].load = Load { left: 50, queue: 100, len };
            let settled = world.run_until_true(5 * SECOND, World::is_settled);
            assert!(settled, "{len} {policy:?} {security:?}\n{}", world.report());
        }
    }
}

/// L-20: the limit may change at any time, in both directions, while traffic flows.
#[test]
fn limit_goes_up_and_down() {
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

/// L-21: a path that carries nothing, or nothing back, and a peer that says nothing are no black hole, however long the slots; when that is over,
/// frames are as large as before.
#[test]
fn silence_is_no_black_hole() {
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
