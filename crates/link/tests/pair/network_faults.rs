//! Seeded runs over a network with every kind of fault at once.

use tautline_link::{Config, RecoveryPolicy};
use tautline_wire::handshake::Security;

use crate::world::{Faults, MICRO, MILLI, Nanos, Rng, SECOND, World};

pub const POLICIES: [RecoveryPolicy; 2] = [RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::GoBackN];
pub const MODES: [Security; 3] = [Security::Fabric, Security::Sealed, Security::Open];

/// Seeds per policy and mode.
const SEEDS: u64 = 200;

/// Long, because this network may deliver nothing from a peer for a long time. Death has tests of its own.
const SILENCE: Nanos = 20 * SECOND;

/// Many times the longest time between retransmissions, and less than [`SILENCE`].
const OUTAGE: Nanos = 8 * SECOND;

fn draw(rng: &mut Rng, security: Security) -> Faults {
    // Each fault is absent in half of the runs, so that faults are also tested one by one.
    let mut sometimes = |limit: u64| if rng.below(2) == 0 { 0 } else { rng.below(limit + 1) as u32 };
    let (loss, duplicate, reorder, corrupt) =
        (sometimes(300), sometimes(500), sometimes(200), sometimes(100));
    let (reorder_by, jitter) = (1 + sometimes(63), u64::from(sometimes(200)) * 5 * MICRO);
    let delay = (1 + u64::from(sometimes(100)) * u64::from(sometimes(20))) * MICRO;
    // Open mode does not detect corruption; it relies on the datagram's checksum.
    let corrupt = if security == Security::Open { 0 } else { corrupt };
    Faults { loss, duplicate, reorder, reorder_by, corrupt, delay, jitter, ..Faults::default() }
}

/// Causes outages of both directions, of one direction, and of large frames only.
fn cause_outages(world: &mut World, rng: &mut Rng) {
    for _ in 0..rng.below(4) {
        world.run(rng.below(30) * MILLI);
        match rng.below(4) {
            0 => world.pipes.iter_mut().for_each(|p| p.faults.cut = true),
            way @ (1 | 2) => world.pipes[way as usize - 1].faults.cut = true,
            _ => world.pipes[rng.below(2) as usize].faults.mtu = 1232 + rng.below(200) as usize,
        }
        world.run(rng.below(400) * MILLI);
        for pipe in &mut world.pipes {
            pipe.faults.cut = false;
        }
    }
}

/// L-10: while nothing arrives, a side with something to acknowledge goes on sending it, and does so at least
/// once in the longest time between retransmissions.
fn retry_during_outage(world: &mut World, side: usize, longest: Nanos, replay: &str) {
    if world.link(side).unacknowledged() == 0 {
        return;
    }
    let before = world.link(side).counters().timeouts;
    world.run(OUTAGE);
    let timeouts = world.link(side).counters().timeouts - before;
    // The first ones are more frequent, so that this is less than there are.
    assert!(timeouts >= OUTAGE / longest, "{replay}: {timeouts} retransmissions in an outage");
}

fn one_run(seed: u64, policy: RecoveryPolicy, security: Security) {
    run_faults(seed, policy, security, true);
}

/// Runs a world to its end and returns it.
fn run_faults(seed: u64, policy: RecoveryPolicy, security: Security, trains: bool) -> World {
    let mut rng = Rng(seed);
    let mut config = Config::with(|config| {
        config.security = security;
        config.recovery = policy;
        config.silence = SILENCE;
    });
    config.credit_slots = [16, 64, 256, 1000][rng.below(4) as usize];
    let mut world = World::new(rng.next(), &config);
    for i in 0..2 {
        world.pipes[i].faults = draw(&mut rng, security);
        world.sides[i].load.left = 300 + rng.below(700) as usize;
        world.sides[i].every = [0, 20 * MICRO, 300 * MICRO][rng.below(3) as usize];
        world.sides[i].trains = trains;
    }
    world.sides[rng.below(2) as usize].connect(world.now);
    if rng.below(4) == 0 {
        world.sides[0].connect(world.now);
        world.sides[1].connect(world.now);
    }
    cause_outages(&mut world, &mut rng);
    let replay = format!("seed {seed}, {}, {}", policy.name(), security.name());
    // Faults that stay delay everything, and stop nothing. Every other time they end halfway.
    let load: usize = world.delivered() + world.sides.iter().map(|side| side.load.left).sum::<usize>();
    let ends_halfway = seed % 2 == 1;
    let arrived =
        world.run_until_true(20 * SECOND, |w| w.is_settled() || ends_halfway && 2 * w.delivered() >= load);
    assert!(arrived, "{replay}: not everything arrived under the faults\n{}", world.report());

    // Without faults, the rest makes progress soon and completes, however long nothing arrived before: the
    // time between retransmissions is limited.
    if !world.is_settled() {
        world.set_faults(&Faults { cut: true, ..Faults::default() });
        for side in 0..2 {
            retry_during_outage(&mut world, side, config.rto_max, &replay);
        }
    }
    world.set_faults(&Faults::default());
    let before = world.delivered();
    if !world.is_settled() {
        let limit = 2 * config.rto_max;
        let progress = world.run_until_true(limit, |w| w.is_settled() || w.delivered() > before);
        assert!(progress, "{replay}: no progress after the faults ended\n{}", world.report());
    }
    let settled = world.run_until_true(5 * SECOND, World::is_settled);
    assert!(settled, "{replay}: not everything arrived\n{}", world.report());
    assert!(world.deaths().is_empty(), "{replay}: {:?}\n{}", world.deaths(), world.report());
    world
}

/// Runs all seeds, or only that of `TAUTLINE_SEED`.
fn all_seeds(policy: RecoveryPolicy, security: Security) {
    // More than any seed.
    let one = tautline_skips::number(tautline_skips::SEED, u64::MAX);
    if one != u64::MAX {
        return one_run(one, policy, security);
    }
    for seed in 0..SEEDS {
        one_run(seed, policy, security);
    }
}

/// L-1, L-4, L-6, L-9, L-10, L-19, L-22, L-25: slots arrive once, in order and unaltered, whatever the
/// network does.
#[test]
fn selective_repeat_fabric() {
    all_seeds(RecoveryPolicy::SelectiveRepeat, Security::Fabric);
}

/// L-4, L-23: the same with encryption.
#[test]
fn selective_repeat_sealed() {
    all_seeds(RecoveryPolicy::SelectiveRepeat, Security::Sealed);
}

/// L-4: the same without protection, over a network that corrupts nothing.
#[test]
fn selective_repeat_open() {
    all_seeds(RecoveryPolicy::SelectiveRepeat, Security::Open);
}

/// L-38: nothing is different, not even one frame of the whole run, if no frame is handled in the short way.
#[test]
fn trains_make_no_difference() {
    let mut in_trains = 0;
    for (seed, security) in (0..60).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let [with, without] =
            [true, false].map(|trains| run_faults(seed, RecoveryPolicy::SelectiveRepeat, security, trains));
        assert_eq!(with.report(), without.report(), "seed {seed}, {}", security.name());
        in_trains += with.sides.iter().map(|side| side.in_train).sum::<u64>();
    }
    assert!(in_trains > 10_000, "only {in_trains} frames were handled in the short way");
}

/// L-4, L-11: the same with go-back-n.
#[test]
fn go_back_n_fabric() {
    all_seeds(RecoveryPolicy::GoBackN, Security::Fabric);
}

/// L-4, L-11, L-23: the same with go-back-n.
#[test]
fn go_back_n_sealed() {
    all_seeds(RecoveryPolicy::GoBackN, Security::Sealed);
}

/// L-4, L-11: the same with go-back-n.
#[test]
fn go_back_n_open() {
    all_seeds(RecoveryPolicy::GoBackN, Security::Open);
}
